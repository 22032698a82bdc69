package apply

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune"
	"golang.org/x/sys/unix"
)

const routerText = "gateway:\n  interfaces: {wan: wan0, lan: lan0}\n  ipv6:\n    - masquerade: {from: fd00:1::/64}\n"

// advertise sends a router advertisement (RFC 4861, 4.2) by an interface: a default
// route, and a prefix for addresses.
func (w *world) advertise(by, prefix string) {
	w.t.Helper()
	message := []byte{134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0, // a router for 1800 s
		3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0, 0, 0x07, 0x08, 0, 0, 0, 0} // on this link, for addresses
	message = append(message, netip.MustParseAddr(prefix).AsSlice()...)
	err := w.ns.Do(func() error {
		link, err := net.InterfaceByName(by)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255); err != nil {
			return err
		}
		all := unix.SockaddrInet6{Addr: netip.MustParseAddr("ff02::1").As16(), ZoneId: uint32(link.Index)}
		return unix.Sendto(fd, message, 0, &all)
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// router has wan1 advertise a prefix to wan0.
func (w *world) router(prefix string) {
	w.t.Helper()
	within(w.t, 10*time.Second, "address by "+prefix, func() bool {
		w.advertise("wan1", prefix)
		return strings.Contains(w.ip("ip -6 addr show dev wan0 scope global"), strings.TrimSuffix(prefix, ":"))
	})
}

// TestRoutesByAdvertisementStay: a host whose IPv6 comes by router advertisements keeps
// it when it becomes a gateway, and is as it was after the undo.
func TestRoutesByAdvertisementStay(t *testing.T) {
	testutil.NeedFeature(t, testutil.IPv6)
	w := newWorld(t)
	within(t, 10*time.Second, "address of the link", func() bool {
		return !strings.Contains(w.ip("ip -6 addr show dev wan1"), "tentative") && strings.Contains(w.ip("ip -6 addr show dev wan1"), "fe80")
	})
	w.router("2001:db8:1::")
	_, id := w.apply(routerText, 0)
	w.wantSysctl(Forward6, "1")
	w.wantSysctl("net.ipv6.conf.wan0.accept_ra", "2")
	w.wantSysctl("net.ipv6.conf.lan0.accept_ra", "1")
	if routes := w.ip("ip -6 route show default dev wan0"); !strings.Contains(routes, "proto ra") {
		t.Errorf("the default route went: %q", routes)
	}
	w.router("2001:db8:2::")
	if again := w.prepare(wish(routerText)); len(again.Plan.Changes) > 0 {
		t.Errorf("the same again: %+v", again.Plan.Changes)
	}
	if _, err := w.Undo(id); err != nil {
		t.Fatal(err)
	}
	w.wantSysctl(Forward6, "0")
	w.wantSysctl("net.ipv6.conf.wan0.accept_ra", "1")
}

// TestWhoTakesAdvertisements: interfaces whose addresses were set by hand take no
// advertisements as routers, and those of a host that is a router already are left.
func TestWhoTakesAdvertisements(t *testing.T) {
	testutil.NeedFeature(t, testutil.IPv6)
	w := newWorld(t)
	taken := func() []string {
		t.Helper()
		var names []string
		for _, c := range w.prepare(wish(routerText)).Plan.Changes {
			if isAccept(c.Target) {
				names = append(names, c.Target)
			}
		}
		return names
	}
	atBoot := []string{"net.ipv6.conf.wan0.accept_ra"}
	if diff := cmp.Diff(atBoot, taken()); diff != "" {
		t.Errorf("without an address:%s", diff)
	}
	w.ip("ip addr add 2001:db8::1/64 dev wan0 nodad")
	if got := taken(); got != nil {
		t.Errorf("with an address: %q", got)
	}
	w.ip("ip addr del 2001:db8::1/64 dev wan0")
	w.ip("sysctl -qw net.ipv6.conf.all.forwarding=1")
	if got := taken(); got != nil {
		t.Errorf("a router: %q", got)
	}
}

func TestPlanOfAdvertisements(t *testing.T) {
	const accept = "net.ipv6.conf.eth0/7.accept_ra"
	p := examplePlan(func(p *gateway.Plan) { p.IPv6 = true })
	first := freshHost(func(now *Present) { now.Sysctls[accept], now.Advertised = "1", []string{accept} })
	got, err := Plan(p, gateway.Digest(p), first, Origin)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"gateway netns 42 netfilter none → " + gateway.Digest(p)[:12], "sysctl net.ipv4.ip_forward 0 → 1",
		"sysctl " + accept + " 1 → 2", "sysctl net.ipv6.conf.all.forwarding 0 → 1",
	}
	if diff := cmp.Diff(want, steps(got)); diff != "" {
		t.Error(diff)
	}
	if why := got.Plan.Changes[2].Why; !strings.HasPrefix(why, "eth0.7 goes on taking ") {
		t.Errorf("why: %s", why)
	}
	atBoot := tune.Persistent(got.lasting)
	if len(atBoot) != 1 || atBoot[0].Kind != tune.SysctlConf || atBoot[0].Target != accept || atBoot[0].After != "2" {
		t.Errorf("at boot: %+v", atBoot)
	}
	without := examplePlan(nil)
	router := freshHost(func(now *Present) {
		now.Values, now.Advertised = inForce(gateway.Digest(p)), []string{accept}
		now.Sysctls = snapshot.Sysctls{Forward4: "1", Forward6: "1", accept: "2"}
		now.Held = map[string]bool{Forward4: true, Forward6: true, accept: true}
		now.Original = map[string]string{Forward4: "0", Forward6: "0", accept: "1"}
	})
	if got, err = Plan(without, gateway.Digest(without), router, Origin); err != nil {
		t.Fatal(err)
	}
	want = []string{"sysctl net.ipv6.conf.all.forwarding 1 → 0", "sysctl " + accept + " 2 → 1"}
	if diff := cmp.Diff(want, steps(got)[2:]); diff != "" {
		t.Error(diff)
	}
}
