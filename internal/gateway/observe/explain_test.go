package observe

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

// explained is a Way in few lines.
func explained(e *Trace) string {
	var b strings.Builder
	for _, s := range e.Steps {
		fmt.Fprintf(&b, "%s", s.Hook)
		if s.Chain != "" {
			fmt.Fprintf(&b, " %d %s", s.Priority, s.Chain)
		}
		if s.Rule != nil {
			fmt.Fprintf(&b, " %s", s.Rule)
		}
		fmt.Fprintf(&b, ": %s\n", s.Does)
	}
	fmt.Fprintf(&b, "%s %s -> %s\n", e.Fate, e.Source, e.Destination)
	for _, s := range e.Reply {
		fmt.Fprintf(&b, "back: %s\n", s.Does)
	}
	if e.ReplyLost != "" {
		fmt.Fprintf(&b, "lost: %s\n", e.ReplyLost)
	}
	for _, n := range e.Near {
		fmt.Fprintf(&b, "not %s: %s\n", n.Rule, strings.Join(n.Why, "; "))
	}
	for _, n := range e.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	return b.String()
}

const tracked = `conntrack: a new connection; its first packet alone asks the nat chains`
const confirmed = `postrouting: the connection is entered into the table (nf_conntrack_confirm)`

func TestExplain(t *testing.T) {
	for _, c := range []struct{ name, body, in, packet, want string }{
		{"masquerade, and why not the others", manyKinds, "eth1", "tcp 192.168.0.9:4000 -> 198.18.0.1:443", `
prerouting: ` + tracked + `
prerouting -80 inet natkit prerouting: no rule is for 198.18.0.1:443: it stays
routing: to 198.18.0.1 by eth0 via 203.0.113.254
postrouting 109 inet natkit untranslatable: passes; dropped if it were invalid to conntrack, as nat[0] masquerade could not translate it
postrouting 120 inet natkit postrouting nat[0] masquerade: the source becomes 203.0.113.1:4000; if that port is taken towards this destination, another of 1024-65535
` + confirmed + `
forwarded 203.0.113.1:4000 -> 198.18.0.1:443
back: an answer from 198.18.0.1:443 comes for 203.0.113.1:4000: the destination becomes 192.168.0.9:4000 again
back: to 192.168.0.9 by eth1
`},
		{"the excepted destination", manyKinds, "eth1", "udp 192.168.0.9:4000 -> 10.9.0.1:53", `
prerouting: ` + tracked + `
prerouting -80 inet natkit prerouting: no rule is for 10.9.0.1:53: it stays
routing: to 10.9.0.1 by eth0 via 203.0.113.254
postrouting 120 inet natkit postrouting: no rule is for what 192.168.0.9 sends by eth0: the source stays
` + confirmed + `
forwarded 192.168.0.9:4000 -> 10.9.0.1:53
back: an answer from 10.9.0.1:53 comes for 192.168.0.9:4000
back: to 192.168.0.9 by eth1
not nat[0] masquerade: not to 10.0.0.0/8
`},
		{"the more specific rule", manyKinds, "eth1", "tcp 192.168.0.2:100 -> 198.18.0.1:443", `
prerouting: ` + tracked + `
prerouting -80 inet natkit prerouting: no rule is for 198.18.0.1:443: it stays
routing: to 198.18.0.1 by eth0 via 203.0.113.254
postrouting 109 inet natkit untranslatable: passes; dropped if it were invalid to conntrack, as nat[1] snat could not translate it
postrouting 120 inet natkit postrouting nat[1] snat: the source becomes 203.0.113.7:100; if that port is taken towards this destination, another of 1-511
` + confirmed + `
forwarded 203.0.113.7:100 -> 198.18.0.1:443
back: an answer from 198.18.0.1:443 comes for 203.0.113.7:100: the destination becomes 192.168.0.2:100 again
back: to 192.168.0.2 by eth1
not nat[0] masquerade: nat[1] snat is more specific
note: 203.0.113.7: no address of this host: what is outside must route answers to it
`},
		{"dnat from outside keeps the source", manyKinds, "eth0", "tcp 198.18.0.1:4000 -> 203.0.113.7:8080", `
prerouting: ` + tracked + `
prerouting -80 inet natkit prerouting nat[3] dnat: the destination becomes 172.17.0.2:80
routing: to 172.17.0.2 by eth2
postrouting 120 inet natkit postrouting: no rule is for what 198.18.0.1 sends by eth2: the source stays
` + confirmed + `
forwarded 198.18.0.1:4000 -> 172.17.0.2:80
back: an answer from 172.17.0.2:80 comes for 198.18.0.1:4000
back: to 198.18.0.1 by eth0
back: the source becomes 203.0.113.7:8080 again
not nat[7] dnat: nat[3] dnat is more specific
not nat[4] dnat: only udp/5000-5600; only from 198.51.100.0/24
`},
		{"hairpin", manyKinds, "eth1", "tcp 192.168.0.9:4000 -> 203.0.113.7:8080", `
prerouting: ` + tracked + `
prerouting -80 inet natkit prerouting nat[3] dnat: the destination becomes 172.17.0.2:80
routing: to 172.17.0.2 by eth2
postrouting 120 inet natkit postrouting nat[3] dnat: the source becomes 203.0.113.7:4000; if that port is taken towards this destination, another of 1024-65535
` + confirmed + `
forwarded 203.0.113.7:4000 -> 172.17.0.2:80
back: an answer from 172.17.0.2:80 comes for 203.0.113.7:4000: the destination becomes 192.168.0.9:4000 again
back: to 192.168.0.9 by eth1
back: the source becomes 203.0.113.7:8080 again
not nat[0] masquerade: only out eth0, not eth2
not nat[7] dnat: only in eth0; from inside that would be hairpin: true
not nat[4] dnat: only udp/5000-5600; only from 198.51.100.0/24; only in eth0; from inside that would be hairpin: true
`},
		{"static to static, by their external addresses", roles + `
  nat:
    - static: {inside: 192.168.0.3, outside: 203.0.113.9, hairpin: true}
    - static: {inside: 192.168.0.4, outside: 203.0.113.10}`, "eth1", "icmp 192.168.0.4:77 -> 203.0.113.9", `
prerouting: ` + tracked + `
prerouting -80 inet natkit prerouting nat[0] static: the destination becomes 192.168.0.3:77
routing: to 192.168.0.3 by eth1
postrouting 120 inet natkit postrouting nat[1] static: the source becomes 203.0.113.10:77; if that identifier is taken towards this destination, another of 0-65535
` + confirmed + `
forwarded 203.0.113.10:77 -> 192.168.0.3:77
back: an answer from 192.168.0.3 comes for 203.0.113.10:77: the destination becomes 192.168.0.4:77 again
back: to 192.168.0.4 by eth1
back: the source becomes 203.0.113.9 again
`},
		{"a program on the gateway", roles + `
  nat:
    - static: {inside: 192.168.0.3, outside: 203.0.113.9, local: true}
    - dnat: {on: 203.0.113.9, port: tcp/80, to: 192.168.0.5}`, "", "tcp 203.0.113.1:4000 -> 203.0.113.9:80", `
output: ` + tracked + `
output -80 inet natkit output nat[0] static: the destination becomes 192.168.0.3:80
routing: to 192.168.0.3 by eth1
postrouting 120 inet natkit postrouting: no rule is for what 203.0.113.1 sends by eth1: the source stays
` + confirmed + `
forwarded 203.0.113.1:4000 -> 192.168.0.3:80
back: an answer from 192.168.0.3:80 comes for 203.0.113.1:4000
back: to the program on the gateway
back: the source becomes 203.0.113.9:80 again
not nat[1] dnat: not for programs on the gateway itself: that would be local: true
`},
		{"untracked", roles + `
  nat:
    - notrack: {on: 203.0.113.1, port: udp/53}
    - masquerade: {}`, "eth0", "udp 198.18.0.1:4000 -> 203.0.113.1:53", `
prerouting -300 inet natkit raw-prerouting nat[0] notrack: not tracked
prerouting: conntrack: not tracked; no nat chain is asked
routing: 203.0.113.1 is the gateway's own: it goes no further
local 198.18.0.1:4000 -> 203.0.113.1:53
back: not tracked
back: conntrack: not tracked; no nat chain is asked
back: to 198.18.0.1 by eth0 via 203.0.113.254
`},
		{"stateless out", roles + `
  nat:
    - netmap: {inside: 192.168.0.0/24, outside: 198.51.100.0/24, stateless: true}`, "eth1", "tcp 192.168.0.77:4000 -> 198.18.0.1:80", `
prerouting -300 inet natkit raw-prerouting nat[0] netmap: not tracked
prerouting: conntrack: not tracked; no nat chain is asked
routing: to 198.18.0.1 by eth0 via 203.0.113.254
postrouting 110 inet natkit stateless nat[0] netmap: the source becomes 198.51.100.77:4000, packet by packet
forwarded 198.51.100.77:4000 -> 198.18.0.1:80
back: not tracked; the destination becomes 192.168.0.77:4000, packet by packet
back: conntrack: not tracked; no nat chain is asked
back: to 192.168.0.77 by eth1
note: 198.51.100.77: no address of this host: what is outside must route answers to it
`},
		{"stateless in", roles + `
  nat:
    - netmap: {inside: 192.168.0.0/24, outside: 198.51.100.0/24, stateless: true}`, "eth0", "tcp 198.18.0.1:4000 -> 198.51.100.77:80", `
prerouting -300 inet natkit raw-prerouting nat[0] netmap: not tracked; the destination becomes 192.168.0.77:80, packet by packet
prerouting: conntrack: not tracked; no nat chain is asked
routing: to 192.168.0.77 by eth1
forwarded 198.18.0.1:4000 -> 192.168.0.77:80
back: not tracked
back: conntrack: not tracked; no nat chain is asked
back: to 198.18.0.1 by eth0 via 203.0.113.254
back: the source becomes 198.51.100.77:80, packet by packet
`},
		{"NPTv6, back inside", roles + `
  ipv6:
    - netmap: {inside: "fd00:1::/64", outside: "2001:db8:5::/64", stateless: true}`, "eth1", "udp [fd00:1::7]:4000 -> [2001:db8:5:0:cf43::2]:53", `
prerouting -300 inet natkit raw-prerouting ipv6[0] netmap: not tracked; the source becomes [2001:db8:5:0:cf43::7]:4000, the destination [fd00:1::2]:53, packet by packet
prerouting: conntrack: not tracked; no nat chain is asked
routing: to fd00:1::2 by eth1
forwarded [2001:db8:5:0:cf43::7]:4000 -> [fd00:1::2]:53
back: not tracked; the source becomes [2001:db8:5:0:cf43::2]:53, the destination [fd00:1::7]:4000, packet by packet
back: conntrack: not tracked; no nat chain is asked
back: to fd00:1::7 by eth1
`},
		{"around a stateless rule", roles + `
  nat:
    - static: {inside: 192.168.0.77, outside: 203.0.113.77, stateless: true}`, "eth0", "tcp 198.18.0.1:4000 -> 192.168.0.77:80", `
prerouting -300 inet natkit raw-prerouting: no rule is for it: it is tracked
prerouting: ` + tracked + `
routing: to 192.168.0.77 by eth1
` + confirmed + `
forwarded 198.18.0.1:4000 -> 192.168.0.77:80
back: not tracked
back: conntrack: not tracked; no nat chain is asked
back: to 198.18.0.1 by eth0 via 203.0.113.254
back: the source becomes 203.0.113.77:80, packet by packet
lost: it comes as one from 203.0.113.77 to 198.18.0.1, not from 192.168.0.77 to 198.18.0.1: the two directions are not translated by the same rule
`},
		{"no route", manyKinds, "eth1", "tcp 192.168.0.9:4000 -> 198.18.9.9:443", `
prerouting: ` + tracked + `
prerouting -80 inet natkit prerouting: no rule is for 198.18.9.9:443: it stays
routing: to 198.18.9.9: there is no route
unreachable 192.168.0.9:4000 -> 198.18.9.9:443
`},
		{"limits, MSS and the fast path", roles + `
  mss: clamp
  flowtable: on
  limits: {connections-per-source: 2000}
  nat:
    - snat: {to: 203.0.113.1, ports: keep}`, "eth1", "tcp 192.168.0.77:4000 -> 198.18.0.1:80", `
prerouting: ` + tracked + `
routing: to 198.18.0.1 by eth0 via 203.0.113.254
forward -150 inet natkit mss: MSS of the SYN is at most what the route's MTU takes
forward 0 inet natkit forward: dropped if 192.168.0.77 has 2000 connections already · once answered, the connection goes by the flowtable and comes to no hook after ingress
postrouting 109 inet natkit untranslatable: passes; dropped if it were invalid to conntrack, as nat[0] snat could not translate it
postrouting 120 inet natkit postrouting nat[0] snat: the source becomes 203.0.113.1:4000; if that port is taken towards this destination the packet is dropped
` + confirmed + `
forwarded 203.0.113.1:4000 -> 198.18.0.1:80
back: an answer from 198.18.0.1:80 comes for 203.0.113.1:4000: the destination becomes 192.168.0.77:4000 again
back: to 192.168.0.77 by eth1
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := explainText(t, c.body, withDMZ(router), c.in, c.packet)
			if diff := cmp.Diff(strings.TrimPrefix(c.want, "\n"), explained(e)); diff != "" {
				t.Error(diff)
			}
			if _, err := json.Marshal(e); err != nil {
				t.Error(err)
			}
		})
	}
}

// withDMZ adds a third interface, for 172.17.0.0/16.
func withDMZ(f gateway.Facts) gateway.Facts {
	f.Interfaces = append(f.Interfaces[:len(f.Interfaces):len(f.Interfaces)], gateway.Interface{Name: "eth2", Index: 4, Addresses: prefixes("172.17.0.1/16")})
	return f
}

func explainText(t *testing.T, body string, facts gateway.Facts, in, text string) *Trace {
	t.Helper()
	if body == manyKinds {
		body = strings.Replace(body, "lan: eth1", "lan: [eth1, eth2]", 1)
	}
	packet, err := ParsePacket([]string{text})
	if err != nil {
		t.Fatal(err)
	}
	packet.In = in
	e, err := Follow(compile(t, body, facts), facts, routes(facts), packet)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestExplainNotes(t *testing.T) {
	facts := router
	e := explainText(t, "\n  nat:\n    - snat: {to: 203.0.113.1-203.0.113.2}\n    - dnat: {on: ppp0, port: tcp/1, to: 192.168.0.2}", facts, "eth1", "tcp 192.168.0.9 -> 198.18.0.1:80")
	want := []string{
		"if 192.168.0.9:40000 has a connection by this rule already, its address and port are used again where they are free",
		"nat[1] dnat has no effect: ppp0 has no address",
	}
	if diff := cmp.Diff(want, e.Notes); diff != "" {
		t.Error(diff)
	}
	facts.Local = prefixes("198.51.100.0/24")
	if e := explainText(t, "\n  nat:\n    - snat: {to: 198.51.100.9}", facts, "eth1", "tcp 192.168.0.9 -> 198.18.0.1:80"); len(e.Notes) > 0 {
		t.Errorf("of an address that a route makes the host's: %q", e.Notes)
	}
	fails := func(Lookup) (Hop, error) { return Hop{}, errors.New("no netlink") }
	if _, err := Follow(&gateway.Plan{}, facts, fails, e.Packet); err == nil {
		t.Error("an error of the routes is lost")
	}
}

// TestExplainNotForwarded: the interface by which a packet of IPv4 comes decides, for IPv6
// the host; also for the answer.
func TestExplainNotForwarded(t *testing.T) {
	const four, six = "tcp 192.168.0.9 -> 198.18.0.1:80", "tcp [fd00:1::9] -> [2001:db8:1::1]:80"
	body := roles + "\n  nat:\n    - masquerade: {}\n  ipv6:\n    - masquerade: {}"
	for _, c := range []struct {
		name, in, packet string
		sysctls          snapshot.Sysctls
		by, lost         string
	}{
		{"on", "eth1", four, snapshot.Sysctls{"net.ipv4.ip_forward": "1", "net.ipv4.conf.eth1.forwarding": "1"}, "", ""},
		{"unknown", "eth1", four, nil, "", ""},
		{"off", "eth1", four, snapshot.Sysctls{"net.ipv4.ip_forward": "0", "net.ipv4.conf.eth1.forwarding": "0"}, "net.ipv4.ip_forward", ""},
		{"off for the interface", "eth1", four, snapshot.Sysctls{"net.ipv4.ip_forward": "1", "net.ipv4.conf.eth1.forwarding": "0"}, "net.ipv4.conf.eth1.forwarding", ""},
		{"on for the interface", "eth1", four, snapshot.Sysctls{"net.ipv4.ip_forward": "0", "net.ipv4.conf.eth1.forwarding": "1", "net.ipv4.conf.eth0.forwarding": "1"}, "", ""},
		{"off for the answer", "eth1", four, snapshot.Sysctls{"net.ipv4.ip_forward": "1", "net.ipv4.conf.eth0.forwarding": "0"}, "", "net.ipv4.conf.eth0.forwarding"},
		{"of the gateway itself", "", "tcp 203.0.113.1 -> 198.18.0.1:80", snapshot.Sysctls{"net.ipv4.ip_forward": "0"}, "", ""},
		{"another family", "eth1", four, snapshot.Sysctls{"net.ipv6.conf.all.forwarding": "0"}, "", ""},
		{"IPv6 off", "eth1", six, snapshot.Sysctls{"net.ipv6.conf.all.forwarding": "0", "net.ipv6.conf.eth1.force_forwarding": "0"}, "net.ipv6.conf.all.forwarding", ""},
		{"IPv6 forced", "eth1", six, snapshot.Sysctls{"net.ipv6.conf.all.forwarding": "0", "net.ipv6.conf.eth1.force_forwarding": "1", "net.ipv6.conf.eth0.force_forwarding": "1"}, "", ""},
	} {
		facts := router
		facts.Sysctls = c.sysctls
		e := explainText(t, body, facts, c.in, c.packet)
		want := Forwarded
		if c.by != "" {
			want = Dropped
		}
		if last := e.Steps[len(e.Steps)-1]; e.Fate != want || c.by != "" && !strings.Contains(last.Does, c.by+" is 0") {
			t.Errorf("%s: %s, %q", c.name, e.Fate, last.Does)
		}
		if e.ReplyLost != "" && c.lost == "" || !strings.Contains(e.ReplyLost, c.lost) {
			t.Errorf("%s: lost %q, want %q", c.name, e.ReplyLost, c.lost)
		}
	}
}

// TestExplainUnknowns: of what a packet's words do not say only that is named which would make another rule translate it.
func TestExplainUnknowns(t *testing.T) {
	p := compile(t, roles+`
  nat:
    - snat: {from: 192.168.0.0/24, mark: 0x10, to: 203.0.113.9}
    - snat: {from: 192.168.0.9, to: 203.0.113.10}
    - snat: {user: 33, port: tcp/80, to: 203.0.113.11}
    - masquerade: {}`, router)
	for _, c := range []struct {
		packet nat.Packet
		want   []string
	}{
		{nat.Packet{Src: netip.MustParseAddr("192.168.0.2"), In: "eth1"}, []string{"its mark is taken to be 0: with another one (--mark) nat[0] snat translates it: mark 0x10"}},
		{nat.Packet{Src: netip.MustParseAddr("192.168.0.2"), In: "eth1", Mark: 1}, nil},
		{nat.Packet{Src: netip.MustParseAddr("192.168.0.9"), In: "eth1"}, nil},
		{nat.Packet{Src: netip.MustParseAddr("203.0.113.1")}, []string{"whose program sends it is not known: by --user and --group nat[2] snat may translate it: user 33"}},
		{nat.Packet{Src: netip.MustParseAddr("203.0.113.1"), Owned: true, User: 33}, nil},
	} {
		c.packet.Protocol, c.packet.SrcPort, c.packet.Dst, c.packet.DstPort = 6, 4000, netip.MustParseAddr("198.18.0.1"), 80
		e, err := Follow(p, router, routes(router), c.packet)
		if err != nil {
			t.Fatal(err)
		}
		got := slices.DeleteFunc(slices.Clone(e.Notes), func(note string) bool {
			return !strings.Contains(note, " (--mark) ") && !strings.Contains(note, " --user ")
		})
		if !slices.Equal(got, c.want) {
			t.Errorf("%s by %q: %q, want %q", c.packet, c.packet.In, got, c.want)
		}
	}
}

// TestExplainSets: why a rule does not translate names the set in which the packet is, or is not.
func TestExplainSets(t *testing.T) {
	const sets = roles + `
  sets: {p: {addresses: 198.18.0.0/16}, hosts: {addresses: 192.168.0.2}, web: {ports: [tcp/80, tcp/443]}}
  nat:
    - snat: {to: 203.0.113.9, `
	for _, c := range []struct{ rule, packet, want string }{
		{"from: 192.168.0.0/16, except-to: $p", "tcp 192.168.0.9:4000 -> 198.18.0.1:443", "not to $p"},
		{"from: 192.168.0.0/16, except-to: [$p, 10.0.0.0/8]", "tcp 192.168.0.9:4000 -> 10.0.0.1:443", "not to 10.0.0.0/8"},
		{"from: 192.168.0.0/16, except-to: [$p, 198.18.0.1]", "tcp 192.168.0.9:4000 -> 198.18.0.1:443", "not to 198.18.0.1, $p"},
		{"only-to: $p", "tcp 192.168.0.9:4000 -> 198.51.100.9:443", "only to $p"},
		{"only-to: $p, except-to: 198.18.0.0/24", "tcp 192.168.0.9:4000 -> 198.51.100.9:443", "only to $p"},
		{"from: $hosts", "tcp 192.168.0.9:4000 -> 198.18.0.1:443", "only from $hosts"},
		{"from: 192.168.0.0/16, except-from: $hosts", "tcp 192.168.0.2:4000 -> 198.18.0.1:443", "not from $hosts"},
		{"from: 192.168.0.0/16, except-from: 192.168.0.0/24", "tcp 192.168.0.2:4000 -> 198.18.0.1:443", "not from 192.168.0.0/24"},
		{"port: $web", "tcp 192.168.0.9:4000 -> 198.18.0.1:25", "only $web"},
		{"port: $web, only-to: $p", "udp 192.168.0.9:4000 -> 198.51.100.9:443", "only to $p; only $web"},
		{"except-port: $web", "tcp 192.168.0.9:4000 -> 198.18.0.1:443", "not $web"},
		{"except-port: [$web, udp/53]", "udp 192.168.0.9:4000 -> 198.18.0.1:53", "not udp/53"},
		{"port: [tcp/80, tcp/443]", "tcp 192.168.0.9:4000 -> 198.18.0.1:25", "only tcp/80,443"},
	} {
		packet, err := ParsePacket([]string{c.packet})
		if err != nil {
			t.Fatal(err)
		}
		packet.In = "eth1"
		e, err := Follow(compile(t, sets+c.rule+"}", router), router, routes(router), packet)
		if err != nil {
			t.Fatal(err)
		}
		if len(e.Near) != 1 || strings.Join(e.Near[0].Why, "; ") != c.want {
			t.Errorf("%s: %+v, want %q", c.rule, e.Near, c.want)
		}
	}
}

// TestExplainRulesOff: that rules are off is said in one line, however many these are.
func TestExplainRulesOff(t *testing.T) {
	body := roles + "\n  nat:"
	for range manyOff + 2 {
		body += "\n    - {masquerade: {from: 192.168.0.0/16}, enabled: off}"
	}
	e := explainText(t, body, router, "eth1", "tcp 192.168.0.9 -> 198.18.0.1:80")
	if diff := cmp.Diff([]string{"off, and so not asked: nat[0] masquerade, nat[1] masquerade, nat[2] masquerade, and 2 more"}, e.Notes); diff != "" {
		t.Error(diff)
	}
}

// TestExplainHosts: the host of a client by hash, and what is known where some are out.
func TestExplainHosts(t *testing.T) {
	p := compile(t, roles+`
  nat:
    - dnat: {on: 203.0.113.7, port: tcp/80, to: [172.17.0.2, 172.17.0.3, 172.17.0.4], balance: hash, health: {tcp: on}, all-down: reject}
    - dnat: {on: 203.0.113.7, port: tcp/81, to: [172.17.0.2, 172.17.0.3, 172.17.0.4], health: {tcp: on}}`, router)
	hash, turns := p.Destinations[0].Rule, p.Destinations[1].Rule
	follow := func(port uint16, out map[gateway.Ref][]bool) *Trace {
		p.Out = out
		e, err := Follow(p, router, routes(router), nat.Packet{Protocol: 6, Src: netip.MustParseAddr("198.51.100.9"), SrcPort: 4000, Dst: netip.MustParseAddr("203.0.113.7"), DstPort: port, In: "eth0"})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	first := follow(80, nil).Destination
	if len(first.Addresses) != 1 || !first.Addresses[0].IsSingle() {
		t.Fatalf("by hash %v", first)
	}
	out := make([]bool, 3)
	for i, b := range p.Destinations[0].Action.Backends {
		out[i] = b.Address == first.Addresses[0].First
	}
	if e := follow(80, map[gateway.Ref][]bool{hash: out}); len(e.Destination.Addresses) != 1 || e.Destination.Addresses[0] == first.Addresses[0] ||
		!slices.ContainsFunc(e.Notes, func(n string) bool {
			return strings.Contains(n, "1 host is out ("+first.Addresses[0].First.String()+")")
		}) {
		t.Errorf("without %v: %v, %q", first, e.Destination, e.Notes)
	}
	if e := follow(80, map[gateway.Ref][]bool{hash: {true, true, true}}); e.Fate != Dropped || e.Destination.Rule != nil ||
		!slices.ContainsFunc(e.Steps, func(s Step) bool { return strings.HasPrefix(s.Does, "rejected: all hosts") && *s.Rule == hash }) {
		t.Errorf("without all: %+v", e)
	}
	if e := follow(81, map[gateway.Ref][]bool{turns: {false, true, false}}); len(e.Destination.Addresses) != 2 || e.Destination.Allows(netip.MustParseAddr("172.17.0.3"), 81) || !e.Destination.Allows(netip.MustParseAddr("172.17.0.4"), 81) {
		t.Errorf("in turns: %v", e.Destination)
	}
}

// TestExplainHelpers: the first packet of a connection that a helper reads is named, with what that means.
func TestExplainHelpers(t *testing.T) {
	const file = roles + `
  helpers: [ftp, pptp]
  ttl: 64
  nat:
    - masquerade: {from: 192.168.0.0/16}
    - dnat: {on: 203.0.113.1, port: tcp/2121, to: "192.168.0.2:21"}`
	for _, c := range []struct {
		in, packet, helper string
		ttl                bool
	}{
		{"eth1", "tcp 192.168.0.2:4000 -> 198.18.0.1:21", "ftp", true}, {"eth1", "tcp 192.168.0.2:4000 -> 198.18.0.1:1723", "pptp", true},
		{"eth1", "udp 192.168.0.2:4000 -> 198.18.0.1:21", "", true}, {"eth0", "tcp 198.18.0.1:4000 -> 203.0.113.1:2121", "ftp", false},
		{"eth0", "tcp 198.18.0.1:4000 -> 203.0.113.1:21", "", false},
	} {
		e := explainText(t, file, router, c.in, c.packet)
		helper, ttl := "", false
		for _, s := range e.Steps {
			if s.Chain == "inet natkit helpers" {
				helper, _, _ = strings.Cut(strings.TrimPrefix(s.Does, "helper "), ":")
			}
			ttl = ttl || s.Chain == "inet natkit forward" && s.Does == "the TTL becomes 64"
		}
		if helper != c.helper || ttl != c.ttl {
			t.Errorf("%s: helper %q, TTL %v", c.packet, helper, ttl)
		}
	}
}

// TestExplainTimes: a rule holds at its times, and what would hold at others is named.
func TestExplainTimes(t *testing.T) {
	p := compile(t, roles+`
  nat:
    - snat: {from: 192.168.0.0/24, utc-hours: 22:00-06:00, except-utc-days: sat, to: 203.0.113.9}
    - masquerade: {from: 192.168.0.0/16}`, router)
	for at, want := range map[string]string{
		"2026-01-02T21:59:59Z": "nat[1] masquerade", "2026-01-02T22:00:00Z": "nat[0] snat", "2026-01-03T00:00:00Z": "nat[1] masquerade",
		"2026-01-04T07:59:59+02:00": "nat[0] snat", "2026-01-04T06:00:00Z": "nat[1] masquerade",
	} {
		when, err := time.Parse(time.RFC3339, at)
		if err != nil {
			t.Fatal(err)
		}
		e, err := Follow(p, router, routes(router), nat.Packet{Protocol: 6, Src: netip.MustParseAddr("192.168.0.2"), SrcPort: 4000, Dst: netip.MustParseAddr("198.18.0.1"), DstPort: 80, In: "eth1", At: when})
		if err != nil {
			t.Fatal(err)
		}
		named := slices.ContainsFunc(e.Notes, func(n string) bool {
			return n == "at another time (--at) nat[0] snat translates it: utc-hours 00:00-06:00, 22:00-24:00 not utc-days sat"
		})
		if e.Source.Rule.String() != want || named != (want != "nat[0] snat") {
			t.Errorf("%s: %s, %q", at, e.Source.Rule, e.Notes)
		}
	}
}

func TestManyNearMisses(t *testing.T) {
	var b strings.Builder
	for port := range 50 {
		fmt.Fprintf(&b, "\n    - dnat: {on: 203.0.113.1, port: tcp/%d, to: 192.168.0.2}", 1000+port)
	}
	e := explainText(t, roles+"\n  nat:"+b.String(), router, "eth0", "tcp 198.18.0.1 -> 203.0.113.1:80")
	if len(e.Near) != manyNear || e.NearMore != 50-manyNear {
		t.Errorf("%d near misses and %d more", len(e.Near), e.NearMore)
	}
}

func TestParsePacket(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"tcp 192.168.0.2:4000 -> 198.51.100.9:443", "tcp 192.168.0.2:4000 -> 198.51.100.9:443"},
		{"udp 192.168.0.2 198.51.100.9:53", "udp 192.168.0.2:40000 -> 198.51.100.9:53"},
		{"tcp [fd00::2]:4000 to [2001:db8::9]:443", "tcp [fd00::2]:4000 -> [2001:db8::9]:443"},
		{"icmp 192.168.0.2→198.51.100.9", "icmp 192.168.0.2 -> 198.51.100.9"},
		{"icmp 192.168.0.2:77 -> 198.51.100.9", "icmp 192.168.0.2:77 -> 198.51.100.9"},
		{"47 192.168.0.2 -> 198.51.100.9", "gre 192.168.0.2 -> 198.51.100.9"},
		{"tcp 192.168.0.2:4000 -", "!quotes"},
		{"tcp 192.168.0.2:4000", "!expected PROTOCOL"},
		{"", "!expected PROTOCOL"},
		{"tpc 192.168.0.2:4000 -> 198.51.100.9:443", "!is no protocol"},
		{"tcp 192.168.0.2:4000 -> 198.51.100.9", "!destination port"},
		{"tcp 192.168.0.2:4000 -> 2001:db8::9", "!one family"},
		{"tcp 192.168.0.2:4000 -> example.com:443", "!no address"},
		{"gre 192.168.0.2:1 -> 198.51.100.9", "!no ports"},
		{"icmp fd00::1 -> fd00::2", "!not for"},
	} {
		p, err := ParsePacket(strings.Split(c.text, " "))
		if want, fails := strings.CutPrefix(c.want, "!"); fails {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want …%s…", c.text, err, want)
			}
			continue
		}
		if err != nil || p.String() != c.want {
			t.Errorf("%q: %s, %v", c.text, p, err)
		}
	}
}

func FuzzParsePacket(f *testing.F) {
	for _, text := range []string{"tcp 192.168.0.2:4000 -> 198.51.100.9:443", "icmp 192.168.0.2→198.51.100.9", "udp [fd00::2]:1 [2001:db8::9]:2", "47 0.0.0.0 ::", "tcp a -", "tcp ::ffff:1.2.3.4 1.2.3.4:1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		defer testutil.Bounded(t, len(text))()
		p, err := ParsePacket([]string{text})
		if err != nil {
			return
		}
		again, err := ParsePacket([]string{p.String()})
		if err != nil || again != p {
			t.Errorf("%q is %s, which is %v, %v", text, p, again, err)
		}
	})
}

func TestGivenAllows(t *testing.T) {
	one := func(text string) nat.AddrRanges {
		a := netip.MustParseAddr(text)
		return nat.AddrRanges{nat.OneAddr(a)}
	}
	a, b := netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("203.0.113.2")
	for _, c := range []struct {
		given Given
		addr  netip.Addr
		port  uint16
		want  bool
	}{
		{Given{Addresses: one("203.0.113.1"), Port: 4000}, a, 4000, true},
		{Given{Addresses: one("203.0.113.1"), Port: 4000}, a, 4001, false},
		{Given{Addresses: one("203.0.113.1"), Port: 4000, First: 1024, Last: 65535}, a, 4001, true},
		{Given{Addresses: one("203.0.113.1"), Port: 4000, First: 1024, Last: 65535}, a, 80, false},
		{Given{Addresses: one("203.0.113.1")}, a, 0, true},
		{Given{Addresses: one("203.0.113.1"), First: 1024, Last: 2048}, a, 2048, true},
		{Given{Addresses: one("203.0.113.1"), Port: 4000}, b, 4000, false},
		{Given{Addresses: nat.AddrRanges{{First: a, Last: b}}, Port: 4000}, b, 4000, true},
	} {
		if got := c.given.Allows(c.addr, c.port); got != c.want {
			t.Errorf("%+v allows %s %d: %t", c.given, c.addr, c.port, got)
		}
	}
}

// TestIdentifiers: what an echo request has is no port, and where it was not given it stays
// all the same where it can.
func TestIdentifiers(t *testing.T) {
	a := netip.MustParseAddr("203.0.113.1")
	for _, c := range []struct {
		does nat.Action
		id   uint16
		want string
	}{
		{nat.Action{}, 77, "203.0.113.1:77; if that identifier is taken towards this destination, another of 0-65535"},
		{nat.Action{}, 0, "203.0.113.1; if its identifier is taken towards this destination, another of 0-65535"},
		{nat.Action{Random: nat.RandomFully}, 0, "203.0.113.1 with a free identifier of 0-65535, at random"},
		{nat.Action{Ports: nat.Ports{First: 5, Last: 9}}, 0, "203.0.113.1 with its identifier where that is one of 5-9 and free, otherwise another of them"},
		{nat.Action{Keep: true}, 0, "203.0.113.1; if its identifier is taken towards this destination the packet is dropped"},
	} {
		c.does.To = nat.AddrRanges{nat.OneAddr(a)}
		w := newWalk(&gateway.Plan{}, &gateway.Facts{}, nil, nat.Packet{Protocol: 1, Src: a, Dst: a, SrcPort: c.id, DstPort: c.id})
		if got := w.words(w.give(&c.does), &c.does); got != c.want {
			t.Errorf("%+v: %q, want %q", c, got, c.want)
		}
	}
}

func TestPorts(t *testing.T) {
	tcp, echo, gre := nat.Packet{Protocol: 6}, nat.Packet{Protocol: 1}, nat.Packet{Protocol: 47}
	for _, c := range []struct {
		name               string
		does               nat.Action
		packet             nat.Packet
		port               uint16
		given, first, last uint16
	}{
		{"as it was", nat.Action{}, tcp, 4000, 4000, 1024, 65535},
		{"low", nat.Action{}, tcp, 511, 511, 1, 511},
		{"privileged", nat.Action{}, tcp, 700, 700, 600, 1023},
		{"between", nat.Action{}, tcp, 550, 550, 550, 1023},
		{"bounded", nat.Action{Ports: nat.Ports{First: 2000, Last: 2999}}, tcp, 2500, 2500, 2000, 2999},
		{"out of bounds", nat.Action{Ports: nat.Ports{First: 2000, Last: 2999}}, tcp, 4000, 0, 2000, 2999},
		{"random", nat.Action{Random: nat.RandomFully}, tcp, 4000, 0, 1024, 65535},
		{"kept", nat.Action{Keep: true}, tcp, 4000, 4000, 0, 0},
		{"echo", nat.Action{}, echo, 7, 7, 0, 65535},
		{"echo, bounded", nat.Action{Ports: nat.Ports{First: 1024, Last: 65535}}, echo, 7, 0, 1024, 65535},
		{"no ports", nat.Action{Ports: nat.Ports{First: 1024, Last: 65535}}, gre, 0, 0, 0, 0},
	} {
		given, first, last := givenPort(&c.does, c.packet, c.port)
		if given != c.given || first != c.first || last != c.last {
			t.Errorf("%s: %d of %d-%d, want %d of %d-%d", c.name, given, first, last, c.given, c.first, c.last)
		}
	}
}
