package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/report"
)

// runNatkit runs one command line inside this process.
func runNatkit(ctx context.Context, stdout, stderr io.Writer, args ...string) int {
	return Run(ctx, Env{
		Stdin: strings.NewReader(""), Stdout: stdout, Stderr: stderr,
		Getenv: func(string) string { return "" }, Version: "v0.0.0-test",
	}, args)
}

// startBenchServe runs bench serve until the test ends and returns its URL.
func startBenchServe(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	var stderr bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- runNatkit(ctx, w, &stderr, "bench", "serve", "--listen", "127.0.0.1:0")
		w.Close()
	}()
	t.Cleanup(func() {
		cancel()
		if got := <-code; got != exitOK {
			t.Errorf("bench serve: exit code %d: %s", got, &stderr)
		}
	})
	line := make([]byte, 200)
	n, err := r.Read(line)
	m := regexp.MustCompile(`^listening on (http://127\.0\.0\.1:\d+/)\n$`).FindSubmatch(line[:n])
	if m == nil {
		t.Fatalf("bench serve said %q, %v; %s", line[:n], err, &stderr)
	}
	return string(m[1])
}

func TestBenchHTTPText(t *testing.T) {
	url := startBenchServe(t)
	for _, flags := range [][]string{
		{"-n", "200", "-c", "10"},
		{"-n", "200", "-c", "10", "-k"},
		{"-t", "0.3", "-c", "4", "-s", "2s"},
		{"-n", "100", "-c", "10", "--rate", "2000"},
		{"-n", "100", "-c", "10", "--batch", "40", "--pause", "10ms", "--close", "client"},
		{"-n", "100", "-c", "4", "-k", "--per-connection", "5", "--connect-to", "127.0.0.1"},
		{"-n", "100", "--close", "rst", "--workers", "1", "--merge-ack", "--source", "127.0.0.2-127.0.0.4", "--seed", "7"},
		{},
	} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			args := append(append([]string{"bench", "http"}, flags...), url)
			if code := runNatkit(t.Context(), &stdout, &stderr, args...); code != exitOK {
				t.Fatalf("exit code %d: %s", code, &stderr)
			}
			if stderr.Len() > 0 {
				t.Errorf("stderr, which is no terminal: %q", &stderr)
			}
			for _, want := range []string{
				`(?m)^Server Software: +natkit$`, `(?m)^Complete requests: +[1-9]\d*$`, `(?m)^Failed requests: +0$`,
				`(?m)^Requests per second: +[\d.]+ \[#/sec\] \(mean\)$`, `(?m)^Total: +([\d.]+ +){4}[\d.]+$`,
				`(?m)^ +99% +[\d.]+$`,
			} {
				if !regexp.MustCompile(want).Match(stdout.Bytes()) {
					t.Errorf("no line like %s in\n%s", want, &stdout)
				}
			}
			merged := strings.Contains(stdout.String(), "one packet fewer per connection, not comparable")
			if merged != strings.Contains(strings.Join(args, " "), "merge-ack") {
				t.Errorf("the note on --merge-ack: %v", merged)
			}
		})
	}
}

// TestBenchHTTPFailedJSON: a run in which nothing worked is a document too.
func TestBenchHTTPFailedJSON(t *testing.T) {
	for _, n := range []string{"1", "1000"} { // all are tried; ten end the run
		var stdout, stderr bytes.Buffer
		code := runNatkit(t.Context(), &stdout, &stderr, "bench", "http", "--json", "-n", n, "http://127.0.0.1:1/")
		var got load.Result
		if err := json.Unmarshal(stdout.Bytes(), &got); err != nil {
			t.Fatalf("%v in %q", err, &stdout)
		}
		if code != exitFailed || strings.Count(stderr.String(), "\n") != 1 || got.Completed != 0 || got.Failed == 0 || len(got.Failures) != 1 {
			t.Errorf("exit code %d, %q, %+v", code, &stderr, got)
		}
	}
}

func TestBenchHTTPJSON(t *testing.T) {
	url := startBenchServe(t)
	var stdout, stderr bytes.Buffer
	if code := runNatkit(t.Context(), &stdout, &stderr, "bench", "http", "--json", "-n", "50", "-c", "5", url); code != exitOK {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	var got struct {
		report.LoadHead
		load.Result
	}
	dec := json.NewDecoder(&stdout)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&got); err != nil {
		t.Fatal(err)
	}
	if got.Schema != "natkit.bench-http/1" || got.Version != "v0.0.0-test" || got.Completed != 50 || got.Config.Concurrency != 5 ||
		!strings.HasPrefix(got.Command, "natkit bench http --concurrency 5 --requests 50 --workers ") || got.Netns.Inode == 0 {
		t.Errorf("%+v", got)
	}
	if got.Failures == nil || got.Series == nil || math.Abs(got.RequestsPerSecond*got.Seconds-50) > 0.01 {
		t.Errorf("%+v", got.Result)
	}
}

// TestBenchServeInUse takes a port that has a server already.
func TestBenchServeInUse(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var stdout, stderr bytes.Buffer
	code := runNatkit(t.Context(), &stdout, &stderr, "bench", "serve", "--listen", l.Addr().String())
	if want := "natkit: serve on " + l.Addr().String() + ": another server listens there: "; code != exitFailed || !strings.HasPrefix(stderr.String(), want) {
		t.Errorf("exit code %d, %q", code, &stderr)
	}
}

// TestBenchTextGolden has every line that a report can have.
func TestBenchTextGolden(t *testing.T) {
	service := load.Times{Min: 0.1, Mean: 0.2, SD: 0.05, Median: 0.2, Max: 0.4}
	for name, r := range map[string]*load.Result{
		"bench-failures": {
			Config: load.Config{
				URL: "http://198.18.0.1:8080/", Concurrency: 1000, Workers: 2, Rate: 5000, Close: load.CloseServer,
				MergeAck: true, Sources: []netip.Addr{netip.MustParseAddr("198.18.0.5"), netip.MustParseAddr("198.18.0.6")},
			},
			Server: "nginx/1.22.1", Seconds: 15.25, Completed: 1140, Failed: 4512, Unfinished: 488, RequestsPerSecond: 74.75, MeanInFlight: 712.5,
			BytesReceived: 302100, BodyBytes: 38760, DocumentBytes: 34,
			Failures: []load.Failure{
				{Phase: load.Connect, Reason: "timed out", Count: 4500}, {Phase: load.Wait, Reason: "reset", Count: 12},
			},
			FirstFailureSeconds: 2.125, AfterFirstFailurePerSecond: 8.5,
			Connect:      load.Times{Min: 0.021, Mean: 1.5, SD: 20.25, Median: 0.04, Max: 1023.5},
			Processing:   load.Times{Min: 0.1, Mean: 2, SD: 1, Median: 1.5, Max: 30},
			Waiting:      load.Times{Min: 0.1, Mean: 1.9, SD: 1, Median: 1.4, Max: 29},
			Total:        load.Times{Min: 0.2, Mean: 3.5, SD: 21, Median: 1.6, P90: 5, P95: 7, P99: 15, P999: 900, Max: 1040},
			ServiceTotal: &service, GeneratorLimit: "it was too slow", CPUContention: "so did others", SystemCalls: 31000,
			CPU: load.CPU{UserSeconds: 0.5, SystemSeconds: 1, MachineSeconds: 3, MaxRSSBytes: 12 << 20},
		},
		"bench-batches": {
			Config: load.Config{
				URL: "http://198.18.0.1:8080/", Concurrency: 150, Workers: 1, KeepAlive: true, PerConnection: 10, Close: load.CloseClient,
				Batch: 150, Pause: 2 * time.Second, ConnectTo: []netip.Addr{netip.MustParseAddr("198.19.0.2"), netip.MustParseAddr("198.19.0.3")},
			},
			Seconds: 12.5, Completed: 1200, RequestsPerSecond: 96, MeanInFlight: 30, FirstFailureSeconds: -1, SystemCalls: 7200, ConnectLate: 37,
			Connect: load.Times{Min: 0.01, Mean: 20, Median: 0.02, Max: 3081}, Total: load.Times{Min: 0.1, Mean: 21, Median: 0.2, Max: 3082},
		},
		"bench-keepalive": {
			Config:  load.Config{URL: "http://198.18.0.1:8080/", Concurrency: 1, Workers: 1, KeepAlive: true},
			Seconds: 0.002, Completed: 1, RequestsPerSecond: 500, MeanInFlight: 0.75, BytesReceived: 200, FirstFailureSeconds: -1, SystemCalls: 6,
			Connect: load.Times{Min: 1, Mean: 1, Median: 1, Max: 1}, Total: load.Times{Min: 2, Mean: 2, Median: 2, Max: 2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			if err := report.HTTPLoad(&got, report.Style{}, r); err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", name+".txt")
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
		})
	}
}

func TestSecondsFlag(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"30": 30 * time.Second, "0.5": 500 * time.Millisecond, "2s": 2 * time.Second, "1m30s": 90 * time.Second, "0": 0,
	} {
		if got, err := parseSeconds(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, bad := range []string{"", "x", "-1", "-2s", "NaN", "1e30", strconv.FormatFloat(math.Inf(1), 'g', -1, 64)} {
		if got, err := parseSeconds(bad); err == nil {
			t.Errorf("%q is taken as %v", bad, got)
		}
	}
}
