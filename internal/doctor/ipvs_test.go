package doctor

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

// All on one bridge: client 198.18.7.9 and 198.19.0.9, director 198.18.7.1 with the
// services on 198.18.7.80, servers 198.18.7.11 and .12. Answers to the client's first
// address pass the director by (direct routing), those to the second one come back
// through it.
const (
	virtual   = "198.18.7.80"
	direct    = "198.18.7.9"
	throughIt = "198.19.0.9"
	// balancedPorts is odd, so that a scheduler that takes turns gives a port the other server
	// the next time.
	balancedPorts = 63
	firstBalanced = 20001
	// round is the time for one connection from each port: entries of closed connections
	// are distinguished from those being closed after two seconds of silence.
	round = 4 * time.Second
)

var realServers = []string{"198.18.7.11", "198.18.7.12"}

// balancedService is reached at a port of its own.
type balancedService struct {
	port      string
	from      string
	forward   string
	configure []string
}

var (
	passing    = balancedService{"8001", direct, "-g", nil}
	comingBack = balancedService{"8002", throughIt, "-m", nil}
	persistent = balancedService{"8003", throughIt, "-m", []string{"-p", "300"}}

	balancedServices = []balancedService{passing, comingBack, persistent}
)

func (s balancedService) address() string { return virtual + ":" + s.port }

// balanced sends to the services in only, from ports.
type balanced struct {
	client, director *netns.Handle
	only             []balancedService
	ports            []uint16
}

// TestIPVSAffinity: which connections stay on the server of a former one, by the way of forwarding
// and net.ipv4.vs.conn_reuse_mode; and what doctor says of it.
func TestIPVSAffinity(t *testing.T) {
	n := newBalanced(t)
	for _, s := range balancedServices {
		n.add(t, s)
	}
	n.round(t) // every port has an entry then
	for _, tt := range []struct {
		mode             string
		stays, scheduled []balancedService
		takeOut          bool
		findings         []string
	}{
		{"1", []balancedService{passing, persistent}, []balancedService{comingBack}, false, []string{"lvs-affinity"}},
		{"3", []balancedService{persistent}, []balancedService{passing, comingBack}, false, nil},
		{"0", balancedServices, nil, true, []string{"lvs-affinity", "lvs-conn-reuse"}},
	} {
		t.Run("conn_reuse_mode "+tt.mode, func(t *testing.T) {
			n.sysctl(t, "net/ipv4/vs/conn_reuse_mode", tt.mode)
			if tt.takeOut {
				n.ipvsadm(t, "-e", "-t", comingBack.address(), "-r", realServers[1]+":"+comingBack.port, "-m", "-w", "0")
			}
			rec, r := n.look(t)
			for _, s := range balancedServices {
				u := used(t, rec, s)
				t.Logf("%s: %d used again, %d on the same server; servers %+v", s.address(), u.UsedAgain, u.SameServer, u.Servers)
				if u.UsedAgain < balancedPorts/3 || u.Clients != 1 {
					t.Errorf("%s: %d tuples used again by %d clients", s.address(), u.UsedAgain, u.Clients)
				}
			}
			for _, s := range tt.stays {
				// A client that is slow may close before its first ACK: such an entry is in TIME_WAIT.
				if u := used(t, rec, s); 10*u.SameServer < 9*u.UsedAgain {
					t.Errorf("%s: %d of %d stayed on their server", s.address(), u.SameServer, u.UsedAgain)
				}
			}
			expected := int64(0)
			for _, s := range tt.scheduled {
				expected += used(t, rec, s).UsedAgain
			}
			counted := int64(rec.Last().IPVS.Stats.Connections - rec.First().IPVS.Stats.Connections)
			if few := int64(balancedPorts / 10); counted < expected*8/10 || expected == 0 && counted > few {
				t.Errorf("the kernel counted %d connections, expected %d", counted, expected)
			}
			if got := ofBalancer(r); !slices.Equal(got, tt.findings) {
				t.Errorf("findings %v, expected %v; %+v", got, tt.findings, r.Checks)
			}
		})
	}
}

// TestIPVSServerRemoved: entries of a server that is no more swallow SYNs, while other
// ports come again on theirs.
func TestIPVSServerRemoved(t *testing.T) {
	n := newBalanced(t)
	n.add(t, comingBack)
	n.sysctl(t, "net/ipv4/vs/conn_reuse_mode", "0")
	n.only = []balancedService{comingBack}
	n.round(t)
	n.ipvsadm(t, "-d", "-t", comingBack.address(), "-r", realServers[1]+":"+comingBack.port)
	var orphan uint16
	n.ports, orphan = n.portsAt(t, realServers[0])
	_, r := n.look(t)
	if f := r.Find("lvs-conn-reuse"); f == nil || f.Confidence != "likely" || !strings.Contains(f.Title, realServers[1]) {
		t.Errorf("finding %+v; %+v", f, r.Checks)
	}
	from := netip.AddrPortFrom(netip.MustParseAddr(throughIt), orphan)
	try := func(patience time.Duration) error {
		return n.client.Do(func() error { return connectFrom(from, comingBack.address(), patience) })
	}
	var timeout net.Error
	if err := try(1500 * time.Millisecond); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("a connection from a port of the removed server: %v", err)
	}
	n.sysctl(t, "net/ipv4/vs/expire_nodest_conn", "1")
	if err := try(testutil.Patience(time.Minute)); err != nil {
		t.Errorf("with expire_nodest_conn: %v", err)
	}
}

// portsAt are the ports whose entries lead to a server, and one whose entry does not.
func (n *balanced) portsAt(t *testing.T, server string) (at []uint16, other uint16) {
	t.Helper()
	testutil.Inside(t, n.director, func() error {
		text, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/net/ip_vs_conn", unix.Gettid()))
		if err != nil {
			return err
		}
		// As in TCP C6120109 0800 C6120050 01BB C613000B 01BB TIME_WAIT 117.
		service, to := inHex(comingBack.address()), inHex(server + ":0")[:8]
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) < 9 || f[3]+f[4] != service {
				continue
			}
			port, err := strconv.ParseUint(f[2], 16, 16)
			if err != nil {
				return err
			}
			if f[5] == to {
				at = append(at, uint16(port))
			} else {
				other = uint16(port)
			}
		}
		return nil
	})
	if len(at) < balancedPorts/3 || other == 0 {
		t.Fatalf("%d ports at %s, %d elsewhere", len(at), server, other)
	}
	slices.Sort(at)
	return at, other
}

// inHex is an IPv4 address and port as /proc/net/ip_vs_conn has them.
func inHex(address string) string {
	a := netip.MustParseAddrPort(address)
	return fmt.Sprintf("%X%04X", a.Addr().AsSlice(), a.Port())
}

// ofBalancer are the findings about IPVS, by name.
func ofBalancer(r *diagnose.Report) (ids []string) {
	for _, id := range r.IDs() {
		if strings.HasPrefix(id, "lvs-") {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

func used(t *testing.T, rec *snapshot.Recording, of balancedService) *snapshot.IPVSUse {
	t.Helper()
	v := rec.Last().IPVS
	if v == nil || v.Connections == nil || v.Stats == nil || v.Timeouts == nil || rec.First().IPVS == nil {
		t.Fatalf("IPVS was not read: %+v, %+v", v, rec.Last().Parts)
	}
	if v.Timeouts.TCPFin != 120 || len(v.Services) != len(balancedServices) || len(v.Services[0].Servers) != len(realServers) {
		t.Fatalf("IPVS was read wrong: %+v %+v", v, v.Timeouts)
	}
	for i := range v.Connections.Services {
		if u := &v.Connections.Services[i]; u.Address == of.address() {
			return u
		}
	}
	t.Fatalf("no connections of %s: %+v", of.address(), v.Connections)
	return nil
}

// look records while connections come, one from each port in turn.
func (n *balanced) look(t *testing.T) (*snapshot.Recording, *diagnose.Report) {
	t.Helper()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				n.round(t)
			}
		}
	})
	// All that doctor reads may take longer than a round on an emulated processor.
	rec, err := collect.RecordIPVS(t.Context(), collect.RecordOptions{Options: collect.Options{Netns: n.director}, For: round * 3 / 4})
	close(stop)
	wg.Wait()
	if err != nil {
		t.Fatal(err)
	}
	r := diagnose.Run(rec, diagnose.Rules())
	return rec, &r
}

// round makes one connection from each port to each service. Servers close first.
func (n *balanced) round(t *testing.T) {
	pace := time.NewTicker(round / time.Duration(len(n.ports)))
	defer pace.Stop()
	err := n.client.Do(func() error {
		for _, port := range n.ports {
			<-pace.C
			for _, s := range n.only {
				from := netip.AddrPortFrom(netip.MustParseAddr(s.from), port)
				if err := connectFrom(from, s.address(), testutil.Patience(10*time.Second)); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// connectFrom makes one connection, and waits where the port's former one is closing.
func connectFrom(from netip.AddrPort, to string, patience time.Duration) error {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(from), Timeout: patience}
	c, err := d.Dial("tcp4", to)
	for end := time.Now().Add(patience); errors.Is(err, unix.EADDRINUSE) && time.Now().Before(end); c, err = d.Dial("tcp4", to) {
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	_, err = io.ReadAll(c)
	return err
}
