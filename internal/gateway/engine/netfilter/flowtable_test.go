package netfilter

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

const (
	clientAddress = "192.168.0.2"
	serverAddress = "203.0.113.2"
	publicAddress = "203.0.113.1"
)

// route is a client, a gateway and a server, with the kernel's own sockets.
type route struct{ client, gateway, server *netns.Handle }

func newRoute(t *testing.T) route {
	t.Helper()
	r := route{testutil.Namespace(t), testutil.Namespace(t), testutil.Namespace(t)}
	join(t, r.client, r.gateway, "lan", clientAddress+"/24", "192.168.0.1/24")
	join(t, r.server, r.gateway, "wan", serverAddress+"/24", publicAddress+"/24")
	run(t, r.client, "sh", "-c", "ip route add default via 192.168.0.1")
	run(t, r.gateway, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
	return r
}

// join puts a pair of interfaces between two namespaces: "eth0" and, at the gateway,
// one of the given name.
func join(t *testing.T, host, gateway *netns.Handle, name, hostAddress, gatewayAddress string) {
	t.Helper()
	testutil.Veth(t, testutil.End{Netns: host, Name: "eth0", Addresses: []string{hostAddress}}, testutil.End{Netns: gateway, Name: name, Addresses: []string{gatewayAddress}})
}

// serve answers connections with what they send, until the test ends.
func (r route) serve(t *testing.T, address string) {
	t.Helper()
	var l net.Listener
	err := r.server.Do(func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); io.Copy(c, c) }()
		}
	}()
}

func (r route) connect(t *testing.T, address string) net.Conn {
	t.Helper()
	var c net.Conn
	err := r.client.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", address, testutil.Patience(time.Minute))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// echo sends bytes and wants them back.
func echo(t *testing.T, c net.Conn, n int) {
	t.Helper()
	c.SetDeadline(time.Now().Add(testutil.Patience(time.Minute)))
	go io.Copy(c, io.LimitReader(zeros{}, int64(n)))
	if _, err := io.CopyN(io.Discard, c, int64(n)); err != nil {
		t.Fatal(err)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func entries(t *testing.T, ns *netns.Handle) []conntrack.Entry {
	t.Helper()
	var all []conntrack.Entry
	_, err := dump.Each(context.Background(), ns, nil, func(e *conntrack.Entry) error { all = append(all, *e); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func fastPlan() *gateway.Plan {
	return &gateway.Plan{IPv4: true, Accounting: true, WAN: []string{"wan"}, LAN: []string{"lan"}, Flowtable: []string{"lan", "later", "wan"},
		Sources: []gateway.Source{{Rule: gateway.Ref{List: "nat", Kind: "masquerade"}, Out: []string{"wan"}, Masquerade: true,
			From: []netip.Prefix{netip.MustParsePrefix("192.168.0.0/24")}}}}
}

// TestFlowtable: on a kernel with flowtables (make test-vm) a connection is handed
// over, still translated, and its packets no longer meet the rules. It goes on after
// another apply.
func TestFlowtable(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.FlowTable)
	r := newRoute(t)
	if err := Apply(r.gateway, fastPlan()); err != nil {
		t.Fatal(err)
	}
	r.serve(t, serverAddress+":80")
	c := r.connect(t, serverAddress+":80")
	echo(t, c, 1<<20)
	fast := entries(t, r.gateway)
	if len(fast) != 1 || fast[0].Status&conntrack.Offload == 0 || fast[0].Reply.Dst.String() != publicAddress {
		t.Fatalf("not offloaded: %+v", fast)
	}
	before := slow(t, r.gateway)
	echo(t, c, 1<<20)
	if n := slow(t, r.gateway) - before; n > 10 {
		t.Errorf("%d packets of an offloaded connection met the rules", n)
	}
	if err := Apply(r.gateway, fastPlan()); err != nil {
		t.Fatal(err)
	}
	echo(t, c, 1<<20)
	if got := entries(t, r.gateway); len(got) != 1 || got[0].Orig != fast[0].Orig || got[0].Reply != fast[0].Reply {
		t.Errorf("after another apply: %+v", got)
	}
}

// slow is how many packets met the flowtable's rule.
func slow(t *testing.T, ns *netns.Handle) (n uint64) {
	t.Helper()
	s, err := Read(ns)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range s.Counts {
		if c.What == FlowtableComment {
			n += c.Packets
		}
	}
	return n
}

// TestWithoutFlowtable: a kernel that has none says so in one line, and what was there
// stays.
func TestWithoutFlowtable(t *testing.T) {
	testutil.NeedRoot(t)
	if testutil.FlowTable.Probe() == nil {
		testutil.Impossible(t, "this kernel has flowtables")
	}
	r := newRoute(t)
	plan := fastPlan()
	plan.Flowtable = nil
	if err := Apply(r.gateway, plan); err != nil {
		t.Fatal(err)
	}
	err := Apply(r.gateway, fastPlan())
	var m *Missing
	if !errors.As(err, &m) || m.About != FlowtableComment || !strings.Contains(err.Error(), "CONFIG_NF_FLOW_TABLE") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
	if s, err := Read(r.gateway); err != nil || s.Digest != gateway.Digest(plan) || s.Integrity != gateway.RulesIntact {
		t.Errorf("the rules before: %+v, %v", s, err)
	}
}
