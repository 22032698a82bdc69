package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/packet"
	"github.com/natkit/natkit/internal/pcap"
	"github.com/natkit/natkit/internal/testutil"
)

// The ends of the connections below, over lo.
const (
	liveClient = "[2001:db8::2]:33735"
	liveServer = "[2001:db8::1]:80"
)

// TestPcapOfTcpdump has one port come back again and again, each time with another clock,
// and compares what the verb names with what the kernel counted and tcpdump shows.
func TestPcapOfTcpdump(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.IPv6)
	tcpdump := testutil.NeedProgram(t, "tcpdump")
	testutil.NeedProgram(t, "ip")
	ns := loopNetns(t)
	file := filepath.Join(t.TempDir(), "lo.pcap")
	end := startTcpdump(t, ns, tcpdump, file)
	serveAndClose(t, ns)
	before := pawsRejects(t, ns)
	for i := range 8 {
		// 1 adds an offset to the clock, 2 does not: at every second turn it goes back.
		setTimestamps(t, ns, 1+i%2)
		if err := ns.Do(connectAgain); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	counted := pawsRejects(t, ns) - before
	end()
	if counted == 0 {
		t.Fatal("the kernel rejected nothing: there is no fault to be found")
	}

	var out, stderr bytes.Buffer
	env := Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &stderr, Getenv: func(string) string { return "" }}
	if code := Run(t.Context(), env, []string{"pcap", "--json", file}); code != exitFindings {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	var r pcap.Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	text, err := exec.Command(tcpdump, "-r", file, "--number", "-n", "-S").Output()
	if err != nil {
		t.Fatalf("tcpdump -r: %v", err)
	}
	for _, wrong := range checkFrames(&r, numbered(string(text)), counted) {
		t.Error(wrong)
	}
}

// checkFrames compares every named frame with tcpdump's line of that number, and gives
// what is wrong.
func checkFrames(r *pcap.Report, lines map[int64]string, counted uint64) (wrong []string) {
	var named uint64
	expect := func(frame int64, words ...string) {
		for _, word := range words {
			if !strings.Contains(lines[frame], word) {
				wrong = append(wrong, fmt.Sprintf("frame %d is %q: no %q", frame, lines[frame], word))
			}
		}
	}
	way := func(from, to netip.AddrPort) string {
		return fmt.Sprintf("%s.%d > %s.%d: ", from.Addr(), from.Port(), to.Addr(), to.Port())
	}
	for _, in := range r.Incidents {
		there, back := way(in.Client, in.Server), way(in.Server, in.Client)
		for _, s := range in.SYNs {
			if s.Verdict != pcap.RejectedPAWS {
				continue
			}
			named++
			expect(s.Frame, there, "Flags [S]", fmt.Sprintf("seq %d", s.Seq), fmt.Sprintf("TS val %d", *s.TSVal))
			if s.Answer > 0 {
				expect(s.Answer, back, "Flags [.]", fmt.Sprintf("ecr %d", *s.TSRecent))
			}
			if s.Reset > 0 {
				expect(s.Reset, there, "Flags [R]")
			}
		}
		for _, step := range in.Ladder {
			// tcpdump shows no sequence number where a segment brings nothing.
			if step.Flags&packet.ACK != 0 {
				expect(step.Frame, fmt.Sprintf("ack %d", step.Ack))
			} else {
				expect(step.Frame, fmt.Sprintf("seq %d", step.Seq))
			}
		}
	}
	if uint64(r.RejectedByPAWS) != counted || named != counted {
		wrong = append(wrong, fmt.Sprintf("%d SYNs rejected by PAWS are reported and %d named, the kernel counted %d", r.RejectedByPAWS, named, counted))
	}
	return wrong
}

// namesRejected holds that a report of natkit pcap names every SYN that the server of a
// lab's stage fault counted as rejected, by the numbers that tcpdump gives the frames.
func namesRejected(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: names-rejected LAB.JSON PCAP.JSON TCPDUMP.TXT")
	}
	var run lab.Report
	var r pcap.Report
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &run))
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[1])), &r))
	for _, stage := range run.Stages {
		if stage.Name != "fault" || stage.Handshakes == nil {
			continue
		}
		if stage.Handshakes.Rejected == 0 {
			ts.Fatalf("the server rejected nothing: there is no fault to be named")
		}
		if wrong := checkFrames(&r, numbered(ts.ReadFile(args[2])), stage.Handshakes.Rejected); len(wrong) > 0 {
			ts.Fatalf("%s", strings.Join(wrong, "\n"))
		}
		return
	}
	ts.Fatalf("%s: no stage fault with handshakes", args[0])
}

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
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience(30*time.Second))
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
	for deadline := time.Now().Add(testutil.Patience(10 * time.Second)); ; time.Sleep(10 * time.Millisecond) {
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

// numbered are tcpdump's lines by the number in front of them.
func numbered(text string) map[int64]string {
	lines := map[int64]string{}
	for line := range strings.Lines(text) {
		var number int64
		if _, err := fmt.Sscan(line, &number); err == nil {
			lines[number] = strings.TrimSpace(line)
		}
	}
	return lines
}
