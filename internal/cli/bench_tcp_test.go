package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
)

// startBenchServeTCP runs bench serve --tcp and returns its address, and a function that ends it and returns
// the rest of what it printed on stdout.
func startBenchServeTCP(t *testing.T, flags ...string) (string, func() string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, w := io.Pipe()
	var stdout, stderr bytes.Buffer
	code := make(chan int, 1)
	asJSON := len(flags) > 0 && flags[len(flags)-1] == "--json"
	go func() {
		args := append([]string{"bench", "serve", "--tcp", "127.0.0.1:0"}, flags...)
		if asJSON { // the line comes on stderr
			code <- runNatkit(ctx, &stdout, io.MultiWriter(w, &stderr), args...)
		} else {
			code <- runNatkit(ctx, io.MultiWriter(w, &stdout), &stderr, args...)
		}
		w.Close()
	}()
	line := make([]byte, 200)
	n, err := ready.Read(line)
	go io.Copy(io.Discard, ready)
	m := regexp.MustCompile(`^holding TCP at (127\.0\.0\.1:\d+)\n$`).FindSubmatch(line[:n])
	if m == nil {
		cancel()
		t.Fatalf("bench serve said %q, %v; %s", line[:n], err, &stderr)
	}
	return string(m[1]), func() string {
		cancel()
		if got := <-code; got != exitOK {
			t.Errorf("bench serve: exit code %d: %s", got, &stderr)
		}
		return stdout.String()
	}
}

func TestBenchHoldText(t *testing.T) {
	addr, stop := startBenchServeTCP(t, "--limit", "100")
	for _, flags := range [][]string{
		{},
		{"-c", "5", "--keep", "10ms", "--verify", "5", "--close", "fin", "--source-port", "20000-39999"},
		{"--rate", "5000", "--workers", "1", "--close", "server", "--source", "127.0.2.1-127.0.2.3"},
	} {
		var stdout, stderr bytes.Buffer
		args := append(append([]string{"bench", "hold"}, flags...), "50", addr)
		if code := runNatkit(t.Context(), &stdout, &stderr, args...); code != exitOK || stderr.Len() > 0 {
			t.Fatalf("%v: exit code %d: %s", flags, code, &stderr)
		}
		for _, want := range []string{
			`(?m)^Established: +50 in `, `(?m)^Failed: +0$`, `(?m)^Lost: +0$`, `(?m)^Closed: +50 in `,
			`(?m)^Memory: +\d+ bytes per connection here`, `(?m)^Kernel's sockets: +\d+ \(`, `(?m)^Byte: +([\d.]+ +){4}[\d.]+$`,
		} {
			if !regexp.MustCompile(want).Match(stdout.Bytes()) {
				t.Errorf("%v: no line like %s in\n%s", flags, want, &stdout)
			}
		}
	}
	rest := stop()
	for _, want := range []string{`(?m)^Accepted: +150$`, `(?m)^Bytes returned: +105$`, `(?m)^Closed here: +\d+$`} {
		if !regexp.MustCompile(want).MatchString(rest) {
			t.Errorf("no line like %s in\n%s", want, rest)
		}
	}
}

type holdDocument struct {
	report.LoadHead
	load.HoldResult
}

func decodeStrictly(t *testing.T, text []byte, to any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

// TestBenchHoldJSON: the document has the command that repeats the run, and an interrupted run has one as well.
func TestBenchHoldJSON(t *testing.T) {
	addr, stop := startBenchServeTCP(t, "--json")
	var stdout, stderr bytes.Buffer
	if code := runNatkit(t.Context(), &stdout, &stderr, "bench", "hold", "--json", "--seed", "9", "--close", "fin", "20", addr); code != exitOK {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	var got holdDocument
	decodeStrictly(t, stdout.Bytes(), &got)
	if got.Schema != "natkit.bench-hold/1" || got.Established != 20 || got.Alive != 20 || got.Config.Seed != 9 || got.Config.Close != load.CloseClient || got.Series == nil {
		t.Errorf("%+v", got)
	}
	if want := regexp.MustCompile(`^natkit bench hold --close fin --seed 9 --workers \d+ 20 ` + regexp.QuoteMeta(addr) + `$`); !want.MatchString(got.Command) {
		t.Errorf("command %q", got.Command)
	}
	stdout.Reset()
	keeping, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer keeping.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for range 20 {
			c, err := keeping.Accept()
			if err != nil {
				return
			}
			defer c.Close()
		}
		cancel()
		<-t.Context().Done()
	}()
	runNatkit(ctx, &stdout, &stderr, "bench", "hold", "--json", "--keep", "1h", "20", keeping.Addr().String())
	got = holdDocument{}
	decodeStrictly(t, stdout.Bytes(), &got)
	if got.Established+got.Unfinished != 20 || got.Closed != got.Established || got.Verified != 0 {
		t.Errorf("%+v", got)
	}
	var held struct {
		report.LoadHead
		load.Held
	}
	decodeStrictly(t, []byte(stop()), &held)
	if held.Schema != "natkit.bench-serve-tcp/1" || held.Accepted != 20 || held.ByPeer != 20 || held.Returned != 20 {
		t.Errorf("%+v", held)
	}
}

// TestBenchHoldNoneAlive: a run whose connections are all dead fails, and says of what.
func TestBenchHoldNoneAlive(t *testing.T) {
	for _, tt := range []struct {
		name   string
		closes bool // when all have been accepted
		flags  []string
		want   string
	}{
		{"none returns its byte", false, []string{"--timeout", "1s"}, "no connection was alive of 5 that stood: verify: timed out 5"},
		{"none is left", true, []string{"--keep", "1h", "--verify", "0"}, "no connection was alive of 5 that stood: keep: closed by the server 5"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, err := net.Listen("tcp4", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				for range 5 {
					c, err := l.Accept()
					if err != nil {
						return
					}
					defer c.Close()
				}
				if !tt.closes {
					<-t.Context().Done()
				}
			}()
			var stdout, stderr bytes.Buffer
			args := append(append([]string{"bench", "hold"}, tt.flags...), "5", l.Addr().String())
			if code := runNatkit(t.Context(), &stdout, &stderr, args...); code != exitFailed || stdout.Len() > 0 || !strings.Contains(stderr.String(), tt.want) {
				t.Errorf("exit code %d, stdout %q, stderr %q; want %q", code, &stdout, &stderr, tt.want)
			}
		})
	}
	for _, tt := range []struct {
		r    load.HoldResult
		fail bool
	}{
		{load.HoldResult{}, true},
		{load.HoldResult{Established: 9}, false}, // nothing was verified
		{load.HoldResult{Established: 9, Lost: 8}, false},
		{load.HoldResult{Established: 9, Lost: 9}, true},
		{load.HoldResult{Established: 9, Lost: 3, Verified: 3}, true},
		{load.HoldResult{Established: 9, Lost: 2, Verified: 3, Alive: 1}, false},
		{load.HoldResult{Established: 9, Lost: 9, Verified: 9, Alive: 9}, false}, // the server did not close
	} {
		if err := noneAlive("", &tt.r); (err != nil) != tt.fail {
			t.Errorf("%+v: %v", tt.r, err)
		}
	}
}

func TestBenchConnect(t *testing.T) {
	web := strings.TrimSuffix(strings.TrimPrefix(startBenchServe(t), "http://"), "/")
	closing, stop := startBenchServeTCP(t, "--close")
	defer stop()
	for _, tt := range []struct {
		flags []string
		to    string
		load  string
	}{
		{[]string{"-n", "200", "-c", "10"}, closing, "no request, the client closes, closed loop"},
		{[]string{"-n", "200", "-c", "10", "--close", "server"}, closing, "no request, the server closes, closed loop"},
		{[]string{"-n", "200", "-c", "10", "--close", "rst", "--rate", "10000"}, closing, "no request, the client closes with a reset, 10000 connections/s on schedule (open loop)"},
		{[]string{"-n", "200", "-c", "10", "--request"}, web, "one connection per request, the server closes, closed loop"},
		{[]string{"-n", "200", "-c", "10", "--request=/page", "--close", "fin", "--merge-ack"}, web, "one connection per request, the client closes, closed loop"},
	} {
		var stdout, stderr bytes.Buffer
		args := append(append([]string{"bench", "connect"}, tt.flags...), tt.to)
		if code := runNatkit(t.Context(), &stdout, &stderr, args...); code != exitOK || stderr.Len() > 0 {
			t.Fatalf("%v: exit code %d: %s", tt.flags, code, &stderr)
		}
		for _, want := range []string{
			`(?m)^Load: +` + regexp.QuoteMeta(tt.load) + `$`, `(?m)^Complete connections: +200$`, `(?m)^Failed connections: +0$`,
			`(?m)^Connections per second: +[1-9]`, `(?m)^Total: +([\d.]+ +){4}[\d.]+$`,
		} {
			if !regexp.MustCompile(want).Match(stdout.Bytes()) {
				t.Errorf("%v: no line like %s in\n%s", tt.flags, want, &stdout)
			}
		}
	}
	var stdout, stderr bytes.Buffer
	if code := runNatkit(t.Context(), &stdout, &stderr, "bench", "connect", "-n", "20", "--json", "--request", web); code != exitOK {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	var got struct {
		report.LoadHead
		load.Result
	}
	decodeStrictly(t, stdout.Bytes(), &got)
	if want := "natkit bench connect --concurrency 1 --connections 20 --request=/ --workers 1 " + web; got.Command != want || got.Schema != "natkit.bench-connect/1" || got.Completed != 20 {
		t.Errorf("command %q, want %q; %+v", got.Command, want, got)
	}
}

// TestBenchHoldGolden has every line that a report can have.
func TestBenchHoldGolden(t *testing.T) {
	var got bytes.Buffer
	sockets := func(n int64) *snapshot.TCPSockets { return &snapshot.TCPSockets{InUse: n, MemoryPages: 63} }
	r := &load.HoldResult{
		Config: load.HoldConfig{
			To: netip.MustParseAddr("198.18.1.2"), Ports: nat.Ports{First: 8100, Last: 8119}, Connections: 1_000_000, Concurrency: 1000,
			Keep: 30 * time.Second, Verify: 1000, Close: load.CloseServer, Sources: []netip.Addr{netip.MustParseAddr("198.18.0.1")},
			SourcePorts: load.HoldPorts, Seed: 7, Workers: 2,
		},
		Seconds: 60.5, OpenSeconds: 25.25, Established: 800_000, Failed: 150_000, Unfinished: 50_000, OpenPerSecond: 31_683.17, Lost: 30,
		Taken: 16, Late: 12, Verified: 1000, Alive: 990, Closed: 799_970, CloseSeconds: 4.5,
		Failures: []load.Failure{
			{Phase: load.Connect, Reason: "timed out", Count: 150_000}, {Phase: load.Keep, Reason: "reset", Count: 20},
			{Phase: load.Verify, Reason: "timed out", Count: 10},
		},
		Connect: load.Times{Min: 0.01, Mean: 3, SD: 2, Median: 2.5, P90: 5, P95: 6, P99: 9, P999: 30, Max: 1023}, RoundTrip: load.Times{Min: 0.02, Mean: 1, SD: 1, Median: 0.5, Max: 9},
		OwnBytes: 40_000_000, BytesPerConnection: 50, Before: sockets(5), Held: sockets(800_005), After: sockets(5), PageBytes: 4096, Threads: 51,
		CPU:            load.CPU{UserSeconds: 5, SystemSeconds: 20, MachineSeconds: 50, MaxRSSBytes: 60 << 20},
		GeneratorLimit: "it was too slow", CPUContention: "so did others", SystemCalls: 6_650_000,
	}
	var seconds []load.Second
	for i := range 25 {
		seconds = append(seconds, load.Second{At: float64(i + 1), Completed: 32_000})
	}
	seconds[24].Lost = 30
	r.Series = load.HeldSeries(seconds)
	if err := report.HoldLoad(&got, report.Style{}, r); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "bench-hold.txt")
	if os.Getenv("NATKIT_UPDATE_SCRIPTS") != "" {
		if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseAddrPorts(t *testing.T) {
	for text, want := range map[string]string{
		"198.18.0.2:80": "198.18.0.2 80", "198.18.0.2:8100-8119": "198.18.0.2 8100-8119", "[2001:db8::2]:1-2": "2001:db8::2 1-2",
		"[fe80::1%eth0]:80": "fe80::1%eth0 80", "127.0.0.1:0": "127.0.0.1 ",
		"198.18.0.2": "", "": "", ":80": "", "198.18.0.2:": "", "198.18.0.2:9-8": "", "198.18.0.2:0-5": "", "2001:db8::2:80": "", "a:80": "", "[::]:99999": "",
	} {
		addr, ports, err := parseAddrPorts("", text)
		if got := addr.String() + " " + ports.String(); (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
		if err != nil && !strings.Contains(err.Error(), "must be ADDR:PORT") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzParseAddrPorts(f *testing.F) {
	for _, seed := range []string{"198.18.0.2:8100-8119", "[2001:db8::2]:80", "[fe80::1%eth0]:0", ":", "]:-", "1:1:1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		addr, ports, err := parseAddrPorts("", text)
		if err != nil && (addr.IsValid() || ports != nat.Ports{}) {
			t.Errorf("%q: %v, %v with error %v", text, addr, ports, err)
		}
		if err == nil && (!addr.IsValid() || ports.First > ports.Last) {
			t.Errorf("%q: %v, %v", text, addr, ports)
		}
	})
}
