package fleet

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/snapshot"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// host is a node as its bundle would give it.
type host struct {
	name, source, boot, kernel, distribution string
	sysctls                                  snapshot.Sysctls
	rules                                    []string
	taken                                    time.Time
	uptime                                   float64
	netns                                    uint64
	findings                                 []diagnose.Finding
	notChecked                               []string
}

var serial int

func (h host) node() *Node {
	serial++
	if h.source == "" {
		h.source = "dir/" + h.name + ".tar.gz"
	}
	if h.boot == "" {
		h.boot = fmt.Sprintf("boot-%d", serial)
	}
	if h.taken.IsZero() {
		h.taken = noon
	}
	if h.uptime == 0 {
		h.uptime = 1000
	}
	rules := &snapshot.NATRules{}
	for _, text := range h.rules {
		rules.Rules = append(rules.Rules, snapshot.NATRule{Source: "nftables", Family: "ip", Table: "nat", Chain: "post", Text: text})
	}
	s := &snapshot.Snapshot{TakenAt: h.taken, UptimeSeconds: h.uptime, Sysctls: h.sysctls, NATRules: rules, Netns: snapshot.Netns{Inode: h.netns},
		Kernel: snapshot.Kernel{Release: h.kernel, BootID: h.boot}}
	rec := &snapshot.Recording{Snapshots: []*snapshot.Snapshot{s, s}}
	rec.Bundle.Host = snapshot.Host{Name: h.name, Distribution: h.distribution}
	r := &diagnose.Report{Findings: h.findings}
	for _, rule := range diagnose.Rules() {
		c := diagnose.Check{ID: rule.ID, State: diagnose.OK}
		if slices.Contains(h.notChecked, rule.ID) {
			c.State = diagnose.NotChecked
		}
		if slices.ContainsFunc(h.findings, func(f diagnose.Finding) bool { return f.ID == rule.ID }) {
			c.State = diagnose.Found
		}
		r.Checks = append(r.Checks, c)
	}
	n := NewNode(h.source)
	n.Add(rec, r)
	return n
}

func full(about ...netip.AddrPort) []diagnose.Finding {
	return []diagnose.Finding{{ID: "ct-table-full", Severity: diagnose.Critical, Title: "full", Confidence: "certain", About: about,
		Remedies: []diagnose.Remedy{{Title: "raise the limit", Commands: []string{"sysctl -w a=1"}}}}}
}

// TestShared: what separates is found with its counts, what cannot be told apart from it is named beside it, and what is as
// frequent among healthy nodes is not.
func TestShared(t *testing.T) {
	var nodes []*Node
	for i := range 12 {
		nodes = append(nodes, host{name: fmt.Sprintf("sick%d", i), kernel: "6.1.0-13", distribution: "debian 12", findings: full(),
			sysctls: snapshot.Sysctls{snapshot.ConntrackMax: "65536", "net.ipv4.ip_forward": "1"}, rules: []string{"masquerade"}}.node())
	}
	for i := range 488 {
		limit := "1048576"
		if i == 0 {
			limit = "65536"
		}
		nodes = append(nodes, host{name: fmt.Sprintf("well%d", i), kernel: []string{"6.1.0-13", "6.8.0-45"}[i%2], distribution: []string{"debian 12", "ubuntu 24.04"}[i%2],
			sysctls: snapshot.Sysctls{snapshot.ConntrackMax: limit, "net.ipv4.ip_forward": "1"}, rules: []string{"masquerade"}}.node())
	}
	r := Compare(Input{Nodes: nodes, Now: noon})
	if r.Nodes != 500 || r.Critical != 12 || r.Healthy != 488 || len(r.Groups) != 1 || r.Unfinished() {
		t.Fatalf("%+v", r)
	}
	g := r.Groups[0]
	if len(g.Sick) != 12 || g.Checked != 500 || g.Certain != 12 || g.First[0] != (Advice{"raise the limit", "sysctl -w a=1", 12}) {
		t.Errorf("%+v", g)
	}
	s := g.Shared[0]
	if s.Attribute != (Attribute{KindSysctl, snapshot.ConntrackMax, "65536"}) || s.Sick != 12 || s.SickKnown != 12 || s.Healthy != 1 || s.HealthyKnown != 488 || s.Chance > 1e-10 {
		t.Errorf("%+v", s)
	}
	for _, s := range g.Shared {
		if s.Name == "net.ipv4.ip_forward" || s.Kind == KindRule {
			t.Errorf("%+v separates, and all nodes have it", s)
		}
	}
}

// TestTooFew: of few nodes nothing is claimed, though some attributes separate them.
func TestTooFew(t *testing.T) {
	nodes := []*Node{host{name: "a", kernel: "6.1", findings: full()}.node(), host{name: "b", kernel: "6.1", findings: full()}.node()}
	for i := range 3 {
		nodes = append(nodes, host{name: fmt.Sprint("w", i), kernel: "6.8"}.node())
	}
	g := Compare(Input{Nodes: nodes}).Groups[0]
	if len(g.Shared) != 0 || g.Unsure == 0 {
		t.Errorf("shared %+v, unsure %d", g.Shared, g.Unsure)
	}
	g = Compare(Input{Nodes: nodes[:2]}).Groups[0]
	if len(g.Shared) != 0 || g.Unsure != 0 || g.Checked != 2 {
		t.Errorf("of sick nodes alone: %+v", g)
	}
}

// TestNoise: attributes that have nothing to do with a finding are not named, for many of them and many draws.
func TestNoise(t *testing.T) {
	named := 0
	for seed := range 50 {
		var nodes []*Node
		for i := range 60 {
			h := host{name: fmt.Sprint("n", i), sysctls: snapshot.Sysctls{}}
			for k := range 60 { // a number from a hash of its place, the same in every run
				x := uint64(seed*1_000_003+i*1009+k*31) * 0x9e3779b97f4a7c15
				h.sysctls[fmt.Sprintf("net.x%d", k)] = fmt.Sprint(x >> 62)
			}
			if uint64(seed*77+i)*0xbf58476d1ce4e5b9>>61 == 0 {
				h.findings = full()
			}
			nodes = append(nodes, h.node())
		}
		for _, g := range Compare(Input{Nodes: nodes}).Groups {
			named += len(g.Shared)
		}
	}
	if named > 2 { // 1 % of 50 in expectation
		t.Errorf("%d separations of noise", named)
	}
}

// TestNotChecked: a node whose check had no result is neither sick nor healthy.
func TestNotChecked(t *testing.T) {
	nodes := []*Node{host{name: "a", findings: full()}.node(), host{name: "b", notChecked: []string{"ct-table-full"}}.node(), host{name: "c"}.node()}
	if g := Compare(Input{Nodes: nodes}).Groups[0]; g.Checked != 2 {
		t.Errorf("%d checked, want 2", g.Checked)
	}
}

// TestThreshold: an order of numbers is found, and a missing rule.
func TestThreshold(t *testing.T) {
	var nodes []*Node
	for i := range 40 {
		h := host{name: fmt.Sprint("n", i), kernel: fmt.Sprintf("6.%d.0", i%20), rules: []string{"masquerade fully-random"}}
		if i%20 < 8 {
			h.findings = full()
			h.rules = []string{"masquerade"}
		}
		nodes = append(nodes, h.node())
	}
	var found []string
	for _, s := range Compare(Input{Nodes: nodes}).Groups[0].Shared {
		found = append(found, s.Compared+" "+s.Name+" "+s.Value)
		for _, same := range s.Same {
			found = append(found, same.Compared+" "+same.Name+" "+same.Value)
		}
	}
	for _, want := range []string{"≤ series 6.7", "has not nftables ip nat/post: masquerade fully-random "} {
		if !slices.Contains(found, want) {
			t.Errorf("%q is not among %q", want, found)
		}
	}
}

// TestSubjects: an address that findings of several nodes are about is named.
func TestSubjects(t *testing.T) {
	server, other := netip.MustParseAddrPort("198.18.0.1:80"), netip.MustParseAddrPort("198.18.0.2:80")
	nodes := []*Node{host{name: "a", findings: full(server)}.node(), host{name: "b", findings: full(server, other)}.node()}
	if s := Compare(Input{Nodes: nodes}).Groups[0].Subjects; !slices.Equal(s, []Subject{{server, 2}}) {
		t.Errorf("%v", s)
	}
}

// TestIdentity: the newest recording of a node counts; two machines of one name that ran at once are two, and network
// namespaces of one boot are one node.
func TestIdentity(t *testing.T) {
	for _, tt := range []struct {
		name    string
		hosts   []host
		want    []string
		counted string
	}{
		{"the same boot", []host{{name: "a", boot: "x", source: "old"}, {name: "a", boot: "x", source: "new", taken: noon.Add(time.Minute)}}, []string{"a"}, "new"},
		{"another boot later", []host{{name: "a", boot: "x", source: "old"}, {name: "a", boot: "y", source: "new", taken: noon.Add(time.Hour)}}, []string{"a"}, "new"},
		{"another machine", []host{{name: "a", boot: "x", source: "p/1.gz"}, {name: "a", boot: "y", source: "p/2.gz", taken: noon.Add(time.Second)}}, []string{"a (2.gz)", "a (1.gz)"}, ""},
		{"another name of the same boot", []host{{name: "a", boot: "x", source: "old"}, {name: "b", boot: "x", source: "new", taken: noon.Add(time.Minute)}}, []string{"b"}, "new"},
		{"another namespace of the same boot", []host{{name: "a", boot: "x", netns: 1, source: "1"}, {name: "a", boot: "x", netns: 2, source: "2"}}, []string{"a"}, "none"},
		{"boots that are not known", []host{{name: "a", boot: unknownBoot, source: "1"}, {name: "b", boot: unknownBoot, source: "2"}}, []string{"a", "b"}, "none"},
	} {
		var nodes []*Node
		for _, h := range tt.hosts {
			nodes = append(nodes, h.node())
		}
		slices.Reverse(nodes) // the order of the input does not matter
		applied := slices.Clone(nodes)
		slices.SortStableFunc(applied, func(a, b *Node) int { return strings.Compare(a.Name, b.Name) })
		kept, duplicates := newest(applied)
		var names []string
		for _, n := range kept {
			names = append(names, n.Name)
		}
		if !slices.Equal(names, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, names, tt.want)
		}
		if tt.counted == "none" {
			if len(duplicates) != 0 {
				t.Errorf("%s: %+v", tt.name, duplicates)
			}
		} else if len(duplicates) != 1 || duplicates[0].Counted != tt.counted {
			t.Errorf("%s: %+v, want %q", tt.name, duplicates, tt.counted)
		}
	}
}

// TestName: a name is text in UTF-8 of a bounded length, and that of the file where the bundle has none.
func TestName(t *testing.T) {
	for _, tt := range []struct{ name, source, want string }{
		{"gw/1", "dir/a.tar.gz", "gw/1"},
		{"", "dir/a.tar.gz", "a"},
		{"", "dir/natkit-gw-1-20261130T120000Z.tar.gz", "gw-1"},
		{"", "dir/\xff.tar.gz", "\uFFFD"},
		{strings.Repeat("a", 252) + "é", "dir/a.tar.gz", strings.Repeat("a", 252)},
	} {
		if got := (host{name: tt.name, source: tt.source}).node().Name; got != tt.want {
			t.Errorf("%q in %q is %q, want %q", tt.name, tt.source, got, tt.want)
		}
	}
}

// TestClocks: a clock is off by as much as the collector's times allow, and of a recording from the future at least.
func TestClocks(t *testing.T) {
	list, err := ParseList("dir", strings.NewReader(fmt.Sprintf("ahead\t%d\t%d\tok\nfine\t%d\t%d\tok\nbehind\t%d\t%d\tok\naway\t\t\tno answer within 10 s\nbad line\n",
		noon.Unix()-70, noon.Unix()-60, noon.Unix()-5, noon.Unix()+5, noon.Unix()+60, noon.Unix()+70)))
	if err != nil {
		t.Fatal(err)
	}
	nodes := []*Node{host{name: "x", source: "dir/ahead.tar.gz"}.node(), host{name: "y", source: "dir/fine.tar.gz"}.node(), host{name: "z", source: "dir/behind.tar.gz"}.node(),
		host{name: "later", source: "elsewhere/l.tar.gz", taken: noon.Add(time.Hour)}.node()}
	r := Compare(Input{Nodes: nodes, Lists: []List{list}, Now: noon})
	var got []string
	for _, c := range r.Clocks {
		got = append(got, c.Node+": "+c.String())
	}
	want := []string{"ahead: 60.0 s to 70.0 s ahead of the collector", "behind: 60.0 s to 70.0 s behind the collector", "later: 3600 s at least ahead of this host"}
	for i := range want {
		if i >= len(got) || strings.ReplaceAll(strings.ReplaceAll(got[i], ",", ""), ".0", "") != strings.ReplaceAll(want[i], ".0", "") {
			t.Errorf("clocks %q, want %q", got, want)
			break
		}
	}
	if len(r.Missing) != 2 || r.Missing[0] != (Failure{Node: "away", Why: "no answer within 10 s"}) || !r.Unfinished() {
		t.Errorf("missing %+v", r.Missing)
	}
}

// TestOutliers: a number far above the others stands out, and one that many have does not.
func TestOutliers(t *testing.T) {
	var nodes []*Node
	for i := range 40 {
		n := &Node{Name: fmt.Sprint("n", i), measures: slices.Repeat([]float64{math.NaN()}, len(measured))}
		n.measures[0] = 0.1 + float64(i%5)/100
		n.measures[2] = 0
		nodes = append(nodes, n)
	}
	nodes[7].measures[0], nodes[9].measures[2] = 0.97, 40
	got := outliers(nodes)
	if len(got) != 2 || got[0].Node != "n7" || got[1].Node != "n9" || got[0].Nodes != 40 {
		t.Errorf("%+v", got)
	}
	for i := range 10 {
		nodes[i].measures[0] = 0.97
	}
	if got := outliers(nodes); len(got) != 1 {
		t.Errorf("ten of 40 nodes stand out: %+v", got)
	}
	if got := outliers(nodes[:9]); len(got) != 0 {
		t.Errorf("among nine nodes: %+v", got)
	}
}

// TestFisher: the tail agrees with one that is counted out.
func TestFisher(t *testing.T) {
	for _, tt := range []struct {
		a, n, b, m int
		want       float64
	}{{3, 3, 0, 3, 1.0 / 20}, {2, 3, 1, 3, 10.0 / 20}, {0, 3, 3, 3, 1}, {1, 1, 0, 1, 0.5}} {
		if got := fisher(tt.a, tt.n, tt.b, tt.m); math.Abs(got-tt.want) > 1e-9 {
			t.Errorf("%d of %d, %d of %d: %g, want %g", tt.a, tt.n, tt.b, tt.m, got, tt.want)
		}
	}
}

func FuzzList(f *testing.F) {
	f.Add("a\t1\t2\tok\n#x\nb\t\t\tfailed\n")
	f.Add("a\tNaN\t-1\tok\n\t\t\t\n")
	f.Fuzz(func(t *testing.T, text string) {
		l, _ := ParseList("d", strings.NewReader(text))
		for _, e := range l.Entries {
			if e.Node == "" || len(e.Node) > mostName || l.find("d/"+e.Node+".tar.gz") == nil && !strings.ContainsAny(e.Node, `/\`) && stem("d/"+e.Node+".tar.gz") == e.Node && e.Node != "." && e.Node != ".." {
				t.Errorf("%+v", e)
			}
		}
		n := host{name: "a", source: "d/a.tar.gz"}.node()
		Compare(Input{Nodes: []*Node{n}, Lists: []List{l}, Now: noon})
	})
}
