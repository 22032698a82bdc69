package report

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/tune"
)

var (
	masqueradeRef = gateway.Ref{List: "nat", Index: 0, Kind: "masquerade"}
	dnatRef       = gateway.Ref{List: "nat", Index: 1, Kind: "dnat"}
)

func TestGatewayPlan(t *testing.T) {
	g := &GatewayPlan{
		Digest: "b", Known: true, TimeWaitSeconds: 120,
		Difference: gateway.Diff{Before: "a", After: "b", Unchanged: 2, Renumbered: 1,
			Rules: []gateway.RuleDiff{
				{Change: gateway.Added, Rule: masqueradeRef, After: "from 10.0.0.0/8", Connections: "new ones"},
				{Change: gateway.Changed, Rule: dnatRef, Was: masqueradeRef, Before: "on \x1b[31m", After: "on 203.0.113.7", Connections: "they keep"},
			},
			Settings: []gateway.SettingDiff{{Setting: "mss", After: "clamp", Connections: "the SYN"}}},
		Changes: []tune.Change{{Kind: tune.Sysctl, Target: "net.ipv4.ip_forward", Before: "0", After: "1"}},
		Pools: []gateway.PoolCapacity{
			{Rule: masqueradeRef, Addresses: 1, Ports: 64512, AtOnce: 64512, PerSecond: 537.6, SharedWith: []gateway.Ref{dnatRef}},
			{Rule: gateway.Ref{List: "nat", Index: 2, Kind: "masquerade"}, Ports: 64512},
			{Rule: gateway.Ref{List: "nat", Index: 3, Kind: "static"}, OneForOne: true},
			{Rule: gateway.Ref{List: "ipv6", Kind: "snat"}, Addresses: math.MaxInt64, Ports: 64512, AtOnce: math.MaxInt64, PerSecond: 1e9},
		},
		Table:    &GatewayTable{Entries: 1000000, Max: 262144, MaxAfter: 1310720, FullBytes: 490 << 20},
		Carriers: []gateway.Carrier{{Rule: dnatRef, Engine: gateway.EngineEBPF}, {Rule: masqueradeRef, Engine: gateway.EngineNetfilter, Notes: []gateway.Note{{Rule: masqueradeRef, Engine: gateway.EngineEBPF, Because: "only the tracker can"}}}},
		Bypassed: []gateway.Bypassed{{Kind: gateway.BypassQdisc, What: "queueing discipline htb of wan0"}},
		Missing:  []string{"ppp0"}, Waiting: []gateway.Waiting{{Rule: dnatRef, Interface: "ppp0"}}, Obstacles: []string{"it was changed since"},
	}
	want := `Rules
  + nat[0] masquerade: from 10.0.0.0/8
    connections  new ones
  - nat[0] masquerade: on ␛[31m
  + nat[1] dnat: on 203.0.113.7
    connections  they keep
  2 rules stay as they are, 1 at another place of the file
  mss: – → clamp
    connections  the SYN

Engines
  nat[1] dnat        ebpf
  nat[0] masquerade  netfilter  not ebpf: only the tracker can
  passed by: queueing discipline htb of wan0

Plan
  net.ipv4.ip_forward  0  →  1

Capacity
  the connection table needs 1,000,000 entries, with those that have just ended; it holds 262,144,
  and 1,310,720 give room (up to 490 MiB of memory)
  rule               addresses  ports each   at once          new/s
  nat[0] masquerade          1      64,512    64,512          537.6  shared with nat[1] dnat
  nat[2] masquerade          0      64,512         0              0
    the interface has no address yet
  ipv6[0] snat        no limit      64,512  no limit  1,000,000,000
  at once: connections of all hosts to one destination (address, port, protocol); a host has the
  ports of one address. new/s: short TCP connections to one destination for which there is always a
  free port: the entry of an ended one holds it for 120.0 s.
missing: interface ppp0: its rules match once it exists
missing: an address of ppp0 for nat[1] dnat: 'natkit gateway run' waits for it
apply would refuse: it was changed since
`
	if diff := cmp.Diff(want, planText(t, g)); diff != "" {
		t.Error(diff)
	}
}

func planText(t *testing.T, g *GatewayPlan) string {
	t.Helper()
	var b bytes.Buffer
	if err := g.Text(&b, Style{}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestGatewayPlanInShort(t *testing.T) {
	same := planText(t, &GatewayPlan{Digest: "a", Known: true, Difference: gateway.Diff{Before: "a", After: "a"}})
	if !strings.Contains(same, "nothing changes: this plan is in force") || strings.Contains(same, "Capacity") {
		t.Error(same)
	}
	many := &GatewayPlan{Digest: "b", Difference: gateway.Diff{After: "b"}}
	for i := range 50 {
		many.Difference.Rules = append(many.Difference.Rules, gateway.RuleDiff{Change: gateway.Added, Rule: gateway.Ref{List: "nat", Index: i, Kind: "snat"}, After: fmt.Sprint(i), Connections: "new ones"})
	}
	text := planText(t, many)
	for _, want := range []string{"does not have the plan of what is in force", "… and 10 more (--json has them all)", "  connections  new ones\n"} {
		if strings.Count(text, want) != 1 {
			t.Errorf("%q is there %d times:\n%s", want, strings.Count(text, want), text)
		}
	}
}

func TestGatewayExplain(t *testing.T) {
	one := func(text string, port uint16) observe.Given {
		a := netip.MustParseAddr(text)
		return observe.Given{Addresses: []nat.AddrRange{{First: a, Last: a}}, Port: port}
	}
	e := &observe.Trace{
		Packet: nat.Packet{Protocol: 6, Src: netip.MustParseAddr("192.168.0.2"), SrcPort: 4000, Dst: netip.MustParseAddr("198.51.100.9"), DstPort: 443, In: "eth1"},
		Steps: []observe.Step{
			{Hook: "prerouting", Priority: -100, Chain: "ip nat PREROUTING", Owner: "docker", Does: "2 rules", Unsure: true},
			{Hook: "routing", Does: "to 198.51.100.9 by eth0"},
			{Hook: "postrouting", Priority: 120, Chain: "inet natkit postrouting", Rule: &masqueradeRef, Does: "the source becomes"},
			{Hook: "postrouting", Priority: math.MaxInt32, Does: "entered"},
		},
		Fate: observe.Forwarded, Out: "eth0", Source: one("203.0.113.7", 4000), Destination: one("198.51.100.9", 443),
		Reply: []observe.Step{{Hook: "prerouting", Priority: -200, Does: "an answer"}}, ReplyLost: "one direction",
		Near: []observe.NearMiss{{Rule: dnatRef, Why: []string{"it is for udp", "it is for eth0"}}}, NearMore: 3, Notes: []string{"a note"},
	}
	want := `tcp 192.168.0.2:4000 -> 198.51.100.9:443, in by eth1

  prerouting   -100  ip nat PREROUTING (docker)  2 rules
  routing                                        to 198.51.100.9 by eth0
  postrouting   120  inet natkit postrouting     nat[0] masquerade: the source becomes
  postrouting                                    entered

becomes tcp 203.0.113.7:4000 -> 198.51.100.9:443, leaves by eth0

The answer
  prerouting  -200    an answer
  lost: one direction

Rules about these addresses that do nothing to it
  nat[1] dnat: it is for udp; it is for eth0
  … and 3 more
note: a note
`
	if diff := cmp.Diff(want, explainText(t, e)); diff != "" {
		t.Error(diff)
	}
	e.Fate, e.Packet.In = observe.Unreachable, ""
	if text := explainText(t, e); !strings.Contains(text, ", of a program on the gateway\n") || !strings.Contains(text, "goes nowhere") {
		t.Error(text)
	}
	e.Fate = observe.Local
	if text := explainText(t, e); !strings.Contains(text, "stays here as tcp") {
		t.Error(text)
	}
}

func explainText(t *testing.T, e *observe.Trace) string {
	t.Helper()
	var b bytes.Buffer
	if err := (GatewayPacket{e}).Text(&b, Style{}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestFindingsOnAFullDiskAreOneError(t *testing.T) {
	err := GatewayFindings(&full{}, Style{}, "a.yaml", make([]gateway.Finding, manyFindings+3))
	if !errors.Is(err, errFull) {
		t.Error(err)
	}
}
