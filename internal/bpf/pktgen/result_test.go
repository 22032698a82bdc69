package pktgen

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/netns"
	"github.com/vishvananda/netlink"
)

func neighbour(t testing.TB, ns *netns.Handle, name, addr string, mac net.HardwareAddr) {
	t.Helper()
	do(t, ns, func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.ParseIP(addr), HardwareAddr: mac})
	})
}

func remove(t testing.TB, ns *netns.Handle, name string) {
	t.Helper()
	do(t, ns, func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	})
}

// TestBrokenWay ends runs from which something is taken away, with one line and the
// result until then.
func TestBrokenWay(t *testing.T) {
	for _, tt := range []struct {
		name    string
		breakIt func(*testing.T, *network)
		want    []string
	}{
		{"receiver removed", func(t *testing.T, n *network) { remove(t, n.server, "eth0") }, []string{"receive on ", "was removed while the run was under way"}},
		{"receiver down", func(t *testing.T, n *network) { down(t, n.server, "eth0") }, []string{"receive on ", "the interface went down"}},
		{"sender removed", func(t *testing.T, n *network) { remove(t, n.client, "eth0") }, []string{"send by ", "the interface was removed"}},
		{"sender down", func(t *testing.T, n *network) { down(t, n.client, "eth0") }, []string{"send by ", "the interface went down"}},
		{"other end down", func(t *testing.T, n *network) { down(t, n.gateway, "eth0") }, []string{"send by ", "lost its carrier"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			n.forward(t)
			cfg := config("198.19.0.2:9")
			cfg.Packets, cfg.Rate, cfg.Duration = 0, 1000, time.Hour
			once := sync.OnceFunc(func() { tt.breakIt(t, n) })
			r, err := Run(t.Context(), cfg, egress(t, n, "198.19.0.2"), &Port{n.server, "eth0"}, func(packets.Progress) { once() })
			wantError(t, err, tt.want...)
			if r == nil || r.Sent == 0 || r.Seconds >= cfg.Duration.Seconds() {
				t.Errorf("%+v", r)
			}
		})
	}
}

// TestForeignProgramGoes: a run depends on the program that another one has attached.
func TestForeignProgramGoes(t *testing.T) {
	n := newNetwork(t)
	from := egress(t, n, "198.19.0.2") // the forwarder would forward the question for the neighbour, too
	f, err := Forward("eth0", egressOf(t, n.gateway, "198.19.0.2"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cfg := config("198.19.0.2:9")
	cfg.Packets, cfg.Rate, cfg.Duration = 0, 1000, time.Hour
	_, err = Run(t.Context(), cfg, from, nil, func(packets.Progress) { f.link.Close() })
	wantError(t, err, "the XDP program of its other end", "was removed while the run was under way")
}

// TestGenericProgram: with one the other end drops redirected frames, and none that
// would help fits beside it.
func TestGenericProgram(t *testing.T) {
	n := newNetwork(t)
	n.forward(t)
	f, err := Forward("eth1", egressOf(t, n.gateway, "198.18.0.2"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	index, err := interfaceIndex(Port{n.gateway, "eth0"})
	if err != nil {
		t.Fatal(err)
	}
	l, err := attachMode(n.gateway, index, f.program, link.XDPGenericMode)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = Run(context.Background(), config("198.19.0.2:9"), egress(t, n, "198.19.0.2"), nil, nil)
	wantError(t, err, "XDP program in generic mode", "xdpgeneric off")
}

// TestCourse: each point but the last is a whole second.
func TestCourse(t *testing.T) {
	r := &run{}
	for _, at := range []time.Duration{200, 400, 1001, 1200, 2000, 2100} {
		r.note(at * time.Millisecond)
	}
	var got []float64
	for _, s := range r.course {
		got = append(got, s.At)
	}
	if len(got) != 3 || got[0] != 1.001 || got[1] != 2 || got[2] != 2.1 {
		t.Errorf("%v", got)
	}
}
