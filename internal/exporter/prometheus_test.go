package exporter

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/metrics"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// TestPrometheus: a real Prometheus scrapes an exporter, and its alert fires when the table becomes full. Both are in
// the network namespace that is watched.
func TestPrometheus(t *testing.T) {
	program := testutil.NeedNightlyProgram(t, "prometheus")
	ns := testutil.Namespace(t)
	testutil.LockHost(t) // its limit is the one that is reached
	if err := testutil.Links(t, ns).SetUp("lo"); err != nil {
		t.Fatal(err)
	}
	serveIn(t, ns)
	prometheusIn(t, ns, program)
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (c net.Conn, err error) {
		err = ns.Do(func() error {
			c, err = new(net.Dialer).DialContext(ctx, network, address)
			return err
		})
		return c, err
	}}}
	ask := func(path string, into any) bool {
		r, err := client.Get("http://127.0.0.1:9090" + path)
		if err != nil {
			return false
		}
		defer r.Body.Close()
		return json.NewDecoder(r.Body).Decode(into) == nil
	}
	testutil.Eventually(t, "Prometheus has scraped the limit", func() bool {
		var answer struct{ Data struct{ Result []any } }
		return ask("/api/v1/query?query=natkit_conntrack_entries_limit", &answer) && len(answer.Data.Result) == 1
	})
	type alert struct {
		State  string
		Labels map[string]string
	}
	fires := func(name string) bool {
		var answer struct{ Data struct{ Alerts []alert } }
		return ask("/api/v1/alerts", &answer) && slices.ContainsFunc(answer.Data.Alerts, func(a alert) bool {
			return a.State == "firing" && a.Labels["alertname"] == name && a.Labels["job"] == "natkit"
		})
	}
	if fires("NatkitTableFull") {
		t.Fatal("the alert fires with an empty table")
	}
	full(t, ns)
	testutil.Eventually(t, "the alert fires", func() bool { return fires("NatkitTableFull") })
}

// serveIn serves what is known of a namespace at the usual port in it.
func serveIn(t *testing.T, ns *netns.Handle) {
	t.Helper()
	c := began(t, Options{Netns: []*netns.Handle{ns}})
	var listeners []net.Listener
	testutil.Inside(t, ns, func() (err error) {
		listeners, err = Listen("127.0.0.1:9752")
		return err
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { c.Run(ctx); ended <- nil }()
	go func() {
		ended <- Serve(ctx, listeners, c.State, ServeOptions{Metrics: metrics.NewRegistry(c.State).Handler()})
	}()
	t.Cleanup(func() {
		stop()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
}

// prometheusIn runs Prometheus with the alerts in a namespace; they fire at once.
func prometheusIn(t *testing.T, ns *netns.Handle, program string) {
	t.Helper()
	alerts, err := os.ReadFile("../../deploy/mixin/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"alerts.yaml": regexp.MustCompile(`for: \d+m`).ReplaceAllString(string(alerts), "for: 0s"),
		"prometheus.yaml": `global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [alerts.yaml]
scrape_configs: [{job_name: natkit, static_configs: [{targets: ["127.0.0.1:9752"]}]}]
`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	cmd := exec.Command(program, "--config.file="+filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:9090")
	cmd.Stdout, cmd.Stderr = &log, &log
	testutil.Inside(t, ns, cmd.Start)
	t.Cleanup(func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // killed
		if t.Failed() {
			t.Logf("prometheus: %s", &log)
		}
	})
}

// full fills the table up to the host's limit.
func full(t *testing.T, ns *netns.Handle) {
	t.Helper()
	i, most := 0, limit(t)
	taken, err := dump.Insert(t.Context(), ns, func(e *conntrack.Entry) bool {
		orig := conntrack.Tuple{Src: netip.AddrFrom4([4]byte{198, 18, byte(i >> 16), byte(i >> 8)}), Proto: unix.IPPROTO_TCP,
			Dst: netip.MustParseAddr("203.0.113.1"), SrcPort: uint16(1024 + i&0xff), DstPort: 443}
		*e = conntrack.Entry{Family: unix.AF_INET, Orig: orig, Reply: orig.Mirror(), Status: conntrack.SeenReply | conntrack.Assured,
			TCPState: conntrack.TCPEstablished, Timeout: 3600}
		i++
		return i <= most
	})
	t.Logf("%d entries, %v", taken, err) // the last ones may be refused: it is full
}

func limit(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
	var n int
	if err == nil {
		_, err = fmt.Sscan(string(text), &n)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}
