package gateway

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/unix"
)

// pcpHost is a gateway at 203.0.113.7, with a network inside.
var pcpHost = Facts{Known: true, Interfaces: []Interface{
	{Name: "eth0", Index: 2, Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("203.0.113.7/24"), netip.MustParsePrefix("203.0.113.8/24")}},
	{Name: "eth1", Index: 3, Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.1.1/24"), netip.MustParsePrefix("fd00::1/64")}},
}}

const pcpFile = `gateway:
  interfaces: {wan: eth0, lan: eth1}
  pcp: on
  nat:
    - masquerade: {from: 192.168.1.0/24}
`

func pcpWith(mapping string) string {
	return strings.Replace(pcpFile, "pcp: on", "pcp: "+mapping, 1)
}

func compiled(t *testing.T, text string, facts Facts) *Plan {
	t.Helper()
	f, err := Parse("f", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p, err := Compile(&f.Config, facts)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPCPDefaults(t *testing.T) {
	p := compiled(t, pcpFile, pcpHost)
	want := &Grants{LAN: []string{"eth1"}, External: netip.MustParseAddr("203.0.113.7"), Limit: 32, Ports: nat.Ports{First: 1024, Last: 65535}, Min: 2 * time.Minute, Max: 24 * time.Hour}
	if !reflect.DeepEqual(p.PCP, want) {
		t.Errorf("%+v", p.PCP)
	}
	if off := compiled(t, pcpWith("off"), pcpHost); off.PCP != nil {
		t.Errorf("off is %+v", off.PCP)
	}
	all := compiled(t, strings.Replace(pcpWith("{lan: [lan, eth2], from: [10.0.0.0/8, 192.168.1.9], on: 203.0.113.8, limit: 5, ports: 40000-40999, lifetime: {min: 5m, max: 2d}}"), "lan: eth1}", "lan: [eth1, eth2]}", 1), pcpHost)
	want = &Grants{LAN: []string{"eth1", "eth2"}, From: []netip.Prefix{netip.MustParsePrefix("192.168.1.9/32"), netip.MustParsePrefix("10.0.0.0/8")},
		External: netip.MustParseAddr("203.0.113.8"), Limit: 5, Ports: nat.Ports{First: 40000, Last: 40999}, Min: 5 * time.Minute, Max: 48 * time.Hour}
	if !reflect.DeepEqual(all.PCP, want) {
		t.Errorf("%+v", all.PCP)
	}
	if text := all.PCP.String(); text != "ports 40000-40999 of 203.0.113.8 for hosts of eth1, eth2 from 192.168.1.9, 10.0.0.0/8, 5 each, for 5m to 2d" {
		t.Error(text)
	}
}

// What is written is read again.
func TestPCPMarshal(t *testing.T) {
	for _, mapping := range []string{"on", "{limit: 5}", "{lan: [eth1, eth2], from: 10.0.0.0/8, on: eth0, limit: 5, ports: 40000-40999, lifetime: {min: 5m, max: 1d}}"} {
		f, err := Parse("f", []byte(pcpWith(mapping)))
		if err != nil {
			t.Fatal(err)
		}
		text := Marshal(&f.Config)
		again, err := Parse("f", text)
		if err != nil || !reflect.DeepEqual(f.Config, again.Config) || !strings.Contains(string(text), "  pcp: "+mapping+"\n") {
			t.Errorf("%v\n%s", err, text)
		}
	}
}

func TestPCPErrors(t *testing.T) {
	for mapping, want := range map[string]string{
		"maybe":                   `f:3:8: expected on, off, or a mapping such as {lan: eth1, limit: 32}, found "maybe"`,
		"{limit: 0}":              `f:3:16: expected a number from 1 to 4096, found "0": write pcp: off, if no host may have a port`,
		"{limit: 5000}":           `f:3:16: expected a number from 1 to 4096, found "5000"`,
		"{ports: keep}":           `f:3:16: expected ports such as 1024-65535, found "keep"`,
		"{lifetime: {max: 1}}":    `f:3:25: expected a time such as 2m, 12h or 1d, found "1": a time needs its unit: write 1s`,
		"{lifetime: {max: 1s}}":   `f:3:25: expected a time such as 2m, 12h or 1d, found "1s": it is from 30s to 30d`,
		"{lifetime: {max: 300d}}": `f:3:25: expected a time such as 2m, 12h or 1d, found "300d"`,
		"{wan: eth0}":             `f:3:9: unknown field "wan"`,
	} {
		if _, err := Parse("f", []byte(pcpWith(mapping))); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s:\n%v\n%s", mapping, err, want)
		}
	}
}

func TestCheckPCP(t *testing.T) {
	open := "3 on notice pcp-open: pcp: every program on a host inside can have ports of that host opened to the Internet"
	at := func(text string) string { return strings.Replace(open, "3 on", "3 "+text, 1) }
	private := pcpHost
	private.Interfaces = append([]Interface{}, pcpHost.Interfaces...)
	private.Interfaces[0].Addresses = []netip.Prefix{netip.MustParsePrefix("100.64.3.4/24")}
	waiting := private
	waiting.Interfaces = append([]Interface{}, private.Interfaces...)
	waiting.Interfaces[0].Addresses = nil
	runChecks(t, pcpHost, []checkCase{
		{"fine", pcpFile, []string{open}},
		{"off", pcpWith("off"), nil},
		{"no lan", "gateway:\n  interfaces: {wan: eth0}\n  pcp: on\n  nat:\n    - masquerade: {}\n", []string{open, "3 on refuse pcp-without-lan: pcp: no interface has the role lan, by which requests would come"}},
		{"from outside", pcpWith("{lan: [eth1, eth0]}"), []string{at("{lan:"), "3 [eth1 refuse pcp-not-inside: pcp: eth0 is a wan interface: whoever is outside could open ports"}},
		{"a zone", strings.Replace(pcpFile, "lan: eth1", "lan: [{interface: eth1, zone: red}]", 1), []string{"3 on refuse pcp-of-zone: pcp: eth1 is of a zone, and what is opened leads to hosts of none", open}},
		{"no wan", "gateway:\n  interfaces: {lan: eth1}\n  pcp: on\n  nat:\n    - masquerade: {out: eth0}\n", []string{open, "3 on refuse pcp-without-address: pcp: on: no interface has the role wan: name it below interfaces"}},
		{"on any", pcpWith("{on: any}"), []string{at("{on:"), "3 any refuse pcp-without-address: pcp: on: expected an address of IPv4, or the role or interface that has it"}},
		{"IPv6", pcpWith("{from: [10.0.0.0/8, 'fd00::/8']}"), []string{at("{from:"), "3 fd00::/8 refuse pcp-from: pcp: from: fd00::/8 is no prefix of IPv4"}},
		{"lifetimes", pcpWith("{lifetime: {min: 2h, max: 1h}}"), []string{at("{lifetime:"), "3 2h refuse pcp-lifetime: pcp: lifetime: min 2h is longer than max 1h"}},
		{"an interface that is not there", pcpWith("{lan: eth7}"), []string{at("{lan:"), "3 eth7 warn interface-missing: interface eth7 does not exist: its rules have no effect until it appears", "3 eth7 refuse pcp-not-inside: pcp: eth7 is no lan interface: what hosts there ask for does not lead back inside"}},
		{"no roles", "gateway:\n  pcp: {lan: eth1, on: 203.0.113.7}\n  nat:\n    - masquerade: {out: eth0}\n", []string{strings.Replace(at("{lan:"), "3 ", "2 ", 1), "2 {lan: refuse pcp-without-lan: pcp: the file does not say which interfaces lead inside"}},
		{"no NAT", "gateway:\n  interfaces: {wan: eth0, lan: eth1}\n  pcp: on\n", []string{open, "3 on warn pcp-without-nat: pcp: no rule translates the sources of hosts inside: what they send does not leave under the address whose ports they open"}},
		{"no ports", pcpFile + "    - dnat: {on: wan, port: udp, to: 192.168.1.2}\n", []string{"3 on warn pcp-no-ports: pcp: rules of the file are for all of the ports 1024-65535 of udp: none is left to give", open}},
		{"another's address", pcpWith("{on: 203.0.113.9}"), []string{"3 {on: warn pcp-not-here: pcp: 203.0.113.9 is no address of this host: what comes for it comes here only where routes lead it", at("{on:")}},
	})
	runChecks(t, private, []checkCase{{"behind NAT", pcpFile, []string{"3 on warn pcp-behind-nat: pcp: 100.64.3.4 is no address of the Internet: another router translates it, and lets nothing in for ports that are opened here", open}}})
	zoned := pcpHost
	zoned.Inside = []RouteInside{{Interface: "eth2", To: netip.MustParsePrefix("192.168.1.0/24")}}
	beside := pcpFile[:strings.Index(pcpFile, "lan: eth1")] + "lan: [{interface: eth1}, {interface: eth2, zone: red}]}\n  pcp: {lan: eth1}\n  nat:\n    - masquerade: {}\n"
	refused := "pcp-of-zone: pcp: the network 192.168.1.0/24 of eth1 is of zone red as well, and what is opened is for hosts of none"
	if all := strings.Join(found(beside, check(t, beside, zoned)), "\n"); !strings.Contains(all, "refuse "+refused) {
		t.Error(all)
	}
	zoned.Inside[0].To = netip.MustParsePrefix("192.168.0.0/16") // the longer prefix is that of eth1
	if all := strings.Join(found(beside, check(t, beside, zoned)), "\n"); strings.Contains(all, "pcp-of-zone") {
		t.Error(all)
	}
	runChecks(t, waiting, []checkCase{{"no address yet", pcpFile, []string{open, "3 on warn pcp-waits: pcp: the wan interface has no address of IPv4 yet: no port is given before it has one"}}})
}

// Ports that rules are for, whoever the client is, are not given.
func TestClaimed(t *testing.T) {
	p := compiled(t, pcpFile+`    - dnat: {on: wan, port: tcp/2000-2010, to: 192.168.1.2}
    - dnat: {on: 203.0.113.7, port: udp/3000, from: 198.51.100.0/24, to: 192.168.1.2}
    - dnat: {on: 203.0.113.8, to: 192.168.1.2}
    - dnat: {on: any, in: lan, port: tcp/8080, to: ":3128"}
    - dnat: {on: any, port: tcp/8081, from: 198.51.100.0/24, to: ":3128"}
    - notrack: {on: 203.0.113.7, port: udp/4000}
`, pcpHost)
	tcp, udp := p.Claimed(unix.IPPROTO_TCP), p.Claimed(unix.IPPROTO_UDP)
	for port, want := range map[uint16][2]bool{1999: {}, 2000: {true, false}, 2010: {true, false}, 2011: {}, 3000: {false, true}, 4000: {false, true}, 8080: {}, 8081: {true, false}, 65535: {}} {
		if got := [2]bool{tcp.Has(port), udp.Has(port)}; got != want {
			t.Errorf("%d: %v, want %v", port, got, want)
		}
	}
	now := time.Now()
	lease := func(protocol uint8, external, internal string, left time.Duration) Lease {
		return Lease{Protocol: protocol, External: netip.MustParseAddrPort(external), Internal: netip.MustParseAddrPort(internal), Expires: now.Add(left)}
	}
	good := lease(unix.IPPROTO_TCP, "203.0.113.7:3000", "192.168.1.9:80", time.Minute)
	lends := p.Lends([]Lease{
		lease(unix.IPPROTO_TCP, "203.0.113.7:2005", "192.168.1.9:80", time.Minute), lease(unix.IPPROTO_UDP, "203.0.113.7:3000", "192.168.1.9:80", time.Minute),
		good, lease(unix.IPPROTO_TCP, "203.0.113.8:3000", "192.168.1.9:80", time.Minute), lease(unix.IPPROTO_TCP, "203.0.113.7:3001", "192.168.1.9:80", 0),
		lease(unix.IPPROTO_TCP, "203.0.113.7:80", "192.168.1.9:80", time.Minute), lease(unix.IPPROTO_SCTP, "203.0.113.7:3002", "192.168.1.9:80", time.Minute),
	}, now)
	if !reflect.DeepEqual(lends, []Lease{good}) {
		t.Errorf("%+v", lends)
	}
	if p.Leased() != p {
		t.Error("a plan without leases is another one")
	}
	p.Leases = lends
	if all := p.Leased(); Digest(p) == Digest(all) || len(all.Destinations) != len(p.Destinations)+1 || len(all.Sources) != len(p.Sources)+1 || all.Destinations[len(p.Destinations)].Rule.String() != "pcp[3000] tcp" {
		t.Errorf("%+v", all)
	}
}

func TestServes(t *testing.T) {
	p := compiled(t, pcpFile, pcpHost).PCP
	from := compiled(t, pcpWith("{from: 10.0.0.0/8}"), pcpHost).PCP
	for host, want := range map[string][2]bool{
		"192.168.1.9": {true, false}, "192.168.1.1": {}, "192.168.1.0": {}, "192.168.1.255": {}, "192.168.2.9": {}, "8.8.8.8": {}, "203.0.113.9": {}, "10.1.2.3": {false, true}, "fd00::9": {}, "127.0.0.1": {},
	} {
		a := netip.MustParseAddr(host)
		if got := [2]bool{p.Serves(&pcpHost, a), from.Serves(&pcpHost, a)}; got != want {
			t.Errorf("%s: %v, want %v", host, got, want)
		}
	}
}

// Who is in one network cannot ask as a host of another one.
func TestServesBy(t *testing.T) {
	facts := pcpHost
	facts.Interfaces = append(slices.Clone(pcpHost.Interfaces), Interface{Name: "eth2", Index: 77, Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.2.1/24")}})
	file := strings.Replace(pcpFile, "lan: eth1", "lan: [eth1, eth2]", 1)
	p := compiled(t, file, facts).PCP
	from := compiled(t, strings.Replace(file, "pcp: on", "pcp: {from: [10.0.0.0/8, 192.168.0.0/16]}", 1), facts).PCP
	routed := func(a netip.Addr) string {
		return map[string]string{"10.1.2.3": "eth2", "192.168.1.9": "eth1"}[a.String()]
	}
	for _, c := range []struct {
		name, host string
		want       [2]bool
	}{
		{"eth1", "192.168.1.9", [2]bool{true, true}}, {"eth2", "192.168.1.9", [2]bool{}},
		{"eth2", "192.168.2.9", [2]bool{true, true}}, {"eth1", "192.168.2.9", [2]bool{}},
		{"eth2", "10.1.2.3", [2]bool{false, true}}, {"eth1", "10.1.2.3", [2]bool{}},
		{"eth1", "192.168.1.255", [2]bool{}}, {"eth0", "203.0.113.9", [2]bool{}},
	} {
		a := netip.MustParseAddr(c.host)
		if got := [2]bool{p.ServesBy(&facts, c.name, a, routed), from.ServesBy(&facts, c.name, a, routed)}; got != c.want {
			t.Errorf("%s by %s: %v, want %v", c.host, c.name, got, c.want)
		}
	}
}
