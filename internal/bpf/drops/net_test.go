package drops

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

// A test network: client – gateway – server, one veth pair between each two.
//
//	client eth0 198.18.0.2/24 ── 198.18.0.1/24 eth0 gateway eth1 198.19.0.1/24 ── 198.19.0.2/24 eth0 server
type network struct{ client, gateway, server *netns.Handle }

const (
	clientIP, gatewayIP, serverIP = "198.18.0.2", "198.18.0.1", "198.19.0.2"
)

func newNetwork(t testing.TB) *network {
	t.Helper()
	n := &network{newNamespace(t, "client"), newNamespace(t, "gateway"), newNamespace(t, "server")}
	testutil.Veth(t, testutil.End{Netns: n.client, Name: "eth0", Addresses: []string{"198.18.0.2/24"}}, testutil.End{Netns: n.gateway, Name: "eth0", Addresses: []string{"198.18.0.1/24"}})
	testutil.Veth(t, testutil.End{Netns: n.gateway, Name: "eth1", Addresses: []string{"198.19.0.1/24"}}, testutil.End{Netns: n.server, Name: "eth0", Addresses: []string{"198.19.0.2/24"}})
	testutil.Routes(t, n.client, "198.18.0.1")
	testutil.Routes(t, n.server, "198.19.0.1")
	testutil.Sysctl(t, n.gateway, "net/ipv4/ip_forward", "1")
	return n
}

func newNamespace(t testing.TB, name string) *netns.Handle {
	t.Helper()
	ns := testutil.Namespace(t, name)
	run(t, ns, "ip link set lo up")
	// No neighbour discovery between what is tested.
	testutil.Inside(t, ns, func() error {
		err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	})
	return ns
}

// run runs commands, split at blanks, in a namespace.
func run(t testing.TB, ns *netns.Handle, commands ...string) {
	t.Helper()
	for _, command := range commands {
		words := strings.Fields(command)
		testutil.NeedProgram(t, words[0])
		testutil.Inside(t, ns, func() error {
			if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %s%w", command, out, err)
			}
			return nil
		})
	}
}

func start(t testing.TB, opt Options) *Tracer {
	t.Helper()
	testutil.NeedRoot(t)
	tr, err := Start(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	})
	return tr
}

func read(t testing.TB, tr *Tracer) *snapshot.Drops {
	t.Helper()
	d, err := tr.Read()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// until reads until there are the given number of drops.
func until(t testing.TB, tr *Tracer, packets uint64) (d *snapshot.Drops) {
	t.Helper()
	testutil.Eventually(t, fmt.Sprintf("%d drops", packets), func() bool {
		d = read(t, tr)
		return d.Packets >= packets
	})
	return d
}

// datagrams sends count datagrams from one socket.
func datagrams(t testing.TB, from *netns.Handle, to string, count int) {
	t.Helper()
	testutil.Inside(t, from, func() error {
		c, err := net.Dial("udp4", to)
		if err != nil {
			return err
		}
		defer c.Close()
		for range count {
			// Refused, where an earlier one was; or dropped on this host.
			_, _ = c.Write([]byte("x"))
		}
		return nil
	})
}

// raw sends an IPv4 packet with a header of one's own.
func raw(t testing.TB, from *netns.Handle, packet []byte, count int) {
	t.Helper()
	testutil.Inside(t, from, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		to := unix.SockaddrInet4{Addr: [4]byte(packet[16:20])}
		for range count {
			if err := unix.Sendto(fd, packet, 0, &to); err != nil {
				return err
			}
		}
		return nil
	})
}

// udp is an IPv4 packet; the kernel completes the header's checksum.
func udp(src, dst string, ttl byte, check uint16) []byte {
	p := []byte{0x45, 0, 0, 29, 0, 1, 0, 0, ttl, unix.IPPROTO_UDP, 0, 0}
	p = append(p, net.ParseIP(src).To4()...)
	p = append(p, net.ParseIP(dst).To4()...)
	return append(p, 0x10, 0, 0, 9, 0, 9, byte(check>>8), byte(check), 'x')
}
