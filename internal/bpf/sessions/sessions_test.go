package sessions

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

// gateway is a namespace that translates what 198.18.1.2 sends, and what is for 198.18.2.1:80 and :81.
func gateway(t testing.TB) (client, gw, server *netns.Handle) {
	t.Helper()
	client, gw, server = testutil.Namespace(t, t.Name()+"-c"), testutil.Namespace(t, t.Name()+"-g"), testutil.Namespace(t, t.Name()+"-s")
	testutil.Veth(t, testutil.End{Netns: client, Name: "c0", Addresses: []string{"198.18.1.2/24"}}, testutil.End{Netns: gw, Name: "lan", Addresses: []string{"198.18.1.1/24"}})
	testutil.Veth(t, testutil.End{Netns: gw, Name: "wan", Addresses: []string{"198.18.2.1/24"}}, testutil.End{Netns: server, Name: "s0", Addresses: []string{"198.18.2.2/24"}})
	testutil.Routes(t, client, "198.18.1.1")
	testutil.Sysctl(t, gw, "net/ipv4/ip_forward", "1")
	testutil.Nft(t, gw, `table ip t {
		chain post { type nat hook postrouting priority 100
			oifname "wan" meta l4proto { tcp, udp } snat to 198.18.2.1:20000-29999
			oifname "wan" snat to 198.18.2.1
		}
		chain pre { type nat hook prerouting priority -100
			ip daddr 198.18.1.1 udp dport 81 redirect to :8181
		}
		chain in { type filter hook forward priority 0
			udp dport 99 drop
		}
	}`)
	return client, gw, server
}

func start(t testing.TB, o Options) *Tracer {
	t.Helper()
	tracer, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tracer.Close(); err != nil {
			t.Error(err)
		}
	})
	return tracer
}

// follower has what a tracer saw so far, by "start" or "end" and the connection.
type follower struct {
	tracer *Tracer
	seen   map[string]int
	last   map[string]Event
	lost   Lost
}

func follow(tracer *Tracer) *follower {
	return &follower{tracer: tracer, seen: map[string]int{}, last: map[string]Event{}}
}

func name(e *Event) string {
	c := &e.Entry
	what := "start"
	if e.End {
		what = "end"
	}
	if c.Orig.Proto == unix.IPPROTO_ICMP {
		return fmt.Sprintf("%s icmp %s > %s as %s", what, c.Orig.Src, c.Orig.Dst, c.Reply.Dst)
	}
	return fmt.Sprintf("%s %d %s:%d > %s:%d", what, c.Orig.Proto, c.Orig.Src, c.Orig.SrcPort, c.Orig.Dst, c.Orig.DstPort)
}

// until reads until a condition is met.
func (f *follower) until(t testing.TB, what string, met func() bool) {
	t.Helper()
	testutil.Eventually(t, what, func() bool {
		lost, err := f.tracer.Read(time.Now().Add(10*time.Millisecond), func(e *Event) {
			f.seen[name(e)]++
			f.last[name(e)] = *e
		})
		if err != nil {
			t.Fatal(err)
		}
		f.lost.Starts, f.lost.Ends = f.lost.Starts+lost.Starts, f.lost.Ends+lost.Ends
		return met()
	})
}

func send(t testing.TB, ns *netns.Handle, from, to string, times int) {
	t.Helper()
	testutil.Inside(t, ns, func() error {
		local, err := net.ResolveUDPAddr("udp", from)
		if err != nil {
			return err
		}
		c, err := (&net.Dialer{LocalAddr: local}).Dial("udp", to)
		if err != nil {
			return err
		}
		defer c.Close()
		for range times {
			if _, err := c.Write([]byte("hello")); err != nil {
				return err
			}
		}
		return nil
	})
}

func forget(t testing.TB, gw *netns.Handle) {
	t.Helper()
	if _, err := dump.Delete(t.Context(), gw, &conntrack.Filter{Family: unix.AF_INET}); err != nil {
		t.Fatal(err)
	}
}

func TestEachConnectionIsSeenOnce(t *testing.T) {
	client, gw, server := gateway(t)
	testutil.Inside(t, server, func() error { // so that nobody answers by ICMP
		c, err := net.ListenPacket("udp", "198.18.2.2:53")
		if err == nil {
			t.Cleanup(func() { c.Close() })
		}
		return err
	})
	f := follow(start(t, Options{Netns: gw}))
	const n = 200
	for i := range n {
		send(t, client, fmt.Sprintf("198.18.1.2:%d", 10000+i), "198.18.2.2:53", 1+i%3)
	}
	send(t, client, "198.18.1.2:9999", "198.18.2.2:99", 3) // dropped by a filter
	send(t, client, "198.18.1.2:9998", "198.18.2.2:53", 1)
	testutil.Run(t, client, "", "ping", "-c", "2", "-i", "0.01", "198.18.2.2")
	f.until(t, "all starts", func() bool {
		return f.seen["start 17 198.18.1.2:9998 > 198.18.2.2:53"] > 0 && f.seen["start icmp 198.18.1.2 > 198.18.2.2 as 198.18.2.1"] > 0
	})
	forget(t, gw)
	f.until(t, "all ends", func() bool { return len(f.seen) >= 2*(n+2) })
	for i := range n {
		for _, what := range []string{"start", "end"} {
			key := fmt.Sprintf("%s 17 198.18.1.2:%d > 198.18.2.2:53", what, 10000+i)
			e := f.last[key]
			if f.seen[key] != 1 || e.Entry.Reply.Dst != netip.MustParseAddr("198.18.2.1") || e.Entry.Reply.DstPort < 20000 || e.Entry.Reply.DstPort > 29999 {
				t.Errorf("%s: seen %d times, %+v", key, f.seen[key], e)
			}
			if e.Started.IsZero() || e.At.Before(e.Started) {
				t.Errorf("%s: started %v, event at %v", key, e.Started, e.At)
			}
		}
	}
	for key := range f.seen {
		if f.last[key].Entry.Orig.DstPort == 99 {
			t.Errorf("%s: its packets were dropped before it was a connection", key)
		}
	}
	if len(f.seen) != 2*(n+2) || f.lost != (Lost{}) {
		t.Errorf("%d kinds of events, want %d; lost %+v", len(f.seen), 2*(n+2), f.lost)
	}
}

func TestTCPAndRedirect(t *testing.T) {
	client, gw, server := gateway(t)
	serve := func(ns *netns.Handle, network, at string) {
		testutil.Inside(t, ns, func() error {
			l, err := net.Listen(network, at)
			if err != nil {
				return err
			}
			t.Cleanup(func() { l.Close() })
			go func() {
				for c, err := l.Accept(); err == nil; c, err = l.Accept() {
					c.Close()
				}
			}()
			return nil
		})
	}
	serve(server, "tcp", "198.18.2.2:80")
	testutil.Inside(t, gw, func() error { // echoes what is redirected to it
		c, err := net.ListenPacket("udp", ":8181")
		if err != nil {
			return err
		}
		t.Cleanup(func() { c.Close() })
		go func() {
			b := make([]byte, 100)
			for n, from, err := c.ReadFrom(b); err == nil; n, from, err = c.ReadFrom(b) {
				_, _ = c.WriteTo(b[:n], from)
			}
		}()
		return nil
	})
	f := follow(start(t, Options{Netns: gw}))
	testutil.Inside(t, client, func() error {
		for i := range 50 {
			c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{Port: 11000 + i}}).Dial("tcp", "198.18.2.2:80")
			if err != nil {
				return err
			}
			c.Close()
		}
		c, err := (&net.Dialer{LocalAddr: &net.UDPAddr{Port: 12000}}).Dial("udp", "198.18.1.1:81")
		if err != nil {
			return err
		}
		defer c.Close()
		for range 3 {
			if _, err := c.Write([]byte("x")); err != nil {
				return err
			}
			if _, err := c.Read(make([]byte, 10)); err != nil {
				return err
			}
		}
		return nil
	})
	f.until(t, "starts", func() bool { return len(f.seen) >= 51 })
	forget(t, gw)
	f.until(t, "ends", func() bool { return len(f.seen) >= 102 })
	for key, times := range f.seen {
		if times != 1 {
			t.Errorf("%s: %d times", key, times)
		}
	}
	if f.seen["start 17 198.18.1.2:12000 > 198.18.1.1:81"] != 1 || f.seen["end 6 198.18.1.2:11049 > 198.18.2.2:80"] != 1 || f.lost != (Lost{}) {
		t.Errorf("%v, lost %+v", f.seen, f.lost)
	}
}

func TestEndsAloneAndOfBefore(t *testing.T) {
	client, gw, _ := gateway(t)
	send(t, client, "198.18.1.2:10000", "198.18.2.2:53", 1)
	f := follow(start(t, Options{Netns: gw, EndsAlone: true}))
	send(t, client, "198.18.1.2:10001", "198.18.2.2:53", 1)
	forget(t, gw)
	f.until(t, "both ends", func() bool { return len(f.seen) >= 2 })
	before, after := f.last["end 17 198.18.1.2:10000 > 198.18.2.2:53"], f.last["end 17 198.18.1.2:10001 > 198.18.2.2:53"]
	if len(f.seen) != 2 || !before.Started.IsZero() || after.Started.IsZero() {
		t.Errorf("%v\n%+v\n%+v", f.seen, before, after)
	}
}

func TestOtherNamespacesAreNotSeen(t *testing.T) {
	client, gw, _ := gateway(t)
	f := follow(start(t, Options{Netns: client}))
	g := follow(start(t, Options{Netns: gw}))
	send(t, client, "198.18.1.2:10000", "198.18.2.2:53", 1)
	forget(t, gw)
	g.until(t, "start and end", func() bool { return len(g.seen) >= 2 })
	f.until(t, "a read", func() bool { return true })
	if len(f.seen) != 0 {
		t.Error(f.seen)
	}
}

func TestWhatIsLostIsCounted(t *testing.T) {
	client, gw, _ := gateway(t)
	f := follow(start(t, Options{Netns: gw, ring: 4096}))
	const n = 300
	for i := range n {
		send(t, client, fmt.Sprintf("198.18.1.2:%d", 10000+i), "198.18.2.2:53", 1)
	}
	forget(t, gw)
	starts, ends := func() (n int) {
		for key, times := range f.seen {
			if !f.last[key].End {
				n += times
			}
		}
		return n
	}, func() (n int) {
		for key, times := range f.seen {
			if f.last[key].End {
				n += times
			}
		}
		return n
	}
	f.until(t, "all, seen or lost", func() bool {
		return uint64(starts())+f.lost.Starts >= n && uint64(ends())+f.lost.Ends >= n
	})
	if got := uint64(starts()) + f.lost.Starts; got != n || f.lost.Starts == 0 {
		t.Errorf("%d starts seen, %d lost; want %d in all", starts(), f.lost.Starts, n)
	}
	if got := uint64(ends()) + f.lost.Ends; got != n {
		t.Errorf("%d ends seen, %d lost; want %d in all", ends(), f.lost.Ends, n)
	}
}

// TestTheClockIsSet: a connection that was there when the clock was set back has both times by the new one.
func TestTheClockIsSet(t *testing.T) {
	client, gw, _ := gateway(t)
	zero := time.Unix(1_700_000_000, 0)
	f := follow(start(t, Options{Netns: gw, clock: func() (time.Time, error) { return zero, nil }}))
	send(t, client, ":10001", "198.18.2.2:53", 1)
	const of = "17 198.18.1.2:10001 > 198.18.2.2:53"
	f.until(t, "the start", func() bool { return f.seen["start "+of] == 1 })
	zero = zero.Add(-50 * time.Second)
	if step, err := f.tracer.FollowClock(); step != -50*time.Second || err != nil {
		t.Errorf("%v, %v", step, err)
	}
	if _, err := dump.Delete(t.Context(), gw, &conntrack.Filter{Family: unix.AF_INET}); err != nil {
		t.Fatal(err)
	}
	f.until(t, "the end", func() bool { return f.seen["end "+of] == 1 })
	began, ended := f.last["start "+of], f.last["end "+of]
	if d := ended.Started.Sub(began.At); d != -50*time.Second || ended.At.Before(ended.Started) {
		t.Errorf("started at %v, then at %v, ended at %v", began.At, ended.Started, ended.At)
	}
}
