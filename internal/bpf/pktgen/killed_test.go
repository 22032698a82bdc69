package pktgen

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// victim makes a process of the test binary send until it is killed, between
// namespaces that are descriptors of its parent.
const victim = "NATKIT_TEST_PKTGEN_VICTIM"

func TestMain(m *testing.M) {
	if task := os.Getenv(victim); task != "" {
		fmt.Println(workUntilKilled(task))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func workUntilKilled(task string) error {
	var what, client, gateway string
	if _, err := fmt.Sscan(task, &what, &client, &gateway); err != nil {
		return err
	}
	from, err := netns.At(client, "client")
	if err != nil {
		return err
	}
	to, err := netns.At(gateway, "gateway")
	if err != nil {
		return err
	}
	egress, err := ReadEgress(Route{Netns: from}, netip.MustParseAddr("198.18.0.1"))
	if err != nil {
		return err
	}
	if what == "connect" {
		r, err := Respond(Port{to, "eth0"}, []nat.Ports{{First: 80, Last: 80}})
		if err != nil {
			return err
		}
		defer r.Close()
		cfg := connections("198.18.0.1:80")
		cfg.Connections, cfg.Duration = 0, 20*time.Second
		_, err = Connect(context.Background(), cfg, egress, nil)
		return err
	}
	cfg := config("198.18.0.1:9")
	cfg.Packets, cfg.Rate, cfg.Duration = 0, 0, 20*time.Second
	_, err = Run(context.Background(), cfg, egress, &Port{to, "eth0"}, nil)
	return err
}

// TestKillLeavesNothing kills a process in the middle of a run.
func TestKillLeavesNothing(t *testing.T) {
	t.Run("packets", func(t *testing.T) {
		n := newNetwork(t)
		killed(t, n, "packets")
		if r := mustSend(t, n, config("198.18.0.1:9")); r.Received != r.Sent {
			t.Errorf("the next run: %+v", r.Delivery)
		}
	})
	t.Run("connections", func(t *testing.T) {
		n := newNetwork(t)
		killed(t, n, "connect")
		respond(t, n.gateway, "eth0")
		if r := connect(t, n, connections("198.18.0.1:80")); r.Connections != all(1000) {
			t.Errorf("the next run: %+v", r.Connections)
		}
	})
}

// killed has a process work until it is killed, and looks at what it leaves.
func killed(t *testing.T, n *network, what string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	path := func(ns *netns.Handle) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.Fd()) }
	cmd.Env = append(os.Environ(), victim+"="+what+" "+path(n.client)+" "+path(n.gateway))
	var out strings.Builder
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	testutil.Eventually(t, "the other process is sending", func() bool {
		return attached(t, n.gateway, "eth0") && received(t, n.gateway, "eth0") > 10_000
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if cmd.Wait(); out.Len() > 0 {
		t.Errorf("it ended before it was killed: %s", out.String())
	}
	testutil.Eventually(t, "no program is attached", func() bool { return !attached(t, n.gateway, "eth0") && !attached(t, n.client, "eth0") })
}

// received is how many packets an interface has taken in, those that an XDP program
// dropped included.
func received(t testing.TB, ns *netns.Handle, name string) (packets uint64) {
	t.Helper()
	do(t, ns, func() error {
		l, err := netlink.LinkByName(name)
		if err == nil {
			packets = l.Attrs().Statistics.RxPackets
		}
		return err
	})
	return packets
}
