package aggregate

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/conntrack"
)

// Aggregator counts entries by keys, in bounded memory: exactly while all groups fit,
// else with an error that it knows (package tally). Adding an entry allocates nothing,
// except for what its table grows by.
type Aggregator struct {
	keys []Key
	// tables has one for each version of IP where there are addresses among the keys:
	// an IPv4 group then takes no more memory than it has to.
	tables  [versions]*tally
	offsets [versions][]int
	// apart: there are two tables. snatOnly: the only addresses are
	// those that the source became: entries that have none are of no version then.
	apart    bool
	snatOnly bool
	scratch  [keysMax * 16]byte
}

// Memory bounds what an Aggregator takes.
type Memory struct {
	Budget *Budget
	// Seed keys the hashes. It should be random; it changes no result.
	Seed uint64
}

// New makes an Aggregator for keys of ParseKeys.
func New(keys []Key, m Memory) *Aggregator {
	a := &Aggregator{keys: keys, snatOnly: true}
	for i := range keys {
		a.apart = a.apart || keys[i].kind.address != nil
		a.snatOnly = a.snatOnly && (keys[i].kind.name == snatAddress || keys[i].kind.address == nil)
	}
	for v := range versions {
		if v > 0 && !a.apart {
			a.tables[v], a.offsets[v] = a.tables[0], a.offsets[0]
			break
		}
		width := 0
		for i := range keys {
			a.offsets[v] = append(a.offsets[v], width)
			width += keys[i].width(v)
		}
		a.tables[v] = newTally(width, m.Seed, m.Budget)
	}
	return a
}

// Keys are those that entries are grouped by.
func (a *Aggregator) Keys() []Key { return a.keys }

// Add counts one entry. It keeps nothing of it.
func (a *Aggregator) Add(e *conntrack.Entry) {
	v := versionOf(e.Orig.Src)
	if a.snatOnly && !e.IsSNAT() {
		v = v4
	}
	group := a.scratch[:0]
	for i := range a.keys {
		group = a.keys[i].append(group, v, e)
	}
	a.tables[v].Add(group)
}

// each yields the tables that there are.
func (a *Aggregator) each(fn func(v version, t *tally)) {
	fn(v4, a.tables[v4])
	if a.apart {
		fn(v6, a.tables[v6])
	}
}

// Entries returns the number of entries added.
func (a *Aggregator) Entries() (n int64) {
	a.each(func(_ version, t *tally) { n += int64(t.Total()) })
	return n
}

// Len returns the number of groups that are kept separately.
func (a *Aggregator) Len() (n int) {
	a.each(func(_ version, t *tally) { n += t.Len() })
	return n
}

// Exact reports whether all groups found room.
func (a *Aggregator) Exact() bool {
	exact := true
	a.each(func(_ version, t *tally) { exact = exact && t.Exact() })
	return exact
}

// Bound returns by how much a count can be too high, and how many entries a group can have
// that is not there; 0 while counts are exact.
func (a *Aggregator) Bound() (n int64) {
	a.each(func(_ version, t *tally) { n = max(n, int64(t.Bound())) })
	return n
}

// Group is what entries have in common, and how many there are.
type Group struct {
	of      *Aggregator
	version version
	key     []byte
	// Entries is their number; Excess is by how much it can be too high.
	Entries, Excess int64
}

func (g Group) value(i int) (*Key, []byte) {
	k := &g.of.keys[i]
	from := g.of.offsets[g.version][i]
	return k, g.key[from : from+k.width(g.version)]
}

// Groups yields the top groups (0: all) with at least atLeast entries, largest first; groups
// of equal size are in the order of their values.
func (a *Aggregator) Groups(top int, atLeast int64) iter.Seq[Group] {
	var lists [versions][]uint32
	a.each(func(v version, t *tally) { lists[v] = t.Top(top, uint64(max(atLeast, 0))) })
	return func(yield func(Group) bool) {
		for n := 0; top <= 0 || n < top; n++ {
			v := a.next(&lists)
			if len(lists[v]) == 0 || !yield(a.group(v, lists[v][0])) {
				return
			}
			lists[v] = lists[v][1:]
		}
	}
}

// next is the version whose first group comes first.
func (a *Aggregator) next(lists *[versions][]uint32) version {
	switch {
	case len(lists[v6]) == 0:
		return v4
	case len(lists[v4]) == 0:
		return v6
	}
	first, second := a.tables[v4].Row(lists[v4][0]), a.tables[v6].Row(lists[v6][0])
	if second.Count > first.Count {
		return v6
	}
	return v4
}

func (a *Aggregator) group(v version, number uint32) Group {
	r := a.tables[v].Row(number)
	return Group{of: a, version: v, key: r.Key, Entries: int64(r.Count), Excess: int64(r.Excess)}
}

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

// Idle counts how long the entries in ESTABLISHED have seen no packet: each packet gives
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
	// restMax caps the remaining time that is counted, in seconds: a third of a year.
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
		// The kernel lists in no order: the first entries give a good estimate of the size.
		r.steps = append(r.steps, make([]uint32, step+1-len(r.steps))...)
	}
	r.steps[step]++
	r.entries++
	r.largest = max(r.largest, rest)
}

// histogram returns how long the entries have been idle; nil if none was counted.
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

// count adds n entries with the given remaining timeout, in seconds.
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

func sortParts(parts []Part) {
	slices.SortStableFunc(parts, func(a, b Part) int { return cmp.Compare(b.Entries, a.Entries) })
}

// groupName names a group of one key by its value, and a service as people write it.
func groupName(a *Aggregator, g Group) string {
	if len(a.keys) == 1 {
		return g.Text(0)
	}
	proto, addr, port := g.Text(0), g.Text(1), g.Text(2)
	switch {
	case port == none:
		return proto + " " + addr
	case strings.Contains(addr, ":"):
		return proto + " [" + addr + "]:" + port
	}
	return proto + " " + addr + ":" + port
}
