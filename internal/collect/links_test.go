package collect

import (
	stdcmp "cmp"
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

// TestLinks: a real queue that is too short, a class of one, and a filter that drops count what they lose.
func TestLinks(t *testing.T) {
	testutil.NeedRoot(t)
	ns := testutil.Namespace(t)
	testutil.Inside(t, ns, func() error {
		for _, name := range []string{"full0", "class0", "filter0"} {
			link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: 1400, TxQLen: 10}, PeerName: name + "p"}
			if err := upWithNeighbour(link); err != nil {
				return err
			}
		}
		index := func(name string) int {
			link, err := netlink.LinkByName(name)
			if err != nil {
				t.Fatal(err)
			}
			return link.Attrs().Index
		}
		root := func(name string) netlink.QdiscAttrs {
			return netlink.QdiscAttrs{LinkIndex: index(name), Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
		}
		if err := netlink.QdiscAdd(&netlink.Tbf{QdiscAttrs: root("full0"), Rate: 1000, Limit: 2000, Buffer: 1000000}); err != nil {
			return err
		}
		htb := netlink.NewHtb(root("class0"))
		htb.Defcls = 0x10
		class := netlink.NewHtbClass(netlink.ClassAttrs{LinkIndex: index("class0"), Parent: htb.Handle, Handle: netlink.MakeHandle(1, 0x10)}, netlink.HtbClassAttrs{Rate: 8000, Buffer: 1600, Cbuffer: 1600})
		short := &netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index("class0"), Handle: netlink.MakeHandle(2, 0), Parent: class.Handle}, QdiscType: "pfifo"}
		for _, err := range []error{netlink.QdiscAdd(htb), netlink.ClassAdd(class), netlink.QdiscAdd(short), addDroppingFilter(t, index("filter0"))} {
			if err != nil {
				return err
			}
		}
		for _, to := range []string{"198.18.0.2:9", "198.18.1.2:9", "198.18.2.2:9"} {
			c, err := net.Dial("udp", to)
			if err != nil {
				return err
			}
			for range 60 {
				_, _ = c.Write(make([]byte, 900)) // ENOBUFS
			}
			c.Close()
		}
		return nil
	})
	s, err := Read(t.Context(), Options{Netns: ns})
	if err != nil || s.Links == nil {
		t.Fatalf("%v, parts %+v", err, s.Parts)
	}
	for _, name := range []string{"tbf 1: of full0", "htb 1: of class0", "class htb 1:10 of class0", "pfifo 2: of class0", "clsact ffff: of filter0"} {
		if n, known := s.Links.Counter("qdisc " + name + " dropped"); !known || n == 0 {
			t.Errorf("%s dropped %d (%v): %+v", name, n, known, s.Links.Queues)
		}
	}
	for _, q := range s.Links.Queues {
		if filters := len(q.Filters); q.Filtering() && (filters != 1 || !strings.Contains(q.Filters[0].Text, "egress bpf") || q.Filters[0].Known) || !q.Filtering() && filters > 0 {
			t.Errorf("%s: %+v", &q, q.Filters)
		}
	}
	if n, known := s.Links.Counter("dev full0 tx_packets"); !known || s.Links.All[1].MTU != 1400 {
		t.Errorf("full0: %d (%v), %+v", n, known, s.Links.All)
	}
}

// upWithNeighbour gives an interface a network of its own with a neighbour that needs no ARP.
func upWithNeighbour(link *netlink.Veth) error {
	if err := netlink.LinkAdd(link); err != nil {
		return err
	}
	peer, err := netlink.LinkByName(link.PeerName)
	if err != nil {
		return err
	}
	third := map[string]byte{"full0": 0, "class0": 1, "filter0": 2}[link.Name]
	address := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(198, 18, third, 1), Mask: net.CIDRMask(24, 32)}}
	neighbour := &netlink.Neigh{LinkIndex: link.Index, IP: net.IPv4(198, 18, third, 2), State: netlink.NUD_PERMANENT, HardwareAddr: peer.Attrs().HardwareAddr}
	for _, err := range []error{netlink.LinkSetUp(link), netlink.LinkSetUp(peer), netlink.AddrAdd(link, address), netlink.NeighAdd(neighbour)} {
		if err != nil {
			return err
		}
	}
	return nil
}

func addDroppingFilter(t *testing.T, index int) error {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, int32(netlink.TC_ACT_SHOT)), asm.Return()}})
	if err != nil {
		return err
	}
	t.Cleanup(func() { program.Close() })
	clsact := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	if err := netlink.QdiscAdd(clsact); err != nil {
		return err
	}
	return netlink.FilterAdd(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_EGRESS, Protocol: 3, Priority: 1}, // ETH_P_ALL
		Fd:          program.FD(), Name: "dropper", DirectAction: true,
	})
}

// TestFilterWords: keys of u32 and of flower are understood, and what is not is said to be unknown.
func TestFilterWords(t *testing.T) {
	drop := []netlink.Action{&netlink.GenericAction{ActionAttrs: netlink.ActionAttrs{Action: netlink.TC_ACT_SHOT, Statistics: &netlink.ActionStatistic{Queue: &netlink.GnetStatsQueue{Drops: 7}}}}}
	u32 := func(keys ...nl.TcU32Key) *netlink.U32 {
		return &netlink.U32{FilterAttrs: netlink.FilterAttrs{Priority: 1}, Actions: drop, Sel: &nl.TcU32Sel{Keys: keys}}
	}
	udp := nl.IPProto(17)
	for want, f := range map[string]netlink.Filter{
		"u32 match ip protocol tcp match ip dport 80 (pref 1) action drop known":            u32(nl.TcU32Key{Mask: 0xff0000, Val: 6 << 16, Off: 8}, nl.TcU32Key{Mask: 0xffff, Val: 80, Off: 20}),
		"u32 match ip src 192.168.1.0/24 match ip sport 53 (pref 1) action drop known":      u32(nl.TcU32Key{Mask: 0xffffff00, Val: 0xc0a80100, Off: 12}, nl.TcU32Key{Mask: 0xffff0000, Val: 53 << 16, Off: 20}),
		"u32 match ip dst 198.18.0.1/32 match 0000aaaa/0000ffff at 32 (pref 1) action drop": u32(nl.TcU32Key{Mask: 0xffffffff, Val: 0xc6120001, Off: 16}, nl.TcU32Key{Mask: 0xffff, Val: 0xaaaa, Off: 32}),
		"flower ip_proto udp dst_port 53 (pref 1) action drop known":                        &netlink.Flower{FilterAttrs: netlink.FilterAttrs{Priority: 1}, IPProto: &udp, DestPort: 53, Actions: drop},
		"matchall (pref 1) action police rate 8000 bit/s drop known": &netlink.MatchAll{FilterAttrs: netlink.FilterAttrs{Priority: 1}, Actions: []netlink.Action{
			&netlink.PoliceAction{Rate: 1000, ExceedAction: netlink.TC_POLICE_SHOT}}},
	} {
		q, drops := filterOf(f)
		got := q.Text
		if q.Known {
			got += " known"
		}
		if !drops || got != want {
			t.Errorf("%q (%v), want %q", got, drops, want)
		}
	}
	if q, _ := filterOf(u32()); q.Dropped != 7 || !q.Counted {
		t.Errorf("%+v", q)
	}
	if q, drops := filterOf(&netlink.U32{Actions: []netlink.Action{&netlink.MirredAction{}}}); drops {
		t.Errorf("one that mirrors drops: %+v", q)
	}
}

// TestCounterLines: IPv6's and IPsec's counters are read by name, others left out.
func TestCounterLines(t *testing.T) {
	got := snapshot.Counters{}
	text := "Ip6InHdrErrors                  \t5\nIcmp6InMsgs                     \t9\nUdp6RcvbufErrors                \t2\nXfrmInNoPols            \t3\n"
	if err := parseCounterLines(strings.NewReader(text), procSNMP6, got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(snapshot.Counters{"Ip6InHdrErrors": 5, "Udp6RcvbufErrors": 2, "XfrmInNoPols": 3}, got); d != "" {
		t.Error(d)
	}
	if err := parseCounterLines(strings.NewReader("Ip6InHdrErrors\tx\n"), procSNMP6, got); err == nil {
		t.Error("no number is accepted")
	}
}

// TestIPsecPolicies: policies are read where IPsec dropped anything.
func TestIPsecPolicies(t *testing.T) {
	testutil.NeedRoot(t)
	if _, err := os.Stat(procXfrm); err != nil {
		t.Skip("this kernel has no IPsec") // CONFIG_XFRM_STATISTICS
	}
	ns := testutil.Namespace(t)
	testutil.Inside(t, ns, func() error {
		blocked := &net.IPNet{IP: net.IPv4(198, 18, 0, 2).To4(), Mask: net.CIDRMask(32, 32)}
		all := &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
		policy := &netlink.XfrmPolicy{Src: all, Dst: blocked, Dir: netlink.XFRM_DIR_OUT, Action: netlink.XFRM_POLICY_BLOCK}
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "full0"}, PeerName: "full0p"}
		if err := stdcmp.Or(upWithNeighbour(link), netlink.XfrmPolicyAdd(policy)); err != nil {
			return err
		}
		if c, err := net.Dial("udp", "198.18.0.2:9"); err == nil {
			c.Close()
			return errors.New("the policy does not block")
		}
		return nil
	})
	s, err := Read(t.Context(), Options{Netns: ns})
	if err != nil || s.TCP == nil || s.TCP.Counters["XfrmOutPolBlock"] == 0 || len(s.IPsecPolicies) != 1 || !s.IPsecPolicies[0].Blocks {
		t.Errorf("%v, %d, %+v", err, s.TCP.Counters["XfrmOutPolBlock"], s.IPsecPolicies)
	}
}
