package ports

import (
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

var (
	gateway = netip.MustParseAddr("203.0.113.1")
	client  = netip.MustParseAddr("198.18.0.10")
	server  = netip.MustParseAddr("198.19.0.1")
)

// flow is a UDP connection of a client that got a port of the gateway.
func flow(from netip.Addr, own, got uint16) *conntrack.Entry {
	return &conntrack.Entry{
		Family: unix.AF_INET, Timeout: 30,
		Orig:  conntrack.Tuple{Src: from, Dst: server, Proto: unix.IPPROTO_UDP, SrcPort: own, DstPort: 53},
		Reply: conntrack.Tuple{Src: server, Dst: gateway, Proto: unix.IPPROTO_UDP, SrcPort: 53, DstPort: got},
	}
}

// tcp makes a connection one of TCP in a state.
func tcp(e *conntrack.Entry, state conntrack.TCPState) *conntrack.Entry {
	e.Orig.Proto, e.Reply.Proto, e.TCPState = unix.IPPROTO_TCP, unix.IPPROTO_TCP, state
	return e
}

func collect(o Options, entries ...*conntrack.Entry) *Collector {
	c := NewCollector(o)
	for _, e := range entries {
		c.Add(e)
	}
	return c
}

func TestPools(t *testing.T) {
	local := flow(gateway, 4000, 4000) // the gateway's own, before its address is known
	inbound := &conntrack.Entry{
		Orig:  conntrack.Tuple{Src: server, Dst: gateway, Proto: unix.IPPROTO_UDP, SrcPort: 53, DstPort: 4001},
		Reply: conntrack.Tuple{Src: gateway, Dst: server, Proto: unix.IPPROTO_UDP, SrcPort: 4001, DstPort: 53},
	}
	zoned := flow(client, 5, 5)
	zoned.ReplyZone = 7
	ping := flow(client, 0, 0)
	ping.Orig.Proto, ping.Orig.DstPort, ping.Orig.ICMPID = unix.IPPROTO_ICMP, 0, 77
	ping.Reply.Proto, ping.Reply.SrcPort, ping.Reply.ICMPID = unix.IPPROTO_ICMP, 0, 78
	routed := flow(client, 9, 9)
	routed.Reply.Dst = client
	esp := flow(client, 0, 0)
	esp.Orig.Proto, esp.Reply.Proto = unix.IPPROTO_ESP, unix.IPPROTO_ESP
	c := collect(Options{}, local, flow(client, 3000, 3000), flow(client, 3001, 1024), flow(client, 3000, 3000), inbound,
		flow(client, 500, 511), flow(client, 700, 550), zoned, ping, routed, esp,
		tcp(flow(client, 3000, 3000), conntrack.TCPTimeWait), tcp(flow(client, 3001, 3001), conntrack.TCPEstablished))
	got := c.Ports(Query{Complete: true, Users: 2, Release: "6.12.1"})
	type row struct {
		Protocol, Class string
		Zone            uint16
		First, Last     uint16
		Used, TimeWait  int64
		Local           int64
	}
	want := map[row]bool{
		{"udp", "", 0, 1024, 65535, 4, 0, 1}:       true,
		{"udp", "privileged", 0, 1, 511, 1, 0, 0}:  true,
		{"udp", "reserved", 0, 600, 1023, 0, 0, 0}: true,
		{"udp", "privileged", 7, 1, 511, 1, 0, 0}:  true,
		{"icmp", "", 0, 0, 65535, 1, 0, 0}:         true,
		{"tcp", "", 0, 1024, 65535, 2, 1, 0}:       true,
	}
	seen := map[row]bool{}
	for _, p := range got.Pools {
		seen[row{p.Protocol, p.Class, p.Zone, p.FirstPort, p.LastPort, p.Used, p.TimeWait, p.Local}] = true
		if p.Address != gateway.String() || p.Rule != -1 || !p.Known || p.SecondsLeft != Never {
			t.Errorf("pool %+v", p)
		}
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Error(diff)
	}
	if got.Total != 6 || got.Translated != 9 || !got.Evicts || got.Probing != snapshot.PortProbeRandom {
		t.Errorf("%+v", got)
	}
}

// TestClientClosed: connections that the client closed first are counted apart, in small
// pools and in large ones.
func TestClientClosed(t *testing.T) {
	for _, ports := range []uint16{10, 4 * maxFew} {
		c := NewCollector(Options{})
		for p := uint16(3000); p < 3000+ports; p++ {
			e := tcp(flow(client, p, p), conntrack.TCPTimeWait)
			e.ClientClosed = p%2 == 0
			c.Add(e)
		}
		got := c.Ports(Query{Complete: true, Users: 2, Release: "6.12.1"})
		i := slices.IndexFunc(got.Pools, func(p snapshot.PortPool) bool { return p.Used > 0 })
		if i < 0 || got.Pools[i].TimeWait != int64(ports) || got.Pools[i].ClientClosed != int64(ports/2) {
			t.Errorf("%d ports: %+v", ports, got.Pools)
		}
	}
}

// Two dumps give rates, the time left, and how often preferred ports are taken.
func TestPortsBetweenDumps(t *testing.T) {
	before, after := NewCollector(Options{}), NewCollector(Options{})
	for p := uint16(1024); p < 31024; p++ {
		before.Add(flow(client, p, p))
		after.Add(flow(client, p, p))
	}
	for p := uint16(40000); p < 41000; p++ {
		own := p
		if p%4 != 0 {
			own = p - 30000
		}
		after.Add(flow(client, own, p))
	}
	got := after.Ports(Query{Complete: true, Before: before, Seconds: 10}).Pools[0]
	if !got.RateKnown || got.NewPerSecond != 100 || got.EndedPerSecond != 0 {
		t.Errorf("rates: %+v", got)
	}
	if want := (64512.0 - 31000) / 100; math.Abs(got.SecondsLeft-want) > 1e-9 {
		t.Errorf("%v s left, want %v", got.SecondsLeft, want)
	}
	// Of the moved ones some 2 % fail, so that a little more than 3 of 4 were taken.
	if got.TakenFrom != fromNew || got.TakenShare < 0.75 || got.TakenShare > 0.76 {
		t.Errorf("taken %v from %s", got.TakenShare, got.TakenFrom)
	}
	if diff := math.Abs(got.Fails - got.TakenShare*got.FailsIfTaken); diff > 1e-12 || got.Fails <= 0 {
		t.Errorf("fails %v", got.Fails)
	}
}

func TestPortsOfRules(t *testing.T) {
	rules := &snapshot.NATRules{Rules: []snapshot.NATRule{
		{Kind: snapshot.NATDest, Family: "ip", FirstPort: 1, LastPort: 65535},
		{Kind: snapshot.NATSource, Family: "ip", First: netip.MustParseAddr("203.0.113.2"), FirstPort: 1, LastPort: 65535},
		{Kind: snapshot.NATMasquerade, Family: "ip6", FirstPort: 1, LastPort: 65535},
		{Kind: snapshot.NATMasquerade, Family: "ip", FirstPort: 1, LastPort: 65535, NATCondition: snapshot.NATCondition{Protocol: "tcp"}},
		{Kind: snapshot.NATMasquerade, Family: "ip", FirstPort: 1, LastPort: 65535, NATCondition: snapshot.NATCondition{ToDestination: netip.MustParsePrefix("198.51.100.0/24")}},
		{Kind: snapshot.NATMasquerade, Family: "ip", FirstPort: 1, LastPort: 65535, NATCondition: snapshot.NATCondition{FromSource: netip.MustParsePrefix("10.0.0.0/8")}},
		{Kind: snapshot.NATSource, Family: "ip", First: gateway, Last: netip.MustParseAddr("203.0.113.9"), FirstPort: 30000, LastPort: 30999},
		{Kind: snapshot.NATMasquerade, Family: "inet", FirstPort: 20999, LastPort: 20000, FullyRandom: true, Table: "nat", Chain: "post", Text: "masquerade to :20000-20999 fully-random"},
		{Kind: snapshot.NATMasquerade, Family: "inet"},
	}}
	c := NewCollector(Options{})
	for p := uint16(20000); p < 20950; p++ {
		c.Add(flow(client, p-10000, p))
	}
	c.Add(flow(client, 7, 7)) // older than the rule
	p := c.Ports(Query{Complete: true, Rules: rules}).Pools[0]
	if p.Rule != 7 || p.FirstPort != 20000 || p.LastPort != 20999 || p.Used != 950 || !p.Draws || p.TakenShare != 1 ||
		p.RangeSource != "inet nat post: masquerade to :20000-20999 fully-random" {
		t.Errorf("%+v", p)
	}
	if p.FailsIfTaken < 0.5 || p.Fails != p.FailsIfTaken {
		t.Errorf("one block of 95 %% fails %v of %v", p.Fails, p.FailsIfTaken)
	}
	// Ports of several rules: each has its part.
	c.Add(flow(client, 9, 30005))
	for p := uint16(30100); p < 30200; p++ {
		c.Add(flow(client, 9, p))
	}
	got := c2(c, rules.Rules[:8])
	if len(got) != 2 || got[0].Rule != 7 || got[1].Rule != 6 || got[1].Used != 101 {
		t.Errorf("%+v", got)
	}
}

// Ports of a rule for a range of destination ports, or for several, are those of what goes to any of them.
func TestPortsOfRulesForSeveralDestinationPorts(t *testing.T) {
	for _, tc := range []struct {
		name string
		of   snapshot.NATRule
		want int
	}{
		{"last of a range", snapshot.NATRule{NATCondition: snapshot.NATCondition{DestinationPort: 44, LastDestinationPort: 53}}, 0},
		{"beside a range", snapshot.NATRule{NATCondition: snapshot.NATCondition{DestinationPort: 54, LastDestinationPort: 62}}, 1},
		{"one of several", snapshot.NATRule{SeveralPorts: []nat.Ports{{First: 1, Last: 1}, {First: 53, Last: 53}}}, 0},
		{"none of several", snapshot.NATRule{SeveralPorts: []nat.Ports{{First: 1, Last: 1}, {First: 54, Last: 65535}}}, 1},
	} {
		rule := tc.of
		rule.Kind, rule.Family, rule.FirstPort, rule.LastPort = snapshot.NATMasquerade, "ip", 20000, 20999
		c := NewCollector(Options{})
		c.Add(flow(client, 9, 20005))
		if got := c2(c, []snapshot.NATRule{rule, {Kind: snapshot.NATMasquerade, Family: "ip"}}); len(got) != 1 || got[0].Rule != tc.want {
			t.Errorf("%s: %+v", tc.name, got)
		}
	}
}

// A rule about what came back inside, which is asked first, gives no ports elsewhere.
func TestPortsOfHairpins(t *testing.T) {
	rules := []snapshot.NATRule{
		{Kind: snapshot.NATSource, Family: "ip", First: gateway, Last: gateway, OriginalDestination: true, Partial: true},
		{Kind: snapshot.NATMasquerade, Family: "ip", FirstPort: 2000, LastPort: 2099},
	}
	c := NewCollector(Options{})
	c.Add(flow(client, 9, 2005))
	if got := c2(c, rules); len(got) != 1 || got[0].Rule != 1 || got[0].LastPort != 2099 {
		t.Errorf("%+v", got)
	}
	c = NewCollector(Options{})
	c.Add(flow(client, 40000, 40000))
	if got := c2(c, rules); len(got) != 1 || got[0].Rule != 0 || got[0].LastPort != 65535 {
		t.Errorf("%+v", got)
	}
}

// Blocks of single clients stay apart from a rule for the rest, whichever comes first and whatever ports
// that one has; a rule for another interface hides none.
func TestPortsOfBlocksBesideTheRest(t *testing.T) {
	block := snapshot.NATRule{Kind: snapshot.NATSource, Family: "ip", First: gateway, Last: gateway, FirstPort: 1024, LastPort: 1087, NATCondition: snapshot.NATCondition{FromSource: netip.PrefixFrom(client, 32)}}
	others := snapshot.NATRule{Kind: snapshot.NATSource, Family: "ip", First: gateway, Last: gateway, NATCondition: snapshot.NATCondition{FromSource: netip.MustParsePrefix("198.18.0.11/32")}}
	rest := snapshot.NATRule{Kind: snapshot.NATSource, Family: "ip", First: gateway, Last: gateway}
	wide := rest
	wide.FirstPort, wide.LastPort = 1024, 65535
	elsewhere := snapshot.NATRule{Kind: snapshot.NATMasquerade, Family: "ip", NATCondition: snapshot.NATCondition{OutInterface: "ppp0"}}
	c := NewCollector(Options{})
	for p := uint16(1024); p < 1088; p++ {
		c.Add(flow(client, 1, p))
	}
	for p := uint16(40000); p < 40010; p++ {
		c.Add(flow(netip.MustParseAddr("198.18.0.11"), p, p))
	}
	for name, test := range map[string]struct {
		rules []snapshot.NATRule
		block int
	}{
		"before the rest":             {[]snapshot.NATRule{block, rest}, 0},
		"before a range of all":       {[]snapshot.NATRule{block, wide}, 0},
		"after one for others":        {[]snapshot.NATRule{others, block}, 1},
		"after one of some interface": {[]snapshot.NATRule{elsewhere, block, rest}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			got := c2(c, test.rules)
			if len(got) != 2 || got[0].Rule != test.block || got[0].Used != 64 || got[0].LastPort != 1087 || got[0].Fails == 0 || got[1].LastPort != 65535 {
				t.Errorf("%+v", got)
			}
		})
	}
	everything := snapshot.NATRule{Kind: snapshot.NATMasquerade, Family: "ip"}
	dead := block
	dead.First, dead.Last, dead.FromSource = netip.Addr{}, netip.Addr{}, netip.Prefix{}
	if got := c2(c, []snapshot.NATRule{everything, dead}); len(got) != 1 || got[0].Rule != 0 {
		t.Errorf("a rule that none reaches has ports: %+v", got)
	}
}

func c2(c *Collector, rules []snapshot.NATRule) []snapshot.PortPool {
	return c.Ports(Query{Complete: true, Rules: &snapshot.NATRules{Rules: rules}}).Pools
}

// TestUsersOfBlocks: where each client has ports of its own, no other one is named.
func TestUsersOfBlocks(t *testing.T) {
	other := netip.MustParseAddr("198.18.0.11")
	rules := &snapshot.NATRules{}
	for i, from := range []netip.Addr{client, other} {
		rules.Rules = append(rules.Rules, snapshot.NATRule{
			Kind: snapshot.NATSource, Family: "ip", First: gateway, Last: gateway, FirstPort: uint16(10000 * (i + 1)), LastPort: uint16(10000*(i+1) + 4095), NATCondition: snapshot.NATCondition{FromSource: netip.PrefixFrom(from, 32)},
		})
	}
	for name, n := range map[string]int{"few ports": 20, "many ports": 2000} {
		t.Run(name, func(t *testing.T) {
			c := NewCollector(Options{})
			for i := range n {
				c.Add(flow(client, 1, uint16(10000+i)))
				if i < n/2 {
					c.Add(flow(other, 1, uint16(20000+i)))
				}
			}
			half := c.Ports(Query{Entries: int64(3 * n), Rules: rules, Users: 2})
			for i, want := range []snapshot.Talker{{Who: client.String(), Entries: int64(2 * n)}, {Who: other.String(), Entries: int64(n)}} {
				if got := half.Pools[i]; got.Used != want.Entries || !slices.Equal(got.Users, []snapshot.Talker{want}) {
					t.Errorf("%d ports used from %d on, by %v, want %v", got.Used, got.FirstPort, got.Users, want)
				}
			}
		})
	}
}

// A sample is scaled, and gives no chance.
func TestPortsOfSample(t *testing.T) {
	c := NewCollector(Options{})
	for p := uint16(1024); p < 31024; p++ {
		c.Add(flow(client, p, p))
	}
	p := c.Ports(Query{Entries: 60000}).Pools[0]
	if p.Used != 60000 || p.Known || p.FailsIfTaken != 0 || p.RateKnown {
		t.Errorf("%+v", p)
	}
}

// What ended is in the way of none that is past its sequence numbers.
func TestPortsOfEnded(t *testing.T) {
	c := NewCollector(Options{})
	for p := 1024; p < 61024; p++ {
		state := conntrack.TCPEstablished
		if p%64 == 0 {
			state = conntrack.TCPTimeWait
		}
		c.Add(tcp(flow(client, uint16(p), uint16(p)), state))
	}
	p := c.Ports(Query{Complete: true, Release: "6.6.0"}).Pools[0]
	if p.FailsIfKept < 0.6 || p.FailsIfTaken > 0.2 || p.FailsIfTaken <= 0 {
		t.Errorf("with eviction %v, without %v", p.FailsIfTaken, p.FailsIfKept)
	}
	p = c.Ports(Query{Complete: true, Release: "6.5.13-generic"}).Pools[0]
	if p.FailsIfKept != p.FailsIfTaken {
		t.Errorf("Linux 6.5 evicts: %v and %v", p.FailsIfTaken, p.FailsIfKept)
	}
	p = c.Ports(Query{Complete: true, Release: "4.19.1"}).Pools[0]
	if p.FailsIfTaken != 0 {
		t.Errorf("Linux 4.19 finds none in a range that is not full: %v", p.FailsIfTaken)
	}
}

// Entries with a known age give the rate from one dump.
func TestPortsOfOneDumpWithAges(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	c := NewCollector(Options{Now: now})
	for p := uint16(1024); p < 3024; p++ {
		e := flow(client, p, p)
		e.Start = uint64(now.Add(-time.Duration(p-1024) * 10 * time.Millisecond).UnixNano())
		c.Add(e)
	}
	p := c.Ports(Query{Complete: true}).Pools[0]
	if !p.RateKnown || math.Abs(p.NewPerSecond-100) > 0.2 || p.SecondsLeft != Never {
		t.Errorf("%+v", p)
	}
	c.Add(flow(client, 5000, 5000))
}

// Memory is bounded, and the pools that matter stay.
func TestCollectorMemory(t *testing.T) {
	c := NewCollector(Options{MemoryBytes: 4 << 20})
	for i := range 200_000 {
		e := flow(client, uint16(i), uint16(i))
		e.Orig.Dst = netip.AddrFrom4([4]byte{100, byte(i >> 16), byte(i >> 8), byte(i)})
		e.Reply.Src = e.Orig.Dst
		c.Add(e)
		if i%4 == 0 {
			c.Add(flow(client, uint16(2000+i/4), uint16(2000+i/4)))
		}
		if held := c.held(); held > 4<<20+1<<16 {
			t.Fatalf("%d bytes after %d entries", held, i)
		}
	}
	got := c.Ports(Query{Complete: true, Top: 3})
	p := got.Pools[0]
	if got.LeftOut == 0 || p.Destination != "198.19.0.1:53" || p.Used != 50000 || !p.Known {
		t.Errorf("%d left out, %+v", got.LeftOut, p)
	}
	for _, p := range got.Pools[1:] {
		if p.Used > 1 {
			t.Errorf("%+v", p)
		}
	}
}

func TestSecondsLeft(t *testing.T) {
	for _, tt := range []struct {
		name       string
		size, used int
		came, went int64
		want       float64
	}{
		{"none end", 1000, 500, 100, 0, 50},
		{"steady", 1000, 500, 100, 100, Never},
		{"chance", 1000, 500, 110, 100, Never},
		{"shrinks", 1000, 500, 10, 100, Never},
		{"level below the range", 64512, 10000, 2000, 1500, Never},
		{"full", 1000, 1000, 5, 5, 0},
		{"full, still", 1000, 1000, 0, 0, Never},
	} {
		if got := SecondsLeft(tt.size, tt.used, tt.came, tt.went, 10); math.Abs(got-tt.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	// 100/s that live 100 s come to a level of 10,000: from 2,000, 5,000 are used up
	// after 100·ln(8000/5000) s. Watched for one second.
	used := 2000.0
	came, went := int64(100), int64(20)
	got := SecondsLeft(5000, int(used), came, went, 1)
	if want := 100 * math.Log(8000.0/5000); math.Abs(got-want) > 4 {
		t.Errorf("%v, want about %v", got, want)
	}
}

func TestTakenShare(t *testing.T) {
	for _, tt := range []struct {
		kept, moved int64
		fails, used float64
		want        float64
	}{
		{0, 0, 0.5, 0.3, 0.3},
		{50, 50, 0, 0.5, 0.5},
		{500, 150, 0.7, 0.5, 0.5},  // 350 more failed
		{1000, 0, 1, 0.93, 0.93},   // none that is moved survives
		{100000, 0, 0.2, 0.9, 0.0}, // no port is taken
	} {
		got, _ := takenShare(tt.kept, tt.moved, tt.fails, tt.used)
		if math.Abs(got-tt.want) > 0.005 {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}

func TestRelease(t *testing.T) {
	for release, want := range map[string]string{
		"3.10.0-1160.el7.x86_64": "all", "4.19.0": "all", "5.0": "windows", "5.4.0-150-generic": "windows",
		"6.1.0-30-cloud-amd64": "windows", "6.6": "evicts", "6.18.5": "evicts", "7.0.0-rc1": "evicts", "": "windows", "x.y": "windows",
	} {
		got := "windows"
		switch {
		case Probing(release) == snapshot.PortProbeAll:
			got = "all"
		case Evicts(release):
			got = "evicts"
		}
		if got != want {
			t.Errorf("%q: %s, want %s", release, got, want)
		}
	}
}

func BenchmarkCollector(b *testing.B) {
	b.ReportAllocs()
	c := NewCollector(Options{})
	entries := make([]*conntrack.Entry, 1<<16)
	for i := range entries {
		entries[i] = flow(client, uint16(i), uint16(i))
		entries[i].Reply.SrcPort = uint16(i % 100)
	}
	for i := 0; b.Loop(); i++ {
		c.Add(entries[i%len(entries)])
	}
}
