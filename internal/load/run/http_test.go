package run

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/load"
	"golang.org/x/sys/unix"
)

func TestConnIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(conn{}); size >= 128 {
		t.Errorf("a connection takes %d bytes, want less than 128", size)
	}
}

// TestReasonsMatchErrno compares the numbers that the pure package had to write
// down with the kernel's.
func TestReasonsMatchErrno(t *testing.T) {
	for errno, want := range map[unix.Errno]string{
		unix.ECONNREFUSED: "refused", unix.ECONNRESET: "reset", unix.EPIPE: "reset", unix.ETIMEDOUT: "timed out",
		unix.EADDRINUSE: "no local port", unix.EADDRNOTAVAIL: "no local port", unix.EHOSTUNREACH: "unreachable",
		unix.ENETUNREACH: "network unreachable", unix.EMFILE: "no file descriptor", unix.ENFILE: "no file descriptor",
		unix.EPERM: "forbidden on this machine", unix.EACCES: "forbidden on this machine", unix.ENOBUFS: "no memory",
		unix.ENOMEM: "no memory", unix.EHOSTDOWN: "host down", unix.ENETDOWN: "network down", unix.EPROTO: "protocol error",
		unix.EMSGSIZE: "message too long", unix.ECONNABORTED: "aborted", unix.EINVAL: "invalid argument", unix.EAFNOSUPPORT: "address family not supported",
	} {
		if got := load.Reason(errno).String(); got != want {
			t.Errorf("%v: %q, want %q", errno, got, want)
		}
	}
}

func TestShortConnections(t *testing.T) {
	addr := startServe(t, ServeConfig{Page: []byte("a page")})
	before := openFileCount(t)
	r := mustRun(t, testConfig(addr.String(), 5000, 50), Options{})
	if r.Completed != 5000 || r.Failed != 0 || len(r.Failures) != 0 || r.FirstFailureSeconds != -1 || r.Unfinished != 0 {
		t.Fatalf("%+v", r)
	}
	if r.DocumentBytes != 6 || r.BodyBytes != 5000*6 || r.Server != "natkit" || r.BytesReceived <= r.BodyBytes {
		t.Errorf("%+v", r)
	}
	if want := 5000 / r.Seconds; math.Abs(r.RequestsPerSecond-want) > 1 {
		t.Errorf("%v requests/s, want %v", r.RequestsPerSecond, want)
	}
	if r.Connect.Min <= 0 || r.Total.Min < r.Processing.Min || r.Waiting.Mean > r.Processing.Mean || r.ServiceTotal != nil {
		t.Errorf("%+v", r)
	}
	if sum := r.Connect.Mean + r.Processing.Mean; math.Abs(sum-r.Total.Mean) > 1e-6*sum {
		t.Errorf("connect + processing = %v, total = %v", sum, r.Total.Mean)
	}
	completed := int64(0)
	for _, s := range r.Series {
		completed += s.Completed
	}
	if completed != 5000 {
		t.Errorf("the seconds hold %d requests", completed)
	}
	if calls := float64(r.SystemCalls) / 5000; calls < 4 || calls > 9 {
		t.Errorf("%.2f system calls per request", calls)
	}
	if r.CPU.UserSeconds+r.CPU.SystemSeconds <= 0 || r.CPU.MaxRSSBytes < 1<<20 {
		t.Errorf("%+v", r.CPU)
	}
	noMoreFiles(t, before)
}

// TestTimesAddUp: in a closed loop the rate times the mean total is what was in flight
// (Little's law), at most the allowed connections. How many a busy machine lets the
// generator open is not for a test.
func TestTimesAddUp(t *testing.T) {
	addr := startServe(t, ServeConfig{})
	for _, tt := range []struct {
		name   string
		change func(*load.Config)
	}{
		{"short connections", func(*load.Config) {}},
		{"client closes", func(c *load.Config) { c.Close = load.CloseClient }},
		{"reset", func(c *load.Config) { c.Close = load.CloseReset }},
		{"keep-alive", func(c *load.Config) { c.KeepAlive = true }},
		{"one source", func(c *load.Config) { c.Sources = []netip.Addr{netip.MustParseAddr("127.0.0.3")} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := testConfig(addr.String(), 5000, 100)
			if tt.change(&cfg); cfg.KeepAlive { // fast: the workers' start and end would count
				cfg.Requests *= 5
			}
			r := mustRun(t, cfg, Options{})
			if r.Completed != cfg.Requests {
				t.Fatalf("%+v", r)
			}
			share := r.RequestsPerSecond * r.Total.Mean / 1000 / 100
			t.Logf("%.0f requests/s, %.3f of the connections in flight", r.RequestsPerSecond, share)
			if share > 1.001 || share <= 0 {
				t.Errorf("%.0f requests/s of %.3f ms: %.3f of the connections were in flight", r.RequestsPerSecond, r.Total.Mean, share)
			}
			if math.Abs(r.MeanInFlight/100-share) > 1e-6 {
				t.Errorf("%v in flight, want %v", r.MeanInFlight, 100*share)
			}
			if sum := r.Connect.Mean + r.Processing.Mean; math.Abs(sum-r.Total.Mean) > 1e-6*sum {
				t.Errorf("connect + processing = %v, total = %v", sum, r.Total.Mean)
			}
		})
	}
}

// TestAgainstNetHTTP takes the standard library's server for each way to close.
func TestAgainstNetHTTP(t *testing.T) {
	var opened atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.UserAgent() != "natkit" || r.URL.RequestURI() != "/x?y=1" {
			http.Error(w, "wrong request", http.StatusBadRequest)
			return
		}
		io.WriteString(w, "fine")
	}))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	srv.Start()
	defer srv.Close()
	for _, tt := range []struct {
		name     string
		change   func(*load.Config)
		maxConns int64
		minConns int64
	}{
		{"server closes", func(*load.Config) {}, 500, 500},
		{"client closes", func(c *load.Config) { c.Close = load.CloseClient }, 500, 500},
		{"reset", func(c *load.Config) { c.Close = load.CloseReset }, 500, 500},
		{"keep-alive", func(c *load.Config) { c.KeepAlive = true }, 20, 1},
		{"keep-alive, 10 requests each", func(c *load.Config) { c.KeepAlive, c.PerConnection = true, 10 }, 70, 50},
		{"the same, the client closes", func(c *load.Config) { c.KeepAlive, c.PerConnection, c.Close = true, 10, load.CloseClient }, 70, 50},
		{"the same, with a reset", func(c *load.Config) { c.KeepAlive, c.PerConnection, c.Close = true, 10, load.CloseReset }, 70, 50},
		{"batches", func(c *load.Config) { c.Batch = 60 }, 500, 500},
		{"merged ACK", func(c *load.Config) { c.MergeAck = true }, 500, 500},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := testConfig(srv.Listener.Addr().String(), 500, 20)
			cfg.URL += "x?y=1"
			tt.change(&cfg)
			opened.Store(0)
			r := mustRun(t, cfg, Options{})
			if r.Completed != 500 || r.Failed != 0 || r.DocumentBytes != 4 {
				t.Errorf("%+v", r)
			}
			if n := opened.Load(); n < tt.minConns || n > tt.maxConns {
				t.Errorf("%d connections, want %d to %d", n, tt.minConns, tt.maxConns)
			}
		})
	}
}

// TestWhoCloses looks at how the connection's end reaches the server.
func TestWhoCloses(t *testing.T) {
	for _, tt := range []struct {
		mode  load.CloseMode
		reset bool
	}{{load.CloseClient, false}, {load.CloseReset, true}} {
		t.Run(string(tt.mode), func(t *testing.T) {
			ends := make(chan error, 10)
			addr := startRaw(t, func(c *net.TCPConn) {
				write(c, helloResponse)
				ends <- untilClosed(c)
			})
			cfg := testConfig(addr, 10, 1)
			cfg.Close = tt.mode
			if r := mustRun(t, cfg, Options{}); r.Completed != 10 {
				t.Fatalf("%+v", r)
			}
			for range 10 {
				if err := <-ends; errors.Is(err, unix.ECONNRESET) != tt.reset {
					t.Errorf("the server saw %v, want a reset: %v", err, tt.reset)
				}
			}
		})
	}
}

// TestBadServers has every way in which a response can be wrong.
func TestBadServers(t *testing.T) {
	for _, tt := range []struct {
		name   string
		handle func(c *net.TCPConn)
		want   []load.Failure // nil: completed
	}{
		{"never answers", func(c *net.TCPConn) { untilClosed(c) },
			[]load.Failure{{Phase: load.Wait, Reason: "timed out", Count: 4}}},
		{"stops in the head", func(c *net.TCPConn) { write(c, "HTTP/1.1 200 OK\r\nCont"); untilClosed(c) },
			[]load.Failure{{Phase: load.Read, Reason: "timed out", Count: 4}}},
		{"does not close", func(c *net.TCPConn) { write(c, helloResponse); untilClosed(c) },
			[]load.Failure{{Phase: load.Read, Reason: load.NotClosed.String(), Count: 4}}},
		{"closes at once", func(*net.TCPConn) {},
			[]load.Failure{{Phase: load.Wait, Reason: load.ClosedEarly.String(), Count: 4}}},
		{"resets at once", func(c *net.TCPConn) { c.SetLinger(0) },
			[]load.Failure{{Phase: load.Wait, Reason: "reset", Count: 4}}},
		{"short body", func(c *net.TCPConn) { write(c, strings.Replace(helloResponse, "5", "6", 1)) },
			[]load.Failure{{Phase: load.Read, Reason: load.Truncated.String(), Count: 4}}},
		{"long body", func(c *net.TCPConn) { write(c, helloResponse+"!") },
			[]load.Failure{{Phase: load.Reply, Reason: load.Surplus.String(), Count: 4}}},
		{"status 500", func(c *net.TCPConn) {
			write(c, "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\nno")
		},
			[]load.Failure{{Phase: load.Reply, Reason: "status 500", Count: 4}}},
		{"another protocol", func(c *net.TCPConn) { write(c, "SSH-2.0-OpenSSH\r\n") },
			[]load.Failure{{Phase: load.Reply, Reason: load.Malformed.String(), Count: 4}}},
		{"bad length", func(c *net.TCPConn) { write(c, "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n") },
			[]load.Failure{{Phase: load.Reply, Reason: load.BadFraming.String(), Count: 4}}},
		{"byte by byte", func(c *net.TCPConn) {
			for i := range helloResponse {
				write(c, helloResponse[i:i+1])
				time.Sleep(100 * time.Microsecond)
			}
		}, nil},
		{"chunks", func(c *net.TCPConn) {
			write(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe")
			write(c, "llo\r\n0\r\n\r\n")
		}, nil},
		{"no length", func(c *net.TCPConn) { write(c, "HTTP/1.0 200 OK\r\n\r\nhello") }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig(startRaw(t, tt.handle), 4, 2)
			cfg.Timeout = 400 * time.Millisecond
			if tt.want == nil {
				cfg.Timeout = deadline
			}
			r := mustRun(t, cfg, Options{})
			if tt.want == nil {
				if r.Completed != 4 || r.Failed != 0 || r.DocumentBytes != 5 {
					t.Errorf("%+v", r)
				}
				return
			}
			if diff := cmp.Diff(tt.want, r.Failures); diff != "" || r.Completed != 0 || r.Failed != 4 {
				t.Errorf("%d completed, %d failed (-want +got):\n%s", r.Completed, r.Failed, diff)
			}
		})
	}
}

// TestTimeoutsAreKept: each of two requests after the other takes its whole time,
// and no less, though nothing else happens meanwhile.
func TestTimeoutsAreKept(t *testing.T) {
	addr := silentListener(t)
	cfg := testConfig(addr, 20, 10)
	cfg.Timeout, cfg.AbortAfter = 300*time.Millisecond, 10
	r := mustRun(t, cfg, Options{})
	want := []load.Failure{{Phase: load.Connect, Reason: "timed out", Count: 20}}
	if diff := cmp.Diff(want, r.Failures); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if r.Seconds < 0.6 || r.FirstFailureSeconds < 0.3 {
		t.Errorf("%v s, first failure after %v s, want 0.6 and 0.3", r.Seconds, r.FirstFailureSeconds)
	}
}

func TestRefused(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	cfg := testConfig(addr, 30, 5)
	r := mustRun(t, cfg, Options{})
	want := []load.Failure{{Phase: load.Connect, Reason: "refused", Count: 30}}
	if diff := cmp.Diff(want, r.Failures); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	cfg.Requests, cfg.AbortAfter = 1_000_000, 10
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	r, err = HTTP(ctx, cfg, Options{})
	if err == nil || !strings.Contains(err.Error(), addr+": connect: refused") || ctx.Err() != nil {
		t.Errorf("error %v, result %+v", err, r)
	}
}

// TestOpenLoopCountsQueueing: one connection, 10 ms per answer, a request due
// every 2.5 ms: the last of 40 waits for about 0.3 s, which a closed loop would
// not see.
func TestOpenLoopCountsQueueing(t *testing.T) {
	addr := startRaw(t, func(c *net.TCPConn) {
		time.Sleep(10 * time.Millisecond)
		write(c, helloResponse)
	})
	cfg := testConfig(addr, 40, 1)
	cfg.Rate = 400
	r := mustRun(t, cfg, Options{})
	if r.Completed != 40 || r.ServiceTotal == nil {
		t.Fatalf("%+v", r)
	}
	if r.Total.Max < 200 || r.Total.Max < r.ServiceTotal.Max || r.Connect.Max < 190 || r.ServiceTotal.Min < 10 {
		t.Errorf("total %+v, service %+v", r.Total, *r.ServiceTotal)
	}
	if !strings.Contains(r.GeneratorLimit, "waited for one of the 1 connections") {
		t.Errorf("generator limit %q", r.GeneratorLimit)
	}
}

// TestOpenLoopKeepsTheRate of a server that could do more.
func TestOpenLoopKeepsTheRate(t *testing.T) {
	addr := startServe(t, ServeConfig{})
	cfg := testConfig(addr.String(), 300, 50)
	cfg.Rate = 1000
	r := mustRun(t, cfg, Options{})
	// The last request is due after 299 ms.
	if r.Completed != 300 || r.Seconds < 0.299 {
		t.Errorf("%+v", r)
	}
}

// TestOpenLoopGivesUpTheQueue: what was due too long ago is a failure, not sent.
func TestOpenLoopGivesUpTheQueue(t *testing.T) {
	addr := startRaw(t, func(c *net.TCPConn) { untilClosed(c) })
	cfg := testConfig(addr, 100, 1)
	cfg.Rate, cfg.Timeout, cfg.Workers = 1e7, 300*time.Millisecond, 1
	r := mustRun(t, cfg, Options{})
	queued := int64(0)
	for _, f := range r.Failures {
		if f.Reason == load.TimedOutQueued.String() {
			queued = f.Count
		}
	}
	if r.Failed != 100 || queued == 0 {
		t.Errorf("%d of %d failed in the queue: %+v", queued, r.Failed, r.Failures)
	}
}

func TestCancelEndsAtOnce(t *testing.T) {
	entered := make(chan struct{}, 100)
	addr := startRaw(t, func(c *net.TCPConn) {
		entered <- struct{}{}
		untilClosed(c)
	})
	before := openFileCount(t)
	ctx, cancel := context.WithCancel(t.Context())
	cfg := testConfig(addr, 100, 10)
	type ended struct {
		r   *load.Result
		err error
	}
	done := make(chan ended)
	go func() {
		r, err := HTTP(ctx, cfg, Options{})
		done <- ended{r, err}
	}()
	for range 10 {
		<-entered
	}
	cancel()
	got := <-done
	if got.r.MeanInFlight <= 0 || got.r.MeanInFlight > 10 {
		t.Errorf("%v requests in flight, want up to 10", got.r.MeanInFlight)
	}
	if got.err != nil || got.r.Unfinished != 10 || got.r.Completed+got.r.Failed != 0 {
		t.Errorf("%v, %+v", got.err, got.r)
	}
	noMoreFiles(t, before+10) // the server has its side until the test ends
}

func TestDuration(t *testing.T) {
	addr := startServe(t, ServeConfig{})
	cfg := testConfig(addr.String(), 0, 4)
	cfg.Duration = 1200 * time.Millisecond
	var reports atomic.Int64
	r := mustRun(t, cfg, Options{Progress: func(p load.Progress) {
		if p.Completed > 0 && p.InFlight <= 4 && strings.Contains(p.String(), "completed") {
			reports.Add(1)
		}
	}})
	if r.Seconds < 1.2 || r.Completed == 0 || r.Unfinished > 4 {
		t.Errorf("%+v", r)
	}
	if reports.Load() < 2 {
		t.Errorf("%d progress reports", reports.Load())
	}
	if n := len(r.Series); n < 2 || r.Series[0].At != 1 || r.Series[0].Completed == 0 || r.Series[n-1].At > r.Seconds {
		t.Errorf("%+v", r.Series)
	}
}

// TestManyConnections needs more workers than asked for where the limit of open
// files is low, and holds the bound on memory per connection.
func TestManyConnections(t *testing.T) {
	addr := startServe(t, ServeConfig{})
	r := mustRun(t, testConfig(addr.String(), 6000, 3000), Options{})
	if r.Completed != 6000 {
		t.Errorf("%d completed, failures %v", r.Completed, r.Failures)
	}
}

// TestNoAllocationPerRequest has the load in another process than the server.
func TestNoAllocationPerRequest(t *testing.T) {
	addr := startServe(t, ServeConfig{})
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), mallocsHelper+"="+addr.String())
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	more, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil || more > 1000 {
		t.Errorf("10000 requests more made %q allocations more, %v", out, err)
	}
}

// TestPrivateFileTable: a run must not keep other files of the process open.
func TestPrivateFileTable(t *testing.T) {
	entered := make(chan struct{}, 1)
	addr := startRaw(t, func(c *net.TCPConn) {
		entered <- struct{}{}
		untilClosed(c)
	})
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := HTTP(ctx, testConfig(addr, 1, 1), Options{})
		done <- err
	}()
	<-entered
	w.Close()
	if err := r.SetReadDeadline(time.Now().Add(deadline)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("read from a pipe whose writer is closed: %v, want EOF", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
