package plan

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune"
)

const gib = 1 << 30

// request is for Linux 6.12 with 8 GiB.
func request(l Load) Request {
	l.Protocol = TCP
	return Request{Load: l, Source: "a test", On: &snapshot.Snapshot{Kernel: snapshot.Kernel{Release: "6.12"}, Memory: &snapshot.Memory{TotalBytes: 8 * gib}},
		Ports: nat.Ports{First: 1024, Last: 65535}, Addresses: 1, Destinations: 1, Roles: []Role{Gateway}}
}

func must(t *testing.T, r Request) *Plan {
	t.Helper()
	p, err := New(r)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestPlan has the numbers of loads that can be checked by hand.
func TestPlan(t *testing.T) {
	type numbers struct {
		Entries, Max, Buckets, Bytes, FullBytes, Ports, Addresses int64
	}
	for name, tt := range map[string]struct {
		change func(*Request)
		load   Load
		want   numbers
	}{
		"5,000/s of 2 s": {nil, Load{PerSecond: 5000, DurationSeconds: 2}, // 10,000 open, 600,000 in TIME_WAIT
			numbers{610_000, 786_432, 786_432, 610_000*384 + 786_432*8, 786_432 * 392, 610_000, 10}},
		"a million that stand": {nil, Load{Open: 1_000_000}, // 1.25 M, rounded up to 65,536
			numbers{1_000_000, 1_310_720, 1_310_720, 1_000_000*384 + 1_310_720*8, 1_310_720 * 392, 1_000_000, 16}},
		"few: the kernel's own table": {nil, Load{PerSecond: 100, DurationSeconds: 1},
			numbers{12_100, 262_144, 262_144, 12_100*384 + 262_144*8, 262_144 * 392, 12_100, 1}},
		"a shorter TIME_WAIT": {func(r *Request) {
			r.On.Sysctls = snapshot.Sysctls{"net.netfilter.nf_conntrack_tcp_timeout_time_wait": "30"}
		}, Load{PerSecond: 5000, DurationSeconds: 2}, numbers{160_000, 262_144, 262_144, 160_000*384 + 262_144*8, 262_144 * 392, 160_000, 3}},
		"one of ten without an answer": {nil, Load{PerSecond: 1000, DurationSeconds: 1, Unanswered: 0.1}, // 900 + 108,000 + 12,000
			numbers{120_900, 262_144, 262_144, 120_900*384 + 262_144*8, 262_144 * 392, 120_900, 2}},
		"none is answered, and none is open": {nil, Load{PerSecond: 1000, DurationSeconds: 1, Unanswered: 1},
			numbers{120_000, 262_144, 262_144, 120_000*384 + 262_144*8, 262_144 * 392, 120_000, 2}},
		"few in a table of 4 entries for each bucket": {func(r *Request) { r.On.Kernel.Release = "5.4" }, Load{Open: 1000},
			numbers{1000, 262_144, 65_536, 1000*384 + 65_536*8, 262_144*384 + 65_536*8, 1000, 1}},
		"many in it": {func(r *Request) { r.On.Kernel.Release = "5.4" }, Load{Open: 200_000}, // 250,000 with headroom: 7.6 in a chain
			numbers{200_000, 262_144, 262_144, 200_000*384 + 262_144*8, 262_144 * 392, 200_000, 4}},
		"round trips": {nil, Load{PerSecond: 1000, DurationSeconds: 1, RTTSeconds: 0.5}, // 500 in the handshake, 500 between the FINs
			numbers{122_000, 262_144, 262_144, 122_000*384 + 262_144*8, 262_144 * 392, 121_000, 2}},
		"many destinations": {func(r *Request) { r.Destinations = 100 }, Load{PerSecond: 5000, DurationSeconds: 2},
			numbers{610_000, 786_432, 786_432, 610_000*384 + 786_432*8, 786_432 * 392, 6_100, 1}},
		"UDP, a stream": {func(r *Request) { r.Load.Protocol = UDP }, Load{PerSecond: 1000, DurationSeconds: 10}, // 10,000 + 120,000
			numbers{130_000, 262_144, 262_144, 130_000*384 + 262_144*8, 262_144 * 392, 130_000, 3}},
		"UDP, a question": {func(r *Request) { r.Load.Protocol = UDP }, Load{PerSecond: 1000, DurationSeconds: 1}, // 1,000 + 30,000
			numbers{31_000, 262_144, 262_144, 31_000*384 + 262_144*8, 262_144 * 392, 31_000, 1}},
		"UDP of 4.19": {func(r *Request) { r.Load.Protocol, r.On.Kernel.Release = UDP, "4.19" }, Load{PerSecond: 1000, DurationSeconds: 10},
			numbers{190_000, 262_144, 262_144, 190_000*384 + 262_144*8, 262_144 * 392, 190_000, 3}},
		"a quarter of the memory is the end": {func(r *Request) { r.On.Memory.TotalBytes = 1 * gib }, Load{Open: 10_000_000},
			numbers{10_000_000, 655_360, 655_360, 655_360 * 392, 655_360 * 392, 10_000_000, 156}},
	} {
		t.Run(name, func(t *testing.T) {
			r := request(tt.load)
			if tt.change != nil {
				tt.change(&r)
			}
			p := must(t, r)
			got := numbers{p.Table.Entries, p.Table.Max, p.Table.Buckets, p.Table.Bytes, p.Table.FullBytes, p.Ports.Needed, p.Ports.AddressesNeeded}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestPublishedCase: 63,487 ports are used up at 529/s while a balancer keeps sessions, and at 564/s while servers of
// Linux up to 4.0 keep TIME_WAIT; 1,049/s would take 60.5 s, which no timer gives.
func TestPublishedCase(t *testing.T) {
	r := request(Load{PerSecond: 550, DurationSeconds: 0.02})
	r.Ports, r.Holds = nat.Ports{First: 2049, Last: 65535}, []float64{60.5}
	got := map[float64]string{}
	for _, w := range must(t, r).Ports.Wraps {
		got[w.HoldSeconds] = fmt.Sprintf("%.0f %t", math.Floor(w.PerSecond), w.Reached)
	}
	want := map[float64]string{120: "529 true", 120.02: "528 true", 112.5: "564 false", 67: "947 false", 60.5: "1049 false", 60: "1058 false"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestHost compares what is needed with what a machine has.
func TestHost(t *testing.T) {
	r := request(Load{PerSecond: 1000, DurationSeconds: 100}) // 100,000 open
	r.Roles, r.OpenFiles, r.Addresses = AllRoles, 200_000, 4
	r.On.Sysctls = snapshot.Sysctls{
		snapshot.ConntrackMax: "262144", snapshot.ConntrackBuckets: "262144", forward: "0", nrOpen: "1048576", fileMax: "18446744073709551615",
		snapshot.SoMaxConn: "4096", synBacklog: "1024", portRange: "32768 60999", tcpMem: "100000 150000 200000", snapshot.TCPMaxTWBuckets: "131072",
	}
	p := must(t, r)
	type row struct {
		Need, Now, Set string
		Enough         Answer
	}
	got := map[string]row{}
	for _, l := range p.Limits {
		got[string(l.Role)+" "+l.Name] = row{l.Need, l.Now, l.Set, l.Enough}
	}
	want := map[string]row{
		"gateway " + snapshot.ConntrackMax: {"327680", "262144", "327680", No}, "gateway " + snapshot.ConntrackBuckets: {"262144", "262144", "", Yes},
		"gateway " + forward: {"1", "0", "1", No}, "gateway memory": {"122 MiB", "2 GiB", "", Yes}, "gateway SNAT addresses": {"4", "4", "", Yes},
		"server RLIMIT_NOFILE": {"101000", "200000", "", Yes}, "server " + nrOpen: {"101000", "1048576", "", Yes}, "server " + fileMax: {"111000", "18446744073709551615", "", Yes},
		"server " + snapshot.SoMaxConn: {"2048", "4096", "", Yes}, "server " + synBacklog: {"2048", "1024", "2048", No},
		"server " + snapshot.TCPMaxTWBuckets: {"75000", "131072", "", Yes}, "server " + tcpMem: {"200,000 pages", "100000 150000 200000", "150000 200000 300000", No}, "server memory": {"1.2 GiB", "8 GiB", "", Yes},
		"client RLIMIT_NOFILE": {"101000", "200000", "", Yes}, "client " + nrOpen: {"101000", "1048576", "", Yes}, "client " + fileMax: {"111000", "18446744073709551615", "", Yes},
		"client " + portRange: {"40,000 ports", "32768 60999", "1024 65535", No}, "client source addresses": {"3", "4", "", Yes},
		"client " + snapshot.TCPMaxTWBuckets: {"75000", "131072", "", Yes}, "client " + tcpMem: {"200,000 pages", "100000 150000 200000", "150000 200000 300000", No}, "client memory": {"1.2 GiB", "8 GiB", "", Yes},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if p.Ready != No {
		t.Errorf("ready: %s", p.Ready)
	}
	for _, role := range AllRoles {
		r.Roles = []Role{role}
		if got := must(t, r).Ready; got != No {
			t.Errorf("%s: %s", role, got)
		}
	}
	for name, value := range map[string]string{snapshot.ConntrackMax: "327680", forward: "1", synBacklog: "4096", portRange: "1024 65535", tcpMem: "150000 200000 300000"} {
		r.On.Sysctls[name] = value
	}
	r.Roles = AllRoles
	if p := must(t, r); p.Ready != Yes || p.Text(SysctlFile, Network{}) != p.head("No value has to be raised.") {
		t.Errorf("with all of it: %s\n%s", p.Ready, p.Text(SysctlFile, Network{}))
	}
	r.On.Sysctls[snapshot.ConntrackMax] = "0" // no limit
	if p := must(t, r); p.Ready != Yes {
		t.Errorf("without a limit: %s", p.Ready)
	}
	delete(r.On.Sysctls, forward)
	if p := must(t, r); p.Ready != Unknown {
		t.Errorf("with one that is not known: %s", p.Ready)
	}
}

// TestNothingIsLowered: where a machine's values are not known, files have none that its kernel may give itself.
func TestNothingIsLowered(t *testing.T) {
	for _, tt := range []struct {
		release string
		memory  uint64
		load    Load
		want    []string
	}{
		{"6.12", 8 * gib, Load{PerSecond: 100, DurationSeconds: 2}, []string{forward}},
		{"", 0, Load{PerSecond: 1000, DurationSeconds: 2}, []string{forward, portRange}},
		{"4.18.0-305.el8", 4 * gib, Load{PerSecond: 1000, DurationSeconds: 1}, []string{forward, synBacklog, snapshot.TCPMaxTWBuckets, portRange}},
		{"6.12", 64 * gib, Load{PerSecond: 5000, DurationSeconds: 400}, // 2,000,000 open
			[]string{snapshot.ConntrackMax, snapshot.ConntrackBuckets, forward, nrOpen, snapshot.SoMaxConn, synBacklog, snapshot.TCPMaxTWBuckets, tcpMem, portRange}},
	} {
		r := request(tt.load)
		r.On.Kernel.Release, r.On.Memory, r.Roles = tt.release, &snapshot.Memory{TotalBytes: tt.memory}, AllRoles
		p := must(t, r)
		var got []string
		for _, c := range p.changes() {
			got = append(got, c.Target)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%q, %d B (-want +got):\n%s", tt.release, tt.memory, diff)
		}
		if few := tt.load.PerSecond < 5000; strings.Contains(p.Text(ModprobeFile, Network{}), "\noptions ") == few {
			t.Errorf("%q: %s", tt.release, p.Text(ModprobeFile, Network{}))
		}
		if text := p.Text(SysctlFile, Network{}); !strings.Contains(text, "were not read") {
			t.Errorf("%q: %s", tt.release, text)
		}
	}
}

// TestTCPMemory: no number of tcp_mem falls, and none is more than half of the memory.
func TestTCPMemory(t *testing.T) {
	for _, tt := range []struct {
		memory    uint64
		open      int64
		now, want string
	}{
		{8 * gib, 100_000, "100000 150000 800000", "150000 200000 800000"},
		{8 * gib, 100_000, "100000 200000 300000", ""},
		{8 * gib, 500_000, "100000 150000 200000", "750000 1000000 1048576"},
		{8 * gib, 1_000_000, "100000 150000 200000", ""}, // 2,000,000 of 2,097,152 pages
		{0, 1_000_000, "100000 150000 200000", "1500000 2000000 3000000"},
	} {
		r := request(Load{Open: tt.open})
		r.Roles, r.On.Memory.TotalBytes, r.On.Sysctls = []Role{Server}, tt.memory, snapshot.Sysctls{tcpMem: tt.now}
		p := must(t, r)
		at := slices.IndexFunc(p.Limits, func(l Limit) bool { return l.Role == Server && l.Name == tcpMem })
		if got := p.Limits[at].Set; got != tt.want {
			t.Errorf("%d connections with %q: %q, want %q", tt.open, tt.now, got, tt.want)
		}
		said := slices.ContainsFunc(p.Notes, func(n string) bool { return strings.HasPrefix(n, tcpMem) })
		if too := tt.open == 1_000_000 && tt.memory > 0; said != too {
			t.Errorf("%d connections, %d B: notes %q", tt.open, tt.memory, p.Notes)
		}
	}
}

// TestBoundIsNotReady: a table that the memory does not let grow as the load needs is not ready, whatever its limit is.
func TestBoundIsNotReady(t *testing.T) {
	r := request(Load{Open: 10_000_000})
	r.Addresses = MostAddresses
	r.On.Sysctls = snapshot.Sysctls{snapshot.ConntrackMax: "5439488", snapshot.ConntrackBuckets: "5439488", forward: "1"}
	p := must(t, r)
	got := map[string]Answer{}
	for _, l := range p.Limits {
		if l.Role == Gateway {
			got[l.Name] = l.Enough
		}
	}
	want := map[string]Answer{snapshot.ConntrackMax: No, snapshot.ConntrackBuckets: Yes, forward: Yes, memoryName: No, addressesName: Yes}
	if diff := cmp.Diff(want, got); diff != "" || p.Table.Max != 5_439_488 || !p.Table.MemoryBound {
		t.Errorf("%+v (-want +got):\n%s", p.Table, diff)
	}
}

// TestBucketsNeedTheLimit: hashsize= makes the limit 8 times as much at boot, so that who raises the one sets the other.
func TestBucketsNeedTheLimit(t *testing.T) {
	r := request(Load{Open: 200_000})
	r.On.Sysctls = snapshot.Sysctls{snapshot.ConntrackMax: "262144", snapshot.ConntrackBuckets: "65536", forward: "1"}
	if got, want := must(t, r).lines(tune.SysctlConf), snapshot.ConntrackMax+" = 262144\n"+snapshot.ConntrackBuckets+" = 262144\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestFiles(t *testing.T) {
	r := request(Load{PerSecond: 5000, DurationSeconds: 2})
	r.Roles = []Role{Gateway, Server}
	network := Network{WAN: "wan0", LAN: "lan0"}
	texts := map[string]string{}
	for _, f := range must(t, r).Files(network, "web.service") {
		for line := range strings.Lines(f.Text) {
			if !strings.HasPrefix(line, "#") {
				texts[f.Path] += line
			}
		}
	}
	want := map[string]string{
		"etc/sysctl.d/80-natkit-plan.conf": "net.netfilter.nf_conntrack_max = 786432\nnet.netfilter.nf_conntrack_buckets = 786432\nnet.ipv4.ip_forward = 1\n" +
			"net.core.somaxconn = 8192\nnet.ipv4.tcp_max_syn_backlog = 8192\nnet.ipv4.tcp_max_tw_buckets = 375000\n",
		"etc/modprobe.d/natkit-plan.conf":                   "options nf_conntrack hashsize=786432\n",
		"etc/modules-load.d/natkit-plan.conf":               "nf_conntrack\n",
		"etc/natkit/gateway-plan.yaml":                      "gateway:\n  expect: {flows: 10k, rate: 5k/s}\n  interfaces: {wan: wan0, lan: lan0}\n  nat:\n    - masquerade: {random: fully}\n",
		"etc/systemd/system/web.service.d/natkit-plan.conf": "[Service]\nLimitNOFILE=11000:524288\n",
	}
	if diff := cmp.Diff(want, texts); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestGatewayFileGivesTheSameTable: what the gateway's file expects is the load of the plan.
func TestGatewayFileGivesTheSameTable(t *testing.T) {
	p := must(t, request(Load{PerSecond: 1234.5, DurationSeconds: 2}))
	snat, err := gateway.ParseRanges("203.0.113.16-203.0.113.19, 203.0.113.30")
	if err != nil {
		t.Fatal(err)
	}
	text := p.Text(GatewayFile, Network{WAN: "eth0", LAN: "eth1", SNAT: snat})
	f, err := gateway.Parse("plan.yaml", []byte(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if e := f.Config.Expect; e.Flows != 2469 || e.Rate != 1235 || len(f.Config.NAT) != 1 || len(f.Config.NAT[0].SNAT.To) != 2 {
		t.Errorf("%+v of\n%s", f.Config, text)
	}
}

// TestRefused: what is no load, or more than one kernel can track, is an error.
func TestRefused(t *testing.T) {
	for name, change := range map[string]func(*Request){
		"nothing":             func(r *Request) { r.Load.PerSecond = 0 },
		"negative rate":       func(r *Request) { r.Load.PerSecond = -1 },
		"no number":           func(r *Request) { r.Load.PerSecond = math.NaN() },
		"infinite":            func(r *Request) { r.Load.DurationSeconds = math.Inf(1) },
		"negative open":       func(r *Request) { r.Load.Open = -1 },
		"all of them twice":   func(r *Request) { r.Load.Unanswered = 2 },
		"no address":          func(r *Request) { r.Addresses = 0 },
		"no destination":      func(r *Request) { r.Destinations = -1 },
		"no time":             func(r *Request) { r.Holds = []float64{0} },
		"protocol":            func(r *Request) { r.Load.Protocol = "sctp" },
		"more than one table": func(r *Request) { r.Load.Open = 3_000_000_000 },
		"memory for no table": func(r *Request) { r.On.Memory.TotalBytes, r.On.Kernel.Release = 1, "" },
		"nothing observed":    func(r *Request) { r.Load.Observed = true },
		"no table observed": func(r *Request) {
			r.Load.Observed, r.Seen = true, &snapshot.Recording{Snapshots: []*snapshot.Snapshot{{}}}
		},
	} {
		r := request(Load{PerSecond: 10, DurationSeconds: 1})
		change(&r)
		if p, err := New(r); err == nil || p != nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, %v", name, p, err)
		}
	}
}

// TestObserved: a load that was seen gives the table that doctor's remedy has.
func TestObserved(t *testing.T) {
	sysctls := snapshot.Sysctls{snapshot.ConntrackCount: "200000", snapshot.ConntrackMax: "262144", snapshot.ConntrackBuckets: "262144"}
	last := &snapshot.Snapshot{Sysctls: sysctls, Kernel: snapshot.Kernel{Release: "6.12"},
		Table: &snapshot.ConntrackTable{Sampled: 100_000, ByTCPState: map[string]int64{"ESTABLISHED": 20_000, "TIME_WAIT": 80_000}}}
	rec := &snapshot.Recording{Snapshots: []*snapshot.Snapshot{last, last}, Flows: &snapshot.Flows{PerSecond: map[string]float64{"tcp/ESTABLISHED": 1000, "udp/unreplied": 100}}}
	r := request(Load{Observed: true, Growth: 3})
	r.On, r.Seen = last, rec
	p := must(t, r)
	want := []Entries{{"open", 120_000}, {"tcp/ESTABLISHED", 360_000}, {"udp/unreplied", 9_000}}
	if diff := cmp.Diff(want, p.Entries); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if p.Table.Entries != 489_000 || p.Load.PerSecond != 3300 {
		t.Errorf("%d entries, %g/s", p.Table.Entries, p.Load.PerSecond)
	}
	if at := slices.IndexFunc(p.Limits, func(l Limit) bool { return l.Name == addressesName }); p.Limits[at].Enough != Unknown {
		t.Errorf("addresses: %+v", p.Limits[at]) // where connections go was not seen
	}
	rec.Flows = nil
	if p := must(t, r); p.Table.Entries != 120_000 || len(p.Notes) == 0 {
		t.Errorf("without the rate: %d entries, notes %q", p.Table.Entries, p.Notes)
	}
}

// TestFormulas: each number is what its formula gives with its inputs.
func TestFormulas(t *testing.T) {
	seen := map[string]bool{}
	for _, l := range []Load{{PerSecond: 5000, DurationSeconds: 2, Unanswered: 0.01, RTTSeconds: 0.05}, {Open: 1_000_000}, {Open: 70_000_000}, {PerSecond: 3, DurationSeconds: 1}} {
		for _, proto := range []string{TCP, UDP} {
			r := request(l)
			r.Load.Protocol = proto
			for _, n := range must(t, r).Numbers {
				inputs := map[string]float64{}
				for _, in := range n.Inputs {
					inputs[in.Name] = in.Value
				}
				got, err := evaluate(n.Formula, inputs)
				if err != nil || math.Abs(got-n.Value) > 1e-9*math.Abs(n.Value) {
					t.Errorf("%s = %g, but %s gives %g with %v (%v)", n.Name, n.Value, n.Formula, got, inputs, err)
				}
				seen[n.Formula] = true
			}
		}
	}
	if len(seen) < 15 {
		t.Errorf("only %d formulas", len(seen))
	}
}

// evaluate computes an expression in names.
func evaluate(text string, names map[string]float64) (float64, error) {
	e, err := parser.ParseExpr(text)
	if err != nil {
		return 0, err
	}
	return value(e, names)
}

var functions = map[string]func(...float64) float64{
	"ceil": func(v ...float64) float64 { return math.Ceil(v[0]) }, "floor": func(v ...float64) float64 { return math.Floor(v[0]) },
	"min": func(v ...float64) float64 { return slices.Min(v) }, "max": func(v ...float64) float64 { return slices.Max(v) },
	"pow2": func(v ...float64) float64 { return float64(uint64(1) << bits.Len64(uint64(max(v[0], 1))-1)) },
}

func value(e ast.Expr, names map[string]float64) (float64, error) {
	switch e := e.(type) {
	case *ast.BasicLit:
		return strconv.ParseFloat(e.Value, 64)
	case *ast.ParenExpr:
		return value(e.X, names)
	case *ast.Ident:
		v, ok := names[e.Name]
		if !ok {
			return 0, fmt.Errorf("no input %s", e.Name)
		}
		return v, nil
	case *ast.CallExpr:
		var all []float64
		for _, a := range e.Args {
			v, err := value(a, names)
			if err != nil {
				return 0, err
			}
			all = append(all, v)
		}
		do := functions[e.Fun.(*ast.Ident).Name]
		if do == nil {
			return 0, fmt.Errorf("no function %v", e.Fun)
		}
		return do(all...), nil
	case *ast.BinaryExpr:
		x, err := value(e.X, names)
		y, err2 := value(e.Y, names)
		if err == nil {
			err = err2
		}
		switch e.Op {
		case token.ADD:
			return x + y, err
		case token.MUL:
			return x * y, err
		case token.QUO:
			return x / y, err
		}
	}
	return 0, fmt.Errorf("%T is not known", e)
}

// FuzzPlan: whatever is asked gives an error or finite numbers, and more load never needs less.
func FuzzPlan(f *testing.F) {
	f.Add(5000.0, 2.0, int64(0), 0.0, 0.05, "6.12", uint64(8*gib), uint16(1024), int64(1), int64(1), 112.5, false)
	f.Add(math.Inf(1), math.NaN(), int64(-1), 2.0, -1.0, "", uint64(0), uint16(0), int64(0), int64(0), 0.0, true)
	f.Add(1e9, float64(MostSeconds), int64(MostConnections), 1.0, 1e8, "2.6.32-754.el6", uint64(math.MaxUint64), uint16(65535), int64(MostAddresses), int64(MostAddresses), 1e-300, true)
	f.Add(1e-300, 1e-300, int64(1), 1e-300, 1e-300, "3.10.0-1127", uint64(1), uint16(1), int64(7), int64(3), 1.0, false)
	f.Fuzz(func(t *testing.T, rate, duration float64, open int64, unanswered, rtt float64, release string, memory uint64, port uint16, addresses, destinations int64, hold float64, udp bool) {
		defer testutil.Bounded(t, 64)()
		r := request(Load{PerSecond: rate, DurationSeconds: duration, Open: open, Unanswered: unanswered, RTTSeconds: rtt})
		r.On = &snapshot.Snapshot{Kernel: snapshot.Kernel{Release: release}, Memory: &snapshot.Memory{TotalBytes: memory}}
		r.Ports, r.Addresses, r.Destinations, r.Holds, r.Roles = nat.Ports{First: port, Last: 65535}, addresses, destinations, []float64{hold}, AllRoles
		if udp {
			r.Load.Protocol = UDP
		}
		p, err := New(r)
		if (err == nil) == (p == nil) {
			t.Fatalf("%+v, %v", p, err)
		}
		if err != nil {
			return
		}
		for _, n := range p.Numbers {
			if !(n.Value >= 0) || math.IsInf(n.Value, 0) {
				t.Fatalf("%s is %g of %+v", n.Name, n.Value, n.Inputs)
			}
		}
		for _, l := range p.Table.Losses {
			if !(l.Loss >= 0 && l.Loss <= l.Full && l.Full <= 1) {
				t.Fatalf("losses %+v", l)
			}
		}
		if p.Table.Max < min(p.Table.Entries, mostEntries) && !p.Table.MemoryBound {
			t.Fatalf("limit %d for %d entries", p.Table.Max, p.Table.Entries)
		}
		if _, err := gateway.Parse("plan.yaml", []byte(p.Text(GatewayFile, Network{WAN: "eth0", LAN: "eth1"}))); err != nil {
			t.Fatalf("the gateway's file: %v", err)
		}
		r.Load.PerSecond, r.Load.Open = 2*rate, 2*open
		more, err := New(r)
		if err != nil {
			return // beyond a bound
		}
		type need struct{ entries, limit, bytes, ports, addresses int64 }
		of := func(p *Plan) need {
			return need{p.Table.Entries, p.Table.Max, p.Table.FullBytes, p.Ports.Needed, p.Ports.AddressesNeeded}
		}
		a, b := of(p), of(more)
		if b.entries < a.entries || b.limit < a.limit || b.bytes < a.bytes || b.ports < a.ports || b.addresses < a.addresses {
			t.Fatalf("twice the load needs less: %+v after %+v", b, a)
		}
	})
}

// FuzzObserved: whatever a bundle says of a table gives an error or finite numbers.
func FuzzObserved(f *testing.F) {
	f.Add("200000", "262144", "65536", "120", int64(1000), int64(800), 10.0, "tcp/ESTABLISHED", uint64(256), uint64(128), uint64(1<<20), 2.0)
	f.Add("-1", "-1", "-1", "-1", int64(-1), int64(-1), math.NaN(), "", uint64(math.MaxUint64), uint64(math.MaxUint64), uint64(math.MaxUint64), 1e6)
	f.Add("9223372036854775807", "9223372036854775807", "1", "4294967295", int64(1), int64(math.MaxInt64), 1e9, "udp/stream", uint64(1), uint64(0), uint64(1), 1e-6)
	f.Fuzz(func(t *testing.T, count, limit, buckets, timeout string, sampled, timeWait int64, rate float64, class string, entry, extension, slab uint64, growth float64) {
		defer testutil.Bounded(t, 64)()
		last := &snapshot.Snapshot{Kernel: snapshot.Kernel{Release: "6.12"},
			Sysctls: snapshot.Sysctls{snapshot.ConntrackCount: count, snapshot.ConntrackMax: limit, snapshot.ConntrackBuckets: buckets,
				"net.netfilter.nf_conntrack_tcp_timeout_time_wait": timeout, "net.netfilter.nf_conntrack_udp_timeout_stream": timeout},
			ConntrackSize: &snapshot.ConntrackSize{EntryBytes: entry, ExtensionBytes: extension, BucketBytes: 8, SlabBytes: slab},
			Table:         &snapshot.ConntrackTable{Sampled: sampled, ByTCPState: map[string]int64{"TIME_WAIT": timeWait}}}
		r := request(Load{Observed: true, Growth: growth})
		r.On, r.Seen = last, &snapshot.Recording{Snapshots: []*snapshot.Snapshot{last, last},
			Flows: &snapshot.Flows{PerSecond: map[string]float64{class: rate}, Sampled: sampled, Groups: timeWait}}
		p, err := New(r)
		if (err == nil) == (p == nil) {
			t.Fatalf("%+v, %v", p, err)
		}
		if err != nil {
			return
		}
		for _, n := range p.Numbers {
			if !(n.Value >= 0) || math.IsInf(n.Value, 0) {
				t.Fatalf("%s is %g of %+v", n.Name, n.Value, n.Inputs)
			}
		}
		if p.Table.Max < 1 || p.Table.Buckets < 1 || p.Table.FullBytes < 0 {
			t.Fatalf("%+v", p.Table)
		}
	})
}

// The arithmetic of plan and of 'natkit gateway plan' is one: the same load gives the same table.
func TestSameAsGateway(t *testing.T) {
	p := must(t, request(Load{PerSecond: 5000, DurationSeconds: 2}))
	table := capacity.Table{Max: 262144, Buckets: 262144, Cost: capacity.CostOf(nil), MemoryBytes: 8 * gib}
	s := capacity.Size(table.For(10_000, 5000, 120))
	if s.Entries != p.Table.Entries || s.Max != p.Table.Max || s.Buckets != p.Table.Buckets || s.FullBytes != p.Table.FullBytes {
		t.Errorf("%+v, plan has %+v", s, p.Table)
	}
}
