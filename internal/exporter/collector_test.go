package exporter

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/state"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/watch"
)

// fill makes connections first to first+n-1 of 198.18.0.1, which becomes 198.19.0.1.
func fill(t *testing.T, ns *netns.Handle, first, n int) {
	t.Helper()
	i := first
	taken, err := dump.Insert(t.Context(), ns, func(e *conntrack.Entry) bool {
		orig := conntrack.Tuple{Src: netip.MustParseAddr("198.18.0.1"), Proto: unix.IPPROTO_TCP,
			Dst: netip.MustParseAddr("203.0.113.1"), SrcPort: uint16(1024 + i), DstPort: 443}
		reply := orig.Mirror()
		reply.Dst = netip.MustParseAddr("198.19.0.1")
		*e = conntrack.Entry{Family: unix.AF_INET, Orig: orig, Reply: reply, Status: conntrack.SeenReply | conntrack.Assured,
			TCPState: conntrack.TCPEstablished, Timeout: 3600}
		i++
		return i <= first+n
	})
	if err != nil || taken != int64(n) {
		t.Fatalf("inserted %d of %d: %v", taken, n, err)
	}
}

// send sends datagrams, on the calling thread's network namespace.
func send(to string, n int) error {
	c, err := net.Dial("udp", to)
	if err != nil {
		return err
	}
	defer c.Close()
	for range n {
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
	}
	return nil
}

// began starts a collector, which ends with the test.
func began(t *testing.T, o Options) *Collector {
	t.Helper()
	o.Every, o.Limits.Top, o.table = time.Second, 10, watch.Unlimited()
	o.Note = func(text string) { t.Log(text) }
	c := New(o)
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// TestCollector: each part of a state is what was put into the namespace.
func TestCollector(t *testing.T) {
	testutil.ShareHost(t)
	ns, client := testutil.Namespace(t, "gw"), testutil.Namespace(t, "client")
	testutil.Veth(t, testutil.End{Netns: client, Name: "eth0", Addresses: []string{"198.18.0.2/24"}},
		testutil.End{Netns: ns, Name: "eth0", Addresses: []string{"198.18.0.1/24"}})
	testutil.Nft(t, ns, `table ip nat {
		chain pre { type nat hook prerouting priority -100; tcp dport 80 dnat to 198.18.0.2; }
		chain in { type filter hook input priority 0; udp dport 9 drop; }
	}`)
	fill(t, ns, 0, 1000)
	c := began(t, Options{Netns: []*netns.Handle{ns}, Version: "v1"})
	first := c.State()
	if first.Schema != state.Schema || first.Version != "v1" || first.Kernel.Release == "" || len(first.Namespaces) != 1 {
		t.Fatalf("%+v", first)
	}
	n := first.Namespaces[0]
	if n.Name != "gw" || n.Inode != ns.Inode() || n.Counters == nil || n.Counters.Entries != 1000 || n.Counters.Limit <= 0 || n.Table != nil || len(n.History.Times) != 1 {
		t.Errorf("before an examination: %+v", n)
	}
	c.examine(t.Context())
	fill(t, ns, 1000, 500)
	testutil.Inside(t, client, func() error { return send("198.18.0.1:9", 3) })
	testutil.Eventually(t, "another reading of the table", func() bool { // once the first one is paid for
		c.examine(t.Context())
		n = c.State().Namespaces[0]
		return n.Table.Flows != nil
	})
	c.count(t.Context())
	n = c.State().Namespaces[0]
	if n.Counters.Entries < 1500 || n.Table == nil || n.Table.TCPStates["ESTABLISHED"] != 1500 || n.Table.SNAT != 1500 {
		t.Errorf("counters %+v, table %+v", n.Counters, n.Table)
	}
	if n.Table.Flows == nil || n.Table.Flows.NewPerSecond <= 0 || n.Table.TopSources[0].Who != "198.18.0.1" {
		t.Errorf("flows %+v, sources %+v", n.Table.Flows, n.Table.TopSources)
	}
	if n.Ports == nil || len(n.Ports.Addresses) == 0 || n.Ports.Addresses[0].Address != "198.19.0.1" || n.Ports.Addresses[0].Used < 1000 {
		t.Errorf("ports %+v", n.Ports)
	}
	if n.Services == nil || n.Services.Total == 0 {
		t.Errorf("services %+v", n.Services)
	}
	if f := n.Findings; f == nil || f.Reports < 1 || f.Checks[diagnose.OK] == 0 ||
		!slices.ContainsFunc(f.All, func(f state.Finding) bool { return f.ID == "forwarding-off" && f.Finding != nil }) {
		t.Errorf("findings %+v", n.Findings)
	}
	if d := n.Drops; d == nil || d.Packets < 3 || d.Places[0].Function == "" {
		t.Errorf("drops %+v, unread %+v", n.Drops, n.Unread)
	}
	for _, u := range n.Unread {
		t.Errorf("%s could not be read: %s", u.Part, u.Why)
	}
	if ages := n.Ages(); len(ages) != len(state.Parts) || len(n.History.Times) != 2 || n.History.Series[state.SeriesEntries][0] != 1000 {
		t.Errorf("ages %v, history %+v", ages, n.History)
	}
	if first.Namespaces[0].Counters.Entries != 1000 || len(first.Namespaces[0].History.Times) != 1 {
		t.Error("a state changed after it was returned")
	}
}

// TestRun: the loops read again and again, also while states are asked for, and end.
func TestRun(t *testing.T) {
	t.Parallel()
	ns := testutil.Namespace(t)
	c := began(t, Options{Netns: []*netns.Handle{ns}})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); c.Run(ctx) }()
	testutil.Eventually(t, "a report and some points", func() bool {
		n := c.State().Namespaces[0]
		return n.Findings != nil && len(n.History.Times) >= 3
	})
	stop()
	<-ended
	if ns.Inode() != c.State().Namespaces[0].Inode {
		t.Error("another namespace")
	}
}

// TestAllNamespaces: those with a process are found, those that end are left, though natkit itself holds them.
func TestAllNamespaces(t *testing.T) {
	ns := testutil.Namespace(t, "pod")
	var inside *exec.Cmd
	testutil.Inside(t, ns, func() error {
		inside = exec.Command("sleep", "1000")
		return inside.Start()
	})
	end := func() {
		inside.Process.Kill()
		inside.Wait()
	}
	t.Cleanup(end)
	c := began(t, Options{All: true})
	find := func() *state.Namespace {
		all := c.State().Namespaces
		i := slices.IndexFunc(all, func(n state.Namespace) bool { return n.Inode == ns.Inode() })
		if i < 0 {
			return nil
		}
		return &all[i]
	}
	own, err := netns.InodeOf(nil)
	if err != nil {
		t.Fatal(err)
	}
	if first := c.State().Namespaces[0]; first.Inode != own || first.Name != "" {
		t.Errorf("the first is %s (%d), want natkit's own", first.Name, first.Inode)
	}
	pod := find()
	if pod == nil || pod.Name != fmt.Sprintf("pid %d", inside.Process.Pid) || pod.Owner == nil || pod.Owner.Process != "sleep" || pod.Counters == nil {
		t.Fatalf("%+v", pod)
	}
	if err := c.find(); err != nil || find() == nil {
		t.Errorf("a second search loses it: %v", err)
	}
	end()
	testutil.Eventually(t, "it is left", func() bool { // threads that read it end a moment later
		if err := c.find(); err != nil {
			t.Fatal(err)
		}
		return find() == nil
	})
}

// TestOwnNamespace: without a name it is that which natkit runs in.
func TestOwnNamespace(t *testing.T) {
	t.Parallel()
	testutil.NeedRoot(t)
	c := began(t, Options{})
	s, err := c.Once(t.Context())
	if err != nil || len(s.Namespaces) != 1 || s.Namespaces[0].Name != "" || s.Namespaces[0].Findings == nil {
		t.Errorf("%+v, %v", s, err)
	}
	if s.Self.CPUSeconds <= 0 || strings.TrimSpace(s.Kernel.Release) == "" {
		t.Errorf("%+v", s)
	}
}

// TestPortsOfLargeTable: ports that run out are found as doctor finds them, where the part of the table that is read has few of
// them; metrics have their number exactly.
func TestPortsOfLargeTable(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "nft")
	testutil.ShareHost(t)
	ns := testutil.Namespace(t)
	testutil.Inside(t, ns, func() error {
		return errors.Join(exec.Command("ip", "link", "set", "lo", "up").Run(), exec.Command("ip", "address", "add", "198.18.0.1/32", "dev", "lo").Run())
	})
	testutil.Nft(t, ns, "add table ip t\nadd chain ip t post { type nat hook postrouting priority 100; }\nadd rule ip t post udp dport 9 masquerade to :20000-20199\n")
	const others = 50_000 // of one address towards one destination, which are too few for a finding
	fill(t, ns, 0, others)
	c := New(Options{Netns: []*netns.Handle{ns}, Every: time.Second, Limits: state.Limits{Top: 10}, table: watch.Unlimited()})
	c.o.table.First, c.o.table.Most = 1024, 1024
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	port := uint16(1024)
	var found *state.Finding
	testutil.Eventually(t, "the finding", func() bool {
		testutil.Inside(t, ns, func() error { // half of them do not get a port
			for range 400 {
				port++
				if err := testutil.SendUDP(netip.AddrPortFrom(netip.MustParseAddr("198.18.0.1"), port), netip.MustParseAddrPort("198.18.0.1:9")); err != nil {
					return err
				}
			}
			return nil
		})
		c.examine(t.Context())
		f := c.State().Namespaces[0].Findings
		if f == nil {
			return false
		}
		i := slices.IndexFunc(f.All, func(f state.Finding) bool { return f.ID == "snat-ports-exhausted" && f.Finding != nil })
		if i >= 0 {
			found = &f.All[i]
		}
		return i >= 0
	})
	if e := found.Finding.Evidence[0]; fmt.Sprint(e.Value) != "200" || !strings.Contains(e.Source, "chosen by the kernel") {
		t.Errorf("evidence %+v", e)
	}
	for range 3 { // the second and third time nothing fails any more, and the ports are still in use
		n := c.State().Namespaces[0]
		i := slices.IndexFunc(n.Ports.Addresses, func(a state.Address) bool { return a.Address == "198.18.0.1" && a.Protocol == "udp" })
		if i < 0 || n.Ports.Addresses[i].Used != 200 || !n.Ports.Addresses[i].Exact || n.Ports.Addresses[i].Ports != 200 || n.Ports.Complete {
			t.Errorf("ports %+v", n.Ports)
		}
		c.examine(t.Context())
	}
}
