package report

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/snapshot"
)

func tracedDrops() *snapshot.Drops {
	return &snapshot.Drops{
		Seconds: 2, Source: "tp_btf", Packets: 1200, Harmless: 3, LostEvents: 7,
		Sites: []snapshot.DropSite{
			{Function: "nf_hook_slow", Offset: 0xa4, Reason: "NETFILTER_DROP", Protocol: "tcp", Netns: 1, Packets: 1000},
			{Function: "0xffffffff81000000", Protocol: "udp", Netns: 2, Packets: 150},
			{Function: "f\x1b[2J", Module: "ev\nil", Reason: "NO_SOCKET", Protocol: "-", Packets: 50},
		},
		Flows: []snapshot.DropFlow{
			{Function: "nf_hook_slow", Protocol: "tcp", Source: "198.18.0.2:1024", Destination: "198.19.0.2:80", Interface: "eth0", Netns: 1, Packets: 3},
			{Function: "nf_hook_slow", Protocol: "tcp", Source: "198.18.0.3:1024", Destination: "198.19.0.2:80", Interface: "eth0", Netns: 1, Packets: 1},
		},
		FlowSample: 64, StackSample: 1024,
		Stacks: []snapshot.DropStack{
			{Functions: []string{"nf_hook_slow+0xa4", "ip_rcv+0x10"}, Reason: "NETFILTER_DROP", Protocol: "tcp", Netns: 1, Packets: 1},
			{Functions: []string{"udp_rcv+0x1"}, Protocol: "udp", Netns: 2, Packets: 1},
		},
		Programs: []snapshot.ProgramDrop{{Reason: "no mapping", Netns: 1, Packets: 40, Bytes: 4096}},
		NAT:      "fexit",
		Causes:   []snapshot.DropCause{{Cause: snapshot.CauseTableFull, Netns: 1, Packets: 900, Source: "nf_conntrack_in"}},
	}
}

func TestDrops(t *testing.T) {
	view := DropsView{Rows: 2, Netns: func(inode uint64) string { return map[uint64]string{1: "gate\x1b[0mway"}[inode] }}
	var got bytes.Buffer
	if err := Drops(&got, Style{}, view, tracedDrops()); err != nil {
		t.Fatal(err)
	}
	const want = `1,200 packets dropped in 2.0 s (600.0/s), counted by tp_btf
3 frees that are no drops are left out (--all shows them)
7 drops came too fast to be shown one by one; they are counted

 packets   per s   share  protocol  reason          function            netns
   1,000   500.0  83.3 %  tcp       NETFILTER_DROP  nf_hook_slow+0xa4   gate␛[0mway
     150    75.0  12.5 %  udp       –               0xffffffff81000000  2
                                                    … and 1 more

netfilter drops, attributed by return values of conntrack and NAT functions
 packets  cause                  source           netns
     900  connection table full  nf_conntrack_in  gate␛[0mway

of these dropped by eBPF programs of gateways
 packets     bytes  reason      netns
      40     4 KiB  no mapping  gate␛[0mway

flows: of one in 64 drops, and the first 64 of each place (--flows: of all)
 packets  protocol  source           destination    interface  function      netns
       3  tcp       198.18.0.2:1024  198.19.0.2:80  eth0       nf_hook_slow  gate␛[0mway
       1  tcp       198.18.0.3:1024  198.19.0.2:80  eth0       nf_hook_slow  gate␛[0mway

interfaces of these flows
 packets   share  interface  netns
       4   100 %  eth0       gate␛[0mway

stack of 1 drop (of one in 1,024, and the first of each place): tcp NETFILTER_DROP, netns gate␛[0mway
    nf_hook_slow+0xa4
    ip_rcv+0x10
`
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Error(diff)
	}
}

// TestDropsAreClean: names come from the kernel, and who loads a module names it.
func TestDropsAreClean(t *testing.T) {
	var got bytes.Buffer
	d := tracedDrops()
	d.Flows[0].Interface, d.Stacks[0].Functions[0], d.Causes[0].Source = "e\x1b]0;x\a", "f\r", "\x9b"
	if err := Drops(&got, Style{}, DropsView{Stacks: true}, d); err != nil {
		t.Fatal(err)
	}
	event := snapshot.DropEvent{Time: time.Unix(0, 0).UTC(), Function: "f\x1b[2J", Protocol: "tcp", Source: "198.18.0.2:1", Destination: "198.19.0.2:2",
		TCPFlags: "SYN", Length: 60, Interface: "e\nth0", Netns: 7, Reason: "NO_SOCKET", Cause: "rule"}
	if err := DropEvent(&got, DropsView{}, event); err != nil {
		t.Fatal(err)
	}
	if i := strings.IndexFunc(got.String(), func(r rune) bool { return r != '\n' && (r < ' ' || r >= 0x7f && r < 0xa0) }); i >= 0 {
		t.Errorf("%q", got.String()[i:])
	}
	const line = "00:00:00.000000  tcp  198.18.0.2:1 > 198.19.0.2:2  [SYN]  60 B  on e th0  in 7  NO_SOCKET  f␛[2J+0x0  (rule)\n"
	if !strings.HasSuffix(got.String(), line) {
		t.Errorf("got %q, want at the end %q", got.String(), line)
	}
}

func TestDropsSince(t *testing.T) {
	site := func(function string, packets uint64) snapshot.DropSite {
		return snapshot.DropSite{Function: function, Packets: packets}
	}
	before := &snapshot.Drops{Seconds: 1, Packets: 12, Sites: []snapshot.DropSite{site("a", 10), site("b", 2)}}
	now := &snapshot.Drops{Seconds: 3, Packets: 22, Harmless: 1, Sites: []snapshot.DropSite{site("a", 11), site("c", 6), site("b", 2), site("d", 3)}}
	want := &snapshot.Drops{Seconds: 2, Packets: 10, Harmless: 1, Sites: []snapshot.DropSite{site("c", 6), site("d", 3), site("a", 1)}}
	if diff := cmp.Diff(want, now.Since(before)); diff != "" {
		t.Error(diff)
	}
}
