package lab

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/conntrack"
)

// Filler makes the entries of a mix, one after the other. Every entry is a pure
// function of mix, seed and number; making one allocates nothing.
type Filler struct {
	// Mark is the mark on each entry, by which they are told from all others.
	Mark uint32

	mix    *Mix
	seed   uint64
	makers []maker
	spaces []*space
	// fixed are the parts that have a count, which come first.
	fixed      []int
	fixedTotal int64
	// cycle is the parts that have a share, each as often as that says, as evenly
	// spread as possible.
	cycle []slot
}

// maker makes the entries of one part.
type maker struct {
	*space
	entry   conntrack.Entry
	timeout Span
	// share and spaceShare are the places in each cycle of the part, and of all
	// parts in its space. spaceFirst of the space's connections belong to parts
	// before it, or to those that have a count.
	share, spaceShare, spaceFirst int64
}

// slot is a place in the cycle: the part, and how many of the part and of its
// space come before it in the cycle.
type slot struct {
	part             int
	before, inSpaces int64
}

// Filler makes the entries of a seed.
func (m *Mix) Filler(seed uint64, mark uint32) *Filler {
	f, p := m.compile(seed)
	if p != nil {
		panic("a mix that was not checked: " + p.message)
	}
	f.Mark = mark
	return f
}

// compile fails for a mix whose parts are right one by one but not together.
func (m *Mix) compile(seed uint64) (*Filler, *problem) {
	f := &Filler{mix: m, seed: seed, makers: make([]maker, len(m.Parts))}
	for i := range m.Parts {
		if p := f.addPart(i); p != nil {
			return nil, p
		}
	}
	for i, p := range m.Parts {
		if p.Count > 0 {
			f.fixed = append(f.fixed, i)
			f.fixedTotal += p.Count
		}
	}
	if p := f.separate(); p != nil {
		return nil, p
	}
	f.number()
	f.layCycle()
	return f, f.countsFit()
}

func (f *Filler) addPart(i int) *problem {
	p, path := &f.mix.Parts[i], at("parts", i)
	s, err := newSpace(p, path)
	if err != nil {
		return &problem{append(path, "nat", "snat"), err.Error()}
	}
	s.key = hash(f.seed, uint64(len(f.spaces)))
	if same := slices.IndexFunc(f.spaces, func(o *space) bool { return o.text == s.text }); same >= 0 {
		s = f.spaces[same]
	} else {
		f.spaces = append(f.spaces, s)
	}
	status, timeout := p.seen(), p.Timeout
	if timeout == (Span{}) {
		timeout = p.usualTimeout()
	}
	f.makers[i] = maker{space: s, timeout: timeout, entry: conntrack.Entry{
		Family: family(s.sources), Status: statusBits(status), TCPState: p.State.TCPState,
	}}
	return nil
}

func family(p pool) uint8 {
	if p.first.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// separate finds spaces that have connections in common.
func (f *Filler) separate() *problem {
	for i, s := range f.spaces {
		for _, o := range f.spaces[:i] {
			if s.meets(o) {
				return &problem{s.path, fmt.Sprintf("some connections of this part could be those of part %q: expected other sources, source_ports or destinations, and with NAT other addresses or ports of it; or all of these the same",
					f.mix.Parts[o.path[1].(int)].Name)}
			}
		}
	}
	return nil
}

// number gives each part its own connections of a space.
func (f *Filler) number() {
	first, shares := map[*space]int64{}, map[*space]int64{}
	for _, i := range f.fixed {
		m := &f.makers[i]
		m.spaceFirst = first[m.space]
		first[m.space] += f.mix.Parts[i].Count
	}
	for i := range f.makers {
		shares[f.makers[i].space] += int64(f.mix.Parts[i].Share)
	}
	for i := range f.makers {
		m := &f.makers[i]
		m.share, m.spaceShare = int64(f.mix.Parts[i].Share), shares[m.space]
		if m.share > 0 {
			m.spaceFirst = first[m.space]
		}
	}
}

// layCycle spreads the parts as a smooth weighted round robin does: each place
// goes to the part that is the most behind.
func (f *Filler) layCycle() {
	divisor, total := 0, 0
	for _, p := range f.mix.Parts {
		divisor = gcd(divisor, p.Share)
	}
	if divisor == 0 {
		return
	}
	for i := range f.makers {
		f.makers[i].share /= int64(divisor)
		f.makers[i].spaceShare /= int64(divisor)
		total += int(f.makers[i].share)
	}
	behind, inParts, inSpaces := make([]int, len(f.makers)), make([]int64, len(f.makers)), map[*space]int64{}
	for range total {
		next := 0
		for i := range f.makers {
			behind[i] += int(f.makers[i].share)
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

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func (f *Filler) countsFit() *problem {
	for _, i := range f.fixed {
		m, count := &f.makers[i], f.mix.Parts[i].Count
		if room := int64(m.n) - m.spaceFirst; count > room {
			return &problem{at("parts", i, "count"), fmt.Sprintf("count %d: only %d connections of this part can be distinct; expected more sources, source_ports or destinations", count, max(room, 0))}
		}
	}
	return nil
}

// Room is how many entries can be distinct, at most MaxFill.
func (f *Filler) Room() int64 {
	if len(f.cycle) == 0 {
		return min(f.fixedTotal, MaxFill)
	}
	cycles := int64(MaxFill)/int64(len(f.cycle)) + 1
	for i := range f.makers {
		if m := &f.makers[i]; m.share > 0 {
			cycles = min(cycles, (int64(m.n)-m.spaceFirst)/m.spaceShare)
		}
	}
	rest := slices.IndexFunc(f.cycle, func(s slot) bool {
		m := &f.makers[s.part]
		return m.spaceFirst+cycles*m.spaceShare+s.inSpaces >= int64(m.n)
	})
	if rest < 0 { // MaxFill was what bounded the cycles
		rest = 0
	}
	return min(f.fixedTotal+cycles*int64(len(f.cycle))+int64(rest), MaxFill)
}

// place is the part of the i-th entry, and how many entries of the part and of
// its space come before it.
func (f *Filler) place(i int64) (part int, before, inSpace int64) {
	for _, part := range f.fixed {
		if i < f.mix.Parts[part].Count {
			return part, i, f.makers[part].spaceFirst + i
		}
		i -= f.mix.Parts[part].Count
	}
	n := int64(len(f.cycle))
	s, cycles := f.cycle[i%n], i/n
	m := &f.makers[s.part]
	return s.part, cycles*m.share + s.before, m.spaceFirst + cycles*m.spaceShare + s.inSpaces
}

// golden is 2^64 divided by the golden ratio: its multiples fill a range evenly,
// however many there are.
const golden = 0x9e3779b97f4a7c15

// Entry makes e the i-th entry, for i from 0 to Room, and tells its part.
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
	for _, part := range f.fixed {
		counts[part] = min(f.mix.Parts[part].Count, n)
		n -= counts[part]
	}
	if len(f.cycle) == 0 {
		return counts
	}
	cycles, rest := n/int64(len(f.cycle)), n%int64(len(f.cycle))
	for i := range f.makers {
		counts[i] += cycles * f.makers[i].share
	}
	for _, s := range f.cycle[:rest] {
		counts[s.part]++
	}
	return counts
}

// Mix is what the entries are made of, and Seed what determines their order.
func (f *Filler) Mix() *Mix    { return f.mix }
func (f *Filler) Seed() uint64 { return f.seed }
