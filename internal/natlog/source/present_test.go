//go:build linux

package source

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/bpf/sessions"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/natlog"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

// running is a source that a test follows.
type running struct {
	mu  sync.Mutex
	all []natlog.Record
	// since is the source's own.
	since time.Time
	stop  func()
}

func run(t *testing.T, o Options) *running {
	t.Helper()
	s, why, err := Open(o)
	if err != nil || why != nil {
		t.Fatal(why, err)
	}
	r := &running{since: s.Since()}
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		if err := s.Run(ctx, r.put); err != nil {
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

func (r *running) put(records []natlog.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, records...)
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

// sendMany has n connections of UDP begin, from port 10000 on.
func sendMany(t *testing.T, client *netns.Handle, n int) {
	t.Helper()
	testutil.Inside(t, client, func() error {
		for i := range n {
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
					if !s.Before || s.Time.Before(r.since) || r.since.Before(opened) || !s.Started.Equal(e.Started) || s.Connection() != e.Connection() {
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
				if n, lost := len(r.of(natlog.Listed, 0)), r.of(natlog.Lost, 0); n != 1 || len(lost) != 0 {
					t.Errorf("%d records say that all is listed, lost: %+v", n, lost)
				}
			})
		}
	}
}

// TestAListAmidARun has what is there, with what began before the log and since, for one who wants it, and nothing for the log.
func TestAListAmidARun(t *testing.T) {
	for _, way := range []Way{Trace, Table} {
		client, gw, server := gateway(t)
		send(t, client, 9000, 53)
		connected(t, client, server, 9002)
		file := &running{}
		wanted := make(chan struct{}, 1)
		r := run(t, Options{Netns: gw, Way: way, Every: 50 * time.Millisecond, Share: 1, List: func() *Listing {
			select {
			case <-wanted:
				return &Listing{Put: file.put}
			default:
				return nil
			}
		}})
		r.await(t, "the list of before", natlog.Listed, 0, 1)
		send(t, client, 9003, 53)
		send(t, client, 9004, 53)
		r.await(t, "the starts", natlog.Start, 9004, 1)
		forget(t, gw, 9004)
		r.await(t, "an end", natlog.End, 9004, 1)
		send(t, client, 9000, 53) // its next packet looks like a first one
		began := time.Now()
		wanted <- struct{}{}
		file.await(t, "the list", natlog.Listed, 0, 1)
		forget(t, gw)
		r.await(t, "the ends", natlog.End, 0, 4)
		r.stop()
		for port, want := range map[uint16]int{0: 3, 9000: 1, 9002: 1, 9003: 1} {
			starts := file.of(natlog.Start, port)
			if len(starts) != want || len(r.of(natlog.Start, port)) != want+map[uint16]int{0: 1}[port] {
				t.Errorf("%s: %d starts of port %d in the list, %d in the log", way, len(starts), port, len(r.of(natlog.Start, port)))
			}
			for _, s := range starts {
				if !s.Before || way == Trace && s.Time.Before(began) || s.Within != 0 {
					t.Errorf("%s: %+v", way, s)
				}
			}
		}
		if n := len(file.of(natlog.Lost, 0)) + len(file.of(natlog.End, 0)) + len(r.of(natlog.Lost, 0)); n != 0 {
			t.Errorf("%s: %d other records", way, n)
		}
		if ends := r.of(natlog.End, 9003); len(ends) != 1 || ends[0].Started.IsZero() || (ends[0].StartedWithin > 0) != (way == Table) {
			t.Errorf("%s: the end of one that was listed: %+v", way, ends)
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
		if n := len(r.of(natlog.Listed, 0)); n != 0 {
			t.Errorf("%+v: a list of what it leaves out", o)
		}
	}
}

// TestBeginsAndEndsWhileTheTableIsRead has connections begin and end between two parts of the first reading: each has one start and
// one end in the log, or an end alone.
func TestBeginsAndEndsWhileTheTableIsRead(t *testing.T) {
	client, gw, _ := gateway(t)
	const before, meanwhile, each = 5 * batch, 60, 20
	sendMany(t, client, before)
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
		case natlog.Listed:
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
			case natlog.Listed:
				t.Error("it says that all is listed")
			case natlog.Lost:
				lost += all[i].Count
				cancel()
			}
		}
	}); err != nil || starts != 10 || lost != 5 {
		t.Errorf("%d starts, %d lost: %v", starts, lost, err)
	}
}

// TestTheReadingIsStopped while outputs have no room: the log says that it lacks some, and not that all is listed.
func TestTheReadingIsStopped(t *testing.T) {
	client, gw, _ := gateway(t)
	sendMany(t, client, 2*batch+1)
	for _, way := range []Way{Trace, Table} {
		asked := make(chan struct{})
		once := sync.OnceFunc(func() { close(asked) })
		r := run(t, Options{Netns: gw, Way: way, lastWait: time.Millisecond, Room: func(int) bool { once(); return false }})
		<-asked
		r.stop()
		lost := r.of(natlog.Lost, 0)
		if len(lost) != 1 || lost[0].Reason != reasonUnread || lost[0].Count == 0 || len(r.of(natlog.Listed, 0)) != 0 {
			t.Errorf("%s: lost %+v, listed %d", way, lost, len(r.of(natlog.Listed, 0)))
		}
		if starts := len(r.of(natlog.Start, 0)); way == Table && starts+int(lost[0].Count) != 2*batch+1 {
			t.Errorf("%d starts and %d lost", starts, lost[0].Count)
		}
	}
}

// TestTheEndWaitsForNoReceiver that takes nothing: what is left is handed on, for outputs to count.
func TestTheEndWaitsForNoReceiver(t *testing.T) {
	client, gw, _ := gateway(t)
	r := run(t, Options{Netns: gw, Way: Table, Every: time.Hour, lastWait: time.Millisecond, Room: func(n int) bool { return n == 0 }})
	r.await(t, "the list", natlog.Listed, 0, 1)
	send(t, client, 9000, 53)
	r.stop()
	if n := len(r.of(natlog.Start, 9000)); n != 1 {
		t.Errorf("%d starts", n)
	}
}

// TestTheTimeOfTheFirstReading: what is there before was there then, however long outputs take to open.
func TestTheTimeOfTheFirstReading(t *testing.T) {
	client, gw, _ := gateway(t)
	send(t, client, 9000, 53)
	s, err := openTable(Options{Netns: gw})
	if err != nil {
		t.Fatal(err)
	}
	opened := time.Now()
	forget(t, gw)
	var all []natlog.Record
	s.put = func(some []natlog.Record) { all = append(all, some...) }
	if err := s.present(t.Context(), &Listing{Put: s.put}); err != nil {
		t.Fatal(err)
	}
	if len(all) != 2 || !all[0].Before || all[0].Time.After(opened) || all[0].Time.Before(s.Since()) || all[1].Kind != natlog.Listed {
		t.Errorf("%+v", all)
	}
}

// TestAnEndOfBeforeIsLost: the next start with the same addresses and ports is another connection, and its end has its own start.
func TestAnEndOfBeforeIsLost(t *testing.T) {
	for _, c := range []struct {
		lost  sessions.Lost
		again bool
	}{{sessions.Lost{Starts: 1}, true}, {sessions.Lost{Ends: 1}, false}} {
		old, now := time.Unix(1000, 0), time.Unix(2000, 0)
		r := natlog.Record{Kind: natlog.Start, Started: old, Src: netip.MustParseAddrPort("10.0.0.7:40001"), Dst: netip.MustParseAddrPort("198.51.100.1:443")}
		tr := &trace{present: present{seed: maphash.MakeSeed(), first: true, before: map[uint64]int64{}, seen: map[uint64]struct{}{}, most: 10}}
		if !tr.present.add(&r, false) {
			t.Fatal("it was seen")
		}
		tr.missed(c.lost)
		r.Started = now
		if again := tr.present.settle(&r); again != c.again {
			t.Errorf("%+v: the next start is another one of the same: %t", c.lost, again)
		}
		if r.Kind = natlog.End; tr.present.settle(&r) || !c.again && !r.Started.Equal(now) {
			t.Errorf("%+v: the end has started %s", c.lost, r.Started)
		}
		if len(tr.records) != 1 || tr.records[0].Kind != natlog.Lost {
			t.Errorf("%+v: %+v", c.lost, tr.records)
		}
	}
}

// TestWhatNeedsNoRight: the error of a table that may not be read names the flag that does without it.
func TestWhatNeedsNoRight(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{{fmt.Errorf("dial: %w", unix.EPERM), true}, {unix.ENOBUFS, false}} {
		if err := unreadable(c.err); !errors.Is(err, c.err) || strings.Contains(err.Error(), "--no-present needs no CAP_NET_ADMIN") != c.want {
			t.Error(err)
		}
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
