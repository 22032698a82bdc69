package lab

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/unix"
)

// FillSources are the clients that the mixes of natkit are made of. No node of a
// lab has an address there and no route leads there, so an entry meets no packet,
// neither of the load nor of its own.
var FillSources = netip.MustParsePrefix("198.18.128.0/17")

const (
	// MaxFill is the greatest number of entries that a fill makes: about 1.5 GiB
	// of kernel memory and tens of seconds.
	MaxFill = 4 << 20

	// entryBytes is an entry with its extension, roughly (struct nf_conn 256 and
	// 128 bytes on x86-64).
	entryBytes = 384
)

// FillMark is the mark on the entries of a scenario's fill ("fill" in ASCII), which those
// of the load lack. Other fills have one of the numbers that follow.
const FillMark = 0x66696c6c

// Amount is how full a table is to be. Exactly one of its fields is set.
type Amount struct {
	// Entries in all.
	Entries int64 `yaml:"entries" json:"entries,omitempty" check:"1..4194304"`
	// Share of nf_conntrack_max, from 0 to 1.
	Share float64 `yaml:"share" json:"share,omitempty" check:"0..1"`
	// Free places below nf_conntrack_max.
	Free int64 `yaml:"free" json:"free,omitempty" check:"1.."`
}

// Target returns the resulting number of entries in a table, where limit is nf_conntrack_max
// (0: none).
func (a Amount) Target(limit int64) (int64, error) {
	target := a.Entries
	switch {
	case a.Entries == 0 && limit == 0:
		return 0, fmt.Errorf("fill the connection table: nf_conntrack_max is 0, without a limit; expected a number of entries")
	case a.Share > 0:
		target = int64(math.Round(a.Share * float64(limit)))
	case a.Free > 0:
		target = limit - a.Free
	}
	switch {
	case target <= 0 && a.Free > 0:
		return 0, fmt.Errorf("fill the connection table: nf_conntrack_max is %d, which leaves fewer than the %d free places wanted", limit, a.Free)
	case target <= 0:
		return 0, fmt.Errorf("fill the connection table: nf_conntrack_max is %d, of which so small a share is no entry", limit)
	case limit > 0 && target > max(limit, MaxFill): // no advice to raise the limit so far
		return 0, fmt.Errorf("fill the connection table: %d entries do not fit, nf_conntrack_max is %d", target, limit)
	case limit > 0 && target > limit:
		return 0, fmt.Errorf("fill the connection table: %d entries do not fit, nf_conntrack_max is %d; fewer, or raise it: natkit tune apply net.netfilter.nf_conntrack_max=%d", target, limit, target)
	}
	return target, nil
}

// CheckFill refuses more entries than MaxFill, or than take a quarter of
// availableBytes.
func CheckFill(entries, availableBytes int64) error {
	switch {
	case entries > MaxFill:
		return fmt.Errorf("fill the connection table: %d entries, more than %d are not made", entries, MaxFill)
	case entries*entryBytes > availableBytes/4:
		return fmt.Errorf("fill the connection table: %d entries take about %d MiB, more than a quarter of the %d MiB available",
			entries, entries*entryBytes>>20, availableBytes>>20)
	}
	return nil
}

// Filler makes the entries of a mix, one after the other. Every entry is a pure
// function of mix, seed and number; making one allocates nothing.
type Filler struct {
	// Mark is on each entry, and on no other.
	Mark uint32

	mix    *Mix
	seed   uint64
	makers []maker
	// counted are the entries of the parts that have a count, which come first.
	counted int64
	// cycle is the parts that have a share, each as often as that says, as evenly
	// spread as possible.
	cycle []slot
}

// maker makes the entries of one part. first connections of its space belong to parts
// before it, or to those that have a count.
type maker struct {
	*space
	*Part
	entry   conntrack.Entry
	timeout Span
	first   int64
}

// slot is a place in the cycle: the part, and how many of the part and of its
// space come before it in the cycle.
type slot struct {
	part            int
	before, inSpace int64
}

// Filler makes the entries of a seed.
func (m *Mix) Filler(seed uint64, mark uint32) *Filler {
	f, p := m.compile(seed)
	if p != nil {
		panic("a mix that was not checked: " + p.Message)
	}
	f.Mark = mark
	return f
}

// compile fails for a mix whose parts are right one by one but not together.
func (m *Mix) compile(seed uint64) (*Filler, *document.Problem) {
	f := &Filler{mix: m, seed: seed, makers: make([]maker, len(m.Parts))}
	var spaces []*space
	for i := range m.Parts {
		s, err := newSpace(m, i)
		if err != nil {
			return nil, document.NewProblem(at("parts", i, "nat", "snat"), "%s", err)
		}
		if same := slices.IndexFunc(spaces, func(o *space) bool { return o.text == s.text }); same >= 0 {
			s = spaces[same]
		} else if met := slices.IndexFunc(spaces, s.meets); met >= 0 {
			return nil, document.NewProblem(at("parts", i), "some connections of this part could be those of part %q: expected other sources, source_ports or destinations, and with NAT other addresses or ports of it; or all of these the same",
				m.Parts[spaces[met].part].Name)
		} else {
			s.key = hash(seed, uint64(len(spaces)))
			spaces = append(spaces, s)
		}
		f.makers[i] = newMaker(s, &m.Parts[i])
	}
	p := f.number()
	f.layCycle()
	return f, p
}

func newMaker(s *space, p *Part) maker {
	m := maker{space: s, Part: p, timeout: p.Timeout, entry: conntrack.Entry{
		Family: unix.AF_INET, Status: statusBits[p.seen()], TCPState: p.tcpState(),
	}}
	if s.sources.First.Is6() {
		m.entry.Family = unix.AF_INET6
	}
	if m.timeout == (Span{}) {
		m.timeout = p.usualTimeout()
	}
	return m
}

// number gives each part its own connections of a space, those that have a count first.
func (f *Filler) number() *document.Problem {
	for i := range f.makers {
		m := &f.makers[i]
		if room := int64(m.n) - m.counted; m.Count > room {
			return document.NewProblem(at("parts", i, "count"), "count %d: only %d connections of this part can be distinct; expected more sources, source_ports or destinations", m.Count, room)
		}
		m.first = m.counted
		m.counted += m.Count
		f.counted += m.Count
		m.shares += int64(m.Share)
	}
	for i := range f.makers {
		if m := &f.makers[i]; m.Share > 0 {
			m.first = m.counted
		}
	}
	return nil
}

// layCycle spreads the parts as a smooth weighted round robin does: each place
// goes to the part that is the most behind.
func (f *Filler) layCycle() {
	total := 0
	for _, m := range f.makers {
		total += m.Share
	}
	behind, inParts, inSpaces := make([]int, len(f.makers)), make([]int64, len(f.makers)), map[*space]int64{}
	for range total {
		next := 0
		for i := range f.makers {
			behind[i] += f.makers[i].Share
			if behind[i] > behind[next] {
				next = i
			}
		}
		behind[next] -= total
		s := f.makers[next].space
		f.cycle = append(f.cycle, slot{next, inParts[next], inSpaces[s]})
		inParts[next]++
		inSpaces[s]++
	}
}

// Room returns the number of entries that can be distinct, at most MaxFill.
func (f *Filler) Room() int64 {
	if len(f.cycle) == 0 {
		return min(f.counted, MaxFill)
	}
	cycles := int64(MaxFill)/int64(len(f.cycle)) + 1
	for _, m := range f.makers {
		if m.Share > 0 {
			cycles = min(cycles, (int64(m.n)-m.first)/m.shares)
		}
	}
	rest := slices.IndexFunc(f.cycle, func(s slot) bool {
		m := &f.makers[s.part]
		return m.first+cycles*m.shares+s.inSpace >= int64(m.n)
	})
	return min(f.counted+cycles*int64(len(f.cycle))+int64(max(rest, 0)), MaxFill)
}

// place is the part of the i-th entry, and how many entries of the part and of
// its space come before it.
func (f *Filler) place(i int64) (part int, before, inSpace int64) {
	if i >= f.counted {
		i -= f.counted
		n := int64(len(f.cycle))
		s, cycles := f.cycle[i%n], i/n
		m := &f.makers[s.part]
		return s.part, cycles*int64(m.Share) + s.before, m.first + cycles*m.shares + s.inSpace
	}
	for i >= f.makers[part].Count {
		i -= f.makers[part].Count
		part++
	}
	return part, i, f.makers[part].first + i
}

// golden is 2^64 divided by the golden ratio: its multiples fill a range evenly,
// however many there are.
const golden = 0x9e3779b97f4a7c15

// Entry makes e the i-th entry, for i from 0 to Room, and returns its part.
func (f *Filler) Entry(i int64, e *conntrack.Entry) (part int) {
	part, before, inSpace := f.place(i)
	m := &f.makers[part]
	*e = m.entry
	e.Mark = f.Mark
	seconds := uint64(m.timeout.Last-m.timeout.First) + 1
	e.Timeout = m.timeout.First + uint32(scale(uint64(before)*golden+m.key, seconds))
	m.tuples(uint64(inSpace), e)
	return part
}

// Counts are the entries of each part among the first n.
func (f *Filler) Counts(n int64) []int64 {
	counts := make([]int64, len(f.makers))
	for i := range n {
		part, _, _ := f.place(i)
		counts[part]++
	}
	return counts
}

// Mix returns the mix of the entries, and Seed the seed of their order.
func (f *Filler) Mix() *Mix    { return f.mix }
func (f *Filler) Seed() uint64 { return f.seed }

// Fill fills a node's connection table up to an amount, by the maximum that the host had
// when the scenario began.
type Fill struct {
	Node   string `yaml:"node" check:"required node"`
	Amount `yaml:",inline"`
	// Mix is a built-in one, DefaultMix where empty. Parts,
	// instead, are those of a mix of its own, whose addresses may be the lab's.
	Mix   string `yaml:"mix"`
	Parts []Part `yaml:"parts"`
	Seed  uint64 `yaml:"seed"`
}

func (f *Fill) mix() (*Mix, error) {
	if len(f.Parts) > 0 {
		return &Mix{Name: "of-the-scenario", Title: "of the scenario", Parts: f.Parts}, nil
	}
	return FindMix(cmp.Or(f.Mix, DefaultMix))
}

// Filler makes the entries of the fill. The scenario must have passed Parse.
func (f *Fill) Filler() (*Filler, error) {
	mix, err := f.mix()
	if err != nil {
		return nil, err
	}
	return mix.Filler(f.Seed, FillMark), nil
}

// Target returns the number of entries the table must hold, where limit is nf_conntrack_max.
// It refuses where CheckFill does.
func (f *Fill) Target(limit, availableBytes int64) (int64, error) {
	target, err := f.Amount.Target(limit)
	if err != nil {
		return 0, err
	}
	if err = CheckFill(target, availableBytes); err == nil {
		return target, nil
	}
	if f.Free != 0 {
		err = fmt.Errorf("%w; use --lower-max 65536", err)
	}
	return 0, err
}

func (c *checker) fill(path []any, f *Fill) {
	switch n := len(document.Given(f.Amount)); {
	case n != 1:
		c.fail(path, "expected one of fill.free, fill.share and fill.entries, found %d", n)
	case f.Mix != "" && len(f.Parts) > 0:
		c.fail(append(path, "mix"), "fill.mix and fill.parts are mutually exclusive")
	}
	mix, err := f.mix()
	switch {
	case c.first != nil:
		return
	case err != nil:
		c.fail(append(path, "mix"), "%s", err)
	case len(f.Parts) > 0:
		if p := mix.check(); p != nil {
			c.fail(append(path, p.Path...), "%s", p.Message)
		} else if room := mix.Filler(f.Seed, 0).Room(); f.Entries > room {
			c.fail(append(path, "entries"), "entries %d: the parts make only %d distinct connections", f.Entries, room)
		}
	}
}
