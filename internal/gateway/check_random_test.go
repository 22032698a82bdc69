package gateway

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/nat"
)

// anyConfig is a file of random rules, sensible or not.
func anyConfig(t *testing.T, r *rand.Rand) Config {
	c := Config{Interfaces: Interfaces{WAN: WANs{{Interface: "eth0"}}, LAN: LANs{{Interface: "eth1"}, {Interface: "br0"}}}}
	if r.IntN(5) == 0 {
		c.Interfaces = Interfaces{}
	}
	c.Flowtable, c.Accounting = r.IntN(2) == 0, r.IntN(2) == 0
	if r.IntN(4) == 0 {
		c.Helpers, c.TTL = Helpers{"ftp", "sip"}, 64
	}
	if r.IntN(3) == 0 {
		c.Expect = Expect{Flows: 100_000, Rate: 100}
	}
	values := []anyValues{
		{[]string{"10.0.0.0/8", "10.0.0.0/24", "10.0.0.5", "192.168.0.0/16", "203.0.113.0/24"}, []string{"203.0.113.7", "203.0.113.8/29", "203.0.113.9-203.0.113.12", "198.51.100.0/24"}},
		{[]string{"fd00::/8", "fd00:1::/64", "fd00::5", "2001:db8::/64"}, []string{"2001:db8::7", "2001:db8::10-2001:db8::20", "2001:db8:1::/64"}},
	}
	for range r.IntN(5) {
		c.NAT = append(c.NAT, anyRule(t, r, values[min(r.IntN(12), 1)^1]))
	}
	for range r.IntN(3) {
		c.IPv6 = append(c.IPv6, anyRule(t, r, values[min(r.IntN(12), 1)]))
	}
	return c
}

type anyValues struct{ prefixes, ranges []string }

func anyRule(t *testing.T, r *rand.Rand, v anyValues) Rule {
	rule := anyKind(t, r, v)
	if r.IntN(8) == 0 {
		rule.Note = "to be moved"
	}
	if r.IntN(8) == 0 { // what begins with the rule's place depends on the order of rules
		rule.Log = pick(r, Log{On: true, Prefix: "nat: "}, Log{On: true, Rate: 10, Prefix: "x"})
	}
	return rule
}

func anyKind(t *testing.T, r *rand.Rand, v anyValues) Rule {
	prefix := func() Prefix { return mustPrefixes(t, pick(r, v.prefixes...))[0] }
	address := func() Address { return Address{mustRanges(t, pick(r, v.ranges...))[0].First} }
	prefixes := func() (all Prefixes) {
		for range r.IntN(3) {
			all = append(all, prefix())
		}
		return all
	}
	on := func() Switch { return r.IntN(4) == 0 }
	port := func() Port {
		return pick(r, Port{Protocol: "icmp"}, Port{Protocol: "tcp"}, Port{"tcp", 22, 22}, Port{"udp", 50, 70}, Port{"udp", 60, 60})
	}
	services := func() (all Services) {
		for range r.IntN(3) {
			if p := port(); !slices.ContainsFunc(all, p.meets) {
				all = append(all, p)
			}
		}
		return all
	}
	ids := func() IDs {
		return pick(r, nil, IDs{{nat.IDs{First: 0, Last: 0}}}, IDs{{nat.IDs{First: 5, Last: 9}}, {nat.IDs{First: 1000, Last: 1000}}})
	}
	conditions := func() (c Conditions) {
		for range r.IntN(5) - 2 {
			switch r.IntN(11) {
			case 0:
				c.ExceptFrom = prefixes()
			case 1:
				c.ExceptPort = services()
			case 2:
				c.In = pick(r, nil, Names{"lan"}, Names{"eth1", "wan"})
			case 3:
				c.ExceptIn = pick(r, nil, Names{"br0"})
			case 4:
				c.Mark = pick(r, Mark{}, Mark{nat.Mark{Value: 0x10, Mask: 0xf0}}, Mark{nat.Mark{Value: 1, Mask: math.MaxUint32}})
			case 5:
				c.ExceptMark = Marks{{nat.Mark{Value: 0x10, Mask: 0xf0}}}
			case 6:
				c.User, c.ExceptGroup = ids(), ids()
			case 7:
				c.DSCP = pick(r, nil, CodePoints{46}, CodePoints{0, 8})
			case 8:
				c.ExceptDSCP = pick(r, nil, CodePoints{46})
			case 9:
				c.UTCHours, c.ExceptUTCDays = pick(r, nil, HourRanges{{480, 1080}}, HourRanges{{1320, 360}, {720, 780}}), pick(r, nil, Days{0, 6})
			case 10:
				c.ExceptUTCHours, c.UTCDays = pick(r, nil, HourRanges{{480, 1080}}, HourRanges{{1080, 480}}), pick(r, nil, Days{1, 2, 3})
			}
		}
		return c
	}
	sources := func() Sources {
		return Sources{From: prefixes(), OnlyTo: pick(r, nil, nil, prefixes()), Port: pick(r, nil, nil, services()), ExceptTo: prefixes(),
			Out: pick(r, nil, nil, Names{"wan"}, Names{"eth9"}, Names{"eth0", "br0"})}
	}
	choice := func() Choice {
		return Choice{Ports: pick(r, Ports{}, Ports{Keep: true}, Ports{First: 50, Last: 60}), Random: pick(r, "", RandomPorts, RandomFully)}
	}
	backends := func() (all Backends) {
		port := pick[uint16](r, 0, 0, 80)
		for range 1 + r.IntN(5)/3 {
			all = append(all, nat.Backend{Address: prefix().Addr(), Port: port, Weight: pick[uint32](r, 0, 3)})
		}
		if len(all) == 1 && port > 0 && r.IntN(3) == 0 {
			all[0].Last = 100
		}
		return all
	}
	switch r.IntN(6) {
	case 0:
		return Rule{Masquerade: &Masquerade{KindFields{}, sources(), choice(), conditions()}}
	case 1:
		return Rule{SNAT: &SNAT{Sources: sources(), To: mustRanges(t, pick(r, v.ranges...), pick(r, v.ranges...)), Choice: choice(), Persistent: pick[*Switch](r, nil, new(Switch(true)), new(Switch(false))), Conditions: conditions()}}
	case 2:
		d := &DNAT{On: pick(r, On{Address: address().Addr}, On{Name: "wan"}, On{Name: "br0"}, On{Name: OnAny}), Port: services(), From: prefixes(), Conditions: conditions(),
			To: backends(), Balance: pick(r, "", Balance(nat.BalanceHash)), Hairpin: on(), Local: on()}
		if len(d.To) > 1 && r.IntN(3) == 0 {
			d.Health, d.AllDown = &Health{TCP: true, Port: 80, Interval: pick(r, 0, Duration(time.Minute))}, pick(r, "", AllDown(nat.AllDownReject))
		}
		return Rule{DNAT: d}
	case 3:
		return Rule{Static: &Static{Inside: Address{prefix().Addr()}, Outside: address(), Stateless: on(), Hairpin: on(), Local: on(),
			OnlyTo: pick(r, nil, nil, prefixes()), ExceptTo: pick(r, nil, nil, prefixes()), Port: pick(r, nil, nil, services()), Out: pick(r, nil, nil, Names{"lan"}), Conditions: pick(r, Conditions{}, conditions())}}
	case 4:
		return Rule{Netmap: &Netmap{Inside: prefix(), Outside: prefix(), Stateless: on()}}
	}
	if r.IntN(40) == 0 {
		return Rule{NAT64: &AcrossFamilies{Prefix: prefix(), From: prefixes()}}
	}
	return Rule{Notrack: &Notrack{On: address(), Port: port()}}
}

// Whatever rules are put together: Compile takes what Check does not refuse, and every
// refusal has its place; what Marshal writes Parse reads; and the order of the file
// means nothing.
func TestCheckAnything(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	fine := 0
	for range 2000 {
		c := anyConfig(t, r)
		file, err := Parse("f", Marshal(&c))
		if err != nil {
			t.Fatalf("%s%v", Marshal(&c), err)
		}
		if !reflect.DeepEqual(normal(t, c), normal(t, file.Config)) {
			t.Fatalf("not the same: %s", Marshal(&c))
		}
		for _, facts := range []Facts{{}, hostWithDocker()} {
			checksOut(t, file, facts)
			if refused(Check(file, facts)) {
				continue
			}
			fine++
			if one, other := shuffled(t, r, c, facts), shuffled(t, r, c, facts); one != other {
				t.Fatalf("the order means something:\n%s\n%s\n%s", Marshal(&c), one, other)
			}
		}
	}
	if fine < 200 {
		t.Errorf("only %d files are fine", fine)
	}
}

func refused(findings []Finding) bool {
	for _, f := range findings {
		if f.Severity == Refuse {
			return true
		}
	}
	return false
}

// normal is a Config in JSON, where an empty list is none.
func normal(t *testing.T, c Config) string {
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// shuffled compiles the rules in a random order; entries do not identify their rules.
func shuffled(t *testing.T, r *rand.Rand, c Config, facts Facts) string {
	for _, rules := range [][]Rule{c.NAT, c.IPv6} {
		r.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
	}
	p, err := Compile(&c, facts)
	if err != nil {
		t.Fatal(err)
	}
	for e := range p.Entries() {
		e.Rule = Ref{}
	}
	p.Waiting = nil
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
