package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/lab"
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
			if step.Flags&frame.ACK != 0 {
				expect(step.Frame, fmt.Sprintf("ack %d", step.Ack))
			} else {
				expect(step.Frame, fmt.Sprintf("seq %d", step.Seq))
			}
		}
	}
	// The kernel also counts late duplicates of closed connections, which a slow machine has.
	if uint64(r.RejectedByPAWS) != named || named > counted || counted > named+duplicates(lines) {
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

// duplicates counts the segments, other than SYNs, that were sent before with the same
// numbers.
func duplicates(lines map[int64]string) (n uint64) {
	seen := map[string]bool{}
	for _, line := range lines {
		_, segment, _ := strings.Cut(line, " IP ")
		segment, _, _ = strings.Cut(segment, ", options")
		if seen[segment] && !strings.Contains(segment, "Flags [S") {
			n++
		}
		seen[segment] = true
	}
	return n
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
