package collect

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/bpf/plane"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

// bypassed is a gateway whose filter drops what its programs forward, and what netfilter has.
const bypassed = `
table ip nat {
	chain pre {
		type nat hook prerouting priority -100;
		ip daddr 203.0.113.7 tcp dport 8080 dnat to 198.18.1.2:80
		ip daddr 203.0.113.7 tcp dport 8081 dnat to 198.18.1.2:81
		ip daddr 203.0.113.7 udp dport 6000-6002 dnat to 198.18.1.4
		ip daddr 203.0.113.7 udp dport 7000-7002 dnat to 198.18.1.5
		ip daddr 203.0.113.8 dnat to tcp dport map { 90 : 198.18.1.6, 91 : 198.18.1.7, 92 : 198.18.1.8 }
	}
	chain post {
		type nat hook postrouting priority 100;
		ip saddr 198.18.1.3 oifname "wan0" snat to 203.0.113.9
	}
}
table inet fw {
	chain forward {
		type filter hook forward priority 0;
		tcp dport { 80, 81, 443 } drop
		udp dport 6001 drop
		ip daddr { 198.18.1.5, 198.18.1.7, 198.18.1.8 } drop
		icmp type destination-unreachable drop
	}
}`

// TestPrograms: how programs of a gateway are attached, and that filters are not taken to drop what these forward.
func TestPrograms(t *testing.T) {
	testutil.NeedRoot(t)
	ns, other := testutil.Namespace(t, "gateway"), testutil.Namespace(t, "others")
	testutil.Veth(t, testutil.End{Netns: ns, Name: "wan0", Addresses: []string{"198.18.0.1/24"}}, testutil.End{Netns: other, Name: "w", Addresses: []string{"198.18.0.2/24"}})
	testutil.Veth(t, testutil.End{Netns: ns, Name: "lan0", Addresses: []string{"198.18.1.1/24"}}, testutil.End{Netns: other, Name: "l", Addresses: []string{"198.18.1.2/24"}})
	testutil.Routes(t, ns, "198.18.0.2")
	testutil.Sysctl(t, ns, "net/ipv4/ip_forward", "1")
	testutil.Nft(t, ns, bypassed)
	s := readIn(t, ns)
	if s.Programs == nil || len(s.Programs.Interfaces) > 0 || s.DNATTargets.Targets[0].Programs || s.DNATTargets.Targets[0].Filter.Passes {
		t.Errorf("without programs: %+v, %+v", s.Programs, s.DNATTargets.Targets)
	}
	pins := attachPrograms(t, ns)
	s = readIn(t, ns)
	for _, name := range []string{"wan0", "lan0"} {
		if i := s.Programs.Of(name); !i.Translates() || i.Mode != "tc" || i.WantsXDP != (name == "wan0") {
			t.Errorf("%s: %+v", name, i)
		}
	}
	mine, netfilters := s.DNATTargets.Targets[0], s.DNATTargets.Targets[1]
	if !mine.Programs || mine.Filter != nil || mine.Bypassed == nil || !strings.Contains(mine.Bypassed.Drops[0].Text, "dport") {
		t.Errorf("what the programs forward: %+v", mine)
	}
	if netfilters.Programs || netfilters.Filter == nil || netfilters.Filter.Passes {
		t.Errorf("what netfilter forwards: %+v", netfilters)
	}
	if many := s.DNATTargets.Targets[2]; !many.Programs || many.Filter != nil || many.Bypassed != nil {
		t.Errorf("ports of which the programs forward each: %+v", many)
	}
	if all := s.DNATTargets.Targets[3]; !all.Programs || all.Filter != nil || all.Bypassed == nil {
		t.Errorf("ports that the filter drops all: %+v", all)
	}
	if len(s.DNATTargets.Targets) != 7 {
		t.Fatalf("%+v", s.DNATTargets.Targets)
	}
	if one := s.DNATTargets.Targets[4]; one.Port != 6001 || one.Bypassed == nil {
		t.Errorf("one of these ports: %+v", one)
	}
	for i, want := range map[int]bool{5: false, 6: true} {
		of := s.DNATTargets.Targets[i]
		if of.Rule != 4 || of.Protocol != "tcp" || of.Address != netip.AddrFrom4([4]byte{198, 18, 1, byte(1 + i)}) || of.Port != uint16(85+i) || !of.Programs || of.Filter != nil || (of.Bypassed != nil) != want {
			t.Errorf("of a map: %+v", of)
		}
	}
	if slices.ContainsFunc(s.Ways.All, func(w snapshot.Way) bool { return w.Kind == snapshot.WayErrors }) {
		t.Errorf("errors, which the programs send on: %+v", s.Ways.All)
	}
	if cut, open := way(t, s, 443), way(t, s, snapshot.PassivePort); !cut.Programs || cut.Filter != nil || cut.Bypassed == nil || !open.Programs || open.Bypassed != nil {
		t.Errorf("what hosts send: %+v, %+v", cut, open)
	}
	testutil.Inside(t, ns, func() error { return pins.Detach("lan0") })
	s = readIn(t, ns)
	if i := s.Programs.Of("lan0"); i.Translates() || !i.Known || s.DNATTargets.Targets[0].Programs {
		t.Errorf("without a program at lan0: %+v, %+v", i, s.DNATTargets.Targets[0])
	}
}

func readIn(t *testing.T, ns *netns.Handle) *snapshot.Snapshot {
	t.Helper()
	s, err := Read(t.Context(), Options{Netns: ns})
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{snapshot.PartPrograms, snapshot.PartDNATTargets, snapshot.PartWays} {
		if why := s.PartError(part); why != "" {
			t.Fatalf("%s: %s", part, why)
		}
	}
	return s
}

func way(t *testing.T, s *snapshot.Snapshot, port uint16) *snapshot.Way {
	t.Helper()
	for i := range s.Ways.All {
		if w := &s.Ways.All[i]; w.Kind == snapshot.WaySource && w.Protocol == "tcp" && w.Port == port {
			return w
		}
	}
	t.Fatalf("no way to port %d: %+v", port, s.Ways.All)
	return nil
}

// attachPrograms has programs carry out the first rule about destinations, and the one about a source.
func attachPrograms(t *testing.T, ns *netns.Handle) plane.Pins {
	t.Helper()
	pins, err := plane.PinsIn(ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Do(pins.Remove); err != nil {
			t.Error(err)
		}
	})
	host := func(a string) netip.Prefix { return nat.Host(netip.MustParseAddr(a)) }
	c := plane.Config{Marks: plane.MarksOf(3 << 8), Tables: plane.Tables{Rules: 2,
		Destinations: []plane.Mapping{{Match: host("203.0.113.7"), Protocol: unix.IPPROTO_TCP, Port: 8080, To: host("198.18.1.2"), ToPort: 80, Roles: 1, Rule: 1}, {Match: host("203.0.113.9"), To: host("198.18.1.3"), Roles: 1, Rule: 2}},
		Sources:      []plane.Mapping{{Match: host("198.18.1.2"), Protocol: unix.IPPROTO_TCP, Port: 80, To: host("203.0.113.7"), ToPort: 8080, Roles: 1, Rule: 1}, {Match: host("198.18.1.3"), To: host("203.0.113.9"), Roles: 1, Rule: 2}}}}
	for _, port := range []uint16{6000, 6001, 6002, 7000, 7001, 7002} {
		inside := host(map[bool]string{true: "198.18.1.4", false: "198.18.1.5"}[port < 7000])
		c.Destinations = append(c.Destinations, plane.Mapping{Match: host("203.0.113.7"), Protocol: unix.IPPROTO_UDP, Port: port, To: inside, Roles: 1, Rule: 1})
		c.Sources = append(c.Sources, plane.Mapping{Match: inside, Protocol: unix.IPPROTO_UDP, Port: port, To: host("203.0.113.7"), Roles: 1, Rule: 1})
	}
	for port, inside := range map[uint16]string{90: "198.18.1.6", 91: "198.18.1.7"} {
		c.Destinations = append(c.Destinations, plane.Mapping{Match: host("203.0.113.8"), Protocol: unix.IPPROTO_TCP, Port: port, To: host(inside), Roles: 1, Rule: 1})
		c.Sources = append(c.Sources, plane.Mapping{Match: host(inside), Protocol: unix.IPPROTO_TCP, Port: port, To: host("203.0.113.8"), Roles: 1, Rule: 1})
	}
	testutil.Inside(t, ns, func() error {
		found, err := plane.ReadInterfaces()
		if err != nil {
			return err
		}
		var ports []plane.Port
		for _, f := range found {
			f.Roles, f.WantsXDP = 1, f.Name == "wan0"
			c.Interfaces, ports = append(c.Interfaces, f.Interface), append(ports, plane.Port{Index: f.Index, Name: f.Name, Mode: plane.TC})
		}
		programs, err := plane.Load(c)
		if err != nil {
			return err
		}
		defer programs.Close()
		_, err = pins.Attach(programs, ports)
		return err
	})
	return pins
}
