package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
)

// startBenchServeUDP runs bench serve --udp and returns its address, and a function
// that ends it and returns the rest of what it printed.
func startBenchServeUDP(t *testing.T, flags ...string) (string, func() string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	var stderr bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- runNatkit(ctx, w, &stderr, append([]string{"bench", "serve", "--udp", "127.0.0.1:0"}, flags...)...)
		w.Close()
	}()
	line := make([]byte, 200)
	n, err := r.Read(line)
	m := regexp.MustCompile(`^answering UDP at (127\.0\.0\.1:\d+)\n$`).FindSubmatch(line[:n])
	if m == nil {
		cancel()
		t.Fatalf("bench serve said %q, %v; %s", line[:n], err, &stderr)
	}
	return string(m[1]), func() string {
		cancel()
		rest, err := io.ReadAll(r)
		if got := <-code; got != exitOK || err != nil {
			t.Errorf("bench serve: exit code %d, %v: %s", got, err, &stderr)
		}
		return string(rest)
	}
}

func TestBenchUDPText(t *testing.T) {
	addr, stop := startBenchServeUDP(t, "--expect-source", "127.0.0.3:20000-20099")
	for _, flags := range [][]string{
		{},
		{"--flows", "20", "-c", "5", "-n", "500", "--size", "imix"},
		{"--rate", "5000", "-n", "500", "--workers", "1"},
		{"--flows", "50", "--source", "127.0.0.3", "--source-port", "20000-20099", "--seed", "3"},
	} {
		var stdout, stderr bytes.Buffer
		args := append(append([]string{"bench", "udp"}, flags...), addr)
		if code := runNatkit(t.Context(), &stdout, &stderr, args...); code != exitOK || stderr.Len() > 0 {
			t.Fatalf("%v: exit code %d: %s", flags, code, &stderr)
		}
		for _, want := range []string{
			`(?m)^Server: +127\.0\.0\.1:\d+$`, `(?m)^Datagrams sent: +[1-9]\d*$`, `(?m)^Lost: +0 \(0 %\)$`, `(?m)^Misdelivered: +0$`,
			`(?m)^Reply: +([\d.]+ +){4}[\d.]+$`, `(?m)^ +99% +[\d.]+$`,
		} {
			if !regexp.MustCompile(want).Match(stdout.Bytes()) {
				t.Errorf("%v: no line like %s in\n%s", flags, want, &stdout)
			}
		}
	}
	// 1000 from one port, 500 from 20, 500 from one: wherever the kernel sent them from.
	rest := stop()
	for _, want := range []string{`(?m)^Datagrams received: +3000$`, `(?m)^Answered: +3000$`, `(?m)^Misdelivered: +2000$`, `(?m)^Different senders: +72$`} {
		if !regexp.MustCompile(want).MatchString(rest) {
			t.Errorf("no line like %s in\n%s", want, rest)
		}
	}
}

type udpDocument struct {
	report.LoadHead
	packets.UDPResult
}

func TestBenchUDPJSON(t *testing.T) {
	addr, stop := startBenchServeUDP(t)
	defer stop()
	var stdout, stderr bytes.Buffer
	if code := runNatkit(t.Context(), &stdout, &stderr, "bench", "udp", "--json", "-n", "50", "--flows", "5", "--seed", "9", addr); code != exitOK {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	var got udpDocument
	dec := json.NewDecoder(&stdout)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&got); err != nil {
		t.Fatal(err)
	}
	if got.Schema != "natkit.bench-udp/1" || got.Version != "v0.0.0-test" || got.Received != 50 || got.Config.Seed != 9 || got.Config.To.String() != addr {
		t.Errorf("%+v", got)
	}
	if got.Failures == nil || got.Series == nil || len(got.Config.FrameBytes) != 1 || got.Config.Workers == 0 {
		t.Errorf("%+v", got.UDPResult)
	}
	here, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	if got.Netns.Inode != here.Inode() {
		t.Errorf("in namespace %+v; natkit runs in %d", got.Netns, here.Inode())
	}
	stdout.Reset()
	if code := runNatkit(t.Context(), &stdout, &stderr, append(strings.Fields(got.Command)[1:], "--json")...); code != exitOK {
		t.Fatalf("%s: exit code %d: %s", got.Command, code, &stderr)
	}
	var again udpDocument
	if err := json.Unmarshal(stdout.Bytes(), &again); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got.Config, again.Config) || again.Command != got.Command {
		t.Errorf("%s: %+v\nand then %s: %+v", got.Command, got.Config, again.Command, again.Config)
	}
}

func TestBenchServeUDPJSON(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stdout bytes.Buffer
	r, stderr := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- runNatkit(ctx, &stdout, stderr, "bench", "serve", "--udp", "127.0.0.1:0", "--json")
		stderr.Close()
	}()
	line := make([]byte, 200)
	if n, err := r.Read(line); err != nil || !strings.HasPrefix(string(line[:n]), "answering UDP at 127.0.0.1:") {
		t.Fatalf("%q, %v", line[:n], err)
	}
	cancel()
	if got := <-code; got != exitOK {
		t.Fatalf("exit code %d", got)
	}
	var doc struct {
		Schema string `json:"schema"`
		packets.Served
	}
	if err := json.Unmarshal(stdout.Bytes(), &doc); err != nil || doc.Schema != "natkit.bench-serve/1" || doc.Workers == 0 || doc.Listen.Port() == 0 {
		t.Errorf("%v, %+v", err, doc)
	}
}

// TestBenchUDPFailedJSON: a run to which nothing came back is a document too.
func TestBenchUDPFailedJSON(t *testing.T) {
	var stdout, stderr bytes.Buffer
	code := runNatkit(t.Context(), &stdout, &stderr, "bench", "udp", "--json", "-n", "5", "127.0.0.1:1")
	var got packets.UDPResult
	if err := json.Unmarshal(stdout.Bytes(), &got); err != nil {
		t.Fatalf("%v in %q", err, &stdout)
	}
	if code != exitFailed || strings.Count(stderr.String(), "\n") != 1 || got.Sent != 5 || got.Lost != 5 || got.Hint == "" {
		t.Errorf("exit code %d, %q, %+v", code, &stderr, got)
	}
}

// TestBenchUDPTextGolden has every line that a report can have.
func TestBenchUDPTextGolden(t *testing.T) {
	r := &packets.UDPResult{
		Config: packets.UDPConfig{
			To: netip.MustParseAddrPort("[2001:db8::2]:9000"), Flows: 5000, Workers: 2, Rate: 20000, Size: "imix",
			FrameBytes: []int{78, 594, 78, 78, 594, 78, 1518, 78, 594, 78, 594, 78}, Timeout: time.Second, Seed: 7,
			Sources: []netip.Addr{netip.MustParseAddr("2001:db8::1")}, SourcePorts: nat.Ports{First: 1024, Last: 65535},
		},
		Seconds: 10,
		UDPCounts: packets.UDPCounts{
			Delivery: packets.Delivery{Sent: 200000, Received: 199000, Lost: 1100, Reordered: 12, Duplicated: 100, Late: 1, Misdelivered: 40},
			Altered:  3, Foreign: 2, Unsent: 10, SocketDrops: 5, SentFrameBytes: 74_000_000, SystemCalls: 500_000,
		},
		MisdeliveredFrom: []packets.Sender{{From: netip.MustParseAddrPort("[2001:db8::2]:9001"), Count: 40}},
		Failures: []load.Failure{
			{Phase: load.Send, Reason: "forbidden on this machine", Count: 7}, {Phase: load.Wait, Reason: "refused", Count: 6},
		},
		SentPerSecond: 20000, AnsweredPerSecond: 19890,
		RoundTrip:      load.Times{Min: 0.01, Mean: 0.05, SD: 0.02, Median: 0.04, P90: 0.08, P95: 0.1, P99: 0.2, P999: 1.5, Max: 12},
		GeneratorLimit: "it was too slow", CPUContention: "so did others",
		CPU: load.CPU{UserSeconds: 0.5, SystemSeconds: 1, MachineSeconds: 3, MaxRSSBytes: 12 << 20},
	}
	served := &packets.Served{
		Received: 1000, Answered: 990, SocketDrops: 4, Expected: &packets.End{}, Misdelivered: 7, Sources: 12,
		MisdeliveredFrom: r.MisdeliveredFrom, Failures: r.Failures[:1], SystemCalls: 500, CPU: load.CPU{SystemSeconds: 0.002},
	}
	var text, servedText bytes.Buffer
	if err := report.UDPLoad(&text, report.Style{}, r); err != nil {
		t.Fatal(err)
	}
	if err := report.Served(&servedText, report.Style{}, served); err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]string{"bench-udp": text.String(), "bench-serve-udp": servedText.String()} {
		golden := filepath.Join("testdata", name+".txt")
		if os.Getenv("NATKIT_UPDATE_SCRIPTS") != "" {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
