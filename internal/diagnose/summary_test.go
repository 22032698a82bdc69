package diagnose

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
)

func TestSummarize(t *testing.T) {
	advised := []Remedy{{Title: "do this"}}
	outcome := Finding{ID: "service-unanswered", Severity: Critical, Title: "it gets no answers", SinceSeconds: 40, Remedies: []Remedy{{Title: "trace it"}}}
	cause := Finding{ID: "dnat-filtered", Severity: Critical, Title: "a filter drops it", Remedies: advised}
	raised := Finding{ID: "ct-table-full", Severity: Critical, Title: "full", Remedies: []Remedy{{Title: "raise it", Automatic: true}}}
	about := func(f Finding, ends ...string) Finding {
		for _, e := range ends {
			f.About = append(f.About, netip.MustParseAddrPort(e))
		}
		return f
	}
	const server, other = "192.168.1.10:8080", "192.168.1.20:25"
	forwarding := Finding{ID: "forwarding-off", Severity: Critical, Title: "it does not forward", Remedies: advised}
	for _, c := range []struct {
		name     string
		findings []Finding
		netns    string
		want     *Summary
	}{
		{"none", nil, "", nil},
		{"a notice", []Finding{{ID: "ct-flood", Severity: Notice}}, "", nil},
		{"an outcome", []Finding{outcome}, "", &Summary{Finding: "service-unanswered", Text: "it gets no answers, for 40 s at least", First: "trace it"}},
		{"an outcome and its cause", []Finding{outcome, cause}, "gw", &Summary{Finding: "service-unanswered", Cause: "dnat-filtered",
			Text: "it gets no answers, in the network namespace gw, for 40 s at least; a filter drops it", First: "do this"}},
		{"an outcome and a fault beside it", []Finding{outcome, {ID: "ct-established-leak", Severity: Warning, Title: "a leak", Remedies: advised}}, "",
			&Summary{Finding: "service-unanswered", Text: "it gets no answers, for 40 s at least", First: "trace it"}},
		{"a fault of another service", []Finding{about(outcome, server), about(cause, other)}, "",
			&Summary{Finding: "service-unanswered", Text: "it gets no answers, for 40 s at least", First: "trace it"}},
		{"its own fault before the host's", []Finding{about(outcome, "203.0.113.1:80", server), about(cause, other), forwarding, about(cause, "192.168.1.10:0")}, "",
			&Summary{Finding: "service-unanswered", Cause: "dnat-filtered", Text: "it gets no answers, for 40 s at least; a filter drops it", First: "do this"}},
		{"the host's fault", []Finding{about(outcome, server), about(cause, other), forwarding}, "",
			&Summary{Finding: "service-unanswered", Cause: "forwarding-off", Text: "it gets no answers, for 40 s at least; it does not forward", First: "do this"}},
		{"its entry is of before", []Finding{about(outcome, server), about(Finding{ID: "udp-stale-blackhole", Severity: Critical, Title: "no rule leads there", Remedies: advised}, server)}, "",
			&Summary{Finding: "service-unanswered", Cause: "udp-stale-blackhole", Text: "it gets no answers, for 40 s at least; no rule leads there", First: "do this"}},
		{"a remedy that natkit applies", []Finding{raised, outcome}, "gw", &Summary{Finding: "ct-table-full",
			Text: "full, in the network namespace gw", First: "raise it (natkit doctor --netns gw --fix)"}},
	} {
		got := summarize(c.findings, c.netns)
		if (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// TestOfAnotherHost: of another host's recording no command would change this one: they are for that host, and are named as such.
func TestOfAnotherHost(t *testing.T) {
	rec := recorded(t, "ct-table-full", "the-sources-max-1000")
	here := Run(rec, Rules())
	rec.Elsewhere = true
	there := Run(rec, Rules())
	if here.Summary == nil || !strings.Contains(here.Summary.First, "--fix") {
		t.Fatalf("here: %+v", here.Summary)
	}
	if !there.Elsewhere || strings.Contains(there.Summary.First, "--fix") || !strings.Contains(there.Summary.First, "on that host: sysctl -w net.netfilter.nf_conntrack_max=") {
		t.Errorf("there: %+v", there.Summary)
	}
	for _, f := range here.Findings {
		for _, r := range f.Remedies {
			if len(r.Commands) > 0 {
				t.Errorf("here: %q", r.Commands)
			}
		}
	}
}

// TestCommandsFor: commands are for the network namespace of the recording, but for what holds for the whole host, and
// nothing of a recording is for the shell to carry out.
func TestCommandsFor(t *testing.T) {
	ports := tune.Change{Kind: tune.Sysctl, Target: "net.ipv4.ip_local_port_range", After: "1024\t65535"}
	limit := tune.Change{Kind: tune.Sysctl, Target: "net.netfilter.nf_conntrack_max", After: "65536"}
	rule := tune.Change{Kind: tune.NATRule, Target: "1/ip/nat/POSTROUTING/2"}
	hostile := tune.Change{Kind: tune.Sysctl, Target: "net.ipv4.conf.$(reboot)'.rp_filter", After: "2"}
	for _, tt := range []struct {
		netns  string
		change tune.Change
		want   string
	}{
		{"", ports, "sysctl -w 'net.ipv4.ip_local_port_range=1024\t65535'"},
		{"gw", ports, "ip netns exec gw sysctl -w 'net.ipv4.ip_local_port_range=1024\t65535'"},
		{"pid 17", ports, "nsenter --net --target 17 sysctl -w 'net.ipv4.ip_local_port_range=1024\t65535'"},
		{"$(reboot)", ports, "ip netns exec '$(reboot)' sysctl -w 'net.ipv4.ip_local_port_range=1024\t65535'"},
		{"gw", limit, "sysctl -w net.netfilter.nf_conntrack_max=65536"},
		{"", hostile, `sysctl -w 'net.ipv4.conf.$(reboot)'\''.rp_filter=2'`},
		{"", rule, "natkit doctor --fix"},
		{"gw", rule, "natkit doctor --netns gw --fix"},
		{"$(reboot)", rule, ""},
	} {
		if got := strings.Join(commandsFor(&Remedy{Changes: []tune.Change{tt.change}}, tt.netns), "; "); got != tt.want {
			t.Errorf("in %q: %q, want %q", tt.netns, got, tt.want)
		}
	}
}

func TestLoggedSince(t *testing.T) {
	full := func(at ...float64) *snapshot.Recording {
		s := &snapshot.Snapshot{UptimeSeconds: 1000}
		for _, u := range at {
			s.KernelLog = append(s.KernelLog, snapshot.LogLine{UptimeSeconds: u, Text: "nf_conntrack: nf_conntrack: table full, dropping packet"})
		}
		return &snapshot.Recording{Snapshots: []*snapshot.Snapshot{s, s}}
	}
	for _, c := range []struct {
		at   []float64
		want float64
	}{
		{nil, 0}, {[]float64{100}, 0}, {[]float64{100, 950, 990}, 50}, {[]float64{880, 930, 985}, 120},
	} {
		if got := loggedSince(full(c.at...), func(l snapshot.LogLine) bool { return isTableFull(l.Text) }); got != c.want {
			t.Errorf("lines at %v: since %v, want %v", c.at, got, c.want)
		}
	}
}
