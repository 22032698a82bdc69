package look

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/gateway/engine/netfilter"
	"github.com/natkit/natkit/internal/gateway/host"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/ports"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/testutil"
)

const example = `gateway:
  interfaces: {wan: wan0, lan: lan0}
  nat:
    - masquerade: {from: 192.168.0.0/16}
    - snat: {from: 192.168.0.2, to: 203.0.113.7, ports: 2000-2099}
    - dnat: {on: 203.0.113.1, port: udp/8080, to: 192.168.0.2:8080}
    - dnat: {on: 203.0.113.1, port: udp/8081, to: 192.168.0.2:8080}
`

func (w *world) facts() gateway.Facts {
	w.t.Helper()
	f, err := host.Read(w.t.Context(), w.gateway, host.Options{})
	if err != nil {
		w.t.Fatal(err)
	}
	return f
}

func TestNothingApplied(t *testing.T) {
	w := newWorld(t)
	if s := w.look(); s.Present || s.Confirm != nil || len(s.Rules) > 0 {
		t.Errorf("%+v", s)
	}
}

func TestRulesHaveTheirConnections(t *testing.T) {
	w := newWorld(t)
	p := w.apply(example, w.facts())
	w.connect(w.inside, "203.0.113.100:7", 5)
	w.connect(w.outside, "203.0.113.1:8081", 3)
	s := w.look()
	if s.Integrity != gateway.RulesIntact || s.Plan != gateway.Digest(p) || s.PlanUnknown != "" || len(s.Missing) > 0 {
		t.Errorf("%s, plan %s, %s, %v, missing %v", s.Integrity, s.Plan, s.PlanUnknown, s.Changes, s.Missing)
	}
	if !s.Flows.Complete || s.Flows.Table != 8 || s.Flows.Stranger != 0 || s.Flows.Stale != 0 {
		t.Errorf("flows %+v", s.Flows)
	}
	for i, want := range []int64{0, 5, 0, 3} {
		r := s.Rules[i]
		if r.Flows != want || r.Packets != uint64(2*want) || r.Unanswered != 0 {
			t.Errorf("%s: %+v, want %d flows", r.Rule, r.Usage, want)
		}
		if r.New == nil {
			if i < 2 { // a rule of its own has a counter on every kernel
				t.Errorf("%s has no counter", r.Rule)
			}
			continue
		}
		if *r.New != uint64(want) {
			t.Errorf("%s: %d new connections, want %d", r.Rule, *r.New, want)
		}
	}
	if len(s.Pools) != 1 || s.Pools[0].Left != 95 || s.Pools[0].Size != 100 || s.Pools[0].Rule.Index != 1 {
		t.Errorf("pools %+v", s.Pools)
	}
	if p := s.Rules[1].Ports; p == nil || p.Left != 95 || p.Size != 100 || s.Rules[0].Ports != nil {
		t.Errorf("ports left %+v, %+v", p, s.Rules[0].Ports)
	}
}

func TestRatesComeFromTheSecondLookOn(t *testing.T) {
	w := newWorld(t)
	w.apply(example, w.facts())
	l := New(w.options())
	first, err := l.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if first.Rules[1].NewPerSecond != nil {
		t.Error("a rate after one look")
	}
	w.connect(w.inside, "203.0.113.100:7", 2)
	second, err := l.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r := second.Rules[1].NewPerSecond; r == nil || *r <= 0 {
		t.Errorf("rate %v", r)
	}
	if r := second.Rules[0].NewPerSecond; r == nil || *r != 0 {
		t.Errorf("rate of a rule without connections %v", r)
	}
}

func TestChangesBySomebody(t *testing.T) {
	for name, tt := range map[string]struct {
		change []string
		want   string
	}{
		"a rule more":     {[]string{"nft", "add", "rule", "inet", "natkit", "postrouting", "accept"}, "chain postrouting: 4 rules instead of 3 (1 of them not natkit's)"},
		"a chain more":    {[]string{"nft", "add", "chain", "inet", "natkit", "mine"}, "chain mine: is not natkit's"},
		"a chain emptied": {[]string{"nft", "flush", "chain", "inet", "natkit", "postrouting"}, "chain postrouting: 0 rules instead of 3 (nat[0] masquerade and nat[1] snat are missing)"},
		"a set more":      {[]string{"nft", "add", "set", "inet", "natkit", "mine", "{ type ipv4_addr; }"}, "set mine: is not natkit's"},
		"an element gone": {[]string{"nft", "delete", "element", "inet", "natkit", "destination4-1", "{ udp . 8081 }"},
			"set destination4-1: 1 elements instead of 2 (nat[3] dnat is missing)"},
		"an element that is not natkit's": {[]string{"nft", "add", "element", "inet", "natkit", "destination4-1", "{ udp . 99 : 192.168.0.9 . 99 }"},
			"set destination4-1: 3 elements instead of 2 (1 of them not natkit's)"},
		"asleep": {[]string{"nft", "add", "table", "inet", "natkit", "{ flags dormant; }"}, "dormant"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.apply(example, w.facts())
			w.run(tt.change...)
			s := w.look()
			if s.Integrity != gateway.RulesChanged || !slices.ContainsFunc(s.Changes, func(c string) bool { return strings.Contains(c, tt.want) }) {
				t.Errorf("%s: %q", s.Integrity, s.Changes)
			}
		})
	}
}

func TestOthersTablesAreNoChange(t *testing.T) {
	w := newWorld(t)
	w.apply(example, w.facts())
	w.run("nft", "add", "table", "ip", "other")
	w.connect(w.inside, "203.0.113.100:7", 1)
	if s := w.look(); s.Integrity != gateway.RulesIntact {
		t.Errorf("%s: %q", s.Integrity, s.Changes)
	}
}

func TestPlanThatIsNotInTheStore(t *testing.T) {
	w := newWorld(t)
	w.apply(example, w.facts())
	w.connect(w.inside, "203.0.113.100:7", 2)
	o := w.options()
	o.Store = nil
	s, err := New(o).Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.PlanUnknown == "" || len(s.Rules) == 0 {
		t.Errorf("%+v", s)
	}
	i := slices.IndexFunc(s.Rules, func(r observe.Rule) bool { return r.Rule.Index == 1 })
	if i < 0 || *s.Rules[i].New != 2 {
		t.Errorf("rules %+v", s.Rules)
	}
}

func TestInterfacesThatAreNotThere(t *testing.T) {
	w := newWorld(t)
	w.apply(strings.ReplaceAll(example, "lan: lan0", "lan: [lan0, lan9]"), w.facts())
	if s := w.look(); !slices.Equal(s.Missing, []string{"lan9"}) {
		t.Errorf("missing %v", s.Missing)
	}
}

func TestRulesThatWaitForAnAddress(t *testing.T) {
	w := newWorld(t)
	w.apply(`gateway:
  interfaces: {wan: ppp0, lan: lan0}
  nat:
    - dnat: {on: wan, port: udp/8080, to: 192.168.0.2:8080}
`, w.facts())
	s := w.look()
	if len(s.Waiting) != 1 || s.Waiting[0].Interface != "ppp0" || len(s.Rules) != 1 || !slices.Equal(s.Missing, []string{"ppp0"}) {
		t.Errorf("%+v, %+v, %v", s.Waiting, s.Rules, s.Missing)
	}
}

func TestStrangersAreTold(t *testing.T) {
	w := newWorld(t)
	w.run("nft", "add table ip other; add chain ip other p { type nat hook postrouting priority 100; }; add rule ip other p oifname wan0 meta l4proto udp snat to 203.0.113.1:3000-3999")
	w.apply(example, w.facts())
	w.connect(w.inside, "203.0.113.100:7", 3)
	s := w.look()
	if s.Flows.Stranger != 0 || s.Rules[0].Flows != 3 || s.Rules[1].Flows != 0 {
		t.Errorf("%+v %+v", s.Flows, s.Rules)
	}
}

func TestRemovedTable(t *testing.T) {
	w := newWorld(t)
	w.apply(example, w.facts())
	if err := engine.Standard.Remove(w.gateway); err != nil {
		t.Fatal(err)
	}
	if s := w.look(); s.Present {
		t.Errorf("%+v", s)
	}
}

// TestPortsOfMaps: natkit ports and doctor find the pool's range in the table, also
// where a map gives it, and have nothing to change there themselves.
func TestPortsOfMaps(t *testing.T) {
	w := newWorld(t)
	w.apply(`gateway:
  interfaces: {wan: wan0, lan: lan0}
  nat:
    - snat: {from: 192.168.0.0/24, to: 203.0.113.7, ports: 2000-2099}
    - snat: {from: 192.168.1.0/24, to: 203.0.113.7, ports: 3000-3099}
`, w.facts())
	w.connect(w.inside, "203.0.113.100:7", 5)
	rules, err := read.NAT(w.gateway)
	if err != nil {
		t.Fatal(err)
	}
	c := ports.NewCollector(ports.Options{Addresses: ports.Given(rules)})
	if _, err := dump.Each(t.Context(), w.gateway, nil, func(e *conntrack.Entry) error { c.Add(e); return nil }); err != nil {
		t.Fatal(err)
	}
	pools := c.Ports(ports.Query{Complete: true, Rules: rules}).Pools
	if len(pools) != 1 || pools[0].Used != 5 || pools[0].FirstPort != 2000 || pools[0].LastPort != 2099 {
		t.Fatalf("%+v", pools)
	}
	rule := rules.Rules[pools[0].Rule]
	if rule.Gateway != "nat[0] snat" || rule.Target != "" || !strings.Contains(pools[0].RangeSource, "nat[0] snat of the gateway") {
		t.Errorf("%+v, %s", rule, pools[0].RangeSource)
	}
}

func TestLimitsAreDropsAndOthersAreNot(t *testing.T) {
	w := newWorld(t)
	w.apply(`gateway:
  interfaces: {wan: wan0, lan: lan0}
  limits: {connections-per-source: 3}
  mss: clamp
  nat:
    - masquerade: {from: 192.168.0.0/16}
`, w.facts())
	w.connect(w.inside, "203.0.113.100:7", 3)
	w.send(w.inside, "203.0.113.100:7", 2)
	// A segment without a flag is invalid, and would leave untranslated.
	w.do(w.inside, func() error {
		c, err := net.Dial("ip4:tcp", "203.0.113.100")
		if err == nil {
			_, err = c.Write(make([]byte, 20))
			err = errors.Join(err, c.Close())
		}
		return err
	})
	dropped := func(s *observe.Status) bool {
		packets := map[string]uint64{}
		for _, c := range s.Drops.Counters {
			packets[c.What] = c.Packets
		}
		return len(packets) == 2 && packets[netfilter.LimitComment] == 2 && packets[netfilter.UntranslatableComment] == 1
	}
	s := w.look()
	for end := time.Now().Add(testutil.Patience(time.Minute)); !dropped(s) && time.Now().Before(end); s = w.look() {
		time.Sleep(time.Millisecond)
	}
	if !dropped(s) || len(s.Counters) != 1 || s.Counters[0].What != netfilter.MSSComment {
		t.Errorf("drops %+v, counters %+v", s.Drops.Counters, s.Counters)
	}
	if s.Rules[0].Flows != 3 || *s.Rules[0].New != 3 || s.Integrity != gateway.RulesIntact {
		t.Errorf("%+v, %s: %v", s.Rules[0], s.Integrity, s.Changes) // what packets put into the limit's set is no change
	}
}

// TestAppliedAgain: another plan, with the limit's set kept, leaves no old marks.
func TestAppliedAgain(t *testing.T) {
	w := newWorld(t)
	const limited = "\n  limits: {connections-per-source: 10}"
	w.apply(strings.Replace(example, "gateway:", "gateway:"+limited, 1), w.facts())
	w.connect(w.inside, "203.0.113.100:7", 2)
	p := w.apply(strings.Replace(example, "gateway:", "gateway:"+limited+"\n  mss: clamp", 1), w.facts())
	s := w.look()
	if s.Integrity != gateway.RulesIntact || s.Plan != gateway.Digest(p) || s.Rules[1].Flows != 2 || *s.Rules[1].New != 0 {
		t.Errorf("%s %v, plan %s, %+v", s.Integrity, s.Changes, s.Plan, s.Rules[1])
	}
	table, err := read.TableNamed(w.gateway, netfilter.Family, netfilter.Table)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, r := range table.Rules {
		if r.Chain == netfilter.MarkChain && seen[r.Comment] {
			t.Errorf("twice: %s", r.Comment)
		}
		seen[r.Comment] = true
	}
}

func TestBudgetBoundsTheLook(t *testing.T) {
	w := newWorld(t)
	w.apply(example, w.facts())
	w.connect(w.inside, "203.0.113.100:7", 12)
	b := Budget(time.Second, 5)
	l := New(w.options())
	s, err := l.Within(t.Context(), b, false)
	if err != nil || s.Flows.Sampled != 5 || s.Flows.Complete {
		t.Errorf("%v: %+v", err, s.Flows)
	}
	if s, err = l.Within(t.Context(), b, true); err != nil || s.Flows.Sampled != 12 || !s.Flows.Complete {
		t.Errorf("all: %v: %+v", err, s.Flows)
	}
}

func TestSampleIsScaled(t *testing.T) {
	w := newWorld(t)
	w.apply(example, w.facts())
	w.connect(w.inside, "203.0.113.100:7", 20)
	o := w.options()
	o.MaxEntries = 10
	s, err := New(o).Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.Flows.Complete || s.Flows.Sampled != 10 || s.Rules[1].Flows != 20 || s.Rules[1].Packets != 40 {
		t.Errorf("%+v, %+v", s.Flows, s.Rules[1].Usage)
	}
}
