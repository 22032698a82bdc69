package look

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune/journal"
)

// world is a host inside (192.168.0.2), a gateway and a host outside (203.0.113.100),
// that answers UDP and TCP at port 7.
type world struct {
	t                        *testing.T
	inside, gateway, outside *netns.Handle
	journal                  *journal.Journal
	store                    *engine.Store
}

func newWorld(t *testing.T) *world {
	t.Helper()
	testutil.NeedRoot(t)
	w := &world{t: t}
	for name, ns := range map[string]**netns.Handle{"inside": &w.inside, "gateway": &w.gateway, "outside": &w.outside} {
		h, err := netns.New(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { h.Close() })
		*ns = h
	}
	w.wire(w.inside, "eth0", "192.168.0.2/24", w.gateway, "lan0", "192.168.0.1/24")
	w.wire(w.gateway, "wan0", "203.0.113.1/24", w.outside, "eth0", "203.0.113.100/24")
	w.address(w.gateway, "wan0", "203.0.113.7/24")
	w.do(w.inside, func() error { return route("192.168.0.1") })
	w.sysctl("net/ipv4/ip_forward", "1")
	w.sysctl("net/netfilter/nf_conntrack_acct", "1")
	w.serve()
	var err error
	if w.journal, err = journal.At(filepath.Join(t.TempDir(), "journal")); err != nil {
		t.Fatal(err)
	}
	w.store = engine.StoreBeside(w.journal.Dir())
	return w
}

func (w *world) do(ns *netns.Handle, fn func() error) {
	w.t.Helper()
	if err := ns.Do(fn); err != nil {
		w.t.Fatal(err)
	}
}

// wire makes a veth pair, each end in its namespace.
func (w *world) wire(a *netns.Handle, aName, aAddr string, b *netns.Handle, bName, bAddr string) {
	w.t.Helper()
	testutil.Veth(w.t, testutil.End{Netns: a, Name: aName, Addresses: []string{aAddr}}, testutil.End{Netns: b, Name: bName, Addresses: []string{bAddr}})
}

func (w *world) address(ns *netns.Handle, name, addr string) {
	w.t.Helper()
	testutil.Addresses(w.t, testutil.Links(w.t, ns), name, addr)
}

func route(via string) error {
	_, all, _ := net.ParseCIDR("0.0.0.0/0")
	return netlink.RouteAdd(&netlink.Route{Dst: all, Gw: net.ParseIP(via)})
}

func (w *world) sysctl(name, value string) {
	w.t.Helper()
	w.do(w.gateway, func() error { return os.WriteFile("/proc/sys/"+name, []byte(value), 0) })
}

// serve answers at port 7 outside and at 8080 inside.
func (w *world) serve() {
	w.t.Helper()
	for _, s := range []struct {
		ns *netns.Handle
		at string
	}{{w.outside, "203.0.113.100:7"}, {w.inside, "192.168.0.2:8080"}} {
		w.do(s.ns, func() error {
			c, err := net.ListenPacket("udp4", s.at)
			if err != nil {
				return err
			}
			w.t.Cleanup(func() { c.Close() })
			go echo(c)
			return nil
		})
	}
}

func echo(c net.PacketConn) {
	b := make([]byte, 2048)
	for {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		_, _ = c.WriteTo(b[:n], from)
	}
}

// connect sends a datagram from each of n sockets and waits for the answers.
func (w *world) connect(ns *netns.Handle, to string, n int) {
	w.t.Helper()
	for range n {
		w.do(ns, func() error {
			c, err := w.datagram(to)
			if err != nil {
				return err
			}
			if err := c.SetReadDeadline(time.Now().Add(testutil.Patience(time.Minute))); err != nil {
				return err
			}
			_, err = c.Read(make([]byte, 100))
			return err
		})
	}
}

func (w *world) run(args ...string) {
	w.t.Helper()
	testutil.NeedProgram(w.t, args[0])
	w.do(w.gateway, func() error {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
		}
		return nil
	})
}

// apply compiles a file for the gateway as it is, stores the plan and applies it.
func (w *world) apply(text string, facts gateway.Facts) *gateway.Plan {
	w.t.Helper()
	f, err := gateway.Parse("test.yaml", []byte(text))
	if err != nil {
		w.t.Fatal(err)
	}
	p, err := gateway.Compile(&f.Config, facts)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.store.Put(p); err != nil {
		w.t.Fatal(err)
	}
	if err := engine.Standard.Apply(w.gateway, p, w.store); err != nil {
		w.t.Fatal(err)
	}
	return p
}

func (w *world) options() Options {
	return Options{Netns: w.gateway, Store: w.store, Journal: w.journal}
}

func (w *world) look() *observe.Status {
	w.t.Helper()
	s, err := New(w.options()).Look(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// tracked is how many connections the gateway's table has.
func (w *world) tracked() int64 {
	w.t.Helper()
	u, err := dump.Count(w.gateway)
	if err != nil {
		w.t.Fatal(err)
	}
	return u.Entries
}

// send sends a datagram from each of n sockets. The gateway may get them later: a busy
// machine leaves what a veth pair has taken to ksoftirqd.
func (w *world) send(ns *netns.Handle, to string, n int) {
	w.t.Helper()
	for range n {
		w.do(ns, func() error {
			_, err := w.datagram(to)
			return err
		})
	}
}

// datagram sends one from a socket of its own, which is open as long as the test runs:
// another one could get its port, and would be the same connection.
func (w *world) datagram(to string) (net.Conn, error) {
	c, err := net.Dial("udp4", to)
	if err != nil {
		return nil, err
	}
	w.t.Cleanup(func() { c.Close() })
	_, err = c.Write([]byte("hello"))
	return c, err
}
