package drops

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

// TestCauses: a full table, a rule and a connection whose address is taken all drop
// by the same verdict; conntrack's counters distinguish them, and return values where
// the kernel has fexit.
func TestCauses(t *testing.T) {
	for _, way := range []string{"counters", "fexit"} {
		t.Run(way, func(t *testing.T) {
			testutil.NeedRoot(t)
			if way == "fexit" {
				testutil.NeedFeature(t, testutil.Fentry)
			}
			t.Run("table full", func(t *testing.T) { tableFull(t, way) })
			t.Run("not inserted", func(t *testing.T) { notInserted(t, way) })
			if way == "fexit" { // no counter counts it
				t.Run("not translated", notTranslated)
			}
		})
	}
}

func traceCauses(t *testing.T, way string, ns *netns.Handle) *Tracer {
	t.Helper()
	tr := start(t, Options{Netns: ns, FlowSample: 1, noVerdicts: way == "counters"})
	if notes := tr.Notes(); len(notes) > 0 {
		t.Errorf("something could not be done: %q", notes)
	}
	return tr
}

// tracked makes a namespace track connections, and drop what goes to port 10 before
// it does.
const tracked = `table ip f {
	chain early { type filter hook prerouting priority raw; udp dport 10 drop; };
	chain c { type filter hook forward priority 0; ct state new accept; };
}`

func tableFull(t *testing.T, way string) {
	testutil.LockHost(t)
	n := newNetwork(t)
	testutil.Nft(t, n.gateway, tracked)
	fillTable(t, n.gateway)
	tr := traceCauses(t, way, n.gateway)
	before := dropCounter(t, n.gateway)
	const full, rule = 300, 40
	newFlows(t, n.client, serverIP+":9", full)
	newFlows(t, n.client, serverIP+":10", rule)
	d := until(t, tr, full+rule)
	if d.NAT != way {
		t.Fatalf("identified by %q, want %q (%q)", d.NAT, way, tr.Notes())
	}
	// The counter is the kernel's own truth, early_drop and the like included.
	counted := dropCounter(t, n.gateway) - before
	if got := caused(d, snapshot.CauseTableFull); got != full || counted != full {
		t.Errorf("%d drops by a full table, conntrack counted %d, sent %d: %+v", got, counted, full, d.Causes)
	}
	if got := caused(d, snapshot.CauseRule); got != rule {
		t.Errorf("%d drops by a rule, want %d: %+v", got, rule, d.Causes)
	}
	var flows uint64
	for _, f := range d.Flows {
		if ap, err := netip.ParseAddrPort(f.Source); err == nil && ap.Addr().String() == clientIP {
			flows += f.Packets
		}
	}
	if flows != full+rule || d.LostFlows != 0 {
		t.Errorf("%d drops in flows of %s, want %d (%d lost)", flows, clientIP, full+rule, d.LostFlows)
	}
}

// fillTable inserts entries until the kernel takes no more.
func fillTable(t *testing.T, ns *netns.Handle) {
	t.Helper()
	u, err := dump.Count(ns)
	if err != nil {
		t.Fatal(err)
	}
	if u.Max > 1<<20 {
		testutil.Missing(t, fmt.Sprintf("needs nf_conntrack_max up to %d, it is %d: as many entries are made", 1<<20, u.Max))
	}
	i := 0
	_, err = dump.Insert(t.Context(), ns, func(e *conntrack.Entry) bool {
		orig := conntrack.Tuple{
			Src: netip.AddrFrom4([4]byte{198, 18, byte(16 + i>>22), byte(i >> 14)}), Dst: netip.MustParseAddr("198.19.0.1"),
			Proto: unix.IPPROTO_TCP, SrcPort: uint16(1024 + i&0x3fff), DstPort: 8080,
		}
		*e = conntrack.Entry{
			Family: unix.AF_INET, Orig: orig, Reply: orig.Mirror(), Status: conntrack.SeenReply | conntrack.Assured,
			TCPState: conntrack.TCPEstablished, Timeout: 600,
		}
		i++
		return i <= int(u.Max)+10
	})
	if !errors.Is(err, dump.ErrFull) {
		t.Fatalf("the table did not become full: %v", err)
	}
}

// toOneAddress leaves one source to all that goes to one destination.
const toOneAddress = "table ip n { chain c { type nat hook postrouting priority srcnat; udp dport 9 snat to 198.19.0.1:5000; }; }"

// notInserted has many flows translated to one address and port: the first one gets
// it.
func notInserted(t *testing.T, way string) {
	n := newNetwork(t)
	testutil.Nft(t, n.gateway, toOneAddress)
	tr := traceCauses(t, way, n.gateway)
	const flows = 50
	newFlows(t, n.client, serverIP+":9", flows)
	d := until(t, tr, flows-1)
	if got := caused(d, snapshot.CauseNotInserted); got != flows-1 {
		t.Errorf("%d drops of connections not inserted, want %d: %+v", got, flows-1, d.Causes)
	}
	if got := caused(d, snapshot.CauseTableFull) + caused(d, snapshot.CauseRule); got != 0 {
		t.Errorf("%d other drops: %+v", got, d.Causes)
	}
}

// TestCountersOfLaterNamespace: what counts all namespaces knows the counters of one
// that was not there at the start.
func TestCountersOfLaterNamespace(t *testing.T) {
	testutil.NeedRoot(t)
	tr := start(t, Options{noVerdicts: true})
	n := newNetwork(t)
	testutil.Nft(t, n.gateway, toOneAddress)
	const flows = 20
	newFlows(t, n.client, serverIP+":9", flows)
	var got uint64
	testutil.Eventually(t, "drops in the new namespace", func() bool {
		got = 0
		for _, c := range read(t, tr).Causes {
			if c.Netns == n.gateway.Inode() && c.Cause == snapshot.CauseNotInserted {
				got += c.Packets
			}
		}
		return got >= flows-1
	})
	if got != flows-1 {
		t.Errorf("%d drops of connections not inserted, want %d", got, flows-1)
	}
}

// notTranslated masquerades where no address may be used: they are valid on the link
// only (inet_select_addr).
func notTranslated(t *testing.T) {
	n := newNetwork(t)
	run(t, n.gateway, "ip addr flush dev eth0", "ip addr add 198.18.0.1/24 dev eth0 scope link",
		"ip addr flush dev eth1", "ip addr add 198.19.0.1/24 dev eth1 scope link")
	testutil.Nft(t, n.gateway, "table ip n { chain c { type nat hook postrouting priority srcnat; oifname eth1 masquerade; }; }")
	tr := traceCauses(t, "fexit", n.gateway)
	const flows = 30
	newFlows(t, n.client, serverIP+":9", flows)
	d := until(t, tr, flows)
	if got := caused(d, snapshot.CauseNATFailed); got != flows {
		t.Errorf("%d drops that could not be translated, want %d: %+v", got, flows, d.Causes)
	}
}

// newFlows sends a datagram from each of count ports.
func newFlows(t *testing.T, from *netns.Handle, to string, count int) {
	t.Helper()
	dst := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to))
	testutil.Inside(t, from, func() error {
		for i := range count {
			c, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(clientIP), Port: 20000 + i}, dst)
			if err != nil {
				return err
			}
			_, err = c.Write([]byte("x"))
			if err := errors.Join(err, c.Close()); err != nil {
				return err
			}
		}
		return nil
	})
}

func caused(d *snapshot.Drops, cause string) (packets uint64) {
	for _, c := range d.Causes {
		if c.Cause == cause {
			packets += c.Packets
		}
	}
	return packets
}

func dropCounter(t *testing.T, ns *netns.Handle) (drop uint64) {
	t.Helper()
	cpus, err := dump.Stats(ns)
	if err != nil {
		t.Fatal(err)
	}
	for _, cpu := range cpus {
		drop += cpu["drop"]
	}
	return drop
}

func TestProtocolName(t *testing.T) {
	for number, want := range map[uint32]string{
		0:                       "-",
		0x0800<<16 | 1<<8 | 6:   "tcp",
		0x86dd<<16 | 1<<8 | 58:  "icmp6",
		0x86dd<<16 | 1<<8:       "hopopt",
		0x0800<<16 | 1<<8 | 200: "ip proto 200",
		0x0800 << 16:            "ip", // the header could not be read
		0x86dd << 16:            "ip6",
		0x0806 << 16:            "arp",
		0x1234 << 16:            "ethertype 0x1234",
		0x0004 << 16:            "802.2",
	} {
		if got := protocolName(number); got != want {
			t.Errorf("protocolName(%#x) = %q, want %q", number, got, want)
		}
	}
}

// TestShares is the arithmetic of counters: kernel counters, and what they leave to
// rules.
func TestShares(t *testing.T) {
	full, missed, rule := snapshot.CauseTableFull, snapshot.CauseNotInserted, snapshot.CauseRule
	for _, tt := range []struct {
		name   string
		grown  map[string]int64
		hooked uint64
		want   map[string]uint64
	}{
		{"nothing", nil, 0, map[string]uint64{}},
		{"a rule", nil, 5, map[string]uint64{rule: 5}},
		{"a full table", map[string]int64{"drop": 5}, 5, map[string]uint64{full: 5}},
		{"a full table and a rule", map[string]int64{"drop": 5}, 8, map[string]uint64{full: 5, rule: 3}},
		{"clashes", map[string]int64{"drop": 4, "insert_failed": 4}, 4, map[string]uint64{missed: 4}},
		{"long chains", map[string]int64{"insert_failed": 4, "chaintoolong": 4}, 4, map[string]uint64{missed: 4}},
		{"all", map[string]int64{"drop": 10, "insert_failed": 7, "chaintoolong": 3}, 15, map[string]uint64{full: 6, missed: 7, rule: 2}},
		{"insert_failed of Linux 5.4, where clashes that were resolved count", map[string]int64{"insert_failed": 9}, 2, map[string]uint64{rule: 2}},
		{"more than was seen", map[string]int64{"drop": 9}, 2, map[string]uint64{full: 2}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := map[string]uint64{}
			for _, s := range shares(tt.grown, tt.hooked) {
				if s.packets > 0 {
					got[s.cause] += s.packets
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
