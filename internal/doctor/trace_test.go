package doctor

import (
	"bytes"
	"context"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

// TestTracedFullTable: the trace reports where the full table drops, and whose packets; a
// bundle of it gives the same findings.
func TestTracedFullTable(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "iptables")
	testutil.NeedFeature(t, testutil.BTF)
	testutil.LockHost(t)
	lowerMax(t)
	ns := gateway(t)
	stop := flood(t, ns)
	defer stop()
	waitFull(t, ns)

	var bundle bytes.Buffer
	rec, err := collect.WriteBundle(t.Context(), &bundle, collect.RecordOptions{
		Options: collect.Options{Netns: ns}, For: testutil.Patience(time.Second), Trace: Trace(ns),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{snapshot.PartDrops, snapshot.PartProfile} {
		if tried, why := rec.Last().Traced(part); !tried || why != "" {
			t.Fatalf("%s: tried %v, %s", part, tried, why)
		}
	}
	report := diagnose.Run(rec, diagnose.Rules())
	f := report.Find("ct-table-full")
	if f == nil {
		t.Fatalf("the full table is not named: %+v", report.Checks)
	}
	dropped := map[bool]string{true: "dropped in nf_hook_slow, NETFILTER_DROP, udp", false: "dropped in nf_hook_slow, udp"}
	wantEvidence(t, f, dropped[hasReasons()], "udp 198.18.0.1 → 198.18.0.1:5353", "dropped: connection table full")
	if other := report.Find("drops-unexplained"); other != nil {
		t.Errorf("what the full table drops is explained, and yet: %+v", other)
	}
	if rec.Profile == nil || rec.Profile.Samples == 0 {
		t.Errorf("profile: %+v", rec.Profile)
	}
	again, err := collect.ReadBundle(&bundle, nil)
	if err != nil {
		t.Fatal(err)
	}
	replayed := diagnose.Run(again, diagnose.Rules())
	if diff := cmp.Diff(report.Find("ct-table-full").Evidence, replayed.Find("ct-table-full").Evidence); diff != "" {
		t.Errorf("the bundle's evidence (-live +bundle):\n%s", diff)
	}
}

// hasReasons reports whether the kernel says why it drops packets (enum skb_drop_reason, Linux 5.17).
func hasReasons() bool {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return false
	}
	_, err = spec.AnyTypeByName("skb_drop_reason")
	return err == nil
}

// wantEvidence looks for evidence whose name ends like that, with a number.
func wantEvidence(t *testing.T, f *diagnose.Finding, names ...string) {
	t.Helper()
	for _, name := range names {
		found := false
		for _, e := range f.Evidence {
			n, isNumber := e.Value.(int64)
			found = found || strings.HasSuffix(e.What, name) && isNumber && n > 0
		}
		if !found {
			t.Errorf("no evidence %q in %+v", name, f.Evidence)
		}
	}
}

// TestTracedDrops: a gateway without a route drops what it should forward, which only the
// trace shows; as many drops by a closed port or an administrator's rule are no fault.
func TestTracedDrops(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "iptables")
	testutil.NeedFeature(t, testutil.BTF)
	client, gateway := strayGateway(t)
	inside(t, gateway, "iptables -w -A INPUT -p udp --dport 10 -j DROP")
	look := func(to string) *diagnose.Report {
		// The trace lasts until all packets are sent, however long that takes.
		traced := func(ctx context.Context, before *snapshot.Snapshot) func() snapshot.Trace {
			stop := Trace(gateway)(ctx, before)
			return func() snapshot.Trace {
				if err := client.Do(func() error { return send(to) }); err != nil {
					t.Error(err)
				}
				return stop()
			}
		}
		_, r, err := Look(t.Context(), collect.RecordOptions{
			Options: collect.Options{Netns: gateway}, For: 100 * time.Millisecond, Trace: traced,
		})
		if err != nil {
			t.Fatal(err)
		}
		if r.Drops == nil || r.Drops.Packets < 100 {
			t.Fatalf("packets to %s were not dropped: %+v", to, r.Drops)
		}
		return r
	}
	for what, to := range map[string]string{"a closed port": "198.18.0.1:9", "a rule": "198.18.0.1:10"} {
		if f := look(to).Find("drops-unexplained"); f != nil {
			t.Errorf("what %s drops is a finding: %+v", what, f)
		}
	}
	r := look("203.0.113.7:9")
	f := r.Find("drops-unexplained")
	if f == nil {
		t.Fatalf("the drops are not named: %+v", r.Checks)
	}
	wantEvidence(t, f, "udp 198.18.0.2 → 203.0.113.7:9")
	if f.Severity != diagnose.Warning || !strings.Contains(f.Title, "_") {
		t.Errorf("%s: %s", f.Severity, f.Title)
	}
}

// strayGateway is a client whose default route leads to a router that has none.
func strayGateway(t *testing.T) (client, gateway *netns.Handle) {
	t.Helper()
	client, gateway = testutil.Namespace(t, "client"), testutil.Namespace(t, "gateway")
	testutil.Veth(t, testutil.End{Netns: client, Name: "eth0", Addresses: []string{"198.18.0.2/24"}}, testutil.End{Netns: gateway, Name: "eth0", Addresses: []string{"198.18.0.1/24"}})
	testutil.Routes(t, client, "198.18.0.1")
	testutil.Sysctl(t, gateway, "net/ipv4/ip_forward", "1")
	return client, gateway
}

func inside(t *testing.T, ns *netns.Handle, commands ...string) {
	t.Helper()
	for _, command := range commands {
		words := strings.Fields(command)
		testutil.NeedProgram(t, words[0])
		if err := ns.Do(func() error { return exec.Command(words[0], words[1:]...).Run() }); err != nil {
			t.Fatalf("%s: %v", command, err)
		}
	}
}

// send sends 1,000 datagrams, 2,000 a second at most. What the router answers is not
// looked at.
func send(to string) error {
	c, err := net.Dial("udp", to)
	if err != nil {
		return err
	}
	defer c.Close()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range 100 {
		for range 10 {
			// An answer to an earlier one is the error of the next.
			if _, err := c.Write([]byte("x")); err != nil {
				c.Write([]byte("x"))
			}
		}
		<-tick.C
	}
	return nil
}

// TestMayReject: answers are watched from the beginning only where a burst may meet TIME_WAIT.
func TestMayReject(t *testing.T) {
	held := func(n int64) *snapshot.Snapshot {
		return &snapshot.Snapshot{TCP: &snapshot.TCP{Sockets: &snapshot.TCPSockets{TimeWait: n}}}
	}
	for _, c := range []struct {
		before *snapshot.Snapshot
		want   bool
	}{{&snapshot.Snapshot{}, false}, {&snapshot.Snapshot{TCP: &snapshot.TCP{}}, false}, {held(fewestInTimeWait - 1), false}, {held(fewestInTimeWait), true}} {
		if got := mayReject(c.before); got != c.want {
			t.Errorf("%+v: %v", c.before, got)
		}
	}
}
