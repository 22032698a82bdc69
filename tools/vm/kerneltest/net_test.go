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
	"strings"
	"testing"
	"time"

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
	n := nodes{testutil.Namespace(t, "client"), testutil.Namespace(t, "router"), testutil.Namespace(t, "server")}
	wire(t, n.client, n.router, "near", nearAddr, clientAddr)
	wire(t, n.server, n.router, "far", farAddr, serverA, serverB)
	testutil.Sysctl(t, n.router, "net/ipv4/ip_forward", "1")
	return n
}

// wire joins a namespace to the router, its gateway, by a veth pair: "up" there, name here.
func wire(t *testing.T, from, router *netns.Handle, name string, gateway netip.Addr, addrs ...netip.Addr) {
	t.Helper()
	up := testutil.End{Netns: from, Name: "up"}
	for _, a := range addrs {
		up.Addresses = append(up.Addresses, a.String()+"/24")
	}
	testutil.Veth(t, up, testutil.End{Netns: router, Name: name, Addresses: []string{gateway.String() + "/24"}})
	testutil.Routes(t, from, gateway.String())
}

// answerTCP accepts connections at an address and answers each line with that
// address, until the test ends.
func answerTCP(t *testing.T, ns *netns.Handle, at netip.Addr) {
	t.Helper()
	var l net.Listener
	testutil.Inside(t, ns, func() (err error) { l, err = net.Listen("tcp4", netip.AddrPortFrom(at, port).String()); return err })
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
	testutil.Inside(t, ns, func() (err error) {
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
	testutil.Inside(t, ns, func() (err error) {
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
