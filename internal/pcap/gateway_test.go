//go:build linux

package pcap_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// gateway is two clients behind one SNAT address with few ports, and a server that
// closes first.
type gateway struct {
	clients [2]*netns.Handle
	nat     *netns.Handle
	server  *netns.Handle
}

const (
	liveServer = "198.19.0.2:80"
	ports      = 40
)

func newGateway(t *testing.T) *gateway {
	t.Helper()
	g := &gateway{nat: testutil.Namespace(t, "nat"), server: testutil.Namespace(t, "server")}
	g.link(t, g.nat, "198.19.0.1/24", g.server, "198.19.0.2/24", "")
	for i := range g.clients {
		g.clients[i] = testutil.Namespace(t, fmt.Sprint("client", i))
		gate := fmt.Sprintf("198.18.%d.1", i)
		g.link(t, g.nat, gate+"/24", g.clients[i], fmt.Sprintf("198.18.%d.2/24", i), gate)
	}
	testutil.Run(t, g.nat, "", "sh", "-c", fmt.Sprintf(`
set -e
echo 1 >/proc/sys/net/ipv4/ip_forward
nft -f - <<end
table ip nat {
  chain post {
    type nat hook postrouting priority 100
    ip daddr 198.19.0.2 meta l4proto tcp snat to 198.19.0.1:20000-%d
  }
}
end
for t in time_wait close last_ack; do echo 1 >/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_$t; done`, 20000+ports-1))
	g.serve(t)
	return g
}

// link joins two namespaces; gate is the far one's default router.
func (g *gateway) link(t *testing.T, near *netns.Handle, nearAddr string, far *netns.Handle, farAddr, gate string) {
	t.Helper()
	name := "v" + strings.ReplaceAll(strings.TrimSuffix(nearAddr, "/24"), ".", "")
	testutil.Veth(t, testutil.End{Netns: near, Name: name, Addresses: []string{nearAddr}}, testutil.End{Netns: far, Name: "eth0", Addresses: []string{farAddr}})
	if gate != "" {
		testutil.Routes(t, far, gate)
	}
}

// serve answers each connection with a byte and closes it.
func (g *gateway) serve(t *testing.T) {
	t.Helper()
	g.accept(t, liveServer, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 1))
		_, _ = c.Write([]byte("x"))
		_ = c.Close()
	})
}

// accept hands the connections to an address of the server to fn, until the test ends.
func (g *gateway) accept(t *testing.T, address string, fn func(net.Conn)) {
	t.Helper()
	var l net.Listener
	err := g.server.Do(func() (err error) { l, err = net.Listen("tcp4", address); return err })
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fn(c)
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
}

// batch makes a connection for each port at once, and gives how many failed.
func (g *gateway) batch(client int) (failed int) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range ports {
		wg.Go(func() {
			err := g.clients[client].Do(connect)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed++
			}
		})
	}
	wg.Wait()
	return failed
}

func connect() error {
	c, err := net.DialTimeout("tcp4", liveServer, 5*time.Second)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(testutil.Patience(time.Minute)))
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	_, err = io.ReadAll(c)
	return err
}

const holdingServer = "198.19.0.2:81"

// hold accepts connections and keeps them open until the test ends.
func (g *gateway) hold(t *testing.T) {
	t.Helper()
	g.accept(t, holdingServer, func(c net.Conn) { t.Cleanup(func() { _ = c.Close() }) })
}

// dialAndForget connects to holdingServer and drops the client's end without a segment.
func dialAndForget(timeout time.Duration) error {
	c, err := net.DialTimeout("tcp4", holdingServer, testutil.Patience(timeout))
	if err != nil {
		return err
	}
	defer c.Close()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR, 1)
	})
	return cmp.Or(err, failed)
}

// forget waits until the NAT has forgotten all connections.
func (g *gateway) forget(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(testutil.Patience(time.Minute))
	for {
		var out []byte
		err := g.nat.Do(func() (err error) {
			out, err = exec.Command("conntrack", "-L", "-p", "tcp").Output()
			return err
		})
		if err == nil && len(bytes.TrimSpace(out)) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the NAT still has (%v): %s", err, out)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// capture runs tcpdump at the server until the function is called, which gives the
// file.
func (g *gateway) capture(t *testing.T) func() []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "server.pcap")
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "tcpdump", "-i", "eth0", "--immediate-mode", "-U", "-Z", "root", "-w", path, "-s", "128", "tcp")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := g.server.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stderr)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("tcpdump: %v: %s", err, line)
		}
		if strings.Contains(line, "listening on") {
			break
		}
	}
	return func() []byte {
		_ = cmd.Process.Signal(os.Interrupt)
		rest, _ := io.ReadAll(lines)
		if err := cmd.Wait(); err != nil {
			t.Fatalf("tcpdump: %v: %s", err, rest)
		}
		if !strings.Contains(string(rest), "0 packets dropped by kernel") {
			t.Fatalf("tcpdump lost packets: %s", rest)
		}
		file, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return file
	}
}

// paws is the server's count of segments that TIME_WAIT rejected.
func (g *gateway) paws(t *testing.T) int64 {
	t.Helper()
	tcp, err := collect.ReadTCP(g.server)
	if err != nil {
		t.Fatal(err)
	}
	if n, ok := tcp.Counters["TcpExtPAWSTimewait"]; ok {
		return int64(n)
	}
	return int64(tcp.Counters["TcpExtPAWSEstab"])
}
