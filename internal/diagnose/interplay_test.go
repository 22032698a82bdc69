package diagnose

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/natkit/natkit/internal/snapshot"
)

// recorded is one recording of a rule's cases.
func recorded(t *testing.T, rule, name string) *snapshot.Recording {
	t.Helper()
	ar, err := txtar.ParseFile(filepath.Join("testdata", rule+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range ar.Files {
		if f.Name == name+".json" {
			return readRecording(t, f.Data)
		}
	}
	t.Fatalf("%s has no case %s", rule, name)
	return nil
}

// All rules together: a fault is not reported twice, and none hides another one.
func TestRulesTogether(t *testing.T) {
	tests := []struct{ rule, name, want string }{
		{"ct-flood", "syn-flood-from-two-sources", "ct-flood"},
		{"ct-flood", "the-table-is-full-of-it", "ct-flood ct-early-drop"},
		{"ct-flood", "the-table-is-full-of-it-and-drops", "ct-table-full ct-flood"},
		{"ct-established-leak", "hosts-that-went-away", "ct-established-leak"},
		{"ct-chain-cap", "max-raised-buckets-left", "ct-chain-cap"},
		{"ct-chain-cap", "clashes-are-no-long-chains", ""},
		{"snat-ports-exhausted", "a-rule-with-200-ports", "snat-ports-exhausted"},
		{"snat-ports-exhausted", "more-were-refused-than-the-ports-left-explain", "snat-ports-exhausted"},
		{"snat-ports-exhausted", "a-race-with-free-ports", "snat-race"},
		{"snat-ports-exhausted", "a-race-beside-a-telephones-port", "snat-race"},
		{"snat-ports-exhausted", "long-chains-are-no-missing-ports", "ct-chain-cap snat-ports-near-exhaustion"},
		{"snat-ports-near-exhaustion", "ports-of-a-flood", "ct-flood"},
		{"snat-race", "with-long-chains-beside", "ct-chain-cap snat-race"},
		{"snat-race", "a-full-table-is-no-race", "ct-table-full"},
		{"snat-race", "of-a-sample-ports-seem-free", "snat-ports-near-exhaustion"},
		{"udp-stale-blackhole", "the-backend-moved", "udp-stale-blackhole"},
		{"dnat-unreachable", "a-host-a-route-and-a-listener-are-missing", "dnat-unreachable"},
		{"snat-address", "nobody-has-it", "snat-address service-unanswered"},
		{"rule-shadowed", "a-wider-rule-before", "rule-shadowed"},
		{"notrack-nat", "the-answers-of-a-published-port", "notrack-nat service-unanswered"},
		{"rule-limits", "half-of-the-connections", "rule-limits"},
		{"kube-no-endpoints", "a-client-asks", "kube-no-endpoints"},
		{"snat-race", "healthy", ""},
		{"tw-paws-reject", "with-a-trace-that-names-the-address", "tw-paws-reject"},
		{"tw-paws-reject", "one-machine-reuses-time-wait", ""},
		{"tw-paws-reject", "late-duplicates-and-no-syn-came-again", ""},
		{"tw-paws-reject", "an-old-kernel-without-a-trace", "tw-paws-reject"},
		{"tw-seq-reject", "the-server-uses-no-timestamps", "tw-seq-reject"},
		{"tw-seq-reject", "both-tests-reject", "tw-paws-reject tw-seq-reject"},
		{"tw-seq-reject", "syns-on-connections-that-are-open", ""},
		{"tw-recycle", "clients-behind-nat-are-dropped", "tw-recycle"},
		{"rp-filter", "a-service-whose-clients-come-by-another-uplink", "rp-filter service-unanswered"},
		{"listen-overflow", "a-program-that-hangs", "listen-overflow"},
		{"pmtu-blackhole", "a-rule-drops-the-errors", "pmtu-blackhole"},
		{"tw-overflow", "more-closed-than-the-limit", "tw-overflow"},
		{"qdisc-drops", "shaping-and-a-service-fails", "service-unanswered qdisc-drops"},
		{"qdisc-drops", "shaping-under-load", ""},
		{"ipsec-drops", "a-policy-blocks", "service-unanswered ipsec-drops"},
		{"ttl-expired", "some-of-the-traffic-and-a-service-fails", "service-unanswered ttl-expired"},
		{"idle-killed", "and-their-next-packets-are-invalid", "idle-killed"},
		{"idle-killed", "a-rule-drops-what-is-invalid", "idle-killed"},
		{"helper-missing", "an-ftp-server-behind-dnat", "helper-missing"},
	}
	for _, tc := range tests {
		t.Run(tc.rule+"/"+tc.name, func(t *testing.T) {
			r := Run(recorded(t, tc.rule, tc.name), Rules())
			got, want := slices.Sorted(slices.Values(r.IDs())), slices.Sorted(strings.FieldsSeq(tc.want))
			if !slices.Equal(got, want) {
				t.Errorf("found %v, want %v", got, want)
			}
		})
	}
}

// Drops that another rule explains are not reported again.
func TestInsertionsThatAreExplained(t *testing.T) {
	for _, tc := range []struct {
		rule, name string
		again      bool
	}{
		{"snat-ports-exhausted", "a-rule-with-200-ports", false},
		{"ct-chain-cap", "max-raised-buckets-left", false},
		{"snat-ports-exhausted", "healthy", true},
	} {
		rec := recorded(t, tc.rule, tc.name)
		netns := rec.Last().Netns.Inode
		rec.Drops = &snapshot.Drops{
			Seconds: 5, Source: "tp_btf", NAT: "fexit",
			Sites:  []snapshot.DropSite{{Netns: netns, Function: "nf_hook_slow", Reason: "NETFILTER_DROP", Protocol: "ipv4", Packets: 900}},
			Causes: []snapshot.DropCause{{Netns: netns, Cause: snapshot.CauseNotInserted, Packets: 900, Source: "fexit of __nf_conntrack_confirm"}},
		}
		if f, check := checkDrops(rec); (f != nil) != tc.again {
			t.Errorf("%s, %s: found %v (%s)", tc.rule, tc.name, f != nil, check.Why)
		}
	}
}

// Drops of faults that the host's counters show are not reported again.
func TestDropsOfTheHostAreExplained(t *testing.T) {
	for _, tc := range []struct {
		rule, name, function, reason string
		again                        bool
	}{
		{"rp-filter", "two-uplinks-and-much-of-what-comes", "ip_rcv_finish_core", "IP_RPFILTER", false},
		{"rp-filter", "one-uplink-and-broadcasts-of-another-subnet", "ip_rcv_finish_core", "IP_RPFILTER", true},
		{"pmtu-blackhole", "a-rule-drops-the-errors", "ip_forward", "PKT_TOO_BIG", false},
		{"pmtu-blackhole", "new-clients-of-a-pppoe-gateway", "ip_forward", "PKT_TOO_BIG", true},
		{"udp-checksum", "vxlan-before-5-7", "udp_queue_rcv_one_skb", "UDP_CSUM", false},
		{"udp-checksum", "damaged-now-and-then", "udp_queue_rcv_one_skb", "UDP_CSUM", true},
		{"softnet-dropped", "one-cpu-takes-it-all", "enqueue_to_backlog", "CPU_BACKLOG", false},
		{"softnet-dropped", "a-burst", "enqueue_to_backlog", "CPU_BACKLOG", true},
		{"neighbour-table-full", "arp", "ip_finish_output2", "NEIGH_CREATEFAIL", false},
		{"neighbour-table-full", "full-last-week", "ip_finish_output2", "NEIGH_CREATEFAIL", true},
	} {
		rec := recorded(t, tc.rule, tc.name)
		site := snapshot.DropSite{Netns: rec.Last().Netns.Inode, Function: tc.function, Reason: tc.reason, Protocol: "ipv4", Packets: 9000}
		rec.Drops = &snapshot.Drops{Seconds: 5, Source: "tp_btf", Packets: 9000, Sites: []snapshot.DropSite{site}}
		if f, check := checkDrops(rec); (f != nil) != tc.again {
			t.Errorf("%s, %s: found %v (%s)", tc.rule, tc.name, f != nil, check.Why)
		}
	}
}

// SYNs that TIME_WAIT rejects are freed as drops are, and not reported as such again.
func TestRejectedSYNsAreExplained(t *testing.T) {
	site := func(function, reason string) snapshot.DropSite {
		return snapshot.DropSite{Function: function, Reason: reason, Protocol: "tcp", Packets: 9000}
	}
	for _, tc := range []struct {
		rule, name string
		site       snapshot.DropSite
		again      bool
	}{
		{"tw-paws-reject", "with-a-trace-that-names-the-address", site("tcp_v4_rcv", "TCP_RFC7323_TW_PAWS"), false},
		{"tw-paws-reject", "with-a-trace-that-names-the-address", site("tcp_v4_rcv", "NOT_SPECIFIED"), false},
		{"tw-paws-reject", "with-a-trace-that-names-the-address", site("ip_rcv_core", "PKT_TOO_BIG"), true},
		{"tw-paws-reject", "one-machine-reuses-time-wait", site("tcp_v4_rcv", "TCP_RFC7323_TW_PAWS"), true},
		{"tw-seq-reject", "the-server-uses-no-timestamps", site("tcp_v6_rcv", "NOT_SPECIFIED"), false},
		{"tw-seq-reject", "the-server-uses-no-timestamps", site("tcp_v4_rcv", "TCP_CSUM"), true},
		{"tw-seq-reject", "healthy", site("tcp_v4_rcv", "NOT_SPECIFIED"), true},
	} {
		rec := recorded(t, tc.rule, tc.name)
		tc.site.Netns = rec.Last().Netns.Inode
		rec.Drops = &snapshot.Drops{Seconds: 5, Source: "tp_btf", Packets: 9000, Sites: []snapshot.DropSite{tc.site}}
		if f, check := checkDrops(rec); (f != nil) != tc.again {
			t.Errorf("%s, %s, dropped in %s for %s: found %v (%s)", tc.rule, tc.name, tc.site.Function, tc.site.Reason, f != nil, check.Why)
		}
	}
}

// TestOnlyUplink: what a strict filter drops at the only uplink comes from a source of a network inside.
func TestOnlyUplink(t *testing.T) {
	rule := func(out string) snapshot.NATRule {
		return snapshot.NATRule{Hook: "postrouting", Kind: snapshot.NATMasquerade, NATCondition: snapshot.NATCondition{OutInterface: out}}
	}
	wan, second := snapshot.ReversePath{Interface: "wan0", Default: true}, snapshot.ReversePath{Interface: "wan1", Selected: "100: fwmark 0x1 lookup 100"}
	for name, c := range map[string]struct {
		paths []snapshot.ReversePath
		rules []snapshot.NATRule
		want  bool
	}{
		"one uplink":            {[]snapshot.ReversePath{wan, {Interface: "lan0"}}, []snapshot.NATRule{rule("wan0")}, true},
		"another is marked":     {[]snapshot.ReversePath{wan, second}, []snapshot.NATRule{rule("wan0")}, false},
		"another translates":    {[]snapshot.ReversePath{wan}, []snapshot.NATRule{rule("wan0"), rule("wan1")}, false},
		"no route there":        {[]snapshot.ReversePath{{Interface: "wan0"}}, []snapshot.NATRule{rule("wan0")}, false},
		"a rule of any way out": {[]snapshot.ReversePath{wan}, []snapshot.NATRule{rule("")}, false},
	} {
		rec := &snapshot.Recording{Snapshots: []*snapshot.Snapshot{{ReversePaths: c.paths, NATRules: &snapshot.NATRules{Rules: c.rules}}}}
		if got := onlyUplink(rec, "wan0"); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Rules that were replaced between both snapshots count from then on: that a new one did not count before is no sign that it turned
// nobody away.
func TestPortsOfReplacedRules(t *testing.T) {
	rec := recorded(t, "snat-ports-exhausted", "a-rule-with-200-ports")
	there := rec.Last().NATRules
	for i, s := range []*snapshot.Snapshot{rec.First(), rec.Last()} {
		rules := *there
		rules.Rules = slices.Clone(rules.Rules)
		for j := range rules.Rules {
			one := &rules.Rules[j]
			one.Handle, one.Counted, one.Packets = uint64(10*i+j+1), true, 4000
		}
		s.NATRules = &rules
	}
	r := Run(rec, Rules())
	if got := r.IDs(); !slices.Equal(got, []string{"snat-ports-exhausted"}) {
		t.Errorf("found %v", got)
	}
}

// TestPortsOfSeveralPools: a finding of one pool names the others without a free port, of which the same packets may be; the one that it
// is about does not depend on the order in which they were read.
func TestPortsOfSeveralPools(t *testing.T) {
	rec := recorded(t, "snat-ports-exhausted", "a-rule-with-200-ports")
	ports := *rec.Last().Ports
	ports.Pools = slices.Clone(ports.Pools)
	for _, destination := range []string{"198.19.0.2:443", "198.19.0.9:8080"} {
		other := ports.Pools[0]
		other.Destination = destination
		ports.Pools = append(ports.Pools, other)
	}
	ports.Pools[2].FailsIfTaken -= 0.001 // what differs from one moment to the next
	rec.Last().Ports = &ports
	for range ports.Pools {
		ports.Pools = append(ports.Pools[1:], ports.Pools[0])
		p, check := readPools(rec)
		if p == nil {
			t.Fatal(check)
		}
		f, check := p.checkPortsExhausted()
		if f == nil {
			t.Fatal(check)
		}
		if len(f.About) != 1 || f.About[0].String() != "198.19.0.2:443" {
			t.Errorf("about %v", f.About)
		}
		for _, destination := range []string{"198.19.0.2:80", "198.19.0.9:8080"} {
			if !strings.Contains(f.Consequence, destination) {
				t.Errorf("%s is missing: %s", destination, f.Consequence)
			}
		}
	}
}
