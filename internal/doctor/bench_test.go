package doctor

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/watch"
)

// large is a gateway with many of everything: connections of all kinds, rules of NAT and of filters, interfaces.
func large(b *testing.B) *netns.Handle {
	const entries, rules, links = 200_000, 200, 200
	b.Helper()
	testutil.NeedRoot(b)
	testutil.NeedProgram(b, "nft")
	testutil.LockHost(b)
	testutil.RaiseConntrackMax(b, entries+entries/2)
	ns := testutil.Namespace(b)
	var config, interfaces, nat, filter strings.Builder
	for i := range links {
		fmt.Fprintf(&interfaces, "link add lan%d type veth peer name host%d\naddress add 10.%d.0.1/16 dev lan%d\nlink set lan%d up\nlink set host%d up\n", i, i, i, i, i, i)
		fmt.Fprintf(&nat, "iifname wan0 tcp dport %d dnat to 10.%d.0.2:80\n", 2000+i, i)
		fmt.Fprintf(&filter, "iifname wan0 oifname lan%d ip daddr 10.%d.0.2 tcp dport 80 accept\niifname lan%d oifname wan0 accept\n", i, i, i)
	}
	fmt.Fprintf(&config, `table ip nat {
		chain pre { type nat hook prerouting priority -100; %s }
		chain post { type nat hook postrouting priority 100; oifname wan0 masquerade; }; };
	table inet filter { chain passing { type filter hook forward priority 0; policy drop; ct state established,related accept; %s }; };`, nat.String(), filter.String())
	run := func(input string, args ...string) {
		if err := ns.Do(func() error {
			cmd := exec.Command(args[0], args[1:]...)
			cmd.Stdin = strings.NewReader(input)
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%v: %w: %s", args, err, out)
			}
			return nil
		}); err != nil {
			b.Fatal(err)
		}
	}
	run("link add wan0 type veth peer name isp0\nlink set isp0 up\naddress add 203.0.113.1/24 dev wan0\nlink set wan0 up\nroute add default via 203.0.113.254\n"+interfaces.String(), "ip", "-batch", "-")
	run("", "sysctl", "-qw", "net.ipv4.ip_forward=1")
	run(config.String(), "nft", "-f", "-")
	mix, err := lab.FindMix("gateway")
	if err == nil {
		_, err = build.InsertFill(b.Context(), ns, mix.Filler(1, lab.FillMark), 0, entries, nil)
	}
	if err != nil {
		b.Fatal(err)
	}
	return ns
}

// BenchmarkRules is all rules over one recording of a large gateway.
func BenchmarkRules(b *testing.B) {
	rec, err := collect.Record(b.Context(), collect.RecordOptions{Options: collect.Options{Netns: large(b)}, For: time.Second})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		diagnose.Run(rec, diagnose.Rules())
	}
}

// BenchmarkWatch is one report of a watch on a large gateway, beside the reading of its table.
func BenchmarkWatch(b *testing.B) {
	s := watch.NewFull(large(b), tableBudget)
	defer s.Close()
	s.Sample(b.Context(), watch.Filter{}, time.Second)
	var table time.Duration
	own := watch.CPUTime()
	for b.Loop() {
		sample := s.Sample(b.Context(), watch.Filter{}, time.Second)
		table += sample.Cost.Table
		diagnose.Run(sample.Recording(), diagnose.Rules())
	}
	b.ReportMetric(float64(watch.CPUTime()-own-table)/float64(b.N)/1e6, "cpu-ms/op")
}
