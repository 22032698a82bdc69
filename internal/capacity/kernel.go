package capacity

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/snapshot"
)

// Release is a kernel's release as far as its facts depend on it.
type Release struct {
	Major, Minor, Patch int
	// Build is the vendor's number, 1127 of 3.10.0-1127.el7; 0 where there is none.
	Build int
	// Vendor is true where the release has more than three numbers: its maker may have taken changes
	// of later kernels, and the third number may not be that of the stable update (Debian's 6.1.0-13).
	Vendor bool
}

// ParseRelease reads a release such as 6.12, 5.15.103 or 3.10.0-1127.el7.x86_64.
func ParseRelease(text string) (r Release, err error) {
	n, _ := fmt.Sscanf(text, "%d.%d.%d-%d", &r.Major, &r.Minor, &r.Patch, &r.Build)
	if r.Major < 2 || r.Major > 99 || r.Minor < 0 || r.Minor > 9999 || r.Patch < 0 || r.Build < 0 || n == 1 && text != strconv.Itoa(r.Major) {
		return Release{}, errors.New("must be a version such as 2.6, 3.10, 3.10.0-1127, 4.1")
	}
	r.Vendor = strings.Contains(text, "-") && !strings.Contains(text, "-rc")
	return r, nil
}

// Before reports whether it is older than a version.
func (r Release) Before(major, minor int) bool {
	return r.Major < major || r.Major == major && r.Minor < minor
}

// How a kernel ends TIME_WAIT.
const (
	// TimeWaitWheel: Linux up to 4.0 (2.6, 3.10, 3.18): a wheel of 8 slots of 7.5 s.
	TimeWaitWheel = "wheel"
	// TimeWaitWheelRearm: the vendor kernel 3.10.0-1127: the wheel, which checks again
	// after 1 s where the work item needed more than one round.
	TimeWaitWheelRearm = "wheel-rearm"
	// TimeWaitTimer: Linux 4.1 and later: one timer of 60 s for each socket (789f558cfb36,
	// "tcp/dccp: get rid of central timewait timer").
	TimeWaitTimer = "timer"
)

// firstRearm is the build of the vendor's 3.10.0 that is known to run again after 1 s;
// later ones are taken for the same.
const firstRearm = 1127

// TimeWait is how this kernel ends TIME_WAIT.
func (r Release) TimeWait() string {
	switch {
	case !r.Before(4, 1):
		return TimeWaitTimer
	case r.Major == 3 && r.Minor == 10 && r.Patch == 0 && r.Build >= firstRearm:
		return TimeWaitWheelRearm
	}
	return TimeWaitWheel
}

// The timer of TIME_WAIT in Linux up to 4.0: net/ipv4/inet_timewait_sock.c.
const (
	// TimeWaitLength is TCP_TIMEWAIT_LEN (include/net/tcp.h).
	TimeWaitLength = 60 * time.Second
	// WheelSlots is INET_TWDR_TWKILL_SLOTS.
	WheelSlots = 8
	// WheelPeriod is twdr->period.
	WheelPeriod = TimeWaitLength / WheelSlots
	// WheelQuota is INET_TWDR_TWKILL_QUOTA: a run ends when it has killed more.
	WheelQuota = 100
	// RearmTime is what the vendor kernel 3.10.0-1127 waits after a work item that
	// needed more than one run (inet_twdr_twkill_work).
	RearmTime = time.Second
)

// LongestTimeWait returns how long a TIME_WAIT can stand on a host with that kernel which closes
// that many connections per second, all the time, if nothing ends it before.
func LongestTimeWait(kernel string, perSecond float64) time.Duration {
	closings := func(d time.Duration) float64 { return perSecond * d.Seconds() }
	slot := WheelPeriod
	switch {
	case kernel == TimeWaitTimer || closings(WheelPeriod) <= WheelQuota:
		return TimeWaitLength
	case kernel == TimeWaitWheelRearm && closings(WheelPeriod+RearmTime) >= 2*(WheelQuota+1): // a run of the timer, and a full one of the work item
		slot += RearmTime
	default:
		slot += WheelPeriod
	}
	return (WheelSlots-1)*slot + WheelPeriod
}

// Cap is the length of a hash chain at which a kernel refuses a new entry (chaintoolong): it draws a
// number from Least to Most for each insertion, and refuses where one of the two chains has more than one entry
// more (__nf_conntrack_confirm, nf_conntrack_core.c: MIN_CHAINLEN, MAX_CHAINLEN). The zero Cap refuses none.
type Cap struct {
	Least int `json:"least"`
	Most  int `json:"most"`
}

var (
	shortCap = Cap{8, 31}
	longCap  = Cap{50, 79}
)

// firstLongCap has the stable updates that took c77737b736ce, "netfilter: conntrack: adopt safer max chain
// length": of 17 March 2023.
var firstLongCap = map[[2]int]int{{5, 15}: 103, {6, 1}: 20, {6, 2}: 7}

// Caps returns the caps that a kernel may have, and why there are several: backports of vendors are not seen in the
// release. Linux 5.15 has the first (c9c3b6811f74), 6.3 the longer one.
func (r Release) Caps() (caps []Cap, why string) {
	switch {
	case r == Release{}:
		return []Cap{{}, shortCap, longCap}, "the kernel is not known"
	case !r.Before(6, 3):
		return []Cap{longCap}, ""
	case r.Vendor && r.Before(5, 15):
		return []Cap{{}, shortCap, longCap}, "Linux before 5.15 refuses none, but a vendor may have taken the cap of 5.15 or 6.3"
	case r.Before(5, 15):
		return []Cap{{}}, ""
	case r.Vendor:
		return []Cap{shortCap, longCap}, "the cap was raised from 8 to 50 in 6.3, and in updates of 17 March 2023 (5.15.103, 6.1.20, 6.2.7); the release does not show whether this vendor took it"
	}
	first, kept := firstLongCap[[2]int{r.Major, r.Minor}]
	if kept && r.Patch >= first {
		return []Cap{longCap}, ""
	}
	if kept && r.Patch == 0 { // "6.1" names all of its updates
		return []Cap{shortCap, longCap}, fmt.Sprintf("%d.%d.%d raised the cap from 8 to 50", r.Major, r.Minor, first)
	}
	return []Cap{shortCap}, ""
}

// tooMany is a mean chain length with which nothing gets in any more, whatever the cap.
const tooMany = 200

// leastLoss is what cannot be told from the rounding of the sum.
const leastLoss = 1e-12

// Loss is the share of new entries that are refused while chains have this many entries on average: their
// lengths are spread as Poisson's, as the hash is keyed, and an entry goes into two chains. An upper bound: the
// longest chains lack what was refused before.
func (c Cap) Loss(mean float64) float64 {
	switch {
	case c == Cap{} || !(mean > 0):
		return 0
	case mean > tooMany:
		return 1
	}
	term, below, fits := math.Exp(-mean), 0.0, 0.0
	for k := 0; k <= c.Most+1; k++ {
		below += term
		term *= mean / float64(k+1)
		if k > c.Least { // chains of up to drawn+1 entries take one more
			fits += below * below
		}
	}
	if loss := 1 - fits/float64(c.Most-c.Least+1); loss > leastLoss {
		return min(loss, 1)
	}
	return 0
}

// MostDefaultEntries is the greatest nf_conntrack_max, and nf_conntrack_buckets, that any kernel gives itself.
const MostDefaultEntries = 262144

// DefaultTable is how many buckets and entries the kernel gives itself at boot
// (nf_conntrack_init_start), of Linux from 5.4 to 5.10 and from 6.1 on.
func DefaultTable(k snapshot.Kernel, memory *snapshot.Memory) (buckets, limit int64, known bool) {
	small := k.Before(5, 11)
	if memory == nil || k.Release == "" || k.Before(5, 4) || !small && k.Before(6, 1) {
		return 0, 0, false
	}
	const gib = 1 << 30
	least, some, many, factor := int64(1024), int64(65536), int64(MostDefaultEntries), int64(1)
	if small {
		least, some, many, factor = 32, 16384, 65536, 4
	}
	switch total := int64(min(memory.TotalBytes, math.MaxInt64)); {
	case total > 4*gib:
		buckets = many
	case total > gib:
		buckets = some
	default:
		buckets = max(total/16384/8, least)
	}
	return buckets, buckets * factor, true
}
