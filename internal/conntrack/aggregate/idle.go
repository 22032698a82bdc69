package aggregate

import (
	"slices"

	"github.com/natkit/natkit/internal/conntrack"
)

// Timeouts are what the kernel gives to a TCP entry in ESTABLISHED, in seconds; zeros
// where that is not known.
type Timeouts struct {
	// Established is nf_conntrack_tcp_timeout_established. Short is the longer one of
	// _unacknowledged and _max_retrans: what an entry has while data is not acknowledged
	// (tcp_packet, net/netfilter/nf_conntrack_proto_tcp.c).
	Established, Short uint32
}

// The kernel's defaults.
const (
	defaultEstablished = 5 * 24 * 3600
	defaultShort       = 5 * 60
)

// Where Idle.Timeout comes from.
const (
	TimeoutRead    = "read"
	TimeoutDefault = "default"
	TimeoutLargest = "largest"
)

// Idle says since when the entries in ESTABLISHED have seen no packet: each packet gives
// them their whole timeout back.
type Idle struct {
	// Timeout is what they have right after a packet, TimeoutFrom how that is known: it
	// was read, it is the kernel's default (which the largest rest supports), or it is
	// the largest rest that there is.
	Timeout     uint32 `json:"timeout_seconds"`
	TimeoutFrom string `json:"timeout_from"`
	// Entries are all that have a rest.
	Entries int64      `json:"entries"`
	Steps   []IdleStep `json:"steps"`
	// Waiting have at most the short timeout left: they wait for an acknowledgement, or
	// have been idle for so long that they are about to expire.
	Waiting      int64  `json:"waiting_or_expiring"`
	ShortTimeout uint32 `json:"short_timeout_seconds"`
	// Unknown have more left than the timeout: another one held when they were made.
	Unknown int64 `json:"unknown"`
}

// IdleStep counts the entries that have been idle for longer than the step before, and
// for at most so long; the last step has no end, 0.
type IdleStep struct {
	AtMost  uint32  `json:"at_most_seconds,omitempty"`
	Entries int64   `json:"entries"`
	Share   float64 `json:"share"`
}

// idleSteps are the ends of steps in seconds; all are whole numbers of restStep.
var idleSteps = [...]uint32{60, 10 * 60, 3600, 6 * 3600, 24 * 3600, 0}

const (
	restStep = 10
	// restMax is the longest rest that is told from longer ones: a third of a year.
	restMax = restStep << 20
)

// remaining counts the entries in ESTABLISHED by the seconds that they have left, in
// steps: their timeout may be known only after the last of them.
type remaining struct {
	steps   []uint32
	entries int64
	largest uint32
}

func (r *remaining) add(e *conntrack.Entry) {
	// Offloaded entries do not age by packets that the tracker sees.
	if e.TCPState != conntrack.TCPEstablished || e.Fields.Has(conntrack.NoTimeout) ||
		e.Status&(conntrack.Offload|conntrack.HWOffload|conntrack.FixedTimeout) != 0 {
		return
	}
	rest := min(e.Timeout, restMax)
	step := int(rest / restStep)
	if step >= len(r.steps) {
		// The kernel lists in no order: the first entries tell about how many there will be.
		r.steps = append(r.steps, make([]uint32, step+1-len(r.steps))...)
	}
	r.steps[step]++
	r.entries++
	r.largest = max(r.largest, rest)
}

// histogram tells how long the entries have been idle; nil where there is none.
func (r *remaining) histogram(t Timeouts) *Idle {
	if r.entries == 0 {
		return nil
	}
	idle := &Idle{Entries: r.entries, Steps: make([]IdleStep, len(idleSteps)), ShortTimeout: t.Short}
	idle.Timeout, idle.TimeoutFrom = r.timeout(t)
	if t.Short == 0 {
		idle.ShortTimeout = defaultShort
	}
	for i, end := range idleSteps {
		idle.Steps[i].AtMost = end
	}
	for step, n := range r.steps {
		idle.count(uint32(step)*restStep, int64(n))
	}
	for i := range idle.Steps {
		idle.Steps[i].Share = float64(idle.Steps[i].Entries) / float64(r.entries)
	}
	return idle
}

// count adds n entries that have so many seconds left.
func (i *Idle) count(rest uint32, n int64) {
	switch {
	case rest > i.Timeout:
		i.Unknown += n
		return
	case rest < i.ShortTimeout && i.ShortTimeout < i.Timeout:
		i.Waiting += n
		return
	}
	at := slices.IndexFunc(i.Steps, func(s IdleStep) bool { return s.AtMost == 0 || i.Timeout-rest <= s.AtMost })
	i.Steps[at].Entries += n
}

// timeout is the one that was read or, where none was, the default if the largest rest
// is little below it, as some entry of a table in use has seen a packet just now.
func (r *remaining) timeout(t Timeouts) (seconds uint32, from string) {
	switch {
	case t.Established > 0:
		return t.Established, TimeoutRead
	case r.largest <= defaultEstablished && r.largest >= defaultEstablished/100*99:
		return defaultEstablished, TimeoutDefault
	}
	return r.largest, TimeoutLargest
}
