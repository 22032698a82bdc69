package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/ruleset/edit"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
)

const (
	maxFile = "/proc/sys/net/netfilter/nf_conntrack_max"
	// lowMax is the host's limit during the test.
	lowMax = 2000
)

func init() {
	apply.Init(func(apply.Options) map[tune.Kind]apply.Applier {
		return map[tune.Kind]apply.Applier{tune.NATRule: edit.Applier{}}
	})
}

// TestFullTableByHand makes a full table without anything of natkit's lab: an
// iptables DNAT rule and UDP flows. Doctor must name it, cure it, and tune undo it.
func TestFullTableByHand(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "iptables")
	testutil.LockHost(t)
	lowerMax(t)
	ns := gateway(t)
	stop := flood(t, ns)
	defer stop()

	ctx := context.Background()
	look := collect.RecordOptions{Options: collect.Options{Netns: ns}, For: 500 * time.Millisecond}
	waitFull(t, ns)
	_, first, err := Look(ctx, look)
	if err != nil {
		t.Fatal(err)
	}
	if first.Find("ct-table-full") == nil {
		t.Fatalf("the full table is not named: %+v", first.Checks)
	}
	j, err := journal.At(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var applied []*apply.Applied
	treatment, err := Treat(ctx, first, Options{
		Look:    func(ctx context.Context) (*diagnose.Report, error) { _, r, err := Look(ctx, look); return r, err },
		Apply:   apply.Options{Journal: j},
		Agree:   func(tune.Plan) (bool, error) { return true, nil },
		Applied: func(a *apply.Applied) { applied = append(applied, a) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if last := treatment.Last(first); last.Find("ct-table-full") != nil {
		t.Errorf("still full after %d rounds: %+v", len(treatment.Rounds), last.Checks)
	}
	if readMax(t) <= lowMax {
		t.Errorf("the limit is %d after the treatment", readMax(t))
	}
	for i := len(applied) - 1; i >= 0; i-- {
		if _, err := apply.Undo(applied[i].ID(), apply.Options{Journal: j}); err != nil {
			t.Error(err)
		}
	}
	if got := readMax(t); got != lowMax {
		t.Errorf("the limit is %d after undo, was %d", got, lowMax)
	}
}

func readMax(t *testing.T) (n int64) {
	t.Helper()
	text, err := os.ReadFile(maxFile)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Sscan(string(text), &n)
	return n
}

// lowerMax is undone by a guard process, should the test be killed. It spares a
// host that has connections to lose.
func lowerMax(t *testing.T) {
	t.Helper()
	if name, entries, err := dump.Busiest(); err != nil || entries > lowMax/2 {
		t.Fatalf("not lowering the host's limit to %d: network namespace %s tracks %d connections (%v)", lowMax, name, entries, err)
	}
	j, err := journal.At(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	applied, err := apply.Apply(context.Background(), tune.Plan{Origin: "test", Changes: []tune.Change{{
		Kind: tune.Sysctl, Target: "net.netfilter.nf_conntrack_max",
		Before: fmt.Sprint(readMax(t)), After: fmt.Sprint(lowMax),
	}}}, apply.Options{Journal: j, Lifeline: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := applied.Undo(); err != nil {
			t.Error(err)
		}
	})
}

// gateway is a namespace that redirects UDP port 5353 to its port 9.
func gateway(t *testing.T) *netns.Handle {
	t.Helper()
	ns, err := netns.New("gateway")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	err = ns.Do(func() error {
		for _, command := range []string{
			"ip link set lo up",
			"ip address add 198.18.0.1/32 dev lo",
			"iptables -w -t nat -A OUTPUT -p udp -d 198.18.0.1 --dport 5353 -j DNAT --to-destination 198.18.0.1:9",
		} {
			words := strings.Fields(command)
			if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", command, err, out)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// flood opens 20,000 new UDP flows per second for 20 s at most, until stopped.
func flood(t *testing.T, ns *netns.Handle) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience(time.Minute))
	var done sync.WaitGroup
	// Flows that nothing answers are a flood, against which no limit helps.
	done.Go(func() {
		if err := ns.Do(func() error { return testutil.AnswerUDP(ctx, netip.MustParseAddrPort("198.18.0.1:9")) }); err != nil {
			t.Error(err)
		}
	})
	done.Go(func() {
		to := netip.MustParseAddrPort("198.18.0.1:5353")
		if err := ns.Do(func() error { return testutil.FloodUDP(ctx, to, 20_000) }); err != nil {
			t.Error(err)
		}
	})
	return func() { cancel(); done.Wait() }
}

func waitFull(t *testing.T, ns *netns.Handle) {
	t.Helper()
	for deadline := time.Now().Add(testutil.Patience(time.Minute)); ; {
		usage, err := dump.Count(ns)
		if err != nil {
			t.Fatal(err)
		}
		if usage.Entries >= lowMax {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the table has %d entries after 10 s", usage.Entries)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestTreatEnds(t *testing.T) {
	report := func(n int) *diagnose.Report {
		r := diagnose.Report{}
		for range n {
			r.Findings = append(r.Findings, diagnose.Finding{ID: "x"})
		}
		return &r
	}
	failed := errors.New("no")
	tests := map[string]struct {
		first *diagnose.Report
		agree func(tune.Plan) (bool, error)
		want  error
	}{
		"nothing found":           {report(0), nil, nil},
		"nothing automatic found": {report(2), nil, nil},
		"declined":                {withRemedy(), func(tune.Plan) (bool, error) { return false, nil }, nil},
		"no one to ask":           {withRemedy(), func(tune.Plan) (bool, error) { return false, failed }, failed},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Treat(context.Background(), tc.first, Options{Agree: tc.agree})
			if !errors.Is(err, tc.want) || len(got.Rounds) != 0 {
				t.Errorf("%d rounds, error %v; want none, %v", len(got.Rounds), err, tc.want)
			}
			if got.Last(tc.first) != tc.first {
				t.Error("without a round the last report is the first")
			}
		})
	}
}

func withRemedy() *diagnose.Report {
	c := tune.Change{Kind: tune.Sysctl, Target: "net.netfilter.nf_conntrack_max", Before: "1", After: "2"}
	return &diagnose.Report{Findings: []diagnose.Finding{{ID: "x", Remedies: []diagnose.Remedy{{Automatic: true, Changes: []tune.Change{c}}}}}}
}

func TestChangesSpanRounds(t *testing.T) {
	c := func(before, after string) tune.Change {
		return tune.Change{Kind: tune.Sysctl, Target: "net.netfilter.nf_conntrack_max", Before: before, After: after}
	}
	treatment := Treatment{Rounds: []Round{{Changes: []tune.Change{c("1", "2")}}, {Changes: []tune.Change{c("2", "4")}}}}
	got := treatment.Changes()
	if len(got) != 1 || got[0].Before != "1" || got[0].After != "4" {
		t.Errorf("Changes = %+v, want one from 1 to 4", got)
	}
}

// FuzzBundleReport: what a bundle says of NAT rules, a trace and the kernel's files is
// read, goes through all rules and is printed.
func FuzzBundleReport(f *testing.F) {
	f.Add([]byte(`{"rules":[{"kind":"snat","family":"ip","first_address":"203.0.113.1","first_port":1,"last_port":9,"unless":[{}]}]}`), []byte(`{"drops":{"seconds":1,"packets":9,"sites":[{"function":"nf_hook_slow","packets":9}]},"parts":[{"name":"drops"}]}`), []byte("MemTotal: 16 kB\n"))
	f.Fuzz(func(t *testing.T, rules, trace, meminfo []byte) {
		defer testutil.Bounded(t, 4000+8*(len(rules)+len(trace)+len(meminfo)))()
		var file bytes.Buffer
		b, err := snapshot.NewBundleWriter(&file, snapshot.BundleHeader{TakenAt: time.Unix(0, 0)})
		for _, folder := range []string{"0/0/", "0/1/"} {
			for _, m := range []struct {
				name string
				data []byte
			}{{"nat_rules.json", rules}, {"trace.json", trace}, {"files/proc/meminfo", meminfo}, {"head.json", []byte("{}")}, {"tail.json", []byte("{}")}} {
				err = errors.Join(err, b.Add(folder+m.name, m.data))
			}
		}
		if err = errors.Join(err, b.Close()); err != nil {
			t.Fatal(err)
		}
		rec, err := collect.ReadBundle(&file, nil)
		if err != nil {
			return
		}
		found := diagnose.Run(rec, diagnose.Rules())
		if err := report.Doctor(io.Discard, report.Style{}, &found, true, ""); err != nil {
			t.Error(err)
		}
	})
}
