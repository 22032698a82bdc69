package lab

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/document"
	"golang.org/x/sys/unix"
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

// Target is how many entries a table holds then, where limit is nf_conntrack_max
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
		panic("a mix that was not checked: " + p.Message)
	}
	f.Mark = mark
	return f
}

// compile fails for a mix whose parts are right one by one but not together.
func (m *Mix) compile(seed uint64) (*Filler, *document.Problem) {
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

func (f *Filler) addPart(i int) *document.Problem {
	p, path := &f.mix.Parts[i], at("parts", i)
	s, err := newSpace(p, path)
	if err != nil {
		return document.NewProblem(append(path, "nat", "snat"), "%s", err)
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
func (f *Filler) separate() *document.Problem {
	for i, s := range f.spaces {
		for _, o := range f.spaces[:i] {
			if s.meets(o) {
				return document.NewProblem(s.path, "some connections of this part could be those of part %q: expected other sources, source_ports or destinations, and with NAT other addresses or ports of it; or all of these the same",
					f.mix.Parts[o.path[1].(int)].Name)
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

func (f *Filler) countsFit() *document.Problem {
	for _, i := range f.fixed {
		m, count := &f.makers[i], f.mix.Parts[i].Count
		if room := int64(m.n) - m.spaceFirst; count > room {
			return document.NewProblem(at("parts", i, "count"), "count %d: only %d connections of this part can be distinct; expected more sources, source_ports or destinations", count, max(room, 0))
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

// maxPool bounds the addresses of one prefix that a mix uses.
const maxPool = 1 << 20

// pool is a row of addresses that hosts can have.
type pool struct {
	first netip.Addr
	n     uint64
}

// hosts are the addresses of a prefix without those that no host has: IPv4's
// first and last one, IPv6's first (RFC 4291, 2.6.1: the routers' anycast).
func hosts(p netip.Prefix) pool {
	free := p.Addr().BitLen() - p.Bits()
	n := uint64(1) << min(free, 62)
	switch {
	case free < 2:
		return pool{p.Addr(), n}
	case p.Addr().Is4():
		return pool{p.Addr().Next(), n - 2}
	}
	return pool{p.Addr().Next(), n - 1}
}

func (s Sources) pool() pool {
	p := hosts(s.Prefix.Prefix)
	if s.Hosts > 0 {
		p.n = uint64(s.Hosts)
	}
	return p
}

// at is the i-th address. Only the last 62 bits of an address can differ.
func (p pool) at(i uint64) netip.Addr {
	if p.first.Is4() {
		a := p.first.As4()
		binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(a[:])+uint32(i))
		return netip.AddrFrom4(a)
	}
	a := p.first.As16()
	binary.BigEndian.PutUint64(a[8:], binary.BigEndian.Uint64(a[8:])+i)
	return netip.AddrFrom16(a)
}

func (p pool) overlaps(o pool) bool {
	return p.first.BitLen() == o.first.BitLen() &&
		p.first.Compare(o.at(o.n-1)) <= 0 && o.first.Compare(p.at(p.n-1)) <= 0
}

// endpoints are pools with a port each, numbered one after the other.
type endpoints []struct {
	pool
	port uint16
}

func poolsOf(list []Endpoint) endpoints {
	all := make(endpoints, len(list))
	for i, e := range list {
		all[i].pool, all[i].port = hosts(e.Prefix), e.Port
	}
	return all
}

func (e endpoints) len() (n uint64) {
	for i := range e {
		n += e[i].n
	}
	return n
}

func (e endpoints) at(i uint64) (netip.Addr, uint16) {
	for k := range e {
		if i < e[k].n {
			return e[k].at(i), e[k].port
		}
		i -= e[k].n
	}
	return netip.Addr{}, 0
}

// overlaps reports whether an address is in both; with ports, under the same one.
func (e endpoints) overlaps(o endpoints, ports bool) bool {
	for i := range e {
		for k := range o {
			if e[i].overlaps(o[k].pool) && (!ports || e[i].port == o[k].port) {
				return true
			}
		}
	}
	return false
}

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

// Target is how many entries the table must hold, where limit is nf_conntrack_max.
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
