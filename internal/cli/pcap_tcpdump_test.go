package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// loopNetns is a network namespace with both ends' addresses on lo.
func loopNetns(t *testing.T) *netns.Handle {
	t.Helper()
	ns, err := netns.New(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	for _, args := range []string{"link set lo up", "address add 2001:db8::1/128 dev lo nodad", "address add 2001:db8::2/128 dev lo nodad"} {
		err := ns.Do(func() error {
			out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("ip %s: %w: %s", args, err, out)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return ns
}

// startTcpdump captures until the function that it returns is called: that waits until
// all that was sent before is in the file.
func startTcpdump(t *testing.T, ns *netns.Handle, tcpdump, file string) (end func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience(time.Minute))
	t.Cleanup(cancel)
	// Whole packets of lo would leave room for a few dozen of them between kernel and
	// tcpdump.
	cmd := exec.CommandContext(ctx, tcpdump, "-i", "lo", "-s", "256", "--immediate-mode", "-U", "-Z", "root", "-w", file)
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = ns.Do(cmd.Start)
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stderr)
	for line := ""; !strings.Contains(line, "listening on"); {
		if line, err = lines.ReadString('\n'); err != nil {
			t.Fatalf("tcpdump: %v: %s", err, line)
		}
	}
	return func() {
		waitForMark(t, ns, file)
		_ = cmd.Process.Signal(os.Interrupt)
		rest, _ := io.ReadAll(lines)
		if err := cmd.Wait(); err != nil {
			t.Fatalf("tcpdump: %v: %s", err, rest)
		}
		if !strings.Contains(string(rest), "\n0 packets dropped by kernel") {
			t.Fatalf("tcpdump lost packets: %s", rest)
		}
	}
}

// waitForMark sends a datagram and waits until it is in the file.
func waitForMark(t *testing.T, ns *netns.Handle, file string) {
	t.Helper()
	mark := []byte("the capture may end here")
	err := ns.Do(func() error {
		c, err := net.Dial("udp6", "[2001:db8::1]:9")
		if err == nil {
			_, err = c.Write(mark)
			err = errors.Join(err, c.Close())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(testutil.Patience(time.Minute)); ; time.Sleep(10 * time.Millisecond) {
		if text, err := os.ReadFile(file); err == nil && bytes.Contains(text, mark) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the last packet did not get into the capture")
		}
	}
}

// serveAndClose answers each connection with a byte and closes it first.
func serveAndClose(t *testing.T, ns *netns.Handle) {
	t.Helper()
	var l net.Listener
	if err := ns.Do(func() (err error) { l, err = net.Listen("tcp6", liveServer); return err }); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("x"))
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
}

// connectAgain connects from the same port as before, and waits until the server has
// closed and this side is through.
func connectAgain() error {
	local, err := net.ResolveTCPAddr("tcp6", liveClient)
	if err != nil {
		return err
	}
	reuse := func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) }), err)
	}
	dialer := net.Dialer{LocalAddr: local, Timeout: testutil.Patience(5 * time.Second), Control: reuse}
	deadline := time.Now().Add(dialer.Timeout)
	for {
		c, err := dialer.Dial("tcp6", liveServer)
		if err == nil {
			_, err = io.ReadAll(c)
			return errors.Join(err, c.Close())
		}
		// The socket before is closed, but its last ACK may be on its way. The route of an
		// address comes from a work queue (addrconf_dad_work), which may be late.
		if !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.EADDRINUSE) && !errors.Is(err, unix.ENETUNREACH) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

func setTimestamps(t *testing.T, ns *netns.Handle, value int) {
	t.Helper()
	err := ns.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/tcp_timestamps", []byte(fmt.Sprint(value)), 0)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// pawsRejects is the kernel's count of segments that TIME_WAIT rejected; before Linux
// 6.16 there is one counter for all of PAWS.
func pawsRejects(t *testing.T, ns *netns.Handle) uint64 {
	t.Helper()
	tcp, err := collect.ReadTCP(ns)
	if err != nil {
		t.Fatal(err)
	}
	if n, ok := tcp.Counters["TcpExtPAWSTimewait"]; ok {
		return n
	}
	return tcp.Counters["TcpExtPAWSEstab"]
}
