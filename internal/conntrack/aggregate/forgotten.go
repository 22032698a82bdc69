package aggregate

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

const (
	// soonExpired bounds, in seconds, what is left of the entries that may expire before the second dump.
	soonExpired = 60
	// keptForgotten and shownForgotten limit how many of them are remembered, and their services.
	keptForgotten  = 16384
	shownForgotten = 16
)

// forgotten finds entries that were open in the first dump and are gone in the second one, though nobody closed
// them: an entry that was closed stays longer than the time between (TIME_WAIT, CLOSE).
type forgotten struct {
	// waiting are those that had no packet for long, by identity.
	waiting map[uint64]forgottenEntry
	found   map[forgottenKey]*snapshot.Expired
	// longest is what the entries to their services have left at most, in seconds.
	longest map[forgottenKey]uint32
}

type forgottenKey struct {
	class   class
	service netip.AddrPort
}

type forgottenEntry struct {
	left uint32
	forgottenKey
}

func newForgotten() forgotten {
	return forgotten{waiting: map[uint64]forgottenEntry{}, found: map[forgottenKey]*snapshot.Expired{}, longest: map[forgottenKey]uint32{}}
}

// first takes an entry of the first dump.
func (f *forgotten) first(id uint64, e *conntrack.Entry) {
	c := classOf(e)
	open := c == class(conntrack.TCPEstablished) || c == classUDPStream || c == classUDPUnreplied
	if open && e.Timeout < soonExpired && len(f.waiting) < keptForgotten && (e.IsDNAT() || e.IsSNAT()) && e.Status&(conntrack.Offload|conntrack.HWOffload) == 0 {
		k := forgottenKey{c, netip.AddrPortFrom(e.Orig.Dst, e.Orig.DstPort)}
		f.waiting[id] = forgottenEntry{e.Timeout, k}
		f.longest[k] = max(f.longest[k], e.Timeout)
	}
}

// second takes an entry of the second dump. again is whether it is another one than that of the first dump: the
// tuple expired, and a packet of the same connection, or of the next one, made it anew.
func (f *forgotten) second(id uint64, e *conntrack.Entry, again bool, gap Gap) {
	if len(f.longest) == 0 {
		return
	}
	k := forgottenKey{classOf(e), netip.AddrPortFrom(e.Orig.Dst, e.Orig.DstPort)}
	if most, known := f.longest[k]; known {
		f.longest[k] = max(most, e.Timeout)
	}
	w, waited := f.waiting[id]
	if !waited {
		return
	}
	delete(f.waiting, id)
	if again && classOf(e) == w.class && float64(w.left) < gap.seconds() {
		f.of(w.forgottenKey).Revived++
	}
}

func (f *forgotten) of(k forgottenKey) *snapshot.Expired {
	x := f.found[k]
	if x == nil {
		protocol := "udp"
		if k.class <= class(conntrack.TCPStates) {
			protocol = nat.ProtocolName(unix.IPPROTO_TCP)
		}
		x = &snapshot.Expired{Class: k.class.String(), Protocol: protocol, Service: k.service}
		f.found[k] = x
	}
	return x
}

// list ends the second dump, which has to be complete.
func (f *forgotten) list(gap Gap) (all []snapshot.Expired) {
	for _, w := range f.waiting {
		if float64(w.left) < gap.seconds() {
			f.of(w.forgottenKey).Entries++
		}
	}
	for k, x := range f.found {
		x.LongestLeft = f.longest[k]
		all = append(all, *x)
	}
	slices.SortFunc(all, func(a, b snapshot.Expired) int {
		return cmp.Or(cmp.Compare(b.Entries, a.Entries), cmp.Compare(a.Class, b.Class), a.Service.Compare(b.Service))
	})
	return all[:min(len(all), shownForgotten)]
}
