// Package kerneltest has one test for each part of the kernel that natkit builds on
// and that many kernels lack: real traffic, a real effect. `make test-vm` runs them
// on kernels that have them all; where a kernel lacks one, its test says so.
package kerneltest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// client ── near 198.18.1.1 ─ router ─ far 198.18.2.1 ── server
// 198.18.1.2                                             198.18.2.2, 198.18.2.3
var (
	clientAddr = netip.MustParseAddr("198.18.1.2")
	nearAddr   = netip.MustParseAddr("198.18.1.1")
	farAddr    = netip.MustParseAddr("198.18.2.1")
	serverA    = netip.MustParseAddr("198.18.2.2")
	serverB    = netip.MustParseAddr("198.18.2.3")
)

const port = 7000

type nodes struct{ client, router, server *netns.Handle }

// newNodes makes the topology above; it goes with the test.
func newNodes(t *testing.T) nodes {
	t.Helper()
	n := nodes{newNetns(t, "client"), newNetns(t, "router"), newNetns(t, "server")}
	wire(t, n.client, n.router, "near")
	wire(t, n.server, n.router, "far")
	addAddrs(t, n.client, "up", clientAddr)
	addAddrs(t, n.router, "near", nearAddr)
	addAddrs(t, n.router, "far", farAddr)
	addAddrs(t, n.server, "up", serverA, serverB)
	addRoute(t, n.client, nearAddr)
	addRoute(t, n.server, farAddr)
	inside(t, n.router, func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) })
	return n
}

func newNetns(t *testing.T, name string) *netns.Handle {
	t.Helper()
	testutil.NeedRoot(t)
	ns, err := netns.New(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

func inside(t *testing.T, ns *netns.Handle, fn func() error) {
	t.Helper()
	if err := ns.Do(fn); err != nil {
		t.Fatalf("in %s: %v", ns.Name(), err)
	}
}

// wire joins a namespace to the router by a veth pair: "up" there, name here.
func wire(t *testing.T, from, router *netns.Handle, name string) {
	t.Helper()
	inside(t, from, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "up"
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name, PeerNamespace: netlink.NsFd(router.Fd())})
	})
}

// addAddrs gives an interface addresses of a /24 and sets it up.
func addAddrs(t *testing.T, ns *netns.Handle, name string, addrs ...netip.Addr) {
	t.Helper()
	inside(t, ns, func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		for _, a := range addrs {
			at := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(24, 32)}}
			if err := netlink.AddrAdd(l, at); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(l)
	})
}

func addRoute(t *testing.T, ns *netns.Handle, gateway netip.Addr) {
	t.Helper()
	inside(t, ns, func() error { return netlink.RouteAdd(&netlink.Route{Gw: gateway.AsSlice()}) })
}

// nft loads rules into a namespace.
func nft(t *testing.T, ns *netns.Handle, rules string) {
	t.Helper()
	run(t, ns, rules, testutil.NeedProgram(t, "nft"), "-f", "-")
}

// run runs a program in a namespace and gives its output.
func run(t *testing.T, ns *netns.Handle, input, program string, args ...string) string {
	t.Helper()
	var out []byte
	inside(t, ns, func() (err error) {
		cmd := exec.Command(program, args...)
		cmd.Stdin = strings.NewReader(input)
		if out, err = cmd.CombinedOutput(); err != nil {
			err = fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, out)
		}
		return err
	})
	return string(out)
}

// answerTCP accepts connections at an address and answers each line with that
// address, until the test ends.
func answerTCP(t *testing.T, ns *netns.Handle, at netip.Addr) {
	t.Helper()
	var l net.Listener
	inside(t, ns, func() (err error) { l, err = net.Listen("tcp4", netip.AddrPortFrom(at, port).String()); return err })
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for lines := bufio.NewScanner(c); lines.Scan(); {
					if _, err := fmt.Fprintln(c, at); err != nil {
						return
					}
				}
			}()
		}
	}()
}

// dial connects from a namespace.
func dial(t *testing.T, ns *netns.Handle, network string, to netip.Addr) net.Conn {
	t.Helper()
	var c net.Conn
	inside(t, ns, func() (err error) {
		c, err = net.DialTimeout(network, netip.AddrPortFrom(to, port).String(), testutil.Patience(2*time.Second))
		return err
	})
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(testutil.Patience(time.Minute))); err != nil {
		t.Fatal(err)
	}
	return c
}

// ask sends a line and gives the answer.
func ask(t *testing.T, c net.Conn) string {
	t.Helper()
	if _, err := io.WriteString(c, "who\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(answer)
}

// echoUDP sends datagrams back, until the test ends.
func echoUDP(t *testing.T, ns *netns.Handle, at netip.Addr) {
	t.Helper()
	var c net.PacketConn
	inside(t, ns, func() (err error) {
		c, err = net.ListenPacket("udp4", netip.AddrPortFrom(at, port).String())
		return err
	})
	t.Cleanup(func() { c.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := c.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = c.WriteTo(buf[:n], from)
			}
		}
	}()
}
