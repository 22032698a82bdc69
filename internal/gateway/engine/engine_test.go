package engine_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/gateway/engine/fake"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
)

// TestStandard: engines are found by their names; a plan for the programs needs their engine.
func TestStandard(t *testing.T) {
	for _, one := range engine.Standard {
		if e, err := (engine.Set)(nil).Of(one.Name()); err != nil || e != one {
			t.Errorf("%s: %v, %v", one.Name(), e, err)
		}
	}
	if _, _, err := (engine.Set{&fake.Engine{}}).Assign(&gateway.Plan{Engine: gateway.EngineNetfilter, Bypass: 3}, gateway.Facts{}); err == nil {
		t.Error("assigned without the engine")
	}
}

// TestChoice: the plan chooses its engine, and nothing of the others stays in force.
func TestChoice(t *testing.T) {
	one, two := &fake.Engine{Word: "one"}, &fake.Engine{Word: "two"}
	set := engine.Set{one, two}
	inForce := func(e engine.Engine) bool {
		s, err := e.Read(nil, "", nil)
		return err == nil && s.Present
	}
	for _, step := range []struct {
		plan          *gateway.Plan
		inOne, inTwo  bool
		wantErr, fail error
	}{
		{plan: &gateway.Plan{Engine: "one"}, inOne: true},
		{plan: &gateway.Plan{Engine: "two"}, inTwo: true},
		{plan: &gateway.Plan{Engine: "one"}, inTwo: true, fail: errTest, wantErr: errTest}, // nothing goes before the new one is there
		{plan: &gateway.Plan{Engine: "one"}, inOne: true},
	} {
		one.Fails = step.fail
		if err := set.Apply(nil, step.plan, nil); !errors.Is(err, step.wantErr) {
			t.Errorf("%s: %v", step.plan.Engine, err)
		}
		if inForce(one) != step.inOne || inForce(two) != step.inTwo {
			t.Errorf("%s: in force by one %t, by two %t", step.plan.Engine, inForce(one), inForce(two))
		}
		if there, err := set.Present(nil); err != nil || !there {
			t.Errorf("%s: present %t, %v", step.plan.Engine, there, err)
		}
		s, err := set.Read(nil, nil, false)
		if want := map[bool]gateway.Engine{true: "one", false: "two"}[step.inOne]; err != nil || s.Digest != gateway.Digest(&gateway.Plan{Engine: want}) {
			t.Errorf("%s: read %+v, %v", want, s, err)
		}
	}
	if err := set.Apply(nil, &gateway.Plan{Engine: "three"}, nil); err == nil || !inForce(one) {
		t.Errorf("an engine that there is not: %v", err)
	}
	if err := set.Remove(nil); err != nil || inForce(one) || inForce(two) {
		t.Errorf("something is left: %v", err)
	}
	if s, err := set.Read(nil, nil, false); err != nil || s.Present {
		t.Errorf("%+v, %v", s, err)
	}
	if there, err := set.Present(nil); err != nil || there {
		t.Errorf("present %t, %v", there, err)
	}
}

var errTest = errors.New("as the test wants it")

// lacking is an error about the second rule.
type lacking struct{ error }

func (lacking) Rule() (gateway.Ref, bool) {
	return gateway.Ref{List: "nat", Index: 1, Kind: "snat"}, true
}

// TestCheck: the kernel is asked where gateway.Check lets a file pass that is meant for
// this host, and what it lacks is said of the rule.
func TestCheck(t *testing.T) {
	const fine = "gateway:\n  interfaces: {wan: lo}\n  nat:\n  - masquerade: {}\n  - snat: {from: 10.0.0.2, to: 203.0.113.7}\n"
	const refused = "gateway:\n  nat:\n  - static: {inside: 10.0.0.2, outside: 10.0.0.2}\n"
	for _, tt := range []struct {
		name, text string
		known      bool
		lacks      error
		line       int
		found      bool
	}{
		{name: "takes it", text: fine, known: true},
		{name: "lacks something of a rule", text: fine, known: true, lacks: lacking{errTest}, line: 5, found: true},
		{name: "lacks something of all", text: fine, known: true, lacks: errTest, found: true},
		{name: "another host", text: fine, lacks: errTest},
		{name: "refused anyway", text: refused, known: true, lacks: errTest},
	} {
		file, err := gateway.Parse("gateway.yaml", []byte(tt.text))
		if err != nil {
			t.Fatal(err)
		}
		all := engine.Set{&fake.Engine{Lacks: tt.lacks}}.Check(file, gateway.Facts{Known: tt.known, Interfaces: []gateway.Interface{{Name: "lo"}}})
		at := slices.IndexFunc(all, func(f gateway.Finding) bool { return f.ID == "kernel-refuses" })
		if at >= 0 != tt.found || at >= 0 && (all[at].Line != tt.line || all[at].Severity != gateway.Refuse || all[at].Message != tt.lacks.Error()) {
			t.Errorf("%s: %+v", tt.name, all)
		}
	}
}

// TestUnacknowledged: what programs pass by has to be known, as soon as they carry out a rule.
func TestUnacknowledged(t *testing.T) {
	set := engine.Set{&fake.Engine{Word: gateway.EngineEBPF, Only: []string{"static"}}, &fake.Engine{}}
	docker := gateway.Foreign{Source: "iptables-nft", Owner: "docker", Family: "ip", Table: "filter", Chain: "FORWARD", Type: "filter", Hook: "forward", Policy: "drop", Rules: 7}
	const static, masquerade = "static: {inside: 10.0.0.2, outside: 203.0.113.7}", "masquerade: {}"
	for _, tt := range []struct {
		words, rule string
		facts       gateway.Facts
		refused     bool
		contains    string
	}{
		{"engine: ebpf", static, gateway.Facts{}, true, "packets of 1 rule pass by"},
		{"engine: ebpf", static, gateway.Facts{Known: true, Interfaces: []gateway.Interface{{Name: "wan0"}}, Foreign: []gateway.Foreign{docker}, IPsecPolicies: 2}, true, "here docker's chain FORWARD of table ip filter (iptables-nft), 7 rules, policy drop, and 1 more"},
		{"engine: ebpf\n  acknowledge-bypass: on", static, gateway.Facts{}, false, ""},
		{"engine: ebpf", masquerade, gateway.Facts{}, false, ""},
		{"engine: netfilter", static, gateway.Facts{}, false, ""},
	} {
		file, err := gateway.Parse("f", []byte("gateway:\n  "+tt.words+"\n  interfaces: {wan: wan0}\n  nat:\n  - "+tt.rule+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		for _, check := range []func(*gateway.File, gateway.Facts, func(*gateway.Plan)) []gateway.Finding{set.CheckPlan, set.CheckUntried} {
			all := check(file, tt.facts, func(*gateway.Plan) {})
			at := slices.IndexFunc(all, func(f gateway.Finding) bool { return f.ID == "bypass-unacknowledged" })
			if at >= 0 != tt.refused || at >= 0 && (all[at].Severity != gateway.Refuse || all[at].Line != 2 || !strings.Contains(all[at].Message, tt.contains)) {
				t.Errorf("%s, %s: %+v", tt.words, tt.rule, all)
			}
		}
	}
}

// TestBypassed: of other programs' chains those that may do something to what is forwarded, of families that are.
func TestBypassed(t *testing.T) {
	chain := func(family, hook, policy string, rules int) gateway.Foreign {
		return gateway.Foreign{Family: family, Hook: hook, Policy: policy, Rules: rules}
	}
	facts := gateway.Facts{IPsecPolicies: 1, Qdiscs: []gateway.Qdisc{{Interface: "wan0", Kind: "htb"}}, Filters: []gateway.Filter{{Interface: "wan0", Way: "ingress", Kind: "u32"}}, Foreign: []gateway.Foreign{
		chain("ip", "forward", "accept", 1), chain("ip", "forward", "accept", 0), chain("ip", "forward", "drop", 0), chain("ip", "input", "drop", 1), chain("ip6", "forward", "drop", 1), chain("inet", "postrouting", "", 2), chain("netdev", "ingress", "", 1)}}
	p := &gateway.Plan{Engine: gateway.EngineNetfilter, IPv4: true, Accounting: true, Assigned: map[gateway.Engine][]gateway.Ref{gateway.EngineEBPF: {{}}}}
	kinds := map[gateway.BypassKind]int{}
	for _, b := range p.Bypassed(&facts) {
		kinds[b.Kind]++
	}
	if want := map[gateway.BypassKind]int{gateway.BypassChain: 4, gateway.BypassIPsec: 1, gateway.BypassQdisc: 1, gateway.BypassFilter: 1, gateway.BypassAccounting: 1}; !maps.Equal(kinds, want) {
		t.Errorf("%v, want %v", kinds, want)
	}
	if p.Assigned = nil; p.Bypassed(&facts) != nil {
		t.Error("something is passed by though nothing is assigned")
	}
}

func TestFollow(t *testing.T) {
	set := engine.Set{&fake.Engine{Word: "one"}}
	way, err := set.Follow(nil, &gateway.Plan{Engine: "one"}, gateway.Facts{}, nil, nat.Packet{})
	if err != nil || len(way.Steps) != 1 || way.Steps[0].Hook != "fake" {
		t.Errorf("%+v, %v", way, err)
	}
	if _, err := set.Follow(nil, &gateway.Plan{Engine: "two"}, gateway.Facts{}, nil, nat.Packet{}); err == nil {
		t.Error("followed by an engine that there is not")
	}
}

// slow is an engine that prepares; log has what is asked of it.
type slow struct {
	fake.Engine
	log *[]string
	err error
}

func (s *slow) Prepare(ns *netns.Handle, p *gateway.Plan, digest string) (apply func() (string, error), closes func(), err error) {
	*s.log = append(*s.log, "prepare "+digest)
	apply = func() (string, error) { *s.log = append(*s.log, "apply"); return s.Apply(ns, p, digest) }
	return apply, func() { *s.log = append(*s.log, "close") }, s.err
}

// TestAhead: what was prepared of a plan is what is applied of it, and of no other plan; why it could not be is told then.
func TestAhead(t *testing.T) {
	failed := errors.New("failed")
	for _, c := range []struct {
		err     error
		digest  string
		applied error
		log     []string
	}{
		{nil, "d", nil, []string{"prepare d", "apply", "close"}},
		{failed, "d", failed, []string{"prepare d"}},
		{nil, "another", nil, []string{"prepare d", "close"}},
	} {
		var log []string
		e := &slow{fake.Engine{Word: "one"}, &log, c.err}
		p := &gateway.Plan{Engine: "one"}
		ahead, done := engine.Set{e, &fake.Engine{Word: "without a part"}}.Ahead(nil, p, "d")
		if err := ahead.Put(nil, "one", p, c.digest, nil); !errors.Is(err, c.applied) {
			t.Errorf("%v, want %v", err, c.applied)
		}
		done()
		if s, err := e.Read(nil, "", nil); err != nil || (s.Digest == c.digest) != (c.applied == nil) {
			t.Errorf("%+v is in force, %v", s, err)
		}
		if !slices.Equal(log, c.log) {
			t.Errorf("%v, want %v", log, c.log)
		}
	}
}

// TestSeveral: each engine has its part, the last one all; where one fails, those
// before it get back what they had.
func TestSeveral(t *testing.T) {
	ref := func(i int, kind string) gateway.Ref { return gateway.Ref{List: "nat", Index: i, Kind: kind} }
	file := func(kinds ...string) *gateway.Plan {
		p := &gateway.Plan{Engine: "last", MSS: gateway.MSS{Clamp: true}}
		for i, kind := range kinds {
			p.Sources = append(p.Sources, gateway.Entry{Rule: ref(i, kind)})
		}
		return p
	}
	one, last := &fake.Engine{Word: "one", Only: []string{"static"}}, &fake.Engine{Word: "last"}
	set, kept := engine.Set{one, last}, &fake.Kept{Plans: map[string]*gateway.Plan{}}
	apply := func(p *gateway.Plan) (digest string, err error) {
		p, _, err = set.Assign(p, gateway.Facts{})
		if err != nil {
			return "", err
		}
		digest = gateway.Digest(p)
		kept.Plans[digest] = p
		return digest, set.Apply(nil, p, kept)
	}
	want := func(ofOne, ofLast string) {
		t.Helper()
		s, err := set.Read(nil, kept, true)
		if err != nil || s.Engines["one"].Digest != ofOne || s.Engines["last"].Digest != ofLast {
			t.Errorf("%+v, %v", s, err)
		}
	}
	mixed, notes, err := set.Assign(file("static", "snat"), gateway.Facts{})
	if err != nil || len(notes) != 1 || notes[0].Rule != ref(1, "snat") || notes[0].Engine != "one" {
		t.Fatalf("%+v, %v", notes, err)
	}
	if c := mixed.Carriers(notes); len(c) != 2 || c[0].Engine != "one" || c[0].Notes != nil || c[1].Engine != "last" || len(c[1].Notes) != 1 || mixed.Bypass != 0 {
		t.Errorf("%+v, %+v", mixed, c)
	}
	if a, b := mixed.Part("one"), mixed.Part("last"); len(a.Sources) != 1 || a.MSS.Clamp || len(b.Sources) != 2 || !b.MSS.Clamp || mixed.Part("third") != nil {
		t.Errorf("%+v\n%+v", a, b)
	}
	a, err := apply(file("static", "snat"))
	if err != nil {
		t.Fatal(err)
	}
	want(a, a)
	last.Fails = errTest
	if _, err := apply(file("static")); !errors.Is(err, errTest) {
		t.Error(err)
	}
	want(a, a)
	last.Fails = nil
	b, err := apply(file("snat"))
	if err != nil {
		t.Fatal(err)
	}
	want("", b)
	// What the last engine does not take is said of its rule.
	last.Only = []string{"static", "snat"}
	if _, _, err := set.Assign(file("static", "dnat"), gateway.Facts{}); err == nil || !strings.Contains(err.Error(), "nat[1] dnat") {
		t.Error(err)
	}
	// The programs mark packets only where they carry out something.
	set[0], last.Only = &fake.Engine{Word: gateway.EngineEBPF, Only: []string{"static"}}, nil
	for kind, want := range map[string]uint32{"static": 3, "snat": 0} {
		p := file(kind)
		p.Bypass = 3
		if p, _, err := set.Assign(p, gateway.Facts{}); err != nil || p.Bypass != want {
			t.Errorf("%s: %+v, %v", kind, p, err)
		}
	}
}
