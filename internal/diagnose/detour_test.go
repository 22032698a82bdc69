package diagnose

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

// TestNotForwarding: what the kernel answers of an interface that does not forward is that of a route of type
// unreachable: the setting is named, and of both directions where both are off.
func TestNotForwarding(t *testing.T) {
	off := func(names ...string) *snapshot.Audit {
		a := &snapshot.Audit{Interfaces: []snapshot.Interface{
			{Name: "wan0", Addresses: []netip.Prefix{netip.MustParsePrefix("203.0.113.1/24")}}, {Name: "lan0", Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.1.1/24")}},
		}}
		for _, name := range names {
			a.Interface(name).ForwardingOff = true
		}
		return a
	}
	for name, c := range map[string]struct {
		audit   *snapshot.Audit
		forward string
		want    string
	}{
		"all":             {off(), "0", "sysctl -w net.ipv4.ip_forward=1, and the same in /etc/sysctl.d"},
		"one":             {off("wan0"), "1", "sysctl -w net.ipv4.conf.wan0.forwarding=1, and the same in /etc/sysctl.d"},
		"both of several": {off("wan0", "lan0"), "0", "sysctl -w net.ipv4.conf.wan0.forwarding=1 net.ipv4.conf.lan0.forwarding=1, and the same in /etc/sysctl.d"},
		"an unreachable":  {off(), "1", "'ip route get 192.168.1.10', 'ip route show match 192.168.1.10 table all': add the route that is missing, or take back the one that refuses"},
	} {
		s := failed(snapshot.StepLostHere, "tcp", "wan0", stranger, "203.0.113.1:80", snapshot.FailedPlace{NoRoute: unix.EHOSTUNREACH.Error()})
		s.Target = netip.MustParseAddrPort(inside + "80")
		s.Failed.Routes = &snapshot.Routes{In: "wan0", Client: s.Failed.Client.Addr(), Question: &snapshot.Route{Error: unix.EHOSTUNREACH.Error()}}
		now := snapshot.Snapshot{Audit: c.audit, Sysctls: snapshot.Sysctls{"net.ipv4.ip_forward": c.forward}, NATRules: &snapshot.NATRules{}}
		before := now
		now.TCP, before.TCP = &snapshot.TCP{Counters: snapshot.Counters{"IpInAddrErrors": 9}}, &snapshot.TCP{Counters: snapshot.Counters{"IpInAddrErrors": 0}}
		rec := &snapshot.Recording{Snapshots: []*snapshot.Snapshot{&before, &now}, Followed: &snapshot.Followed{Services: []snapshot.FollowedService{s}}}
		if got := followedDetour(rec, &s).remedy.Title; got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestClientsBeyondTheNetworkOfTheServer: the network of a bridge covers the addresses of clients elsewhere, which is no
// hairpin.
func TestClientsBeyondTheNetworkOfTheServer(t *testing.T) {
	rec := household()
	rec.Last().Audit = &snapshot.Audit{Interfaces: []snapshot.Interface{
		{Name: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix("198.51.100.1/24")}}, {Name: "br-1", Addresses: []netip.Prefix{netip.MustParsePrefix("172.18.0.1/16")}}}}
	client, server := netip.MustParseAddr("172.18.40.10"), netip.MustParseAddr("172.18.0.2")
	question := &snapshot.Route{Out: "br-1", NextHop: server, Neighbour: snapshot.NeighbourReachable}
	for in, found := range map[string]bool{"eth0": true, "br-1": false, "veth-a": false} {
		r := routingOf(rec, &snapshot.Routes{In: in, Client: client, Question: question}, server, netip.Addr{}, true)
		if d := r.question(); (d.place != "") != found {
			t.Errorf("by %s: %+v", in, d)
		}
	}
	for neighbour, found := range map[string]bool{"": true, snapshot.NeighbourFailed: true, snapshot.NeighbourReachable: false} {
		s := &snapshot.Service{Kind: snapshot.ServiceDNAT, Protocol: "tcp", Service: netip.MustParseAddrPort("198.51.100.1:80"), Target: netip.AddrPortFrom(server, 3000), Clients: []netip.Addr{client},
			Routes: &snapshot.Routes{In: "br-1", Client: client, Question: question, Answer: &snapshot.Route{Out: "br-1", NextHop: client, Neighbour: neighbour}}}
		f := failing{target: s.Target}
		if f.explain(rec, s); (f.place != "") != found || !f.known {
			t.Errorf("neighbour %q: %q", neighbour, f.cause)
		}
	}
}

// TestBridgeThatCoversOthers: a client whose address a bridge's network covers does not answer there; it may be beyond a router.
func TestBridgeThatCoversOthers(t *testing.T) {
	client := netip.MustParseAddr("172.18.40.10")
	for bridge, found := range map[bool]string{true: "172.18.0.0/16", false: ""} {
		rec := household()
		rec.Last().Audit = &snapshot.Audit{Interfaces: []snapshot.Interface{{Name: "br-1", Bridge: bridge, Addresses: []netip.Prefix{netip.MustParsePrefix("172.18.0.1/16")}}}}
		answer := &snapshot.Route{Out: "br-1", NextHop: client, Neighbour: snapshot.NeighbourFailed}
		r := routingOf(rec, &snapshot.Routes{In: "br-1", Client: client, Answer: answer}, netip.MustParseAddr("203.0.113.10"), netip.Addr{}, false)
		if d := r.loses(true); d.cause == "" || strings.Contains(d.remedy.Title, "172.18.0.0/16") != (found != "") {
			t.Errorf("bridge %v: %+v", bridge, d)
		}
	}
}

// TestHairpinOfWhatOthersAreAsked: a rule for a port takes what hosts inside ask of others to a server of their network.
func TestHairpinOfWhatOthersAreAsked(t *testing.T) {
	for service, taken := range map[string]bool{"203.0.113.10:80": true, "198.51.100.1:80": false} {
		rec := household()
		rec.Last().NATRules.Rules[1].InInterface = ""
		rec.Last().Audit = &snapshot.Audit{Interfaces: []snapshot.Interface{{Name: "wan0", Addresses: []netip.Prefix{netip.MustParsePrefix("198.51.100.1/24")}}, {Name: "lan0", Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.1.1/24")}}}}
		s := &snapshot.Service{Kind: snapshot.ServiceDNAT, Protocol: "tcp", Service: netip.MustParseAddrPort(service), Target: netip.MustParseAddrPort(inside + "80"), Clients: []netip.Addr{netip.MustParseAddr("192.168.1.20")}}
		f := failing{target: s.Target}
		if f.explain(rec, s); !f.known || strings.Contains(f.advice.Title, "-d 198.51.100.1") != taken {
			t.Errorf("%s: %+v", service, f)
		}
	}
}
