package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

// packetsConfig is a run through a NAT, as a result has it.
func packetsConfig() packets.Config {
	return packets.Config{
		Spec:    packets.Spec{Protocol: unix.IPPROTO_UDP, Sizes: []int{64}, HopLimit: 64},
		Packets: 1_000_000, Workers: 1,
		Flows: packets.Flows{
			Count: 1000, Sources: []netip.Addr{netip.MustParseAddr("198.18.0.2")}, SourcePorts: nat.Ports{First: 1024, Last: 65535},
			Destinations: []netip.AddrPort{netip.MustParseAddrPort("198.18.0.1:9")}, Seed: 7,
		},
	}
}

// packetsResult has every line that a report can have.
func packetsResult() *packets.Result {
	r := &packets.Result{
		Config: packetsConfig(), From: "a/eth0", To: "b/eth0", Seconds: 2,
		Delivery:  packets.Delivery{Sent: 1_000_000, Received: 990_000, Lost: 10_005, Reordered: 3, Duplicated: 5, Late: 2, Misdelivered: 4},
		SentBytes: 64_000_000, ReceivedBytes: 63_360_000, SentPerSecond: 500_000, ReceivedPerSecond: 495_000,
		Corrupted:    packets.Corrupted{IPChecksum: 1, Checksum: 2, Partial: 9_000},
		OtherPackets: 17, GeneratorNanoseconds: 60.04, SinkNanoseconds: 42,
		GeneratorLimit: "it was too slow", Notes: []string{"the first\x1b[31m", "the second"},
	}
	c := &r.Config
	c.Spec.Protocol, c.Spec.TCPFlags = unix.IPPROTO_TCP, []frame.TCPFlags{frame.SYN, frame.ACK, frame.ACK, frame.FIN | frame.ACK}
	c.Spec.VLAN, c.Spec.DSCP, c.Spec.HopLimit, c.Spec.Sizes = 7, 46, 9, []int{64, 70, 80, 90, 100}
	c.Flows.Sources = append(c.Flows.Sources, netip.MustParseAddr("198.18.0.3"))
	c.Rate, c.Workers, c.Verify, c.Statistics = 1e6, 2, true, true
	c.Expect.Source = packets.End{
		Address: packets.Netmap, Prefix: netip.MustParsePrefix("198.19.0.0/24"), Port: packets.Inside, Ports: nat.Ports{First: 1, Last: 9},
	}
	c.Expect.Destination = packets.End{Address: packets.Same, Port: packets.Same}
	return r
}

func TestBenchPacketsGolden(t *testing.T) {
	plain := &packets.Result{
		Config: packetsConfig(), From: "eth0", Seconds: 1, Delivery: packets.Delivery{Sent: 1_000_000},
		SentBytes: 64_000_000, SentPerSecond: 1_000_000,
	}
	low, high := 0.01, 0.02
	for name, tt := range map[string]struct {
		result  *packets.Result
		maxLoss *float64
		style   report.Style
	}{
		"bench-packets":        {packetsResult(), &low, report.Style{}},
		"bench-packets-colour": {packetsResult(), &high, report.Style{Colour: true}},
		"bench-packets-unseen": {plain, nil, report.Style{}},
	} {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			if err := report.JudgePackets(tt.result, tt.maxLoss).Text(&got, tt.style); err != nil {
				t.Fatal(err)
			}
			compareGolden(t, name, got.Bytes())
		})
	}
}

// compareGolden compares with a file of testdata, or rewrites it.
func compareGolden(t *testing.T, name string, got []byte) {
	t.Helper()
	golden := filepath.Join("testdata", name+".txt")
	if os.Getenv("NATKIT_UPDATE_SCRIPTS") != "" {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseShare(t *testing.T) {
	for text, want := range map[string]float64{"0": 0, "0.001": 0.001, "0.1%": 0.001, "5 %": 0.05, "100%": 1, "1": 1} {
		if got, err := parseShare(text); err != nil || got < want-1e-12 || got > want+1e-12 {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
	for _, bad := range []string{"", "-1", "101%", "1.5", "NaN", "%", "some"} {
		if got, err := parseShare(bad); err == nil {
			t.Errorf("%q is taken as %v", bad, got)
		}
	}
}

// TestShellQuote lets a shell read the words back.
func TestShellQuote(t *testing.T) {
	for _, word := range []string{"198.18.0.1:9", "[2001:db8::1]:9", "", "it's", `a "b" $c \d`, "1024-65535", "x*", "0.1%", "imix,64"} {
		out, err := exec.CommandContext(t.Context(), "sh", "-c", "printf %s "+diagnose.ShellWord(word)).Output()
		if err != nil || string(out) != word {
			t.Errorf("%q: a shell reads %q (%v) from %s", word, out, err, diagnose.ShellWord(word))
		}
	}
}

func TestNothingArrived(t *testing.T) {
	bad := packetsResult()
	bad.Received = 0
	gone := &packets.Result{Config: packetsConfig(), To: "b/eth0", Delivery: packets.Delivery{Sent: 10, Lost: 10}}
	for want, r := range map[string]*packets.Result{
		"of 1,000,000 packets arrived at b/eth0 as expected: 4 misdelivered, 1 IP checksum wrong, 2 checksum wrong, 9,000 checksum partial": bad,
		"none of 10 packets arrived at b/eth0 as expected: none arrived at all":                                                             gone,
		"the run ended before anything was sent":                                                                                            {Config: packetsConfig(), To: "b/eth0"},
	} {
		if err := nothingArrived(report.PacketsResult{Result: r}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s", err, want)
		}
	}
	for _, r := range []*packets.Result{packetsResult(), {Delivery: packets.Delivery{Sent: 1}, Config: packetsConfig()}} {
		if err := nothingArrived(report.PacketsResult{Result: r}); err != nil {
			t.Error(err)
		}
	}
}

// TestBenchPacketsPrivilege drops a capability, on a thread that ends with it.
func TestBenchPacketsPrivilege(t *testing.T) {
	testutil.NeedRoot(t)
	var stdout, stderr bytes.Buffer
	var code int
	err := netns.OnThread(func() error {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if err := unix.Capget(&header, &data[0]); err != nil {
			return err
		}
		data[0].Effective &^= 1 << unix.CAP_NET_ADMIN
		if err := unix.Capset(&header, &data[0]); err != nil {
			return err
		}
		code = runNatkit(t.Context(), &stdout, &stderr, "bench", "packets", "-n", "10", "198.18.0.1:9")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := "natkit: bench packets needs CAP_NET_ADMIN (to attach XDP programs to interfaces); run it as root, or with CAP_NET_ADMIN\n"
	if code != exitFailed || stderr.String() != want || stdout.Len() > 0 {
		t.Errorf("exit code %d, %q", code, &stderr)
	}
}

// firstWrite calls fn when the first text is written.
type firstWrite struct {
	bytes.Buffer
	fn func()
}

func (w *firstWrite) Write(b []byte) (int, error) {
	w.fn()
	return w.Buffer.Write(b)
}

// TestBenchPacketsInterrupted ends a run of an hour as soon as it shows progress.
func TestBenchPacketsInterrupted(t *testing.T) {
	testutil.NeedRoot(t)
	a, b := fmt.Sprintf("a-int-%d", os.Getpid()), fmt.Sprintf("b-int-%d", os.Getpid())
	for _, name := range []string{a, b} {
		ip(t, "netns", "add", name)
		t.Cleanup(func() { ip(t, "netns", "del", name) })
	}
	ipIn(t, a, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", b)
	ipIn(t, a, "address", "add", "198.18.0.2/24", "dev", "eth0")
	ipIn(t, b, "address", "add", "198.18.0.1/24", "dev", "eth0")
	ipIn(t, a, "link", "set", "eth0", "up")
	ipIn(t, b, "link", "set", "eth0", "up")

	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience(5*time.Minute))
	defer cancel()
	stderr := firstWrite{fn: cancel}
	var stdout bytes.Buffer
	code := Run(ctx, Env{
		Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr, StderrTerminal: true,
		Getenv: func(string) string { return "" }, Version: "v0.0.0-test",
	}, []string{"bench", "packets", "--netns", a, "--sink-netns", b, "-t", "1h", "--rate", "10000", "--json", "198.18.0.1:9"})
	var doc struct {
		report.LoadHead
		report.PacketsResult
	}
	if err := json.Unmarshal(stdout.Bytes(), &doc); err != nil || code != exitOK {
		t.Fatalf("exit code %d, %v: %s%s", code, err, &stdout, &stderr.Buffer)
	}
	if doc.Sent == 0 || doc.Received != doc.Sent || doc.Seconds >= 3600 || !strings.Contains(strings.Join(doc.Notes, ""), "interrupted") {
		t.Errorf("%+v", doc.Result)
	}
	if want := "natkit bench packets --flows 1000 --netns " + a + " --rate 10000 --seed 0 --sink-netns " + b +
		" --size 64 --source 198.18.0.2 --source-port 1024-65535 --time 1h0m0s --workers 1 198.18.0.1:9"; doc.Command != want {
		t.Errorf("%s\nwant %s", doc.Command, want)
	}
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	succeed(t, exec.Command(testutil.NeedProgram(t, "ip"), args...))
}

// ipIn runs ip in a namespace. ip's own -n needs a root that is a mount point, which
// it is not in a chroot.
func ipIn(t *testing.T, ns string, args ...string) {
	t.Helper()
	succeed(t, exec.Command(testutil.NeedProgram(t, "nsenter"), append([]string{"--net=/run/netns/" + ns, "ip"}, args...)...))
}

func succeed(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(cmd.Args, " "), err, out)
	}
}
