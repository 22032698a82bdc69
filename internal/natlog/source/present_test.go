//go:build linux

package source

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/natlog"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

// running is a source that a test follows.
type running struct {
	mu   sync.Mutex
	all  []natlog.Record
	stop func()
}

func run(t *testing.T, o Options) *running {
	t.Helper()
	s, why, err := Open(o)
	if err != nil || why != nil {
		t.Fatal(why, err)
	}
	r := &running{}
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		if err := s.Run(ctx, func(records []natlog.Record) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.all = append(r.all, records...)
		}); err != nil {
			t.Error(err)
		}
	})
	r.stop = sync.OnceFunc(func() {
		cancel()
		done.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// of are the records of a kind, of connections of a port of the client's, 0 for any.
func (r *running) of(kind natlog.Kind, port uint16) (all []natlog.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.all {
		if r.all[i].Kind == kind && (port == 0 || r.all[i].Src.Port() == port) {
			all = append(all, r.all[i])
		}
	}
	return all
}

func (r *running) await(t *testing.T, what string, kind natlog.Kind, port uint16, n int) {
	t.Helper()
	testutil.Eventually(t, what, func() bool { return len(r.of(kind, port)) >= n })
}

// connected is a connection of TCP that stays.
func connected(t *testing.T, client, server *netns.Handle, port int) {
	t.Helper()
	testutil.Inside(t, server, func() error {
		l, err := net.Listen("tcp", "198.18.2.2:53")
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	})
	testutil.Inside(t, client, func() error {
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{Port: port}}).Dial("tcp", "198.18.2.2:53")
		if err == nil {
			t.Cleanup(func() { c.Close() })
		}
		return err
	})
}

func forget(t *testing.T, gw *netns.Handle, ports ...uint16) {
	t.Helper()
	f := &conntrack.Filter{Family: unix.AF_INET}
	if len(ports) == 0 {
		if _, err := dump.Delete(t.Context(), gw, f); err != nil {
			t.Fatal(err)
		}
	}
	for _, port := range ports {
		f.Orig.SrcPort = conntrack.Is(port)
		if _, err := dump.Delete(t.Context(), gw, f); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWhatIsThereBefore: what is there when the log begins has one start, which says so, with its time where the kernel has it.
func TestWhatIsThereBefore(t *testing.T) {
	for _, way := range []Way{Trace, Table} {
		for _, stamped := range []string{"0", "1"} {
			t.Run(string(way)+"/"+stamped, func(t *testing.T) {
				client, gw, server := gateway(t)
				testutil.Sysctl(t, gw, "net/netfilter/nf_conntrack_timestamp", stamped)
				send(t, client, 9000, 53)
				send(t, client, 9001, 54) // not translated
				connected(t, client, server, 9002)
				opened := time.Now()
				r := run(t, Options{Netns: gw, Way: way, Every: 50 * time.Millisecond, Share: 1})
				r.await(t, "the starts of before", natlog.Start, 0, 2)
				send(t, client, 9000, 53) // it is not assured: its next packet looks like a first one
				send(t, client, 9003, 53)
				r.await(t, "a start", natlog.Start, 9003, 1)
				forget(t, gw)
				r.await(t, "all ends", natlog.End, 0, 3)
				r.stop()
				for _, port := range []uint16{9000, 9002} {
					starts, ends := r.of(natlog.Start, port), r.of(natlog.End, port)
					if len(starts) != 1 || len(ends) != 1 {
						t.Fatalf("port %d: %d starts, %d ends", port, len(starts), len(ends))
					}
					s, e := &starts[0], &ends[0]
					if !s.Before || s.Time.Before(opened) || !s.Started.Equal(e.Started) || s.Connection() != e.Connection() {
						t.Errorf("port %d: start %+v, end %+v", port, s, e)
					}
					if known := !s.Started.IsZero(); known != (stamped == "1") || known && !s.Started.Before(opened) {
						t.Errorf("port %d: started %v", port, s.Started)
					}
				}
				if s := r.of(natlog.Start, 9003); len(s) != 1 || s[0].Before || s[0].Started.IsZero() {
					t.Errorf("a start meanwhile: %+v", s)
				}
				if n := len(r.of(natlog.Start, 0)); n != 3 {
					t.Errorf("%d starts", n)
				}
			})
		}
	}
}

func TestWhatIsThereIsLeftOut(t *testing.T) {
	for _, o := range []Options{{NoPresent: true}, {EndsAlone: true}} {
		client, gw, _ := gateway(t)
		send(t, client, 9000, 53)
		o.Netns, o.Way = gw, Trace
		r := run(t, o)
		send(t, client, 9001, 53)
		forget(t, gw)
		r.await(t, "the ends", natlog.End, 0, 2)
		r.stop()
		if n := len(r.of(natlog.Start, 9000)); n != 0 {
			t.Errorf("%+v: %d starts of before", o, n)
		}
	}
}

// TestBeginsAndEndsWhileTheTableIsRead has connections begin and end between two parts of the first reading: each has one start and
// one end in the log, or an end alone.
func TestBeginsAndEndsWhileTheTableIsRead(t *testing.T) {
	client, gw, _ := gateway(t)
	const before, meanwhile, each = 5 * batch, 60, 20
	testutil.Inside(t, client, func() error {
		for i := range before {
			c, err := (&net.Dialer{LocalAddr: &net.UDPAddr{Port: 10000 + i}}).Dial("udp", "198.18.2.2:53")
			if err != nil {
				return err
			}
			if _, err := c.Write([]byte("x")); err != nil {
				return err
			}
			c.Close()
		}
		return nil
	})
	endsOf := func(n int) []uint16 { // of before, and every second of meanwhile
		ports := []uint16{uint16(10000 + 41*(n+1))}
		if n%2 == 0 {
			ports = append(ports, uint16(20000+n))
		}
		return ports
	}
	ended := map[uint16]bool{}
	for n := range meanwhile {
		for _, port := range endsOf(n) {
			ended[port] = true
		}
	}
	asked, began := 0, 0
	r := run(t, Options{Netns: gw, Way: Trace, Room: func(int) bool {
		if asked++; asked > 2*meanwhile/each || asked%2 == 0 { // there is room the second time
			return true
		}
		var ports []uint16
		for range each {
			send(t, client, 20000+began, 53)
			send(t, client, 12500+11*(began+1), 53) // the next packet of one of before
			ports = append(ports, endsOf(began)...)
			began++
		}
		forget(t, gw, ports...)
		return false
	}})
	testutil.Eventually(t, "the starts of all that stay", func() bool {
		stay := 0
		for _, s := range r.of(natlog.Start, 0) {
			if !ended[s.Src.Port()] {
				stay++
			}
		}
		return stay >= before+meanwhile-len(ended)
	})
	r.await(t, "all ends", natlog.End, 0, len(ended))
	send(t, client, 30000, 53)
	r.await(t, "the last start", natlog.Start, 30000, 1)
	r.stop()
	if began != meanwhile {
		t.Fatalf("%d connections began while the table was read", began)
	}
	starts, ends := map[uint16]int{}, map[uint16]int{}
	for i := range r.all {
		port := r.all[i].Src.Port()
		switch r.all[i].Kind {
		case natlog.Start:
			if starts[port]++; ends[port] > 0 {
				t.Errorf("port %d: a start after its end", port)
			}
		case natlog.End:
			ends[port]++
		default:
			t.Errorf("%+v", r.all[i])
		}
	}
	check := func(port uint16, isNew bool) {
		least := 1
		if ended[port] && !isNew { // its end may have come before the table was read up to it
			least = 0
		}
		if starts[port] > 1 || starts[port] < least || (ends[port] == 1) != ended[port] {
			t.Errorf("port %d: %d starts, %d ends (ended: %t)", port, starts[port], ends[port], ended[port])
		}
	}
	for i := range before {
		check(uint16(10000+i), false)
	}
	for i := range meanwhile {
		check(uint16(20000+i), true)
	}
}

// TestAnIdleLogSaysThatItIsWritten, where nothing else was.
func TestAnIdleLogSaysThatItIsWritten(t *testing.T) {
	for _, way := range []Way{Trace, Table} {
		client, gw, _ := gateway(t)
		r := run(t, Options{Netns: gw, Way: way, Every: 10 * time.Millisecond, Share: 1, alive: 30 * time.Millisecond})
		r.await(t, "three records", natlog.Alive, 0, 3)
		send(t, client, 9000, 53)
		r.await(t, "a start", natlog.Start, 9000, 1)
		r.stop()
		alive := r.of(natlog.Alive, 0)
		if !slices.IsSortedFunc(alive, func(a, b natlog.Record) int { return a.Time.Compare(b.Time) }) {
			t.Errorf("%s: not in order", way)
		}
		for i := 1; i < len(alive); i++ {
			if d := alive[i].Time.Sub(alive[i-1].Time); d < 30*time.Millisecond-time.Millisecond {
				t.Errorf("%s: two within %s", way, d)
			}
		}
	}
}

// TestMoreThanAreRemembered: what of the table finds no room is counted.
func TestMoreThanAreRemembered(t *testing.T) {
	client, gw, _ := gateway(t)
	for i := range 15 {
		send(t, client, 10000+i, 53)
	}
	s, err := openTrace(Options{Netns: gw})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.present.most = 10
	ctx, cancel := context.WithCancel(t.Context())
	starts, lost := 0, uint64(0)
	if err := s.Run(ctx, func(all []natlog.Record) {
		for i := range all {
			switch all[i].Kind {
			case natlog.Start:
				starts++
			case natlog.Lost:
				lost += all[i].Count
				cancel()
			}
		}
	}); err != nil || starts != 10 || lost != 5 {
		t.Errorf("%d starts, %d lost: %v", starts, lost, err)
	}
}

// TestZonesAreInBothWays compares what the tracepoints and the table say of a connection in a zone.
func TestZonesAreInBothWays(t *testing.T) {
	client, gw, _ := gateway(t)
	testutil.Nft(t, gw, `table ip z {
		chain pre { type filter hook prerouting priority -300
			iifname "lan" udp sport 9000 ct zone set 5
			iifname "lan" udp sport 9001 ct original zone set 6
		}
	}`)
	send(t, client, 9000, 53)
	send(t, client, 9001, 53)
	by := map[Way]*running{}
	for _, way := range []Way{Trace, Table} {
		by[way] = run(t, Options{Netns: gw, Way: way, Every: 50 * time.Millisecond, Share: 1})
		by[way].await(t, "the starts of before", natlog.Start, 0, 2)
	}
	forget(t, gw)
	for _, r := range by {
		r.await(t, "the ends", natlog.End, 0, 2)
	}
	send(t, client, 9000, 53)
	send(t, client, 9001, 53)
	for way, r := range by {
		r.await(t, "the starts", natlog.Start, 0, 4)
		for port, want := range map[uint16]string{9000: "5 5", 9001: "6 0"} {
			for _, one := range append(r.of(natlog.Start, port), r.of(natlog.End, port)...) {
				if got := fmt.Sprint(one.Zone, one.ReplyZone); got != want {
					t.Errorf("%s: %s of port %d in zones %s, want %s", way, one.Kind, port, got, want)
				}
			}
		}
	}
}
