package look

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

const (
	millionEnv = "NATKIT_BENCH_LOOK"
	million    = 1_000_000
)

// BenchmarkLookMillion is what a look costs at a namespace with a million connections
// through 10,000 port forwards and a pool: time, and the memory of a process that does
// it; of a part of the table, as natkit looks, and of all of it.
func BenchmarkLookMillion(b *testing.B) {
	if most := os.Getenv(millionEnv); most != "" {
		lookOnce(b, most)
		return
	}
	testutil.NeedRoot(b)
	testutil.LockHost(b)
	testutil.RaiseConntrackMax(b, million+100_000)
	ns, err := netns.New("million")
	if err != nil {
		b.Fatal(err)
	}
	defer ns.Close()
	plan := largePlan()
	dir := b.TempDir() + "/gateway"
	if _, err := engine.StoreAt(dir).Put(plan); err != nil {
		b.Fatal(err)
	}
	if err := engine.Standard.Apply(ns, plan, engine.StoreAt(dir)); err != nil {
		b.Fatal(err)
	}
	fill(b, ns)
	for name, most := range map[string]int{"part": collect.DefaultMaxEntries, "all": 0} {
		b.Run(name, func(b *testing.B) { lookElsewhere(b, ns, dir, most) })
	}
}

// lookElsewhere looks in another process, so that its memory can be measured.
func lookElsewhere(b *testing.B, ns *netns.Handle, dir string, most int) {
	file, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()))
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	for b.Loop() {
		cmd := exec.Command("/proc/self/exe", "-test.run=^$", "-test.bench=^BenchmarkLookMillion$", "-test.benchtime=1x")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s", millionEnv, most, dir))
		cmd.ExtraFiles = []*os.File{file}
		out, err := cmd.CombinedOutput()
		if err != nil {
			b.Fatalf("%v\n%s", err, out)
		}
		b.ReportMetric(float64(cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss)/1024, "MiB")
		for line := range strings.Lines(string(out)) {
			var seconds, cpu float64
			if _, err := fmt.Sscanf(line, "look: %f s, %f s CPU", &seconds, &cpu); err == nil {
				b.ReportMetric(seconds, "s/look")
				b.ReportMetric(cpu, "s-CPU/look")
			}
		}
	}
}

func lookOnce(b *testing.B, order string) {
	number, dir, _ := strings.Cut(order, " ")
	most, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	ns, err := netns.At("/proc/self/fd/3", "million")
	if err != nil {
		b.Fatal(err)
	}
	defer ns.Close()
	l := New(Options{Netns: ns, Store: engine.StoreAt(dir), MaxEntries: most, Top: 20})
	began, cpu := time.Now(), testutil.CPUTime(b)
	s, err := l.Look(b.Context())
	took, used := time.Since(began), testutil.CPUTime(b)-cpu
	if err != nil || s.PlanUnknown != "" || len(s.Rules) != forwards+1 || s.Flows.Complete != (most == 0) || s.Integrity != gateway.RulesIntact {
		b.Fatalf("%v: %+v", err, s)
	}
	if got := s.Rules[forwards].Flows; got < million/2*95/100 || got > million/2*105/100 {
		b.Fatalf("%d flows of the pool", got)
	}
	fmt.Printf("\nlook: %f s, %f s CPU\n", took.Seconds(), used.Seconds())
}

const forwards = 10_000

// largePlan has forwards, and a pool of 32 addresses.
func largePlan() *gateway.Plan {
	p := &gateway.Plan{Schema: gateway.PlanSchema, Engine: gateway.EngineNetfilter, IPv4: true}
	on := netip.PrefixFrom(addr("203.0.113.1"), 32)
	for i := range forwards {
		p.Destinations = append(p.Destinations, gateway.Entry{
			Rule:   gateway.Ref{List: "nat", Index: i, Kind: "dnat"},
			Match:  nat.Match{To: []netip.Prefix{on}, Protocol: 6, Ports: []nat.Ports{{First: uint16(10000 + i), Last: uint16(10000 + i)}}},
			Action: nat.Action{Kind: nat.DNAT, Backends: []nat.Backend{{Address: hostAt(i), Port: 80}}},
		})
	}
	p.Sources = []gateway.Entry{{
		Rule:   gateway.Ref{List: "nat", Index: forwards, Kind: "snat"},
		Match:  nat.Match{From: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
		Action: nat.Action{Kind: nat.SNAT, To: nat.AddrRanges{{First: addr("203.0.113.32"), Last: addr("203.0.113.63")}}},
	}}
	return p
}

func hostAt(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)}) }

// fill makes entries: every other one of the pool, the rest of the forwards.
func fill(b *testing.B, ns *netns.Handle) {
	i := 0
	n, err := dump.Insert(b.Context(), ns, func(e *conntrack.Entry) bool {
		if i == million {
			return false
		}
		*e = conntrack.Entry{Family: unix.AF_INET, Timeout: 3600, TCPState: conntrack.TCPEstablished,
			Status: conntrack.SeenReply | conntrack.Assured | conntrack.Confirmed}
		if client := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}); i%2 == 0 {
			remote, port := netip.AddrFrom4([4]byte{198, 18, 0, byte(i / 2 % 200)}), uint16(1024+i/2%60000)
			pool := netip.AddrFrom4([4]byte{203, 0, 113, byte(32 + i/2/60000%32)})
			e.Orig = conntrack.Tuple{Src: client, Dst: remote, Proto: unix.IPPROTO_TCP, SrcPort: port, DstPort: 443}
			e.Reply = conntrack.Tuple{Src: remote, Dst: pool, Proto: unix.IPPROTO_TCP, SrcPort: 443, DstPort: port}
		} else {
			k := i / 2 % forwards
			e.Orig = conntrack.Tuple{Src: client, Dst: addr("203.0.113.1"), Proto: unix.IPPROTO_TCP, SrcPort: 40000, DstPort: uint16(10000 + k)}
			e.Reply = conntrack.Tuple{Src: hostAt(k), Dst: client, Proto: unix.IPPROTO_TCP, SrcPort: 80, DstPort: 40000}
		}
		i++
		return true
	})
	if err != nil || n != million {
		b.Fatalf("%d entries: %v", n, err)
	}
}
