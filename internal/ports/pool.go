// Package ports computes how far the ports of NAT's addresses are used up towards each
// destination, and the chance that the kernel finds none for a new connection.
package ports

import (
	"cmp"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

// key names a pool: no two connections of it may have the same port.
type key struct {
	addr, remote netip.Addr
	remotePort   uint16
	zone         uint16
	proto        uint8
}

// marks is what is kept of an entry.
type marks uint8

const (
	inTimeWait marks = 1 << iota
	// isEvictable: the kernel may take the port (nf_nat_may_kill).
	isEvictable
	// isMoved: the port is not the one that the client chose.
	isMoved
	// isLocal: not translated, so it is of this machine, which has the address.
	isLocal
	// isYoung: made less than youngSeconds ago.
	isYoung
	// isInbound: a connection from the destination, which has no source to name.
	isInbound
	// isClientClosed: the client's FIN was first, and TIME_WAIT is the client's.
	isClientClosed
	markCount = iota
)

// taken is a used port.
type taken struct {
	source uint32
	port   uint16
	marks  marks
}

// maxFew ports are kept one by one, unsorted. More go into sets, without their owners.
const maxFew = 1024

// pool is what is used of one key's ports.
type pool struct {
	few  []taken
	many *many
	// late is set if the pool may lack ports, after evictions.
	late bool
}

// many is a pool of more than maxFew ports.
type many struct {
	used Set
	// size is how many of them there are: it is asked for each entry.
	size int
	// marked are the ports with each mark, by its bit; nil until there is one.
	marked  [markCount]*Set
	sources *sources
}

// with returns the ports that have a mark.
func (m *many) with(mark marks) *Set { return m.marked[bits.TrailingZeros8(uint8(mark))] }

func (p *pool) add(t taken) {
	if p.many != nil {
		p.many.add(t)
		return
	}
	p.few = append(p.few, t)
	if len(p.few) <= maxFew {
		return
	}
	p.tidy()
	if len(p.few) > maxFew/2 {
		p.many = &many{sources: newSources()}
		for _, t := range p.few {
			p.many.add(t)
		}
		p.few = nil
	}
}

// tidy sorts by port and removes duplicates, which a changing table may have.
func (p *pool) tidy() {
	slices.SortFunc(p.few, func(a, b taken) int { return cmp.Compare(a.port, b.port) })
	p.few = slices.CompactFunc(p.few, func(a, b taken) bool { return a.port == b.port })
}

func (m *many) add(t taken) {
	if m.used.Has(t.port) {
		return
	}
	m.used.Add(t.port)
	m.size++
	for i := range m.marked {
		if t.marks>>i&1 == 0 {
			continue
		}
		if m.marked[i] == nil {
			m.marked[i] = &Set{}
		}
		m.marked[i].Add(t.port)
	}
	if t.marks&isInbound == 0 {
		m.sources.add(t.source)
	}
}

// sets is the pool as sets; scratch is what they are made in where it has none.
func (p *pool) sets(scratch *many) *many {
	if p.many != nil {
		return p.many
	}
	*scratch = many{sources: newSources()}
	for _, t := range p.few {
		scratch.add(t)
	}
	return scratch
}

// count returns how many ports of a range the pool has, with a mark unless it is 0.
func (p *pool) count(r nat.Ports, mark marks) (n int) {
	switch {
	case p.many != nil && mark != 0:
		return p.many.with(mark).Count(r)
	case p.many != nil:
		return p.many.used.Count(r)
	}
	for _, t := range p.few {
		if r.Contains(t.port) && t.marks&mark == mark {
			n++
		}
	}
	return n
}

// comesFrom reports whether one of the pool's sources is in the prefix.
func (p *pool) comesFrom(prefix netip.Prefix, addrs *addresses) bool {
	return p.anySource(func(id uint32) bool { return id == 0 || prefix.Contains(addrs.all[id]) })
}

// isOnlyFrom reports whether all of the pool's sources are in the prefix, any where it is not valid.
func (p *pool) isOnlyFrom(prefix netip.Prefix, addrs *addresses) bool {
	return !prefix.IsValid() || !p.anySource(func(id uint32) bool { return id == 0 || !prefix.Contains(addrs.all[id]) })
}

func (p *pool) anySource(is func(id uint32) bool) bool {
	if p.many == nil {
		return slices.ContainsFunc(p.few, func(t taken) bool { return t.marks&isInbound == 0 && is(t.source) })
	}
	for id := range p.many.sources.counts {
		if is(id) {
			return true
		}
	}
	return false
}

// size returns the number of ports in the pool, some of them perhaps twice.
func (p *pool) size() int {
	if p.many != nil {
		return p.many.size
	}
	return len(p.few)
}

// Approximate memory of a pool with its place in the map, of a port, and of a pool in sets.
const (
	poolBytes  = 280
	takenBytes = 8
	manyBytes  = 8*numbers/8 + 4096
)

func (p *pool) bytes() int64 {
	if p.many != nil {
		return poolBytes + manyBytes
	}
	return poolBytes + int64(cap(p.few))*takenBytes
}

// class is one of the source ports that stay apart if no rule has a range: the kernel goes by the
// original source port (nf_nat_l4proto_unique_tuple, net/netfilter/nf_nat_core.c).
type class struct {
	name string
	// all are its ports, drawn those that the kernel draws from.
	all, drawn nat.Ports
}

const classOther = ""

var (
	classes = []class{
		{classOther, nat.Ports{First: 1024, Last: 65535}, nat.Ports{First: 1024, Last: 65535}},
		{"reserved", nat.Ports{First: 512, Last: 1023}, nat.Ports{First: 600, Last: 1023}},
		{"privileged", nat.Ports{First: 0, Last: 511}, nat.Ports{First: 1, Last: 511}},
	}
	icmpClasses = []class{{classOther, nat.AllPorts, nat.AllPorts}}
)

func classesOf(proto uint8) []class {
	if nat.IsICMP(proto) {
		return icmpClasses
	}
	return classes
}

// DefaultRange returns the kernel's range if no rule has one, for ports from 1024 on.
func DefaultRange(proto uint8) nat.Ports { return classesOf(proto)[0].drawn }

// Probing is the search of a kernel of this release: mainline since 5.0 probes windows, older
// kernels the whole range, unless their vendor took that change.
func Probing(release string) string {
	if major, _, ok := Version(release); ok && major < 5 {
		return snapshot.PortProbeAll
	}
	return snapshot.PortProbeRandom
}

// Evicts reports whether the kernel may evict a closed TCP connection (6.6,
// nf_nat_used_tuple_harder).
func Evicts(release string) bool {
	major, minor, ok := Version(release)
	return ok && (major > 6 || major == 6 && minor >= 6)
}

// Version reads the first two numbers of a release such as "6.1.0-30-amd64".
func Version(release string) (major, minor int, ok bool) {
	first, rest, _ := strings.Cut(release, ".")
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if end >= 0 {
		rest = rest[:end]
	}
	major, err := strconv.Atoi(first)
	if err != nil {
		return 0, 0, false
	}
	minor, err = strconv.Atoi(rest)
	return major, minor, err == nil
}
