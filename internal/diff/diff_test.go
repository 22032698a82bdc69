package diff

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/snapshot"
)

// sampled is a recording of 10 s in which tcp_retrans grew by grown.
func sampled(change func(*snapshot.Snapshot), grown uint64) *snapshot.Recording {
	rec := &snapshot.Recording{Schema: snapshot.RecordingSchema}
	for i := range 2 {
		s := &snapshot.Snapshot{
			TakenAt: time.Unix(int64(10*i), 0), UptimeSeconds: float64(10 * i),
			Kernel:        snapshot.Kernel{Release: "6.1.0", Arch: "x86_64", CPUs: 2, BootID: "one"},
			Memory:        &snapshot.Memory{TotalBytes: 1 << 30},
			Sysctls:       snapshot.Sysctls{snapshot.ConntrackMax: "1000", snapshot.ConntrackCount: "7"},
			ConntrackSize: &snapshot.ConntrackSize{EntryBytes: 320},
			NATRules: &snapshot.NATRules{Rules: []snapshot.NATRule{
				{Family: "ip", Table: "nat", Chain: "post", Kind: snapshot.NATMasquerade, Text: "masquerade", Handle: uint64(3 + i)},
				{Family: "ip", Table: "nat", Chain: "post", Kind: snapshot.NATMasquerade, Text: "masquerade"},
			}},
			Links:         &snapshot.Links{All: []snapshot.Link{{Name: "eth0", MTU: 1500}}},
			TCP:           &snapshot.TCP{Counters: snapshot.Counters{"TcpRetransSegs": 100 + uint64(i)*grown, "TcpExtPAWSEstab": 7, "IpInReceives": uint64(i) * grown}},
			ConntrackStat: &snapshot.ConntrackStat{PerCPU: []map[string]uint64{{"drop": 5 + uint64(i)*grown, "found": uint64(i) * grown}}},
		}
		if change != nil {
			change(s)
		}
		rec.Snapshots = append(rec.Snapshots, s)
	}
	return rec
}

func input(source string, rec *snapshot.Recording, ids ...string) Input {
	r := &diagnose.Report{}
	for _, id := range ids {
		r.Findings = append(r.Findings, diagnose.Finding{ID: id, Severity: diagnose.Warning, Title: "title of " + id})
	}
	return Input{source, rec, r}
}

func TestSame(t *testing.T) {
	// Another boot, another reading, other handles and entries: nothing that matters.
	later := sampled(func(s *snapshot.Snapshot) {
		s.Kernel.BootID, s.TakenAt = "two", s.TakenAt.Add(time.Hour)
		s.Sysctls[snapshot.ConntrackCount] = "99"
		s.NATRules.Rules[0].Handle = 77
	}, 3)
	d := Of([]Input{input("a", sampled(nil, 0), "x")}, []Input{input("b", later, "x")})
	if d.Differs() || !d.Complete() || len(d.Namespaces) != 1 || len(d.Namespaces[0].Kept) != 1 {
		t.Errorf("%+v", d)
	}
}

func TestChanges(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*snapshot.Snapshot)
		grown  uint64
		want   []Change
	}{
		"a sysctl": {func(s *snapshot.Snapshot) { s.Sysctls[snapshot.ConntrackMax] = "2000" }, 0,
			[]Change{{Sysctl, snapshot.ConntrackMax, "1000", "2000"}}},
		"one that is gone, and one that is new": {func(s *snapshot.Snapshot) { s.Sysctls = snapshot.Sysctls{snapshot.TCPTWReuse: "1"} }, 0,
			[]Change{{Sysctl, snapshot.ConntrackMax, "1000", ""}, {Sysctl, snapshot.TCPTWReuse, "", "1"}}},
		"a kernel": {func(s *snapshot.Snapshot) { s.Kernel.Release = "6.12.0"; s.ConntrackSize.EntryBytes = 256 }, 0,
			[]Change{{Kernel, "release", "6.1.0", "6.12.0"}, {Memory, "entry of the connection table", "320 B", "256 B"}}},
		"one of two rules alike": {func(s *snapshot.Snapshot) { s.NATRules.Rules = s.NATRules.Rules[:1] }, 0,
			[]Change{{NATRule, "ip nat post: masquerade", Present, ""}}},
		"a condition": {func(s *snapshot.Snapshot) {
			s.NATRules.Rules[1].OutInterface, s.NATRules.Rules[1].FromSource = "wan0", netip.MustParsePrefix("10.0.0.0/8")
			s.NATRules.Rules[1].Protocol, s.NATRules.Rules[1].DestinationPort = "tcp", 80
		}, 0, []Change{{NATRule, "ip nat post: masquerade", Present, ""}, {NATRule, "ip nat post: oif wan0 from 10.0.0.0/8 proto tcp dport 80 masquerade", "", Present}}},
		"an interface": {func(s *snapshot.Snapshot) {
			s.Links.All[0].MTU = 1400
			s.Audit = &snapshot.Audit{
				Interfaces: []snapshot.Interface{{Name: "eth0", Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/8")}}},
				Beyond:     []snapshot.BeyondNetwork{{Network: netip.MustParsePrefix("10.2.0.0/16"), Router: netip.MustParseAddr("10.0.0.2"), Interface: "eth0"}},
				Refusals:   []snapshot.Refusal{{RulePlace: snapshot.RulePlace{Text: "drop"}, Why: snapshot.RefusalLimit}},
			}
		}, 0, []Change{{Refusal, "drop", "", "limit"}, {Interface, "eth0", "mtu 1500", "mtu 1400"}, {Interface, "eth0 addresses", "", "up, 10.0.0.1/8"}, {Route, "10.2.0.0/16", "", "via 10.0.0.2 dev eth0"}}},
		"programs": {func(s *snapshot.Snapshot) {
			s.Programs = &snapshot.Programs{Interfaces: []snapshot.ProgramInterface{{Name: "eth0", Mode: "xdp"}}}
			s.IPVS = &snapshot.IPVS{Services: []snapshot.IPVSService{{Protocol: "tcp", Address: "10.0.0.1:80", Scheduler: "rr", Servers: []snapshot.IPVSServer{{Address: "10.0.0.2:80", Forward: "Masq", Weight: 1}}}}}
		}, 0, []Change{{Program, "eth0", "", "xdp"}, {IPVS, "tcp 10.0.0.1:80", "", "rr"}, {IPVS, "tcp 10.0.0.1:80 -> 10.0.0.2:80", "", "Masq weight 1"}}},
		"rates":  {nil, 1000, []Change{{Rate, "TcpRetransSegs", "0/s", "100.0/s"}, {Rate, "conntrack drop", "0/s", "100.0/s"}}},
		"chance": {nil, 20, nil},
	} {
		d := Of([]Input{input("a", sampled(nil, 0))}, []Input{input("b", sampled(c.change, c.grown))})
		got := d.Namespaces[0].Changes
		if c.want == nil {
			c.want = []Change{}
		}
		if diff := cmp.Diff(c.want, got); diff != "" || d.Differs() != (len(c.want) > 0) {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		// The other way round the same, with the sides exchanged.
		back := Of([]Input{input("b", sampled(c.change, c.grown))}, []Input{input("a", sampled(nil, 0))}).Namespaces[0].Changes
		if len(back) != len(got) {
			t.Errorf("%s: %d changes, and %d the other way round", name, len(got), len(back))
		}
	}
}

func TestFindings(t *testing.T) {
	d := Of([]Input{input("a", sampled(nil, 0), "stays", "goes")}, []Input{input("b", sampled(nil, 0), "comes", "stays")}).Namespaces[0]
	ids := func(all []Finding) (ids []string) {
		for _, f := range all {
			ids = append(ids, f.ID)
		}
		return ids
	}
	if cmp.Diff([]string{"comes"}, ids(d.New))+cmp.Diff([]string{"goes"}, ids(d.Gone))+cmp.Diff([]string{"stays"}, ids(d.Kept)) != "" || d.Count() != 2 {
		t.Errorf("%+v", d)
	}
}

// TestNotRead: what one side lacks is no difference, and is said.
func TestNotRead(t *testing.T) {
	without := sampled(func(s *snapshot.Snapshot) {
		s.NATRules, s.Links, s.Sysctls, s.Memory = nil, nil, nil, nil
		s.Parts = []snapshot.Part{{Name: "nat_rules", Error: "operation not permitted"}}
	}, 0)
	for _, sides := range [][2]*snapshot.Recording{{sampled(nil, 0), without}, {without, sampled(nil, 0)}} {
		d := Of([]Input{input("a", sides[0])}, []Input{input("b", sides[1])})
		if d.Differs() || d.Complete() || d.Namespaces[0].NotCompared[0].Part != "nat_rules" {
			t.Errorf("%+v", d)
		}
	}
}

func TestSeveralNamespaces(t *testing.T) {
	of := func(name string, change func(*snapshot.Snapshot)) Input {
		rec := sampled(change, 0)
		if name != "" {
			rec.Owner = &snapshot.Owner{Netns: name, PID: len(name)}
		}
		return input("file", rec)
	}
	larger := func(s *snapshot.Snapshot) { s.Sysctls[snapshot.ConntrackMax] = "2000" }
	d := Of([]Input{of("", nil), of("web", nil), of("old", nil), of("twin", nil), of("twin", nil)}, []Input{of("twin", nil), of("new", nil), of("web", larger), of("", nil)})
	names := map[string]int{}
	for _, n := range d.Namespaces {
		names[n.Name] = len(n.Changes)
	}
	if diff := cmp.Diff(map[string]int{"": 0, "web": 1, "twin": 0}, names); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([][]string{{"old", "twin"}, {"new"}}, [][]string{d.OnlyA, d.OnlyB}); diff != "" || !d.Differs() {
		t.Error(diff)
	}
	if one := Of([]Input{of("web", nil)}, []Input{of("other", nil)}); one.Differs() || len(one.Namespaces) != 1 {
		t.Errorf("one of each: %+v", one)
	}
}

// TestSomeSysctls: what a few pasted sysctls do not have is not gone.
func TestSomeSysctls(t *testing.T) {
	some := sampled(func(s *snapshot.Snapshot) { s.Sysctls = snapshot.Sysctls{snapshot.ConntrackMax: "2000"} }, 0)
	whole := sampled(func(s *snapshot.Snapshot) {
		s.Sysctls = snapshot.Sysctls{snapshot.ConntrackMax: "1000", snapshot.TCPTWReuse: "1"}
	}, 0)
	some.SomeSysctls = true
	n := Of([]Input{input("a", some)}, []Input{input("b", whole)}).Namespaces[0]
	if diff := cmp.Diff([]Change{{Sysctl, snapshot.ConntrackMax, "2000", "1000"}}, n.Changes); diff != "" || len(n.NotCompared) != 1 || n.NotCompared[0].Part != snapshot.PartSysctls {
		t.Errorf("%s%+v", diff, n.NotCompared)
	}
}
