package nat

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// world is every packet of a tiny world, with which matches are compared packet by packet.
func world() (all []Packet) {
	addrs := []netip.Addr{}
	for _, p := range []string{"10.0.0.0/30", "fd00::/127"} {
		for a := netip.MustParsePrefix(p).Addr(); netip.MustParsePrefix(p).Contains(a); a = a.Next() {
			addrs = append(addrs, a)
		}
	}
	addrs = append(addrs, netip.MustParseAddr("9.9.9.9"), netip.MustParseAddr("10.0.0.4"), netip.MustParseAddr("fd00::2"))
	for _, src := range addrs {
		for _, dst := range addrs {
			if src.BitLen() != dst.BitLen() {
				continue
			}
			for _, in := range []string{"", "eth0", "eth1", "br0"} {
				for port := range uint16(4) {
					all = append(all, Packet{Src: src, Dst: dst, In: in, DstPort: port, Protocol: 6 + 11*uint8(port%2)})
				}
			}
			for n := range uint32(4) {
				all = append(all, Packet{Src: src, Dst: dst, Owned: true, User: n, Group: 3 - n, DSCP: uint8(n * 2), Mark: n, Protocol: 6 + 11*uint8(n%2), DstPort: uint16(n), At: time.Unix(int64(n)*35*3600, 0)})
			}
			for bits := range uint32(4) {
				all = append(all, Packet{Src: src, Dst: dst, Out: "eth1", Mark: bits, SrcPort: uint16(bits), ToLocal: bits%2 == 1, OriginalDst: dst, OriginalPort: uint16(bits)})
			}
		}
	}
	return all
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// The sets of the tiny world.
var (
	addressSets = []*Set{tinySet("none"), tinySet("a", "10.0.0.0/31"), tinySet("b", "10.0.0.1/32", "fd00::/128"), tinySet("c", "10.0.0.1/32", "10.0.0.2/31", "9.0.0.0/8"), tinySet("d", "10.0.0.0/29", "fd00::/127")}
	pairSets    = []*Set{tinyPairs("x", "10.0.0.0 10.0.0.3", "10.0.0.1 10.0.0.2"), tinyPairs("y", "10.0.0.3 10.0.0.0", "fd00::1 fd00::")}
	serviceSets = []*Set{NewSet("p", nil, []Service{{6, Ports{2, 2}}}), NewSet("q", nil, []Service{{17, Ports{1, 3}}, {6, Ports{2, 3}}})}
)

func tinySet(name string, prefixes ...string) *Set {
	var all AddrRanges
	for _, p := range prefixes {
		all = append(all, RangeOf(netip.MustParsePrefix(p)))
	}
	return NewSet(name, all, nil)
}

// tinyPairs has pairs as a file has them.
func tinyPairs(name string, lines ...string) *Set {
	s, err := ParseSet(name, []byte(strings.Join(lines, "\n")+"\n"))
	if err != nil {
		panic(err)
	}
	return s
}

// anyMatch has few conditions over the values of the tiny world.
func anyMatch(r *rand.Rand) (m Match) {
	family := pick(r, "10.0.0.0/30", "10.0.0.0/30", "fd00::/127")
	prefixes := func() (all []netip.Prefix) {
		p := netip.MustParsePrefix(family)
		for range 1 + r.IntN(2) {
			a := p.Addr()
			for range r.IntN(4) {
				a = a.Next()
			}
			all = append(all, netip.PrefixFrom(a, p.Bits()+r.IntN(a.BitLen()+1-p.Bits())).Masked())
		}
		return all
	}
	ports := func() (all []Ports) {
		for range 1 + r.IntN(2) {
			first := uint16(r.IntN(3))
			all = append(all, Ports{first, first + uint16(r.IntN(2))})
		}
		return all
	}
	ids := func() []IDs {
		first := uint32(r.IntN(3))
		return []IDs{{first, first + uint32(r.IntN(2))}}
	}
	names := func() []string {
		return pick(r, []string{"eth0"}, []string{"eth*"}, []string{"eth0", "br0"}, []string{"*"})
	}
	for range r.IntN(5) {
		switch r.IntN(23) {
		case 20, 21, 22:
			of := pick(r, From, To, DestPorts, OriginalPorts)
			set := pick(r, addressSets...)
			if of == DestPorts || of == OriginalPorts {
				set = pick(r, serviceSets...)
			}
			x := Member{of, set.Name, r.IntN(3) == 0, false, set}
			if (of == From || of == To) && r.IntN(3) == 0 {
				set = pick(r, pairSets...)
				x = Member{of, set.Name, false, true, set}
			}
			m.Members = append(m.Members, x)
		case 0, 1:
			m.From = prefixes()
		case 2:
			m.To = prefixes()
		case 3:
			m.NotTo = prefixes()
		case 4:
			m.NotFrom = prefixes()
		case 5:
			m.Ports = ports()
		case 6:
			m.SourcePorts = ports()
		case 7:
			m.In, m.NotIn = names(), pick(r, nil, []string{"eth1"})
		case 8:
			m.NotOut = names()
		case 9:
			m.Original, m.OriginalPorts = pick(r, nil, prefixes()), pick(r, nil, ports())
		case 10:
			m.Protocol, m.ToLocal = pick[uint8](r, 0, 6, 17), r.IntN(2) == 0
		case 11:
			m.Mark = Mark{uint32(r.IntN(4)), uint32(r.IntN(4))}
		case 12:
			m.NotMarks = []Mark{{uint32(r.IntN(4)), 1 + uint32(r.IntN(3))}, {uint32(r.IntN(4)), 3}}
		case 13:
			m.Users, m.NotUsers = ids(), pick(r, nil, ids())
		case 14:
			m.NotGroups = ids()
		case 15:
			m.DSCP = []uint8{uint8(r.IntN(4)), uint8(r.IntN(8))}
		case 16:
			m.NotDSCP = []uint8{uint8(r.IntN(4)), 0}
		case 18:
			m.Hours, m.NotDays = hoursOfDay(r), pick(r, nil, []time.Weekday{time.Thursday, time.Friday})
		case 19:
			m.NotHours, m.Days = hoursOfDay(r), pick(r, nil, []time.Weekday{time.Thursday, time.Saturday})
		case 17:
			for _, p := range ports() {
				m.NotServices = append(m.NotServices, Service{pick[uint8](r, 0, 6, 17), p})
			}
		}
	}
	return m
}

func hoursOfDay(r *rand.Rand) (all []Hours) {
	for range 1 + r.IntN(2) {
		first := uint32(r.IntN(24))
		all = append(all, Hours{3600 * first, 3600*first + uint32(r.IntN(int(24-first)*3600))})
	}
	return all
}

// naive is Matches by a reading of the fields of its own.
func naive(m *Match, p *Packet) bool {
	inside := func(any, not []netip.Prefix, a netip.Addr) bool {
		found, out := len(any) == 0, false
		for _, x := range any {
			found = found || x.Addr().BitLen() == a.BitLen() && RangeOf(x).Contains(a)
		}
		for _, x := range not {
			out = out || RangeOf(x).Contains(a)
		}
		return found && !out
	}
	in := func(any []Ports, port uint16) bool {
		found := len(any) == 0
		for _, x := range any {
			for n := int(x.First); n <= int(x.Last); n++ {
				found = found || n == int(port)
			}
		}
		return found
	}
	named := func(any, not []string, name string) bool {
		is := func(n string) bool {
			return n == name || n == "*" || n == "eth*" && len(name) > 2 && name[:3] == "eth"
		}
		return (len(any) == 0 || slices.ContainsFunc(any, is)) && !slices.ContainsFunc(not, is)
	}
	for _, x := range m.Members {
		in := false
		a, port := p.Src, p.DstPort
		if x.Of == To {
			a = p.Dst
		}
		if x.Of == OriginalPorts {
			port = p.OriginalPort
		}
		for _, r := range x.Set.Addresses {
			in = in || r.Contains(a)
		}
		for _, pair := range x.Set.Pairs(0) {
			in = in || x.Of == From && pair.Inside == a || x.Of == To && pair.Outside == a
		}
		for _, s := range x.Set.Services {
			in = in || s.Protocol == p.Protocol && s.Ports.Contains(port)
		}
		if in == x.Not {
			return false
		}
	}
	for _, s := range m.NotServices {
		if (s.Protocol == 0 || s.Protocol == p.Protocol) && p.DstPort >= s.Ports.First && p.DstPort <= s.Ports.Last {
			return false
		}
	}
	for _, k := range m.NotMarks {
		if p.Mark&k.Mask == k.Value&k.Mask {
			return false
		}
	}
	owner := func(any, not []IDs, id uint32) bool {
		found := len(any) == 0
		for _, x := range any {
			found = found || id >= x.First && id <= x.Last
		}
		for _, x := range not {
			found = found && (id < x.First || id > x.Last)
		}
		return found && (p.Owned || len(any)+len(not) == 0)
	}
	timed := func(any, not []Hours, days, notDays []time.Weekday) bool {
		at := uint32((p.At.Unix()%86400 + 86400) % 86400)
		is := func(h Hours) bool { return at >= h.First && at <= h.Last }
		return (len(any) == 0 || slices.ContainsFunc(any, is)) && !slices.ContainsFunc(not, is) &&
			(len(days) == 0 || slices.Contains(days, p.At.UTC().Weekday())) && !slices.Contains(notDays, p.At.UTC().Weekday())
	}
	if !timed(m.Hours, m.NotHours, m.Days, m.NotDays) || !owner(m.Users, m.NotUsers, p.User) || !owner(m.Groups, m.NotGroups, p.Group) ||
		len(m.DSCP) > 0 && !slices.Contains(m.DSCP, p.DSCP) || slices.Contains(m.NotDSCP, p.DSCP) {
		return false
	}
	return inside(m.From, m.NotFrom, p.Src) && inside(m.To, m.NotTo, p.Dst) && inside(m.Original, nil, p.OriginalDst) &&
		in(m.Ports, p.DstPort) && in(m.SourcePorts, p.SrcPort) && in(m.OriginalPorts, p.OriginalPort) &&
		named(m.In, m.NotIn, p.In) && named(m.Out, m.NotOut, p.Out) &&
		(m.Protocol == 0 || m.Protocol == p.Protocol) && (p.ToLocal || !m.ToLocal) && p.Mark&m.Mark.Mask == m.Mark.Value&m.Mark.Mask
}

// What Matches, Overlaps and Covers say of random matches is what every packet of the tiny
// world says. A packet that is not in it may meet two matches, too, and then Overlaps
// is right with more than the world shows.
func TestMatchIsASetOfPackets(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	packets := world()
	overlapping, covering, unseen := 0, 0, 0
	for range 600 {
		m, o := anyMatch(r), anyMatch(r)
		overlaps, covers := false, true
		for i := range packets {
			p := &packets[i]
			inM, inO := naive(&m, p), naive(&o, p)
			if m.Matches(p) != inM || (len(m.Misses(p)) == 0) != inM {
				t.Fatalf("%+v and %+v: %v, want %v", m, p, m.Matches(p), inM)
			}
			overlaps, covers = overlaps || inM && inO, covers && (inM || !inO)
		}
		if got := m.Overlaps(&o); got != overlaps {
			if unseen++; !got {
				t.Errorf("%q and %q have a packet in common", m.String(), o.String())
			}
		}
		if m.Covers(&o) && !covers {
			t.Errorf("%q does not cover %q", m.String(), o.String())
		}
		overlapping, covering = overlapping+count(overlaps), covering+count(m.Covers(&o))
	}
	if overlapping < 100 || covering < 30 {
		t.Errorf("the sample says little: %d overlap, %d cover, %d unseen", overlapping, covering, unseen)
	}
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

// Each pair differs in one condition.
func TestMatchCovers(t *testing.T) {
	prefixes := func(texts ...string) (all []netip.Prefix) {
		for _, text := range texts {
			all = append(all, netip.MustParsePrefix(text))
		}
		return all
	}
	for _, c := range []struct {
		m, o             Match
		overlaps, covers bool
	}{
		{Match{}, Match{From: prefixes("10.0.0.0/8")}, true, true},
		{Match{From: prefixes("10.0.0.0/8")}, Match{}, true, false},
		{Match{From: prefixes("10.0.0.0/9", "10.128.0.0/9")}, Match{From: prefixes("10.0.0.0/8")}, true, true},
		{Match{From: prefixes("10.0.0.0/8")}, Match{From: prefixes("10.0.0.0/9"), NotTo: prefixes("192.0.2.1/32")}, true, true},
		{Match{NotTo: prefixes("192.0.2.0/24")}, Match{To: prefixes("192.0.2.1/32")}, false, false},
		{Match{To: prefixes("fd00::/8")}, Match{From: prefixes("10.0.0.0/8")}, false, false},
		{Match{From: prefixes("0.0.0.0/0")}, Match{To: prefixes("192.0.2.1/32")}, true, true},
		{Match{In: []string{"eth*"}}, Match{In: []string{"eth0", "eth1"}}, true, true},
		{Match{In: []string{"eth0", "eth1"}}, Match{In: []string{"eth*"}}, true, false},
		{Match{In: []string{"eth*"}, NotIn: []string{"eth1*"}}, Match{In: []string{"eth1*"}}, false, false},
		{Match{Ports: []Ports{{1, 1023}, {1024, 65535}}}, Match{Ports: []Ports{{80, 80}, {8080, 8090}}}, true, true},
		{Match{Ports: []Ports{{1, 65535}}}, Match{Protocol: 6}, true, false},
		{Match{Protocol: 6}, Match{Protocol: 17}, false, false},
		{Match{Mark: Mark{1, 1}}, Match{Mark: Mark{3, 3}}, true, true},
		{Match{Mark: Mark{1, 1}}, Match{Mark: Mark{2, 2}}, true, false},
		{Match{Original: prefixes("0.0.0.0/0")}, Match{From: prefixes("10.0.0.0/8")}, true, false},
	} {
		if got := c.m.Overlaps(&c.o); got != c.overlaps {
			t.Errorf("%q overlaps %q: %v", c.m.String(), c.o.String(), got)
		}
		if got := c.m.Covers(&c.o); got != c.covers {
			t.Errorf("%q covers %q: %v", c.m.String(), c.o.String(), got)
		}
	}
}

// A block of single values is as much as the range of them all, and one that lacks a value
// is not, in whatever order they are listed.
func TestMatchOfManyValues(t *testing.T) {
	const n = 1 << 16
	var block []netip.Prefix
	var services []Ports
	for i := range n {
		block = append(block, Host(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})))
		services = append(services, Ports{uint16(i), uint16(i)})
	}
	r := rand.New(rand.NewPCG(1, 2))
	for _, list := range []func(int, func(i, j int)){func(int, func(i, j int)) {}, r.Shuffle} {
		list(n, func(i, j int) {
			block[i], block[j] = block[j], block[i]
			services[i], services[j] = services[j], services[i]
		})
		inside := Match{From: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}, Ports: []Ports{AllPorts}}
		for _, c := range []struct {
			m                Match
			overlaps, covers bool
		}{
			{Match{NotFrom: block}, false, false},
			{Match{NotFrom: block[1:]}, true, false},
			{Match{From: block}, true, true},
			{Match{From: block[1:]}, true, false},
			{Match{Ports: services}, true, true},
			{Match{Ports: services[1:]}, true, false},
		} {
			_, both := c.m.And(&inside)
			if c.m.Overlaps(&inside) != c.overlaps || both != c.overlaps || c.m.Covers(&inside) != c.covers {
				t.Errorf("%d, %d, %d values: overlaps %v, covers %v", len(c.m.NotFrom), len(c.m.From), len(c.m.Ports), !c.overlaps, c.m.Covers(&inside))
			}
		}
	}
}

// Matches of few values are compared without memory of their own.
func TestMatchAllocatesNothing(t *testing.T) {
	one := func(text string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(text)} }
	m := Match{From: one("10.0.0.0/8"), NotTo: one("10.1.0.0/16"), Ports: []Ports{{80, 90}}}
	o := Match{From: one("10.2.0.0/16"), To: one("10.0.0.0/8"), Ports: []Ports{{85, 100}}}
	if n := testing.AllocsPerRun(100, func() { _, _, _ = m.Overlaps(&o), m.Covers(&o), o.Covers(&m) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestRuleString(t *testing.T) {
	one := func(text string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(text)} }
	addr := netip.MustParseAddr
	for want, r := range map[string]Rule{
		"from 10.0.0.0/8 except to 10.9.0.0/16 out eth0 becomes the interface's address ports keep": {Match{From: one("10.0.0.0/8"), NotTo: one("10.9.0.0/16"), Out: []string{"eth0"}}, Action{Kind: Masquerade, Keep: true}},
		"becomes 203.0.113.8-203.0.113.9 ports 1024-2047 random fully persistent":                   {Match{}, Action{Kind: SNAT, To: AddrRanges{{addr("203.0.113.8"), addr("203.0.113.9")}}, Ports: Ports{1024, 2047}, Random: RandomFully, Persistent: true}},
		"on 203.0.113.7 tcp/80,443 from 198.51.100.0/24 in eth0, eth1 becomes [fd00::1]:8080":       {Match{To: one("203.0.113.7/32"), Protocol: 6, Ports: []Ports{{80, 80}, {443, 443}}, From: one("198.51.100.0/24"), In: []string{"eth0", "eth1"}}, Action{Kind: DNAT, Backends: []Backend{{Address: addr("fd00::1"), Port: 8080}}}},
		"on 203.0.113.7 ip/89 becomes 10.0.0.1 weight 3, 10.0.0.2 by hash":                          {Match{To: one("203.0.113.7/32"), Protocol: 89}, Action{Kind: DNAT, Backends: []Backend{{Address: addr("10.0.0.1"), Weight: 3}, {Address: addr("10.0.0.2")}}, Balance: BalanceHash}},
		"fd00::/48 is outside 2001:db8::/48 out eth0 stateless checksum-neutral (RFC 6296)":         {Match{From: one("fd00::/48"), Out: []string{"eth0"}}, Action{Kind: Pair, Prefix: netip.MustParsePrefix("2001:db8::/48"), Stateless: true, Neutral: true}},
		"to and from 203.0.113.7 udp/53 not tracked":                                                {Match{To: one("203.0.113.7/32"), Protocol: 17, Ports: []Ports{{53, 53}}}, Action{Kind: Notrack}},
		"originally to 203.0.113.7 tcp/80 not in eth0 mark 0x1/0xff becomes 203.0.113.7":            {Match{Original: one("203.0.113.7/32"), Protocol: 6, OriginalPorts: []Ports{{80, 80}}, NotIn: []string{"eth0"}, Mark: Mark{1, 255}}, Action{Kind: SNAT, To: AddrRanges{OneAddr(addr("203.0.113.7"))}}},
	} {
		if got := r.String(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func BenchmarkMatches(b *testing.B) {
	m := Match{To: []netip.Prefix{netip.MustParsePrefix("203.0.113.7/32")}, Protocol: 6, Ports: []Ports{{80, 80}}, In: []string{"eth0"}}
	p := Packet{Protocol: 6, Src: netip.MustParseAddr("198.51.100.1"), Dst: netip.MustParseAddr("203.0.113.7"), DstPort: 80, In: "eth0"}
	for b.Loop() {
		if !m.Matches(&p) {
			b.Fatal(fmt.Sprint(m))
		}
	}
}
