//go:build linux

package source

import (
	"context"
	"fmt"
	"net"
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

// gateway is a namespace that gives what 198.18.1.2 sends the source 198.18.2.1.
func gateway(t *testing.T) (client, gw, server *netns.Handle) {
	t.Helper()
	testutil.ShareHost(t) // the table has room for all of them
	client, gw = testutil.Namespace(t, t.Name()+"-c"), testutil.Namespace(t, t.Name()+"-g")
	server = testutil.Namespace(t, t.Name()+"-s")
	testutil.Veth(t, testutil.End{Netns: client, Name: "c0", Addresses: []string{"198.18.1.2/24"}}, testutil.End{Netns: gw, Name: "lan", Addresses: []string{"198.18.1.1/24"}})
	testutil.Veth(t, testutil.End{Netns: gw, Name: "wan", Addresses: []string{"198.18.2.1/24"}}, testutil.End{Netns: server, Name: "s0", Addresses: []string{"198.18.2.2/24"}})
	testutil.Routes(t, client, "198.18.1.1")
	testutil.Sysctl(t, gw, "net/ipv4/ip_forward", "1")
	testutil.Sysctl(t, gw, "net/netfilter/nf_conntrack_udp_timeout", "600") // none expires on a busy machine
	testutil.Nft(t, gw, `table ip t {
		chain post { type nat hook postrouting priority 100
			oifname "wan" meta l4proto { tcp, udp } th dport 53 snat to 198.18.2.1:20000-29999
		}
	}`)
	return client, gw, server
}

func send(t *testing.T, client *netns.Handle, port, to int) {
	t.Helper()
	testutil.Inside(t, client, func() error {
		c, err := (&net.Dialer{LocalAddr: &net.UDPAddr{Port: port}}).Dial("udp", fmt.Sprintf("198.18.2.2:%d", to))
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("x"))
		return err
	})
}

// TestBothWaysSeeTheSame follows connections both ways at once: each that is translated has one start and one end in each log, with
// the same addresses and ports.
func TestBothWaysSeeTheSame(t *testing.T) {
	client, gw, _ := gateway(t)
	send(t, client, 9000, 53) // before
	var mu sync.Mutex
	seen := map[Way]map[string]int{}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, way := range []Way{Trace, Table} {
		s, why, err := Open(Options{Netns: gw, Way: way, Every: 50 * time.Millisecond, Share: 1, NoPresent: true})
		if err != nil || why != nil {
			t.Fatal(why, err)
		}
		t.Cleanup(func() { s.Close() })
		seen[way] = map[string]int{}
		running.Go(func() {
			if err := s.Run(ctx, func(all []natlog.Record) {
				mu.Lock()
				defer mu.Unlock()
				for _, r := range all {
					if r.Kind == natlog.End && (r.Ended.IsZero() || r.Src.Port() != 9000 && r.Started.IsZero()) {
						t.Errorf("%s: times of %+v", way, r)
					}
					seen[way][fmt.Sprintf("%s %s as %s to %s %s", r.Kind, r.Src, r.NAT, r.Dst, r.Server)]++
				}
			}); err != nil {
				t.Error(err)
			}
		})
	}
	const n = 50
	for i := range n {
		send(t, client, 10000+i, 53)
		send(t, client, 10000+i, 54) // not translated
	}
	until := func(what string, count int) {
		testutil.Eventually(t, what, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(seen[Trace]) >= count && len(seen[Table]) >= count
		})
	}
	until("all starts", n)
	if _, err := dump.Delete(t.Context(), gw, &conntrack.Filter{Family: unix.AF_INET}); err != nil {
		t.Fatal(err)
	}
	until("all ends", 2*n+1)
	cancel()
	running.Wait()
	for way, all := range seen {
		if len(all) != 2*n+1 {
			t.Errorf("%s: %d kinds of records, want %d: %v", way, len(all), 2*n+1, all)
		}
		for key, times := range all {
			if times != 1 || seen[Trace][key] != 1 {
				t.Errorf("%s: %q %d times, %d by tracepoints", way, key, times, seen[Trace][key])
			}
		}
	}
}

func TestMoreThanAreFollowed(t *testing.T) {
	client, gw, _ := gateway(t)
	s, err := openTable(Options{Netns: gw, Connections: 10})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 15 {
		send(t, client, 10000+i, 53)
	}
	starts, lost := 0, uint64(0)
	for range 2 { // the second reading adds nothing
		s.put = func(all []natlog.Record) {
			for _, r := range all {
				if r.Kind == natlog.Lost {
					lost += r.Count
				} else {
					starts++
				}
			}
		}
		if _, err := s.once(t.Context(), t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if starts != 10 || lost != 5 {
		t.Errorf("%d starts, %d lost", starts, lost)
	}
}

// TestTheClockIsSet: the end of a connection has both times by one clock, also where that was set after its start.
func TestTheClockIsSet(t *testing.T) {
	client, gw, _ := gateway(t)
	zero, notes := time.Unix(1_700_000_000, 0), 0
	s, err := openTableBy(func() (time.Time, error) { return zero, nil }, Options{Netns: gw, Note: func(string) { notes++ }})
	if err != nil {
		t.Fatal(err)
	}
	var seen []natlog.Record
	once := func() {
		t.Helper()
		s.put = func(all []natlog.Record) { seen = append(seen, all...) }
		if _, err := s.once(t.Context(), t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	send(t, client, 10000, 53)
	once()
	zero = zero.Add(-50 * time.Second)
	if _, err := dump.Delete(t.Context(), gw, &conntrack.Filter{Family: unix.AF_INET}); err != nil {
		t.Fatal(err)
	}
	once()
	if len(seen) != 2 || seen[1].Kind != natlog.End || seen[1].Started.Sub(seen[0].Started) != -50*time.Second || notes != 1 {
		t.Errorf("%d notes, %+v", notes, seen)
	}
}
