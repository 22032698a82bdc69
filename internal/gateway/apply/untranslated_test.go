package apply

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
)

// untranslated are the sources of entries that pass as they are, in order, each once.
func (w *world) untranslated() (sources []string) {
	w.t.Helper()
	_, err := dump.Each(w.t.Context(), w.ns, nil, func(e *conntrack.Entry) error {
		if !e.IsSNAT() && !e.IsDNAT() {
			sources = append(sources, fmt.Sprintf("%s > %s:%d", e.Orig.Src, e.Orig.Dst, e.Orig.DstPort))
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	slices.Sort(sources)
	return slices.Compact(sources)
}

// TestFirstRulesTakeConnectionsThatPass: of the connections that there are when the first
// rules of NAT come, those are deleted that a rule is for, and no others; the transaction
// says so. Rules that take the place of others leave all as they are.
func TestFirstRulesTakeConnectionsThatPass(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	w := newWorld(t)
	w.ip("nft add table ip tracks")
	w.ip("nft add chain ip tracks c { type filter hook output priority 0 ; }")
	w.ip("nft add rule ip tracks c ct state new accept")
	for _, a := range []string{"192.168.0.9/24", "192.168.0.11/24", "10.3.0.9/24"} {
		w.ip("ip addr add " + a + " dev lan0")
	}
	pass := func() {
		w.send("192.168.0.9:4000", "203.0.113.99:53")    // nat[0]
		w.send("192.168.0.9:4001", "198.18.0.1:53")      // excepted
		w.send("192.168.0.9:4002", "192.168.0.99:53")    // stays inside
		w.send("10.3.0.9:4000", "203.0.113.99:53")       // of no rule
		w.send("203.0.113.7:4000", "203.0.113.99:53")    // the address that it would get
		w.send("192.168.0.11:4000", "203.0.113.99:5000") // nat[2] makes it another
	}
	w.ip("ip route add default via 203.0.113.254 dev wan0 onlink")
	text := `gateway:
  interfaces: {wan: wan0, lan: lan0}
  nat:
    - masquerade: {from: 192.168.0.0/16, except-to: 198.18.0.0/15}
    - masquerade: {from: 203.0.113.0/24}
    - snat: {from: 192.168.0.11, to: 203.0.113.7}
`
	pass()
	_, id := w.apply(text, 0)
	stay := []string{"10.3.0.9 > 203.0.113.99:53", "192.168.0.9 > 192.168.0.99:53", "192.168.0.9 > 198.18.0.1:53", "203.0.113.7 > 203.0.113.99:53"}
	if left := w.untranslated(); !slices.Equal(left, stay) {
		t.Errorf("left are %q, want %q", left, stay)
	}
	tx := w.load(id)
	i := slices.IndexFunc(tx.Changes, func(c journal.Change) bool { return c.Kind == tune.Gateway })
	if note := tx.Changes[i].Note; !strings.Contains(note, "2 connections") || !strings.Contains(note, "nat[0] masquerade (1)") || !strings.Contains(note, "nat[2] snat (1)") {
		t.Errorf("the journal says %q", note)
	}
	pass()
	if left := w.untranslated(); !slices.Equal(left, stay) {
		t.Errorf("their next packets: %q", left)
	}
	_, id = w.apply(strings.Replace(text, "    - snat", "    - masquerade: {from: 10.3.0.0/24}\n    - snat", 1), 0)
	if left := w.untranslated(); !slices.Equal(left, stay) {
		t.Errorf("rules in the place of others: %q", left)
	}
	for _, c := range w.load(id).Changes {
		if c.Note != "" {
			t.Errorf("%q", c.Note)
		}
	}
}

// TestNoConnectionPassesTheFirstRules: a host inside sends all the while that the first
// rules come in; afterwards nothing of it is untranslated.
func TestNoConnectionPassesTheFirstRules(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	w := newWorld(t)
	client := w.client()
	w.ip("sysctl -qw net.ipv4.ip_forward=1")
	passed := 0
	for range 10 {
		stop, stopped := make(chan struct{}), make(chan error, 1)
		sending := make(chan struct{}, 1)
		go func() { stopped <- sends(client, "203.0.113.99:53", sending, stop) }()
		<-sending
		_, id := w.apply(manyText(), 0)
		for _, s := range w.untranslated() {
			t.Errorf("passes untranslated: %s", s)
		}
		close(stop)
		if err := <-stopped; err != nil {
			t.Fatal(err)
		}
		for _, c := range w.load(id).Changes {
			passed += strings.Count(c.Note, "passed untranslated")
		}
		if _, err := w.Undo(id); err != nil {
			t.Fatal(err)
		}
		w.ip("sysctl -qw net.ipv4.ip_forward=1")
	}
	t.Logf("in %d of 10 some began too early", passed)
}

// client is a host behind lan0, with the address 192.168.0.2 and the gateway as its route.
func (w *world) client() *netns.Handle {
	w.t.Helper()
	ns, err := netns.New("gateway-client")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { ns.Close() })
	w.ip(fmt.Sprintf("ip link set lan1 netns /proc/%d/fd/%d", os.Getpid(), ns.Fd()))
	inside := &world{t: w.t, ns: ns}
	for _, line := range []string{"ip link set lo up", "ip addr add 192.168.0.2/24 dev lan1", "ip link set lan1 up", "ip route add default via 192.168.0.1"} {
		inside.ip(line)
	}
	w.ip("ip link set lan0 arp on")
	return ns
}

// sends sends datagrams of a hundred flows until stop, and says when it has begun.
func sends(ns *netns.Handle, to string, sending chan<- struct{}, stop <-chan struct{}) error {
	var flows []net.Conn
	err := ns.Do(func() error {
		for range 100 {
			c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to)))
			if err != nil {
				return err
			}
			flows = append(flows, c)
		}
		return nil
	})
	defer func() {
		for _, c := range flows {
			c.Close()
		}
	}()
	for err == nil {
		for _, c := range flows {
			if _, err = c.Write([]byte("x")); err != nil {
				break
			}
		}
		select {
		case sending <- struct{}{}:
		case <-stop:
			return err
		default:
		}
	}
	return err
}
