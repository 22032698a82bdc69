package collect

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

// shortConnections makes real TCP connections over the loopback of a namespace at
// a steady rate. The server closes first.
type shortConnections struct {
	ns        *netns.Handle
	perSecond int
	// ports, where not 0, is how many source ports are taken in turn; otherwise the
	// kernel chooses.
	ports             int
	completed, failed atomic.Int64
	why               atomic.Pointer[error]
	stop              atomic.Bool
	workers           sync.WaitGroup
}

const (
	shortServerPort = 8080
	shortFirstPort  = 20000
	shortWorkers    = 4
	// shortTimeout is for a connection's every step.
	shortTimeout = 200 * time.Millisecond
	// shortMax ends the load where a test does not.
	shortMax = 2 * time.Minute
)

var shortServer = &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: shortServerPort}

// trackedNetns is a namespace whose loopback is up and tracked, and from which
// connections leave by `ports` source ports.
func trackedNetns(t *testing.T, ports int) *netns.Handle {
	t.Helper()
	ns := testutil.Namespace(t)
	nft := testutil.NeedProgram(t, "nft")
	err := ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		up, err := unix.NewIfreq("lo")
		if err != nil {
			return err
		}
		up.SetUint16(unix.IFF_UP)
		if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, up); err != nil {
			return err
		}
		span := fmt.Sprintf("%d %d", shortFirstPort, shortFirstPort+ports-1)
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte(span), 0); err != nil {
			return err
		}
		cmd := exec.Command(nft, "-f", "-")
		cmd.Stdin = strings.NewReader("table ip t { chain c { type filter hook output priority 0; ct state new counter; }; }")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// start makes the server and the clients; they end with the test.
func (s *shortConnections) start(t *testing.T) {
	t.Helper()
	var listener int
	err := s.ns.Do(func() (err error) {
		listener, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return errors.Join(unix.Bind(listener, shortServer), unix.Listen(listener, 512))
	})
	if err != nil {
		t.Fatal(err)
	}
	var server sync.WaitGroup
	server.Go(func() {
		for {
			fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
			if err != nil {
				return
			}
			unix.Close(fd)
		}
	})
	for w := range shortWorkers {
		s.workers.Go(func() {
			if err := s.ns.Do(func() error { s.client(w); return nil }); err != nil {
				s.why.Store(&err)
			}
		})
	}
	t.Cleanup(func() {
		s.stop.Store(true)
		s.workers.Wait()
		_ = unix.Shutdown(listener, unix.SHUT_RDWR)
		server.Wait()
		unix.Close(listener)
	})
}

// client makes every shortWorkers-th connection at its time. A tuple that is used
// again may meet the server's TIME_WAIT socket and fail; then what was due
// meanwhile is left out.
func (s *shortConnections) client(w int) {
	began, each := time.Now(), time.Second/time.Duration(s.perSecond)
	for i := w; !s.stop.Load() && time.Since(began) < shortMax; i += shortWorkers {
		late := time.Since(began) - time.Duration(i)*each
		if late > shortTimeout/2 {
			i += int(late/each) / shortWorkers * shortWorkers
		}
		time.Sleep(-late)
		if err := s.connection(i); err != nil {
			s.failed.Add(1)
			s.why.Store(&err)
			continue
		}
		s.completed.Add(1)
	}
}

func (s *shortConnections) connection(i int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	limit := unix.NsecToTimeval(int64(shortTimeout))
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit))
	if err == nil && s.ports > 0 {
		err = unix.Bind(fd, &unix.SockaddrInet4{Addr: shortServer.Addr, Port: shortFirstPort + i%s.ports})
	}
	if err == nil {
		to := *shortServer // Connect writes into it
		err = unix.Connect(fd, &to)
	}
	if err != nil {
		return err
	}
	for {
		// The end of the stream is the server's FIN.
		n, err := unix.Read(fd, make([]byte, 1))
		if err == unix.EINTR {
			continue
		}
		if err != nil || n != 0 {
			return fmt.Errorf("read %d bytes: %w", n, err)
		}
		return nil
	}
}

// until waits until n connections were completed.
func (s *shortConnections) until(t *testing.T, n int64) {
	t.Helper()
	for deadline := time.Now().Add(shortMax); s.completed.Load() < n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections completed, %d wanted; %s", s.completed.Load(), n, s.failures())
		}
	}
}

func (s *shortConnections) failures() string {
	if err := s.why.Load(); err != nil {
		return fmt.Sprintf("%d failed, the last one: %v", s.failed.Load(), *err)
	}
	return "none failed"
}

// tally is how many connections were completed at an instant.
type tally struct {
	uptime    float64
	completed int64
}

type tallies []tally

// watch counts until the returned function is called.
func (s *shortConnections) watch(t *testing.T) func() tallies {
	var all tallies
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for !s.stop.Load() {
			all = append(all, tally{uptime(t), s.completed.Load()})
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	}()
	return func() tallies {
		close(stop)
		<-done
		return all
	}
}

func uptime(t *testing.T) float64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Error(err)
	}
	return time.Duration(now.Nano()).Seconds()
}

// rate is the connections per second between two instants.
func (all tallies) rate(from, to float64) float64 {
	at := func(uptime float64) tally {
		i := slices.IndexFunc(all, func(c tally) bool { return c.uptime >= uptime })
		if i < 0 {
			i = len(all) - 1
		}
		return all[i]
	}
	first, last := at(from), at(to)
	return float64(last.completed-first.completed) / (last.uptime - first.uptime)
}

// rates are the lowest and the highest one of the last half second, of the whole time, and of
// what lies between: where tuples are reused the estimate goes by the later ones. They are
// the same while the load is steady, as a busy machine may not let it be.
func (all tallies) rates(from, to float64) (least, most float64) {
	least = all.rate(from, to)
	most = least
	for at := from; at < to-0.5; at += 0.1 {
		rate := all.rate(at, to)
		least, most = min(least, rate), max(most, rate)
	}
	return least, most
}

// tableMiddle is the middle of the dump.
func tableMiddle(s *snapshot.Snapshot) float64 {
	at := s.UptimeSeconds
	for _, p := range s.Parts {
		if p.Name == "conntrack_table" {
			return at + p.DurationSeconds/2
		}
		at += p.DurationSeconds
	}
	return at
}

// TestRecordCountsConnectionsThatReuseTuples counts real connections: the tracker
// deletes the TIME_WAIT entry of a tuple that is opened again, and often makes
// the new one in the same memory, so under the same ID.
func TestRecordCountsConnectionsThatReuseTuples(t *testing.T) {
	tests := []struct {
		name             string
		perSecond, ports int
		inTurn           bool
		before           int64
		span             time.Duration
	}{
		{"ports in turn", 1500, 3000, true, 3100, 1500 * time.Millisecond},
		{"ports of the kernel's choice", 3000, 28000, false, 6500, 2 * time.Second},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			testutil.NeedRoot(t)
			testutil.ShareHost(t) // a lower nf_conntrack_max would refuse some
			s := &shortConnections{ns: trackedNetns(t, c.ports), perSecond: c.perSecond}
			if c.inTurn {
				s.ports = c.ports
			}
			s.start(t)
			s.until(t, c.before)
			// On a busy machine the load stands still at times. Who overlooks connections that take the place of others counts half
			// of them, each time.
			for range mostWindows {
				if s.counted(t, c.span) {
					return
				}
			}
			t.Errorf("no estimate of %d was that of what was completed; %s", mostWindows, s.failures())
		})
	}
}

const mostWindows = 10

// counted reports whether a recording estimates the connections that were completed meanwhile.
func (s *shortConnections) counted(t *testing.T, span time.Duration) bool {
	counts := s.watch(t)
	rec, err := Record(t.Context(), RecordOptions{Options: Options{Netns: s.ns}, For: span})
	all := counts()
	if err != nil || rec.Flows == nil {
		t.Fatalf("%v: %s", err, rec.Last().PartError("conntrack_flows"))
	}
	f := rec.Flows
	least, most := all.rates(tableMiddle(rec.First()), tableMiddle(rec.Last()))
	t.Logf("%.0f to %.0f/s completed, estimated %.0f ± %.0f; %d entries, %v; %s", least, most, f.TotalPerSecond, f.StandardErrorPerSecond, rec.Last().Table.Sampled, f.PerSecond, s.failures())
	return s.failed.Load() <= s.completed.Load()/10 && f.TotalPerSecond >= 0.75*least && f.TotalPerSecond <= 1.25*most
}
