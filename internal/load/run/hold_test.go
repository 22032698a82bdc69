package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestHeldConnIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(heldConn{}); size > 16 {
		t.Errorf("a held connection takes %d bytes, want 16", size)
	}
}

// The server of the tests listens on an address that no other test does.
var (
	holdAddr  = netip.MustParseAddr("127.0.81.1")
	holdPorts = nat.Ports{First: 8100, Last: 8102}
)

// holdConfig opens n connections to the server that startHold starts.
func holdConfig(n int) load.HoldConfig {
	return load.HoldConfig{
		To: holdAddr, Ports: holdPorts, Connections: n, Verify: n, Workers: 2,
		SourcePorts: nat.Ports{First: 20000, Last: 29999}, Timeout: deadline,
	}
}

// startHold runs the server that holds connections; the returned function ends it and returns what it
// saw.
func startHold(t *testing.T, cfg ServeTCPConfig, files int) func() *load.Held {
	t.Helper()
	if !cfg.Listen.IsValid() {
		cfg.Listen, cfg.Ports = holdAddr, holdPorts
	}
	ctx, cancel := context.WithCancel(context.Background())
	type ended struct {
		held *load.Held
		err  error
	}
	done, ready := make(chan ended, 1), make(chan netip.AddrPort, 1)
	cfg.Ready = func(a netip.AddrPort) { ready <- a }
	go func() {
		for began := time.Now(); ; time.Sleep(time.Millisecond) {
			held, err := serveTCP(ctx, cfg, files)
			// The kernel may give back the ports of the server before it a moment after its sockets are closed.
			if !errors.Is(err, unix.EADDRINUSE) || time.Since(began) > deadline {
				done <- ended{held, err}
				return
			}
		}
	}()
	stop := sync.OnceValue(func() *load.Held {
		cancel()
		e := <-done
		if e.err != nil {
			t.Errorf("serve: %v", e.err)
		}
		return e.held
	})
	t.Cleanup(func() { stop() })
	select {
	case <-ready:
	case e := <-done:
		done <- ended{}
		t.Fatal(e.err)
	case <-time.After(deadline):
		t.Fatal("the server does not start")
	}
	return stop
}

func mustHold(t *testing.T, cfg load.HoldConfig, opt Options) *load.HoldResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	r, err := Hold(ctx, cfg, opt)
	if err != nil {
		t.Fatal(err)
	}
	if ctx.Err() != nil {
		t.Fatalf("the run did not end before its context: %+v", r)
	}
	return r
}

const allFiles = 10_000

// TestHold: the whole life of connections, for each way to close them. In a namespace of their own the
// kernel's sockets can be counted.
func TestHold(t *testing.T) {
	testutil.NeedRoot(t)
	const n = 500
	for _, tt := range []struct {
		mode                   load.CloseMode
		closed, byPeer, resets int64 // by the server's count
		timeWait               int64
	}{
		{load.CloseReset, 0, 0, n, 0},
		{load.CloseClient, 0, n, 0, n},
		{load.CloseServer, n, 0, 0, n},
	} {
		t.Run(string(tt.mode), func(t *testing.T) {
			ns := quietNamespace(t)
			stop := startHold(t, ServeTCPConfig{Netns: ns}, allFiles)
			before := openFileCount(t)
			cfg := holdConfig(n)
			cfg.Close, cfg.Keep = tt.mode, 10*time.Millisecond
			r := mustHold(t, cfg, Options{Netns: ns})
			if r.Established != n || r.Failed+r.Lost+r.Unfinished+r.Late != 0 || r.Verified != n || r.Alive != n || r.Closed != n || len(r.Failures) != 0 {
				t.Fatalf("%+v", r)
			}
			if r.Before == nil || r.Held == nil || r.After == nil {
				t.Fatalf("%+v", r)
			}
			if got := r.Held.InUse - r.Before.InUse; got != 2*n { // both ends
				t.Errorf("%d sockets were held, want %d", got, 2*n)
			}
			if r.Series[len(r.Series)-1].Open != n {
				t.Errorf("%+v", r.Series)
			}
			if r.Threads != 2 || r.Connect.Min <= 0 || r.RoundTrip.Min <= 0 || r.OpenPerSecond <= 0 || r.OpenSeconds > r.Seconds || r.SystemCalls < 5*n {
				t.Errorf("%+v", r)
			}
			noMoreFiles(t, before)
			var held *load.Held
			testutil.Eventually(t, "the server sees the end of all", func() bool {
				var inUse int64
				if err := ns.Do(func() error {
					inUse = socketsInUse(t)
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				return inUse == r.Before.InUse
			})
			held = stop()
			if held.Accepted != n || held.Peak != n || held.Closed != tt.closed || held.ByPeer != tt.byPeer || held.Reset != tt.resets || held.Returned != n {
				t.Errorf("%+v", held)
			}
			if err := ns.Do(func() error {
				if got := timeWaits(t); got != tt.timeWait {
					t.Errorf("%d connections are in TIME_WAIT, want %d", got, tt.timeWait)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func socketsInUse(t *testing.T) int64 {
	t.Helper()
	s, err := collect.ReadTCPSockets()
	if err != nil {
		t.Fatal(err)
	}
	return s.InUse
}

func timeWaits(t *testing.T) int64 {
	t.Helper()
	s, err := collect.ReadTCPSockets()
	if err != nil {
		t.Fatal(err)
	}
	return s.TimeWait
}

// TestHoldPairs: every connection has a combination of its own, each combination of source address and
// port is used once before one is used again, and the seed decides the order.
func TestHoldPairs(t *testing.T) {
	type pair struct{ from, to netip.AddrPort }
	sources, err := load.ParseSources("127.0.1.1-127.0.1.3")
	if err != nil {
		t.Fatal(err)
	}
	var to []netip.AddrPort
	for port := range uint16(6) { // has a factor in common with the combinations
		to = append(to, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), 80+port))
	}
	orderOf := func(seed uint64) (all []pair) {
		o, err := newOrigin(nil, to, sources, nat.Ports{First: 2000, Last: 2003}, seed)
		if err != nil {
			t.Fatal(err)
		}
		if o.pairs() != 72 {
			t.Fatalf("%d pairs, want 72", o.pairs())
		}
		for k := range o.pairs() {
			from, to := o.pair(k)
			all = append(all, pair{from.addrPort(), to.addrPort()})
		}
		return all
	}
	first := orderOf(1)
	seen, used := map[pair]bool{}, map[netip.AddrPort]int{}
	for k, p := range first {
		if seen[p] {
			t.Fatalf("%v comes twice", p)
		}
		seen[p] = true
		if used[p.from]++; used[p.from] != 1+k/12 {
			t.Fatalf("%v is used for the %d. time as number %d", p.from, used[p.from], k)
		}
	}
	if diff := cmp.Diff(fmt.Sprint(first), fmt.Sprint(orderOf(1))); diff != "" {
		t.Error("one seed gives two orders")
	}
	if fmt.Sprint(first) == fmt.Sprint(orderOf(2)) {
		t.Error("two seeds give one order")
	}
}

// TestHoldUsesItsPairs: the server sees the addresses and ports that were to be used, those of a listener in
// their range being replaced by others.
func TestHoldUsesItsPairs(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]int{}
	addr := netip.MustParseAddrPort(startPlain(t, func(c *net.TCPConn) {
		mu.Lock()
		seen[c.RemoteAddr().String()]++
		mu.Unlock()
		io.Copy(c, c)
	}))
	blocked, err := net.Listen("tcp", "127.0.1.1:20007")
	if err != nil {
		t.Fatal(err)
	}
	defer blocked.Close()
	cfg := holdConfig(39)
	cfg.To, cfg.Ports = addr.Addr(), nat.Ports{First: addr.Port(), Last: addr.Port()}
	cfg.SourcePorts = nat.Ports{First: 20000, Last: 20019}
	if cfg.Sources, err = load.ParseSources("127.0.1.1-127.0.1.2"); err != nil {
		t.Fatal(err)
	}
	r := mustHold(t, cfg, Options{})
	if r.Established != 39 || r.Alive != 39 { // so the server has seen all
		t.Fatalf("%+v", r)
	}
	mu.Lock()
	if len(seen) != 39 || seen["127.0.1.1:20007"] != 0 || seen["127.0.1.2:20007"] != 1 {
		t.Errorf("%v", seen)
	}
	mu.Unlock()
	cfg.Connections = 40
	r = mustHold(t, cfg, Options{})
	if want := []load.Failure{{Phase: load.Connect, Reason: "no local port", Count: 1}}; !cmp.Equal(want, r.Failures) || r.Established != 39 || !strings.Contains(r.GeneratorLimit, "no free local port") {
		t.Errorf("%+v", r)
	}
}

// TestHoldShards: more connections than one thread may have files, at both ends.
func TestHoldShards(t *testing.T) {
	stop := startHold(t, ServeTCPConfig{Limit: 300, Workers: 2}, 40+3)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	r, err := hold(ctx, holdConfig(300), Options{}, 50)
	if err != nil {
		t.Fatal(err)
	}
	if r.Established != 300 || r.Alive != 300 || r.Closed != 300 || r.Threads != 6 || r.Config.Workers != 2 {
		t.Errorf("%+v", r)
	}
	if held := stop(); held.Peak != 300 || held.Threads != 8 {
		t.Errorf("%+v", held)
	}
}

// TestTooManyThreads: more threads than Go can have are an error, at both ends and of all loads.
func TestTooManyThreads(t *testing.T) {
	const n = 100_000
	cfg := holdConfig(n)
	cfg.SourcePorts = load.HoldPorts
	_, err := hold(t.Context(), cfg, Options{}, 10)
	if err == nil || !strings.Contains(err.Error(), "100000 connections at 10 open files for each thread require 10000 threads") {
		t.Errorf("hold: error %v", err)
	}
	_, err = serveTCP(t.Context(), ServeTCPConfig{Listen: holdAddr, Ports: holdPorts, Limit: math.MaxInt}, 10+3)
	if err == nil || !strings.Contains(err.Error(), "connections at 10 open files for each thread require") {
		t.Errorf("serve: error %v", err)
	}
	_, err = serveTCP(t.Context(), ServeTCPConfig{Listen: holdAddr, Ports: holdPorts, Workers: maxThreads + 1}, allFiles)
	if err == nil || !strings.Contains(err.Error(), "4001 workers: must be at most 4000") {
		t.Errorf("serve with too many workers: error %v", err)
	}
	for _, tt := range []struct{ asked, units, files, want int }{
		{1, 1, 1, 1}, {2, 1, 10, 1}, {2, 100, 100, 2}, {2, 100, 10, 10}, {2, 101, 10, 11}, {3, 30, 10, 3},
		{1, maxThreads * 10, 10, maxThreads}, {1, maxThreads*10 + 1, 10, 0}, {1, math.MaxInt, 1, 0},
	} {
		if got, err := workersFor(tt.asked, tt.units, "connections", tt.files); got != tt.want || (err == nil) != (tt.want > 0) {
			t.Errorf("%+v: %d workers, error %v", tt, got, err)
		}
	}
}

// TestHoldUsesAllPorts: with and without source addresses the connections are spread over the server's ports where
// the kernel chooses the source ports.
func TestHoldUsesAllPorts(t *testing.T) {
	const each = 4 // so many that each number of sources has the turn of each port as often
	var counts [4]atomic.Int64
	first := uint16(8200)
	for i := range counts {
		l, err := net.Listen("tcp4", netip.AddrPortFrom(holdAddr, first+uint16(i)).String())
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		all.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				counts[i].Add(1)
				all.Go(func() {
					io.Copy(c, c)
					c.Close()
				})
			}
		})
		defer all.Wait()
		defer l.Close()
	}
	for _, sources := range []string{"", "127.0.81.9", "127.0.81.9-127.0.81.10", "127.0.81.9-127.0.81.12"} {
		cfg := holdConfig(4 * each)
		cfg.Ports, cfg.SourcePorts = nat.Ports{First: first, Last: first + 3}, nat.Ports{}
		if sources != "" {
			var err error
			if cfg.Sources, err = load.ParseSources(sources); err != nil {
				t.Fatal(err)
			}
		}
		if r := mustHold(t, cfg, Options{}); r.Alive != 4*each {
			t.Errorf("from %q: %+v", sources, r)
		}
		for i := range counts {
			if got := counts[i].Swap(0); got != each {
				t.Errorf("from %q: %d connections to port %d, want %d", sources, got, int(first)+i, each)
			}
		}
	}
}

// TestHoldConcurrency: no more connections than -c are opened or asked at once, however many threads hold them.
func TestHoldConcurrency(t *testing.T) {
	const c = 2
	var outstanding, most atomic.Int64
	tooMany := make(chan struct{})
	once := sync.OnceFunc(func() { close(tooMany) })
	at := netip.MustParseAddrPort(startPlain(t, func(conn *net.TCPConn) {
		b := make([]byte, 1)
		if _, err := conn.Read(b); err != nil {
			return
		}
		n := outstanding.Add(1)
		if n > c {
			most.Store(n)
			once()
		}
		select { // others may come that must not
		case <-tooMany:
		case <-time.After(20 * time.Millisecond):
		}
		outstanding.Add(-1)
		conn.Write(b)
		untilClosed(conn)
	}))
	cfg := holdConfig(24)
	cfg.To, cfg.Ports, cfg.SourcePorts, cfg.Workers, cfg.Concurrency = at.Addr(), nat.Ports{First: at.Port(), Last: at.Port()}, nat.Ports{}, 5, c
	r, err := hold(t.Context(), cfg, Options{}, 4)
	if err != nil {
		t.Fatal(err)
	}
	if r.Threads != 6 || r.Config.Workers != c || r.Alive != 24 {
		t.Errorf("%+v", r)
	}
	if n := most.Load(); n > 0 {
		t.Errorf("%d connections were verified at once, want %d at most", n, c)
	}
	cfg.Concurrency, cfg.Workers = 24, 2
	for i, want := range []int{12, 12, 1, 1} {
		if i == 2 {
			cfg.Concurrency = 3
		}
		run, workers, err := newHoldRun(cfg, nil, allFiles)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(run.stopFile)
		unix.Close(run.turns.file)
		if got := workers[i%2].window; got != want {
			t.Errorf("window of %d among 2 threads: %d, want %d", cfg.Concurrency, got, want)
		}
	}
}

// TestHoldGivesUp: where nothing comes back any more not all connections are waited for.
func TestHoldGivesUp(t *testing.T) {
	const n, c = 600, 100 // 200 in a row
	for _, tt := range []struct {
		name        string
		connections int
		handle      func(c *net.TCPConn, number int64)
		close       load.CloseMode
		verify      int
		phase       load.Phase
		atLeast     int64
		atMost      int64
	}{
		{"no byte comes back", n, func(c *net.TCPConn, _ int64) { untilClosed(c) }, load.CloseReset, n, load.Verify, 2 * c, 3*c - 1},
		{"none is closed", n, func(c *net.TCPConn, _ int64) { io.Copy(c, c) }, load.CloseServer, 0, load.Close, 2 * c, 3*c - 1},
		{"some return it", 300, func(c *net.TCPConn, number int64) {
			if number%5 == 0 {
				io.Copy(c, c)
			}
			untilClosed(c)
		}, load.CloseReset, 300, load.Verify, 240, 240},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var accepted atomic.Int64
			at := netip.MustParseAddrPort(startPlain(t, func(c *net.TCPConn) { tt.handle(c, accepted.Add(1)) }))
			cfg := holdConfig(tt.connections)
			cfg.To, cfg.Ports, cfg.SourcePorts, cfg.Concurrency = at.Addr(), nat.Ports{First: at.Port(), Last: at.Port()}, nat.Ports{}, c
			cfg.Timeout, cfg.Verify, cfg.Close = testutil.Patience(2*time.Second), tt.verify, tt.close
			r := mustHold(t, cfg, Options{})
			if len(r.Failures) != 1 || r.Failures[0].Phase != tt.phase || r.Failures[0].Reason != "timed out" || r.Lost < tt.atLeast || r.Lost > tt.atMost {
				t.Errorf("%d to %d had to time out: %+v", tt.atLeast, tt.atMost, r)
			}
			if tt.phase == load.Verify && r.Verified != r.Lost+r.Alive || r.Closed != r.Established-r.Lost {
				t.Errorf("%+v", r)
			}
		})
	}
}

// TestServeRefills: what is full accepts as many again as have gone, be they few.
func TestServeRefills(t *testing.T) {
	const limit = 200
	stop := startHold(t, ServeTCPConfig{Limit: limit, Workers: 1}, allFiles)
	dial := func() net.Conn {
		c, err := net.DialTimeout("tcp4", netip.AddrPortFrom(holdAddr, holdPorts.First).String(), deadline)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	echoes := func(c net.Conn) {
		t.Helper()
		c.SetDeadline(time.Now().Add(deadline))
		write(c, "!")
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	var all []net.Conn
	for range limit {
		all = append(all, dial())
		echoes(all[len(all)-1])
	}
	for _, gone := range []int{1, 3, 20} {
		var waiting []net.Conn
		for range gone {
			waiting = append(waiting, dial())
		}
		for _, c := range all[:gone] {
			c.Close()
		}
		all = append(all[gone:], waiting...)
		for _, c := range waiting {
			echoes(c)
		}
	}
	if held := stop(); held.Peak != limit {
		t.Errorf("%+v", held)
	}
}

// TestServeMayAccept has the room that a full thread needs to accept at once, and later.
func TestServeMayAccept(t *testing.T) {
	for _, tt := range []struct{ limit, atOnce int }{{1, 1}, {7, 1}, {20, 5}, {64, refill}, {100_000, refill}} {
		for room := range tt.limit + 1 {
			w := tcpServeWorker{limit: tt.limit, open: tt.limit - room}
			w.refill = 1
			if got, want := w.mayAccept(), room >= tt.atOnce; got != want {
				t.Fatalf("at once, room for %d of %d: %t, want %t", room, tt.limit, got, want)
			}
			w.now = 1
			if got, want := w.mayAccept(), room > 0; got != want {
				t.Fatalf("later, room for %d of %d: %t, want %t", room, tt.limit, got, want)
			}
		}
	}
}

// TestServeLimit: a server that is full accepts again when connections have gone.
func TestServeLimit(t *testing.T) {
	stop := startHold(t, ServeTCPConfig{Limit: 20, Workers: 1}, 10+3)
	for range 3 {
		if r := mustHold(t, holdConfig(20), Options{}); r.Alive != 20 {
			t.Errorf("%+v", r)
		}
	}
	cfg := holdConfig(30)
	cfg.Timeout = 2 * time.Second
	r := mustHold(t, cfg, Options{})
	want := []load.Failure{{Phase: load.Verify, Reason: "timed out", Count: 10}}
	if diff := cmp.Diff(want, r.Failures); diff != "" || r.Established != 30 || r.Alive != 20 {
		t.Errorf("%+v\n(-want +got):\n%s", r, diff)
	}
	if held := stop(); held.Peak != 20 {
		t.Errorf("%+v", held)
	}
}

// TestHoldFailures has every way in which holding fails.
func TestHoldFailures(t *testing.T) {
	for _, tt := range []struct {
		name   string
		handle func(c *net.TCPConn)
		close  load.CloseMode
		want   load.Failure
	}{
		{"closes", func(*net.TCPConn) {}, load.CloseReset, load.Failure{Phase: load.Keep, Reason: "closed by the server", Count: 8}},
		{"resets", func(c *net.TCPConn) { c.SetLinger(0) }, load.CloseReset, load.Failure{Phase: load.Keep, Reason: "reset", Count: 8}},
		{"returns nothing", func(c *net.TCPConn) { untilClosed(c) }, load.CloseReset, load.Failure{Phase: load.Verify, Reason: "timed out", Count: 8}},
		{"returns another byte", func(c *net.TCPConn) {
			c.Read(make([]byte, 1))
			write(c, "!")
			untilClosed(c)
		}, load.CloseReset, load.Failure{Phase: load.Verify, Reason: "another byte than was sent", Count: 8}},
		{"closes when asked", func(c *net.TCPConn) { c.Read(make([]byte, 1)) }, load.CloseReset,
			load.Failure{Phase: load.Verify, Reason: "closed by the server", Count: 8}},
		{"does not close", func(c *net.TCPConn) { io.Copy(c, c) }, load.CloseServer, load.Failure{Phase: load.Close, Reason: "timed out", Count: 8}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			all := make(chan struct{}) // closed when all stand
			at := netip.MustParseAddrPort(startPlain(t, func(c *net.TCPConn) {
				if tt.want.Phase == load.Keep {
					<-all
				}
				tt.handle(c)
			}))
			cfg := holdConfig(8)
			cfg.To, cfg.Ports, cfg.SourcePorts, cfg.Close = at.Addr(), nat.Ports{First: at.Port(), Last: at.Port()}, nat.Ports{}, tt.close
			if tt.want.Reason == "timed out" {
				cfg.Timeout = time.Second
			}
			if tt.want.Phase == load.Keep { // it ends when all are lost
				cfg.Keep = time.Hour
			}
			stood := sync.OnceFunc(func() { close(all) })
			r := mustHold(t, cfg, Options{Progress: func(p load.Progress) {
				if p.Completed == 8 {
					stood()
				}
			}})
			stood()
			if diff := cmp.Diff([]load.Failure{tt.want}, r.Failures); diff != "" || r.Established != 8 || r.Lost != 8 {
				t.Errorf("%+v (-want +got):\n%s", r, diff)
			}
		})
	}
}

func TestHoldConnectFailures(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refusing := l.Addr().String()
	l.Close()
	for _, tt := range []struct {
		name, at, reason string
		n, want          int64
	}{
		{"refused", refusing, "refused", 30, 30},
		{"refused, given up", refusing, "refused", 100_000, holdAbort},
		{"timed out", silentListener(t), "timed out", 8, 8},
	} {
		t.Run(tt.name, func(t *testing.T) {
			at := netip.MustParseAddrPort(tt.at)
			cfg := holdConfig(int(tt.n))
			cfg.To, cfg.Ports, cfg.SourcePorts, cfg.Workers, cfg.Concurrency = at.Addr(), nat.Ports{First: at.Port(), Last: at.Port()}, nat.Ports{}, 1, 100
			cfg.Timeout = 300 * time.Millisecond
			r, err := Hold(t.Context(), cfg, Options{})
			if err == nil || !strings.Contains(err.Error(), "no connection stood: connect: "+tt.reason) {
				t.Fatalf("error %v, %+v", err, r)
			}
			if r.Failed < tt.want || r.Failed >= tt.want+100 || r.Failed+r.Unfinished != tt.n || r.Failures[0].Reason != tt.reason || len(r.Failures) != 1 {
				t.Errorf("%+v", r)
			}
		})
	}
}

func TestHoldErrors(t *testing.T) {
	cfg := holdConfig(1)
	cfg.Sources = []netip.Addr{netip.MustParseAddr("203.0.113.9")}
	if _, err := Hold(t.Context(), cfg, Options{}); err == nil || !strings.Contains(err.Error(), "203.0.113.9: not an address of this machine") {
		t.Errorf("error %v", err)
	}
	if _, err := Hold(t.Context(), load.HoldConfig{}, Options{}); err == nil {
		t.Error("no configuration is accepted")
	}
	startHold(t, ServeTCPConfig{}, allFiles)
	_, err := ServeTCP(t.Context(), ServeTCPConfig{Listen: holdAddr, Ports: holdPorts})
	if !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), "port 8100: another server listens there") {
		t.Errorf("error %v", err)
	}
	if _, err := ServeTCP(t.Context(), ServeTCPConfig{Listen: holdAddr, Ports: nat.Ports{First: 1, Last: 5000}}); err == nil {
		t.Error("5000 ports are accepted")
	}
}

// TestHoldInterrupted: what stands is closed, and reported.
func TestHoldInterrupted(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*load.HoldConfig)
		whole  bool
	}{
		{"while they are kept", func(c *load.HoldConfig) { c.Keep = time.Hour }, true},
		{"while they are opened", func(c *load.HoldConfig) { c.Rate = 50 }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stop := startHold(t, ServeTCPConfig{}, allFiles)
			before := openFileCount(t)
			cfg := holdConfig(1000)
			tt.change(&cfg)
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			r, err := Hold(ctx, cfg, Options{Held: cancel, Progress: func(p load.Progress) {
				if !tt.whole && p.Completed > 0 {
					cancel()
				}
			}})
			if err != nil {
				t.Fatal(err)
			}
			if r.Established == 0 || (r.Established == 1000) != tt.whole || r.Established+r.Unfinished != 1000 || r.Closed != r.Established || r.Failed != 0 {
				t.Errorf("%+v", r)
			}
			if (r.Held != nil) != tt.whole || !tt.whole && r.OwnBytes != 0 {
				t.Errorf("what all take was read: %t, %d bytes; want %t", r.Held != nil, r.OwnBytes, tt.whole)
			}
			noMoreFiles(t, before)
			if held := stop(); held.Accepted < r.Established {
				t.Errorf("%+v", held)
			}
		})
	}
}

// TestHoldServerStops: a server that ends takes the connections with it, and the run ends too.
func TestHoldServerStops(t *testing.T) {
	stop := startHold(t, ServeTCPConfig{}, allFiles)
	cfg := holdConfig(200)
	cfg.Keep = time.Hour
	r := mustHold(t, cfg, Options{Progress: func(p load.Progress) {
		if p.Completed == 200 {
			stop()
		}
	}})
	want := []load.Failure{{Phase: load.Keep, Reason: "closed by the server", Count: 200}}
	if diff := cmp.Diff(want, r.Failures); diff != "" || r.Established != 200 || r.Lost != 200 || r.Closed+r.Verified != 0 || r.Series[len(r.Series)-1].Open != 0 {
		t.Errorf("%+v (-want +got):\n%s", r, diff)
	}
}

// holdShortly is mustHold with so short a time that on a slow machine no connection may stand.
func holdShortly(t *testing.T, cfg load.HoldConfig, opt Options) *load.HoldResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	r, err := Hold(ctx, cfg, opt)
	if r == nil || (err == nil) != (r.Established > 0) || ctx.Err() != nil {
		t.Fatalf("%+v, error %v, context %v", r, err, ctx.Err())
	}
	return r
}

// TestHoldEndsInTime: what is not open by then is unfinished.
func TestHoldEndsInTime(t *testing.T) {
	startHold(t, ServeTCPConfig{}, allFiles)
	cfg := holdConfig(10_000)
	cfg.Rate, cfg.Duration, cfg.Keep, cfg.Verify = 100, 300*time.Millisecond, time.Hour, 5
	r := holdShortly(t, cfg, Options{})
	if r.Established > 31 || r.Established+r.Unfinished != 10_000 || r.Verified != min(r.Established, 5) || r.Closed != r.Established {
		t.Errorf("%+v", r)
	}
	// As many as there is time for are open, and are kept no longer.
	cfg.Connections, cfg.Rate = 20, 0
	if r := holdShortly(t, cfg, Options{}); r.Established+r.Unfinished != 20 || r.Closed != r.Established {
		t.Errorf("%+v", r)
	}
}

func TestHoldIPv6(t *testing.T) {
	testutil.NeedFeature(t, testutil.IPv6)
	stop := startHold(t, ServeTCPConfig{Listen: netip.IPv6Loopback(), Ports: holdPorts}, allFiles)
	cfg := holdConfig(50)
	cfg.To = netip.IPv6Loopback()
	if r := mustHold(t, cfg, Options{}); r.Alive != 50 || r.Config.Sources[0] != netip.IPv6Loopback() {
		t.Errorf("%+v", r)
	}
	if held := stop(); held.Accepted != 50 {
		t.Errorf("%+v", held)
	}
}

func TestServeClosesAtOnce(t *testing.T) {
	stop := startHold(t, ServeTCPConfig{CloseAtOnce: true}, allFiles)
	cfg := testConfig(holdAddr.String()+":8100", 200, 10)
	cfg.NoRequest = true
	if r := mustRun(t, cfg, Options{}); r.Completed != 200 {
		t.Errorf("%+v", r)
	}
	if held := stop(); held.Closed != 200 || held.Peak != 0 {
		t.Errorf("%+v", held)
	}
}

// TestConnect: who closes a connection without a request, as the server sees it.
func TestConnect(t *testing.T) {
	for _, tt := range []struct {
		mode   load.CloseMode
		change func(*load.Config)
		handle func(c *net.TCPConn) error
	}{
		{load.CloseClient, nil, func(c *net.TCPConn) error { return untilClosed(c) }},
		{load.CloseClient, func(c *load.Config) { c.MergeAck = true }, func(c *net.TCPConn) error { return untilClosed(c) }},
		{load.CloseClient, func(c *load.Config) { c.SourcePorts = nat.Ports{First: 20000, Last: 29999} }, func(c *net.TCPConn) error { return untilClosed(c) }},
		{load.CloseReset, nil, func(c *net.TCPConn) error {
			if err := untilClosed(c); !errors.Is(err, unix.ECONNRESET) {
				return fmt.Errorf("%w, want a reset", err)
			}
			return nil
		}},
		{load.CloseReset, func(c *load.Config) { c.SourcePorts = nat.Ports{First: 30000, Last: 39999} }, func(c *net.TCPConn) error {
			if err := untilClosed(c); !errors.Is(err, unix.ECONNRESET) {
				return fmt.Errorf("%w, want a reset", err)
			}
			return nil
		}},
		{load.CloseServer, nil, func(c *net.TCPConn) error {
			write(c, "220 a server that speaks first")
			return c.CloseWrite()
		}},
	} {
		t.Run(string(tt.mode), func(t *testing.T) {
			var opened atomic.Int64
			ends := make(chan error, 300)
			cfg := testConfig(startPlain(t, func(c *net.TCPConn) {
				opened.Add(1)
				ends <- tt.handle(c)
			}), 300, 10)
			cfg.NoRequest, cfg.Close = true, tt.mode
			if tt.change != nil {
				tt.change(&cfg)
			}
			before := openFileCount(t)
			r := mustRun(t, cfg, Options{})
			if r.Completed != 300 || r.Failed != 0 || r.BodyBytes != 0 {
				t.Fatalf("%+v", r)
			}
			for range 300 {
				if err := <-ends; err != nil {
					t.Error(err)
				}
			}
			if opened.Load() != 300 {
				t.Errorf("%d connections, want 300", opened.Load())
			}
			noMoreFiles(t, before)
		})
	}
}

func TestConnectFailures(t *testing.T) {
	for _, tt := range []struct {
		name   string
		mode   load.CloseMode
		handle func(ctx context.Context, c *net.TCPConn)
		want   load.Failure
	}{
		{"the server does not close", load.CloseServer, func(_ context.Context, c *net.TCPConn) { untilClosed(c) }, load.Failure{Phase: load.Close, Reason: "timed out", Count: 4}},
		{"the server keeps its side open", load.CloseClient, func(ctx context.Context, c *net.TCPConn) {
			untilClosed(c)
			<-ctx.Done()
		}, load.Failure{Phase: load.Close, Reason: "timed out", Count: 4}},
		{"the server resets", load.CloseServer, func(_ context.Context, c *net.TCPConn) { c.SetLinger(0) }, load.Failure{Phase: load.Close, Reason: "reset", Count: 4}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig(startPlain(t, func(c *net.TCPConn) { tt.handle(t.Context(), c) }), 4, 2)
			cfg.NoRequest, cfg.Close, cfg.Timeout = true, tt.mode, time.Second
			r := mustRun(t, cfg, Options{})
			if all := r.Failures; len(all) == 2 && all[0].Phase == load.Connect && all[0].Reason == "reset" && tt.want.Reason == "reset" {
				all[1].Count += all[0].Count // those whose reset came before natkit saw that they stood
				r.Failures = all[1:]
			}
			if diff := cmp.Diff([]load.Failure{tt.want}, r.Failures); diff != "" {
				t.Errorf("%+v (-want +got):\n%s", r, diff)
			}
		})
	}
}

// TestHoldThroughRouter: many source addresses behind one route, to a server in another namespace.
func TestHoldThroughRouter(t *testing.T) {
	testutil.NeedRoot(t)
	client, server := testutil.Namespace(t), testutil.Namespace(t)
	testutil.Veth(t, testutil.End{Netns: client, Name: "eth0", Addresses: []string{"198.18.0.1/16"}},
		testutil.End{Netns: server, Name: "eth0", Addresses: []string{"198.18.255.1/16"}})
	makeLocal(t, client, "198.18.1.0/28")
	stop := startHold(t, ServeTCPConfig{Netns: server, Listen: netip.MustParseAddr("198.18.255.1"), Ports: holdPorts}, allFiles)
	cfg := holdConfig(400)
	cfg.To, cfg.SourcePorts = netip.MustParseAddr("198.18.255.1"), nat.Ports{First: 20000, Last: 20009}
	var err error
	if cfg.Sources, err = load.ParseSources("198.18.1.0/28"); err != nil {
		t.Fatal(err)
	}
	if r := mustHold(t, cfg, Options{Netns: client}); r.Alive != 400 || r.Failed != 0 {
		t.Errorf("%+v", r)
	}
	if held := stop(); held.Peak != 400 {
		t.Errorf("%+v", held)
	}
}

// makeLocal makes every address of a prefix one of the namespace, as ip route add local does.
func makeLocal(t *testing.T, ns *netns.Handle, prefix string) {
	t.Helper()
	p := netip.MustParsePrefix(prefix)
	if err := ns.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{
			LinkIndex: lo.Attrs().Index, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: unix.RT_SCOPE_HOST,
			Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)},
		})
	}); err != nil {
		t.Fatal(err)
	}
}

// TestHoldHeld: the caller is told once, when all connections are open, and none is closed before it returns; also
// where the time to open them is over.
func TestHoldHeld(t *testing.T) {
	for name, duration := range map[string]time.Duration{"all stand": 0, "out of time": 100 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			startHold(t, ServeTCPConfig{}, 1000)
			cfg := holdConfig(30)
			if cfg.Duration = duration; duration > 0 {
				cfg.Rate = 100 // not all stand
			}
			calls, fewest := 0, int64(1<<32)
			r := holdShortly(t, cfg, Options{Held: func() {
				calls++
				for range 1000 { // a while for workers that do not wait
					s, err := collect.ReadTCPSockets()
					if err != nil {
						t.Error(err)
						return
					}
					fewest = min(fewest, s.InUse)
				}
			}})
			if calls != 1 {
				t.Fatalf("told %d times", calls)
			}
			if duration == 0 && r.Established != 30 || fewest < 2*r.Established {
				t.Errorf("%d connections stood, %d sockets were in use before the caller returned", r.Established, fewest)
			}
		})
	}
}
