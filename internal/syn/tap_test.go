package syn

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tap"
	"github.com/natkit/natkit/internal/testutil"
)

// TestRejectedSYNs sends SYNs that TIME_WAIT rejects by each of its two tests, and some
// that it accepts.
func TestRejectedSYNs(t *testing.T) {
	for _, server := range servers {
		t.Run(server.Addr().String(), func(t *testing.T) { rejectedSYNs(t, server, true, tap.OpenSource) })
		t.Run(server.Addr().String()+" by sockets", func(t *testing.T) { rejectedSYNs(t, server, false, tap.SocketSource) })
	}
}

// startBy has a watch see packets by a source of some kind.
func startBy(t *testing.T, o Options, open func(*netns.Handle) *tap.Source) (*Tap, error) {
	o.Source = open(o.Netns)
	t.Cleanup(o.Source.Close)
	return Start(t.Context(), o)
}

func rejectedSYNs(t *testing.T, server netip.AddrPort, answers bool, open func(*netns.Handle) *tap.Source) {
	// Without RFC 1337 the client's RST removes TIME_WAIT; no program would send it, so
	// the kernel does.
	r := newReusing(t, server, map[string]string{"tcp_timestamps": "2", "tcp_rfc1337": "1", "tcp_invalid_ratelimit": "0"})
	var next [4]uint32
	for i := range next {
		next[i] = r.close(uint16(40000 + i))
	}
	r.until("sockstat", func(text string) bool { return strings.Contains(text, " tw 4 ") })
	r.untilClientsClosed()
	tp, err := startBy(t, Options{Netns: r.ns, Answers: answers}, open)
	if err != nil {
		t.Fatal(err)
	}
	var before int
	r.until("snmp", func(text string) bool { before = counter(t, text, "Tcp:", "OutRsts"); return true })
	now := milliseconds(t)
	const old = 100_000
	// A repeated SYN is the sign upon which answers are looked at.
	r.send(40000, next[0]+1<<20, now-old)
	r.send(40000, next[0]+1<<20, now-old)
	if !answers {
		r.until("packet", func(text string) bool { return running(text) == 2 })
	}
	r.send(40000, next[0]+1<<20, now-old)
	r.send(40001, next[1]-1<<20, 0)
	r.send(40002, next[2]+1<<20, 0)        // accepted
	r.send(40003, next[3]-1<<20, now+1000) // accepted: its timestamp is newer
	r.send(40004, 1, 0)                    // nothing in TIME_WAIT
	// Each answer is seen before the RST that it is refused by.
	r.until("snmp", func(text string) bool { return counter(t, text, "Tcp:", "OutRsts") >= before+7 })
	got, err := tp.Stop()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", got)
	if len(got.Sources) != 1 {
		t.Fatalf("sources: %+v", got.Sources)
	}
	want := snapshot.SYNSource{Source: server.Addr().String(), Destination: server.Addr().String(), SYNs: 7, Repeated: 2, Plain: 3,
		BySequence: 1, Clocks: 2}
	// One answer is looked at for all SYNs that were before it. The RST for the first answer is a sign, too.
	want.ByTimestamp = min(max(got.Sources[0].ByTimestamp, 1), 3)
	want.TimeWait = want.ByTimestamp + want.BySequence
	if s := got.Sources[0]; s != want {
		t.Errorf("seen %+v, want %+v", s, want)
	}
	if got.Lost != 0 || got.Sample != 1 || got.Elsewhere != 0 || got.AnswersSeconds == 0 {
		t.Errorf("%+v", got)
	}
}

// running is how many packet sockets get packets, by /proc/net/packet.
func running(text string) (n int) {
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); fields[5] == "1" {
			n++
		}
	}
	return n
}

// TestFlood: where SYNs come faster than they are looked at, fewer connections are
// looked at, and the watch ends in time.
func TestFlood(t *testing.T) {
	r := newReusing(t, servers[0], map[string]string{"tcp_rfc1337": "0"})
	tp, err := Start(t.Context(), Options{Netns: r.ns})
	if err != nil {
		t.Fatal(err)
	}
	sent, began := 0, time.Now()
	r.in(func() error {
		fd, to, err := r.sender()
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		// Long enough for the rate to be looked at a few times.
		for end := time.Now().Add(testutil.Patience(400 * time.Millisecond)); time.Now().Before(end); sent++ {
			if err := unix.Sendto(fd, rawSegment(uint16(1024+sent%60000), r.server.Port(), uint32(sent), 0), 0, to); err != nil {
				return err
			}
		}
		return nil
	})
	rate := float64(sent) / time.Since(began).Seconds()
	got, err := tp.Stop()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d sent, %d looked at, 1 in %d in the end, %d lost", sent, got.SYNs, got.Sample, got.Lost)
	if got.SYNs == 0 || got.SYNs > uint64(sent) {
		t.Errorf("%+v", got)
	}
	// An emulated processor sends fewer; of a busy one they may be lost before they are looked at.
	if rate > 2*tap.MostPerSecond && got.Sample == 1 && got.Lost == 0 {
		t.Errorf("%.0f SYNs/s were sent, and all were looked at", rate)
	}
}

// TestPauses: SYNs that come in a pause are not seen, those of shifts are, and none is taken for rejected.
func TestPauses(t *testing.T) {
	for name, open := range map[string]func(*netns.Handle) *tap.Source{"programs": tap.OpenSource, "sockets": tap.SocketSource} {
		t.Run(name, func(t *testing.T) {
			r := newReusing(t, servers[0], nil)
			often := tap.Shifts{Seen: 60 * time.Millisecond, Pause: 20 * time.Millisecond}
			port := uint16(40000)
			testutil.Eventually(t, "SYNs that were seen, and others", func() bool {
				source := open(r.ns)
				defer source.Close()
				source.Schedule(tap.Schedule{Programs: often, Sockets: often})
				tp, err := Start(t.Context(), Options{Netns: r.ns, Source: source, Answers: true})
				if err != nil {
					t.Fatal(err)
				}
				made := uint64(0)
				for began := time.Now(); time.Since(began) < 2*(often.Seen+often.Pause); made++ {
					r.close(port)
					port++
				}
				got, err := tp.Stop()
				if err != nil {
					t.Fatal(err)
				}
				if byTimestamp, bySequence := got.Rejected(); byTimestamp+bySequence > 0 || got.SYNs > made || got.PausedSeconds >= got.Seconds {
					t.Errorf("%d connections made, seen %+v", made, got)
				}
				return got.PausedSeconds > 0 && !got.All() && got.SYNs > 0 && got.SYNs < made
			})
		})
	}
}

// TestNoNamespace: a watch that cannot open says so.
func TestNoNamespace(t *testing.T) {
	testutil.NeedRoot(t)
	ns, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	ns.Close()
	for _, open := range []func(*netns.Handle) *tap.Source{tap.OpenSource, tap.SocketSource} {
		if tp, err := startBy(t, Options{Netns: ns}, open); err == nil || tp != nil {
			t.Errorf("a watch of a closed namespace: %v, %v", tp, err)
		}
	}
}

// TestListening: only sockets that get the segments to an end listen there.
func TestListening(t *testing.T) {
	r := newReusing(t, servers[0], nil)
	r.in(func() error {
		for _, at := range []struct{ network, address string }{
			{"tcp4", "127.0.0.9:81"}, {"tcp4", "0.0.0.0:82"}, {"tcp", "[::]:443"}, {"tcp6", "[::]:444"}, {"tcp6", "[::1]:83"},
		} {
			l, err := net.Listen(at.network, at.address)
			if err != nil {
				return err
			}
			t.Cleanup(func() { l.Close() })
		}
		toDevice := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
			return errors.Join(c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), "lo") }), err)
		}}
		l, err := toDevice.Listen(t.Context(), "tcp4", "0.0.0.0:85")
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		a, err := newAsker()
		if err != nil {
			return err
		}
		defer a.close()
		for end, want := range map[string]bool{
			"127.0.0.9:81": true, "127.0.0.1:80": true, "127.0.0.3:82": true, "127.0.0.1:443": true, "[::1]:443": true, "[::1]:444": true, "[::1]:83": true,
			"127.0.0.1:85": true, "198.18.0.3:85": false,
			"127.0.0.1:81": false, "127.0.0.2:80": false, "[::1]:82": false, "127.0.0.1:444": false, "127.0.0.1:84": false,
			"198.18.0.3:82": false, "[2001:db8::2]:443": false, // wildcards, and forwarded
		} {
			for range 2 {
				if got := a.listens(netip.MustParseAddrPort(end)); got != want {
					t.Errorf("a socket listens at %s: %v", end, got)
				}
			}
		}
		return nil
	})
}
