package run

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// deadline bounds every wait of the tests; none is expected to need it.
var deadline = testutil.Patience(time.Minute)

// testConfig is a small load on a server.
func testConfig(addr string, requests int64, concurrency int) load.Config {
	return load.Config{
		URL: "http://" + addr + "/", Requests: requests, Concurrency: concurrency,
		Timeout: 10 * time.Second, Workers: 2,
	}
}

// mustRun runs a load that may have failed requests but no error.
func mustRun(t *testing.T, cfg load.Config, opt Options) *load.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	r, err := HTTP(ctx, cfg, opt)
	if err != nil {
		t.Fatal(err)
	}
	if ctx.Err() != nil {
		t.Fatalf("the run did not end before its context: %+v", r)
	}
	return r
}

// startServe runs the built-in server for the test's time.
func startServe(t *testing.T, cfg ServeConfig) netip.AddrPort {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan netip.AddrPort, 1)
	ended := make(chan error, 1)
	cfg.Ready = func(a netip.AddrPort) { ready <- a }
	if !cfg.Listen.IsValid() {
		cfg.Listen = netip.MustParseAddrPort("127.0.0.1:0")
	}
	go func() { ended <- Serve(ctx, cfg) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("serve: %v", err)
			}
		case <-time.After(deadline):
			t.Error("the server does not end")
		}
	})
	select {
	case a := <-ready:
		return a
	case err := <-ended:
		ended <- nil
		t.Fatal(err)
	case <-time.After(deadline):
		t.Fatal("the server does not start")
	}
	return netip.AddrPort{}
}

// startRaw is startPlain, but the request has been read.
func startRaw(t *testing.T, handle func(c *net.TCPConn)) string {
	t.Helper()
	return startPlain(t, func(c *net.TCPConn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			handle(c)
		}
	})
}

// startPlain runs a server that does with each connection whatever handle does; the
// connection is closed after it.
func startPlain(t *testing.T, handle func(c *net.TCPConn)) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	conns := map[net.Conn]bool{}
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns[c] = true
			mu.Unlock()
			all.Go(func() {
				defer func() {
					c.Close()
					mu.Lock()
					delete(conns, c)
					mu.Unlock()
				}()
				handle(c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for c := range conns {
			c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return l.Addr().String()
}

// untilClosed waits for the other side's end and returns the error it came with.
func untilClosed(c net.Conn) error {
	_, err := io.Copy(io.Discard, c)
	return err
}

func write(c net.Conn, text string) { io.WriteString(c, text) }

const helloResponse = "HTTP/1.1 200 OK\r\nServer: test\r\nContent-Length: 5\r\n\r\nhello"

// openFileCount is for leaks.
func openFileCount(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// noMoreFiles waits until no more files are open than before; other tests' last
// ones may go meanwhile.
func noMoreFiles(t *testing.T, before int) {
	t.Helper()
	end := time.Now().Add(deadline)
	for openFileCount(t) > before {
		if time.Now().After(end) {
			t.Errorf("%d files are open, %d were before", openFileCount(t), before)
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// quietNamespace is a new network namespace whose loopback is up, with the
// address 198.18.0.1 on it too.
func quietNamespace(t *testing.T) *netns.Handle {
	t.Helper()
	ns, err := netns.New("load-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	if err := ns.Do(loopbackUp); err != nil {
		t.Fatal(err)
	}
	return ns
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
}

// silentListener listens with a queue of one connection and never accepts: the kernel
// drops further ones. It returns the address with the queue full.
func silentListener(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(name.(*unix.SockaddrInet4).Port)).String()
	for range 8 {
		c, err := net.DialTimeout("tcp4", addr, 100*time.Millisecond)
		if err != nil {
			return addr
		}
		t.Cleanup(func() { c.Close() })
	}
	t.Fatal("the listener's queue does not get full")
	return ""
}
