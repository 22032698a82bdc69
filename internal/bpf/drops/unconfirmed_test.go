package drops

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

// A namespace in which 198.18.0.2 becomes 198.18.0.9 with one of four ports, fd00::2
// fd00::9 with one of two, and 198.18.0.1 and fd00::1 are asked.
func portlessNamespace(t testing.TB) *netns.Handle {
	t.Helper()
	ns := testutil.Namespace(t)
	nft := testutil.NeedProgram(t, "nft")
	in(t, ns, func() error {
		for _, args := range [][]string{
			{"ip", "link", "set", "lo", "up"},
			{"ip", "addr", "add", "198.18.0.1/32", "dev", "lo"},
			{"ip", "addr", "add", "198.18.0.2/32", "dev", "lo"},
			{"ip", "addr", "add", "198.18.0.3/32", "dev", "lo"},
			{nft, `table inet t {
				chain post { type nat hook postrouting priority 100
					ip saddr 198.18.0.2 ip daddr 198.18.0.1 udp dport 9 snat ip to 198.18.0.9:2000-2003
					ip6 saddr fd00::2 udp dport 9 snat ip6 to [fd00::9]:2000-2001
				}
				chain early { type filter hook output priority 0
					udp dport 10 drop
				}
				chain late { type filter hook input priority 0
					udp dport 11 drop
				}
			}`},
		} {
			if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
			}
		}
		return nil
	})
	return ns
}

func in(t testing.TB, ns *netns.Handle, fn func() error) {
	t.Helper()
	if err := ns.Do(fn); err != nil {
		t.Fatal(err)
	}
}

// send sends n datagrams, each from a port of its own: left to the kernel, two could have
// the same one after the other, and be one connection. The kernel reports drops to the
// sender.
func send(t testing.TB, ns *netns.Handle, from, to string, n int) {
	t.Helper()
	in(t, ns, func() error {
		for i := range n {
			c, err := (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(from), Port: 10000 + i%50000}}).Dial("udp", to)
			if err != nil {
				return err
			}
			_, err = c.Write([]byte("hello"))
			c.Close()
			if err != nil && !errors.Is(err, unix.EPERM) {
				return err
			}
		}
		return nil
	})
}

func runUnconfirmed(t testing.TB, ns *netns.Handle, room uint32) *Unconfirmed {
	t.Helper()
	tracer, err := startUnconfirmed(ns, room)
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

// counted are packets by what became of a connection.
func counted(t testing.TB, tracer *Unconfirmed) map[string]uint64 {
	t.Helper()
	all := map[string]uint64{}
	overflow, err := tracer.Take(func(e *conntrack.Entry, packets uint64) {
		all[fmt.Sprintf("%s > %s:%d becomes %s, answers from %s:%d", e.Orig.Src, e.Orig.Dst, e.Orig.DstPort, e.Reply.Dst, e.Reply.Src, e.Reply.SrcPort)] += packets
	})
	if err != nil || overflow > 0 {
		t.Fatalf("overflow %d, error %v", overflow, err)
	}
	return all
}

func insertFailed(t testing.TB, ns *netns.Handle) (n uint64) {
	t.Helper()
	cpus, err := dump.Stats(ns)
	if err != nil {
		t.Fatal(err)
	}
	for _, cpu := range cpus {
		n += cpu["insert_failed"]
	}
	return n
}

func TestConnectionsWithoutAPortOfIPv6(t *testing.T) {
	testutil.NeedFeature(t, testutil.IPv6)
	ns := portlessNamespace(t)
	in(t, ns, func() error {
		add := func(address string) error {
			return exec.Command("ip", "addr", "add", address, "dev", "lo", "nodad").Run() // tentative, it could not be bound
		}
		return errors.Join(add("fd00::1/128"), add("fd00::2/128"))
	})
	tracer := runUnconfirmed(t, ns, room)
	send(t, ns, "fd00::2", "[fd00::1]:9", 5)
	const want = "fd00::2 > fd00::1:9 becomes fd00::9, answers from fd00::1:9"
	if got := counted(t, tracer); len(got) != 1 || got[want] != 3 {
		t.Errorf("%v, want 3 of 5", got)
	}
}

func TestConnectionsWithoutAPortAreCounted(t *testing.T) {
	ns := portlessNamespace(t)
	other := portlessNamespace(t)
	tracer := runUnconfirmed(t, ns, room)
	send(t, ns, "198.18.0.2", "198.18.0.1:9", 10)
	send(t, other, "198.18.0.2", "198.18.0.1:9", 7) // not this namespace's
	const want = "198.18.0.2 > 198.18.0.1:9 becomes 198.18.0.9, answers from 198.18.0.1:9"
	if got := counted(t, tracer); len(got) != 1 || got[want] != 6 {
		t.Errorf("%v, want 6 of 10", got)
	}
	if n := insertFailed(t, ns); n != 6 {
		t.Errorf("insert_failed is %d", n)
	}
	if got := counted(t, tracer); len(got) > 0 {
		t.Errorf("reported twice: %v", got)
	}
}

// What a rule drops before NAT, or once the tracker has the connection, and what is
// not dropped, is not counted.
func TestOtherDropsAreNotCounted(t *testing.T) {
	ns := portlessNamespace(t)
	tracer := runUnconfirmed(t, ns, room)
	send(t, ns, "198.18.0.2", "198.18.0.1:10", 5)
	send(t, ns, "198.18.0.2", "198.18.0.1:11", 5)
	send(t, ns, "198.18.0.3", "198.18.0.1:9", 5)
	if got := counted(t, tracer); len(got) > 0 {
		t.Errorf("%v", got)
	}
}

// More different connections than there is room for are counted all the same, and the
// next time there is room again.
func TestTooManyConnectionsAreCounted(t *testing.T) {
	const room, more = 16, 5
	ns := portlessNamespace(t)
	in(t, ns, func() error {
		if out, err := exec.Command("nft", "add rule inet t post ip saddr 10.0.0.0/8 udp dport 9 snat ip to 198.18.0.9:5000").CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w", out, err)
		}
		return exec.Command("ip", "route", "add", "local", "10.0.0.0/8", "dev", "lo").Run()
	})
	tracer := runUnconfirmed(t, ns, room)
	for _, want := range []struct{ first, n, reported, missed uint64 }{
		{0, 1 + room + more, room, more}, // the first one gets the port
		{room, more, more, 0},
	} {
		for i := range want.n {
			n := want.first + i
			send(t, ns, fmt.Sprintf("10.0.0.%d", 1+n), "198.18.0.1:9", 1)
		}
		var reported uint64
		missed, err := tracer.Take(func(_ *conntrack.Entry, packets uint64) { reported += packets })
		if err != nil || reported != want.reported || missed != want.missed {
			t.Errorf("%d reported, %d not, error %v: want %d and %d", reported, missed, err, want.reported, want.missed)
		}
	}
}
