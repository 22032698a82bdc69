package run

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/testutil"
)

// loadHelper and udpHelper make this test binary a load generator: the value is the
// server.
const (
	loadHelper = "NATKIT_LOAD_TEST_URL"
	udpHelper  = "NATKIT_LOAD_TEST_UDP"
	// mallocsHelper has it print how many allocations 10,000 requests more make.
	mallocsHelper = "NATKIT_LOAD_TEST_MALLOCS"
)

// udpTraced has a flow for every datagram in flight, so that each takes calls of its
// own.
func udpTraced(to netip.AddrPort) packets.UDPConfig {
	cfg := udpConfig(to, 2000)
	cfg.Flows, cfg.Concurrency = 20, 20
	return cfg
}

// mallocs returns the number of allocations of a run of n requests.
func mallocs(addr string, n int64) uint64 {
	var a, b runtime.MemStats
	runtime.ReadMemStats(&a)
	if r, err := HTTP(context.Background(), testConfig(addr, n, 10), Options{}); err != nil || r.Completed != n {
		fmt.Fprintln(os.Stderr, err, r)
		os.Exit(1)
	}
	runtime.ReadMemStats(&b)
	return b.Mallocs - a.Mallocs
}

func TestMain(m *testing.M) {
	if url := os.Getenv(loadHelper); url != "" {
		cfg := testConfig(url, 2000, 20)
		r, err := HTTP(context.Background(), cfg, Options{})
		if err != nil || r.Completed != 2000 {
			fmt.Fprintln(os.Stderr, err, r)
			os.Exit(1)
		}
		fmt.Println(r.SystemCalls)
		os.Exit(0)
	}
	if addr := os.Getenv(mallocsHelper); addr != "" {
		mallocs(addr, 1000)
		few, many := mallocs(addr, 1000), mallocs(addr, 11000)
		fmt.Println(int64(many - few))
		os.Exit(0)
	}
	if addr := os.Getenv(udpHelper); addr != "" {
		r, err := UDP(context.Background(), udpTraced(netip.MustParseAddrPort(addr)), Options{})
		if err != nil || r.Received != 2000 {
			fmt.Fprintln(os.Stderr, err, r)
			os.Exit(1)
		}
		fmt.Println(r.SystemCalls)
		os.Exit(0)
	}
	if os.Getenv(pollerHelper) != "" {
		os.Exit(collectInPrivateTable())
	}
	os.Exit(m.Run())
}

// pollerHelper makes this test binary collect garbage on a thread with a file
// table of its own.
const pollerHelper = "NATKIT_LOAD_TEST_POLLER"

func collectInPrivateTable() int {
	err := make(chan error)
	go func() {
		runtime.LockOSThread()
		failed := privateFiles()
		err <- failed
		for range 3 {
			runtime.GC() // polls on this thread when it starts the world again
		}
		err <- nil
	}()
	if e := <-err; e != nil {
		fmt.Fprintln(os.Stderr, e)
		return 1
	}
	<-time.After(time.Millisecond) // timers need the poller
	<-err
	return 0
}

// TestGarbageCollectionInWorker needs a process of its own, in which Go's poller
// has not been used before.
func TestGarbageCollectionInWorker(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), pollerHelper+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%.2000s", err, out)
	}
}

// pollerCalls reads from strace's table how often Go's own poller waited: the longer
// a run takes, the more often. It uses epoll_pwait, the workers epoll_pwait2 where
// the kernel has it.
func pollerCalls(table []byte) int {
	if !regexp.MustCompile(`(?m)\sepoll_pwait2$`).Match(table) {
		return 0
	}
	m := regexp.MustCompile(`(?m)^\s*\S+\s+\S+\s+\d+\s+(\d+)\s+(?:\d+\s+)?epoll_pwait$`).FindSubmatch(table)
	if m == nil {
		return 0
	}
	n, _ := strconv.Atoi(string(m[1]))
	return n
}

// TestSystemCallsAreCounted compares with strace's count of the calls that the
// workers make; Go's runtime and the worker's start make a few of them too, far
// fewer than the 2000 that a forgotten one would be.
func TestSystemCallsAreCounted(t *testing.T) {
	addr := startServe(t, ServeConfig{})
	compareWithStrace(t, loadHelper+"="+addr.String(),
		"socket,connect,bind,sendto,recvfrom,shutdown,close,setsockopt,getsockopt,epoll_ctl,epoll_pwait,epoll_pwait2")
}

func TestUDPSystemCallsAreCounted(t *testing.T) {
	addr, _ := startServeUDP(t, ServeUDPConfig{})
	compareWithStrace(t, udpHelper+"="+addr.String(), "sendmmsg,recvmmsg,recvmsg,epoll_pwait,epoll_pwait2")
}

func compareWithStrace(t *testing.T, helper, calls string) {
	t.Helper()
	strace := testutil.NeedProgram(t, "strace")
	table := filepath.Join(t.TempDir(), "table")
	cmd := exec.CommandContext(t.Context(), strace, "-f", "-c", "-o", table, "-e", "trace="+calls, os.Args[0])
	cmd.Env = append(os.Environ(), helper)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	reported, err := strconv.Atoi(regexp.MustCompile(`(?m)^\d+$`).FindString(string(out)))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^100\.00\s+\S+\s+\d+\s+(\d+)\s.*total$`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("no total in:\n%s", text)
	}
	traced, _ := strconv.Atoi(string(m[1]))
	if reported > traced || traced-pollerCalls(text)-reported > 500 {
		t.Errorf("reported %d system calls, strace saw %d:\n%s", reported, traced, text)
	}
	t.Logf("%.2f system calls per request", float64(reported)/2000)
}
