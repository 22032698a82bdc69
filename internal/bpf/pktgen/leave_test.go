package pktgen

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// attached reports whether an interface has an XDP program.
func attached(t testing.TB, ns *netns.Handle, name string) (yes bool) {
	t.Helper()
	do(t, ns, func() error {
		l, err := netlink.LinkByName(name)
		if err == nil {
			yes = l.Attrs().Xdp != nil && l.Attrs().Xdp.Attached
		}
		return err
	})
	return yes
}

// TestNothingIsLeft looks at what a run with several workers, a receiver and a
// passing program opens, and that all of it is gone afterwards.
func TestNothingIsLeft(t *testing.T) {
	n := newNetwork(t)
	n.forward(t)
	cfg := config("198.19.0.2:9")
	cfg.Workers, cfg.Packets = min(2, runtime.NumCPU()), 6000
	from, err := ReadEgress(Route{Netns: n.client}, netip.MustParseAddr("198.19.0.2"))
	if err != nil {
		t.Fatal(err)
	}
	before := descriptors(t)
	var during kernelObjects
	watch := func(packets.Progress) {
		during = objectsOf(t)
		if !attached(t, n.gateway, "eth0") || !attached(t, n.server, "eth0") {
			t.Error("the programs are not attached while the run goes on")
		}
	}
	if _, err := Run(t.Context(), cfg, from, &Port{n.server, "eth0"}, watch); err != nil {
		t.Fatal(err)
	}
	if attached(t, n.gateway, "eth0") || attached(t, n.server, "eth0") {
		t.Error("a program is still attached")
	}
	if len(during.programs) < 4 || len(during.maps) < 2 { // two generators, receiver, passing; flows, counters
		t.Errorf("the test found only %+v", during)
	}
	testutil.Eventually(t, "programs, maps and descriptors of the run are gone", func() bool {
		runtime.GC() // variables are mapped until then
		return during.gone() && slices.Equal(descriptors(t), before)
	})
}

// TestConnectLeavesNothing looks at the same of connections through a gateway.
func TestConnectLeavesNothing(t *testing.T) {
	n := newNetwork(t)
	n.forward(t)
	n.routeSources(t)
	from := egress(t, n, "198.19.0.2")
	before := descriptors(t)
	var during kernelObjects
	server, err := Respond(Port{n.server, "eth0"}, []nat.Ports{{First: 80, Last: 80}})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if _, err := Connect(t.Context(), connections("198.19.0.2:80"), from, func(packets.ConnectProgress) {
		during = objectsOf(t)
		if !attached(t, n.client, "eth0") || !attached(t, n.gateway, "eth0") || !attached(t, n.gateway, "eth1") || !attached(t, n.server, "eth0") {
			t.Error("the programs are not attached while the run goes on")
		}
	}); err != nil {
		t.Fatal(err)
	}
	if attached(t, n.client, "eth0") || attached(t, n.gateway, "eth0") {
		t.Error("a program of the run is still attached")
	}
	if err := errors.Join(server.Broken(), server.Close()); err != nil {
		t.Error(err)
	}
	if attached(t, n.server, "eth0") || attached(t, n.gateway, "eth1") {
		t.Error("a program of the responder is still attached")
	}
	if len(during.programs) < 5 || len(during.maps) < 5 { // generator, client, responder, passing ones; their tables
		t.Errorf("the test found only %+v", during)
	}
	testutil.Eventually(t, "programs, maps and descriptors of the run are gone", func() bool {
		runtime.GC() // variables are mapped until then
		return during.gone() && slices.Equal(descriptors(t), before)
	})
}

// descriptors are what this process holds open, by kind.
func descriptors(t testing.TB) (kinds []string) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if target, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && !strings.HasPrefix(target, "/proc/") {
			kinds = append(kinds, target)
		}
	}
	slices.Sort(kinds)
	return kinds
}

type kernelObjects struct {
	programs []ebpf.ProgramID
	maps     []ebpf.MapID
}

// objectsOf reads which programs and maps this process holds.
func objectsOf(t testing.TB) (o kernelObjects) {
	t.Helper()
	files, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			continue // closed since
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			var id uint32
			if n, _ := fmt.Sscanf(lines.Text(), "prog_id: %d", &id); n == 1 {
				o.programs = append(o.programs, ebpf.ProgramID(id))
			}
			if n, _ := fmt.Sscanf(lines.Text(), "map_id: %d", &id); n == 1 {
				o.maps = append(o.maps, ebpf.MapID(id))
			}
		}
		f.Close()
	}
	return o
}

func (o kernelObjects) gone() bool {
	for _, id := range o.programs {
		if p, err := ebpf.NewProgramFromID(id); !errors.Is(err, os.ErrNotExist) {
			p.Close()
			return false
		}
	}
	for _, id := range o.maps {
		if m, err := ebpf.NewMapFromID(id); !errors.Is(err, os.ErrNotExist) {
			m.Close()
			return false
		}
	}
	return true
}

// TestCancelEndsARun in the middle, flat out and paced, with a result that says what
// became of the packets until then.
func TestCancelEndsARun(t *testing.T) {
	n := newNetwork(t)
	for _, rate := range []float64{0, 1000, 1} {
		t.Run(fmt.Sprintf("rate %.0f", rate), func(t *testing.T) {
			cfg := config("198.18.0.1:9")
			cfg.Packets, cfg.Rate = 1_000_000_000, rate
			from, err := ReadEgress(Route{Netns: n.client}, netip.MustParseAddr("198.18.0.1"))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r, err := Run(ctx, cfg, from, &Port{n.gateway, "eth0"}, func(packets.Progress) { cancel() })
			if err != nil {
				t.Fatal(err)
			}
			if r.Sent == 0 || r.Sent == cfg.Packets || r.Received != r.Sent && rate > 0 || r.Received == 0 {
				t.Errorf("%+v", r.Delivery)
			}
		})
	}
}

// TestCancelledBeforeItStarts sends no more than it takes to find the receiver.
func TestCancelledBeforeItStarts(t *testing.T) {
	n := newNetwork(t)
	from, err := ReadEgress(Route{Netns: n.client}, netip.MustParseAddr("198.18.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r, err := Run(ctx, config("198.18.0.1:9"), from, &Port{n.gateway, "eth0"}, nil); err != nil || r.Sent > probes {
		t.Errorf("%+v, %v", r, err)
	}
}
