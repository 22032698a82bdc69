package aggregate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/unix"
)

// Summary sums a table up. What has few values is counted in arrays, what has many in
// Aggregators.
type Summary struct {
	entries   int64
	protocols [256]int64
	// tcpStates is by stateOf, the last one for none.
	tcpStates  [256]int64
	statuses   [statuses]int64
	translated [translations]int64
	families   [versions]int64
	idle       remaining

	zones, sources, destinations, services *Aggregator
}

// NewSummary makes an empty Summary within a budget.
func NewSummary(m Memory) *Summary {
	of := func(keys string) *Aggregator {
		parsed, err := ParseKeys(keys)
		if err != nil {
			panic(err) // a mistake below
		}
		return New(parsed, m)
	}
	return &Summary{zones: of("zone"), sources: of("src"), destinations: of("dst"), services: of("proto,dst,dport")}
}

// Add counts one entry. It keeps nothing of it.
func (s *Summary) Add(e *conntrack.Entry) {
	s.entries++
	s.protocols[e.Orig.Proto]++
	s.families[versionOf(e.Orig.Src)]++
	if e.Orig.Proto == unix.IPPROTO_TCP {
		s.tcpStates[stateOf(e)]++
		s.idle.add(e)
	}
	s.statuses[statusOf(e)]++
	s.translated[natOf(e)]++
	s.zones.Add(e)
	s.sources.Add(e)
	s.destinations.Add(e)
	s.services.Add(e)
}

// Part is one of the things that a table's entries are divided into.
type Part struct {
	Name    string `json:"name"`
	Entries int64  `json:"entries"`
	// Share is of the entries that are divided: those of TCP for its states.
	Share float64 `json:"share"`
	// Excess is by how much Entries can be too high.
	Excess int64 `json:"too_high_at_most,omitempty"`
}

// Frequent are the largest parts of many.
type Frequent struct {
	// Different is the number of parts, at least this where Exact is false: then Bound
	// is by how much a count can be too high, and what a part can have that is not here.
	Different int    `json:"different"`
	Exact     bool   `json:"exact"`
	Bound     int64  `json:"too_high_at_most,omitempty"`
	Top       []Part `json:"top"`
}

// Overview is a Summary's result.
type Overview struct {
	Entries   int64  `json:"entries"`
	Families  []Part `json:"families"`
	Protocols []Part `json:"protocols"`
	TCPStates []Part `json:"tcp_states"`
	// Status has unreplied, answered (also the assured ones), assured, offloaded.
	Status []Part `json:"status"`
	// Translated has none, snat, dnat, both.
	Translated   []Part   `json:"translated"`
	Zones        Frequent `json:"zones"`
	Sources      Frequent `json:"sources"`
	Destinations Frequent `json:"destinations"`
	Services     Frequent `json:"services"`
	// Idle is nil if no entry's idle time is known.
	Idle *Idle `json:"established_idle,omitempty"`
}

// Overview returns the summary so far, with the top largest values of each list.
func (s *Summary) Overview(top int, t Timeouts) *Overview {
	o := &Overview{
		Entries:      s.entries,
		Families:     partsOf(s.families[:], s.entries, func(i int) string { return versionNames[i] }),
		Protocols:    partsOf(s.protocols[:], s.entries, func(i int) string { return nat.ProtocolName(uint8(i)) }),
		TCPStates:    partsOf(s.tcpStates[:], s.protocols[unix.IPPROTO_TCP], func(i int) string { return stateName(byte(i)) }),
		Status:       s.statusParts(),
		Zones:        frequent(s.zones, max(top, shownZones), s.entries),
		Sources:      frequent(s.sources, top, s.entries),
		Destinations: frequent(s.destinations, top, s.entries),
		Services:     frequent(s.services, top, s.entries),
		Idle:         s.idle.histogram(t),
	}
	for i, n := range s.translated {
		o.Translated = append(o.Translated, part(natNames[i], n, s.entries))
	}
	return o
}

// shownZones is the minimum number of zones listed.
const shownZones = 10

func (s *Summary) statusParts() []Part {
	answered := with(s.statuses[:], statusAnswered)
	return []Part{part("unreplied", s.entries-answered, s.entries), part("answered", answered, s.entries),
		part("assured", with(s.statuses[:], statusAssured), s.entries),
		part("offloaded", with(s.statuses[:], statusOffloaded|statusHardware), s.entries)}
}

// with adds up the counts of those that have one of these bits.
func with(counts []int64, bits int) (sum int64) {
	for b, n := range counts {
		if b&bits != 0 {
			sum += n
		}
	}
	return sum
}

func part(name string, n, of int64) Part {
	p := Part{Name: name, Entries: n}
	if of > 0 {
		p.Share = float64(n) / float64(of)
	}
	return p
}

// partsOf are those that there are, the largest first.
func partsOf(counts []int64, of int64, name func(int) string) []Part {
	parts := []Part{}
	for i, n := range counts {
		if n > 0 {
			parts = append(parts, part(name(i), n, of))
		}
	}
	sortParts(parts)
	return parts
}

func frequent(a *Aggregator, top int, of int64) Frequent {
	f := Frequent{Different: a.Len(), Exact: a.Exact(), Bound: a.Bound(), Top: []Part{}}
	for g := range a.Groups(top, 1) {
		p := part(groupName(a, g), g.Entries, of)
		p.Excess = g.Excess
		f.Top = append(f.Top, p)
	}
	return f
}

// keysMax bounds a group's length.
const keysMax = 8

// Names are the keys that ParseKeys reads.
func Names() (names []string) {
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

// ParseKeys reads keys separated by commas: state,src/24.
func ParseKeys(text string) ([]Key, error) {
	var keys []Key
	for part := range strings.SplitSeq(text, ",") {
		k, err := parseKey(strings.ToLower(strings.TrimSpace(part)))
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(keys, func(other Key) bool { return other.kind == k.kind && other.bits == k.bits }) {
			return nil, fmt.Errorf("key %q is there twice", k.name)
		}
		keys = append(keys, k)
	}
	if len(keys) > keysMax {
		return nil, fmt.Errorf("%d keys: at most %d can be taken at a time", len(keys), keysMax)
	}
	return keys, nil
}

func parseKey(name string) (Key, error) {
	word, prefix, hasPrefix := strings.Cut(name, "/")
	i := slices.Index(Names(), word)
	if i < 0 {
		return Key{}, unknownKey(word)
	}
	k := Key{kind: &kinds[i], bits: [versions]int{32, 128}, name: name}
	if !hasPrefix {
		return k, nil
	}
	if k.kind.address == nil {
		return Key{}, fmt.Errorf("key %q: only addresses have prefixes: src, dst, reply-src, reply-dst, snat-address", name)
	}
	if err := k.parsePrefix(prefix); err != nil {
		return Key{}, fmt.Errorf("key %q: %w", name, err)
	}
	return k, nil
}

// parsePrefix reads a length that is IPv4's where it can be, and IPv6's else; or both,
// separated by a slash.
func (k *Key) parsePrefix(text string) error {
	first, second, both := strings.Cut(text, "/")
	bits, err := prefixLength(first, 128)
	switch {
	case err != nil:
		return err
	case both && bits > 32:
		return fmt.Errorf("the first of two lengths is IPv4's: it must be from 0 to 32")
	case bits > 32:
		k.bits[v6] = bits
	default:
		k.bits[v4] = bits
	}
	if both {
		k.bits[v6], err = prefixLength(second, 128)
	}
	return err
}

func prefixLength(text string, most int) (int, error) {
	n, err := strconv.ParseUint(text, 10, 8)
	if err != nil || int(n) > most {
		return 0, fmt.Errorf("the length of a prefix must be from 0 to 32 (IPv4) or to 128 (IPv6), as in src/24, src/64 or src/24/64")
	}
	return int(n), nil
}

func unknownKey(word string) error {
	known := Names()
	if word == "" {
		return fmt.Errorf("a key is missing; there are: %s", strings.Join(known, ", "))
	}
	if name := otherNames[word]; name != "" {
		return fmt.Errorf("unknown key %q: did you mean %q?; there are: %s", word, name, strings.Join(known, ", "))
	}
	return fmt.Errorf("unknown key %q%s; there are: %s", word, document.Hint(word, known), strings.Join(known, ", "))
}

// other names that people know from other tools.
var otherNames = map[string]string{
	"protocol": "proto", "source": "src", "destination": "dst", "dest": "dst", "port": "dport",
	"saddr": "src", "daddr": "dst", "ip": "src", "address": "src", "version": "family", "fwmark": "mark",
	"snat": "snat-address", "nat-address": "snat-address", "assured": "status", "tcp-state": "state",
}
