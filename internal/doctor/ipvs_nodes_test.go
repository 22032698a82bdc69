package doctor

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

func newBalanced(t *testing.T) *balanced {
	t.Helper()
	testutil.NeedProgram(t, "ipvsadm")
	testutil.NeedFeature(t, testutil.IPVS)
	link := testutil.Namespace(t, "switch")
	testutil.Inside(t, link, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "br"
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return err
		}
		return netlink.LinkSetUp(&netlink.Bridge{LinkAttrs: attrs})
	})
	n := &balanced{client: testutil.Namespace(t, "client"), director: testutil.Namespace(t, "director"), only: balancedServices}
	for i := range balancedPorts {
		n.ports = append(n.ports, uint16(firstBalanced+i))
	}
	plug(t, n.client, link, "c", direct+"/24", throughIt+"/24")
	plug(t, n.director, link, "d", "198.18.7.1/24", "198.19.0.1/24", virtual+"/32")
	n.sysctl(t, "net/ipv4/ip_forward", "1")
	for _, name := range []string{"all", "up"} { // or it redirects servers to the direct route
		n.sysctl(t, "net/ipv4/conf/"+name+"/send_redirects", "0")
	}
	for i, address := range realServers {
		server := testutil.Namespace(t, fmt.Sprintf("server%d", i))
		plug(t, server, link, fmt.Sprintf("s%d", i), address+"/24")
		serve(t, server)
	}
	return n
}

// plug joins a namespace to the bridge: "up" there, name here.
func plug(t *testing.T, ns, link *netns.Handle, name string, addresses ...string) {
	t.Helper()
	testutil.Veth(t, testutil.End{Netns: ns, Name: "up", Addresses: addresses}, testutil.End{Netns: link, Name: name})
	testutil.Inside(t, link, func() error {
		port, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		br, err := netlink.LinkByName("br")
		if err != nil {
			return err
		}
		return netlink.LinkSetMaster(port, br)
	})
}

// serve accepts connections and closes them, at the server's own address and at the
// service's, for which it does not answer ARP.
func serve(t *testing.T, ns *netns.Handle) {
	t.Helper()
	var listeners []net.Listener
	testutil.Addresses(t, testutil.Links(t, ns), "lo", virtual+"/32")
	testutil.Inside(t, ns, func() error {
		for _, name := range []string{"all/arp_ignore", "all/arp_announce", "up/arp_ignore"} {
			if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+name, []byte("2"), 0); err != nil {
				return err
			}
		}
		_, far, _ := net.ParseCIDR("198.19.0.0/24")
		if err := netlink.RouteAdd(&netlink.Route{Dst: far, Gw: net.ParseIP("198.18.7.1")}); err != nil {
			return err
		}
		for _, s := range balancedServices {
			l, err := net.Listen("tcp4", ":"+s.port)
			if err != nil {
				return err
			}
			listeners = append(listeners, l)
		}
		return nil
	})
	for _, l := range listeners {
		closeFirst(t, l)
	}
}

// closeFirst closes what is accepted, until the test ends.
func closeFirst(t *testing.T, l net.Listener) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
}

// add sets a service up.
func (n *balanced) add(t *testing.T, s balancedService) {
	t.Helper()
	n.ipvsadm(t, append([]string{"-A", "-t", s.address(), "-s", "rr"}, s.configure...)...)
	for _, r := range realServers {
		n.ipvsadm(t, "-a", "-t", s.address(), "-r", r+":"+s.port, s.forward)
	}
}

func (n *balanced) ipvsadm(t *testing.T, args ...string) {
	t.Helper()
	testutil.Inside(t, n.director, func() error {
		out, err := exec.Command("ipvsadm", args...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("ipvsadm %v: %w: %s", args, err, out)
		}
		return err
	})
}

func (n *balanced) sysctl(t *testing.T, name, value string) {
	t.Helper()
	testutil.Sysctl(t, n.director, name, value)
}
