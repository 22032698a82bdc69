package run

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/pcap"
	"github.com/natkit/natkit/internal/pcap/pair"
	"github.com/natkit/natkit/internal/testutil"
)

// usual is what lab run captures where nothing else is asked for.
var usual = CaptureOptions{SnapLen: DefaultSnapLen, MaxBytes: DefaultMaxBytes}

var packetsOf = regexp.MustCompile(`counter packets (\d+)`)

// TestBothSides captures both sides of a NAT that drops some packets each way, and compares
// the captures with the rules' counters. The rules drop by the number that exchange writes
// into each packet, so that some packets of each flow come through, in whatever order they
// are sent.
func TestBothSides(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	l := capturedLab(t)
	echo(t, l)
	nft(t, l, "gateway", `table ip lossy {
		chain out { type filter hook forward priority 10; iifname eth0 @th,92,4 3 counter drop; }
		chain back { type filter hook forward priority 10; iifname eth1 @th,93,3 5 counter drop; }
	}`)
	dir := t.TempDir()
	in, out := filepath.Join(dir, "inside.pcapng"), filepath.Join(dir, "outside.pcapng")
	a := startOf(t, l, "gateway", in, usual, "eth0")
	b := startOf(t, l, "gateway", out, usual, "eth1")
	const sent = 20 * 15
	exchange(t, l, 20, 15, 100, func(number int) bool { return number%16 == 3 || number%8 == 5 })
	ra, rb := endOf(t, a), endOf(t, b)
	if ra.Dropped+rb.Dropped+ra.Cut+rb.Cut != 0 {
		t.Fatalf("captured inside %+v, outside %+v", ra, rb)
	}
	counted := func(chain string) int64 {
		found := packetsOf.FindStringSubmatch(nft(t, l, "gateway", "list", "chain", "ip", "lossy", chain))
		n, _ := strconv.ParseInt(found[1], 10, 64)
		return n
	}
	r := compare(t, out, in) // the wrong way round, which it must notice
	if r.Out.Lost != counted("out") || r.In.Lost != counted("back") || r.Out.Lost == 0 || r.In.Lost == 0 {
		t.Errorf("lost %d out and %d in, the rules dropped %d and %d", r.Out.Lost, r.In.Lost, counted("out"), counted("back"))
	}
	if !r.Swapped || r.Out.Matched+r.Out.Lost != sent || r.In.Matched+r.In.Lost != r.Out.Matched || r.Ambiguous != 0 {
		t.Errorf("swapped %v; out %+v; in %+v; %d ambiguous", r.Swapped, r.Out, r.In, r.Ambiguous)
	}
	if r.Flows.Through != 20 || r.Flows.Translated != 20 || r.Clock.By != pair.SameClock || r.Translation.Hops != 1 {
		t.Errorf("flows %+v, clock %+v, translation %+v", r.Flows, r.Clock, r.Translation)
	}
}

func compare(t *testing.T, inside, outside string) *pair.Report {
	t.Helper()
	open := func(name string) io.Reader {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	r, err := pair.Match(open(inside), open(outside), pair.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestFile has all that comes to two interfaces in one file, in the order of time, cut to
// the snap length, and nothing of a third.
func TestFile(t *testing.T) {
	l := capturedLab(t)
	echo(t, l)
	path := filepath.Join(t.TempDir(), "gateway.pcapng")
	c := startOf(t, l, "gateway", path, CaptureOptions{SnapLen: 96, MaxBytes: DefaultMaxBytes}, "eth0", "eth1")
	exchange(t, l, 2, 100, 1000, none)
	r := endOf(t, c)
	if r.Packets != 800 || r.Dropped != 0 || r.Cut != 0 {
		t.Errorf("captured %+v, want 800 packets", r)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Size() != r.Bytes || info.Mode().Perm() != 0o644 {
		t.Errorf("file %v, %v; want %d bytes", info, err, r.Bytes)
	}
	perInterface := map[int]int{}
	stats, err := pcap.Each(f, func(p *pcap.Packet) error {
		perInterface[p.Interface]++
		if len(p.Data) != 96 || p.Length != 1042 || p.Frame.UDP.Length != 1008 {
			return fmt.Errorf("packet %d: %d of %d bytes", p.Number, len(p.Data), p.Length)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if perInterface[0] != 400 || perInterface[1] != 400 || len(stats.Damage) != 0 {
		t.Errorf("%v; %+v", perInterface, stats)
	}
	checkHeaders(t, path)
}

// checkHeaders reads the file with gopacket: names, statistics, version.
func checkHeaders(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, _, err = r.ReadPacketData()
	}
	if err != io.EOF {
		t.Fatal(err)
	}
	if got := r.SectionInfo().Application; got != "natkit 1.2.3" {
		t.Errorf("written by %q", got)
	}
	for i, name := range []string{"eth0", "eth1"} {
		about, err := r.Interface(i)
		if err != nil || about.Name != name || about.SnapLength != 96 || about.TimestampResolution != 9 ||
			about.Statistics.PacketsReceived != 400 || about.Statistics.PacketsDropped != 0 || about.Statistics.EndTime.Before(about.Statistics.StartTime) {
			t.Errorf("interface %d: %+v, %v", i, about, err)
		}
	}
}

// TestBound stops a file at its bound and counts the rest.
func TestBound(t *testing.T) {
	l := capturedLab(t)
	echo(t, l)
	path := filepath.Join(t.TempDir(), "bound.pcapng")
	c := startOf(t, l, "gateway", path, CaptureOptions{SnapLen: DefaultSnapLen, MaxBytes: 10_000}, "eth0")
	exchange(t, l, 1, 100, 100, none)
	r := endOf(t, c)
	if r.Bytes > 10_000 || r.Packets == 0 || r.Cut == 0 || r.Packets+r.Cut != 200 {
		t.Errorf("captured %+v", r)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	stats, err := pcap.Each(f, func(*pcap.Packet) error { return nil })
	if err != nil || uint64(stats.Packets) != r.Packets || len(stats.Damage) != 0 {
		t.Errorf("%d packets in the file, %v, %v", stats.Packets, stats.Damage, err)
	}
}

// TestDrops floods a ring of two blocks whose reader is held up: what does not fit is
// counted.
func TestDrops(t *testing.T) {
	l := capturedLab(t)
	var r *ring
	err := l.Node("client").Netns.Do(func() error {
		names, err := indexes([]string{"eth0"})
		if err != nil {
			return err
		}
		r, err = openRing(names, 1500, 2*blockSize(1500))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	var conn net.Conn
	err = l.Node("client").Netns.Do(func() (err error) {
		conn, err = net.Dial("udp4", "198.18.0.1:9") // a closed port: errors come back
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const sent = 5000
	payload := make([]byte, 1200)
	for range sent {
		for n := 0; n == 0; {
			n, _ = conn.Write(payload)
		}
	}
	if err := r.mute(); err != nil {
		t.Fatal(err)
	}
	got := 0
	deadline := time.Now().Add(testutil.Patience(time.Minute))
	for ok := false; !ok && time.Now().Before(deadline); ok = r.drained() && got > 0 {
		if err := r.read(func(c captured) {
			if c.length > 1200 {
				got++
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	if got == 0 || got >= sent || r.lost() == 0 || uint64(got)+r.lost() < sent {
		t.Errorf("%d of %d packets captured, %d counted as lost", got, sent, r.lost())
	}
}

func TestStartErrors(t *testing.T) {
	l := capturedLab(t)
	ns := l.Node("client").Netns
	_, err := startCapture(ns, lab.Capture{Interfaces: []string{"eth7"}, File: filepath.Join(t.TempDir(), "x")}, usual, DefaultRingBytes, "")
	if err == nil || !strings.Contains(err.Error(), "capture packets in client: interface eth7") {
		t.Errorf("no interface: %v", err)
	}
	_, err = startCapture(ns, lab.Capture{Interfaces: []string{"eth0"}, File: filepath.Join(t.TempDir(), "none", "x")}, usual, DefaultRingBytes, "")
	if err == nil || !strings.Contains(err.Error(), "create capture") {
		t.Errorf("no folder: %v", err)
	}
}

// TestWriteError keeps on counting where the disk is full.
func TestWriteError(t *testing.T) {
	l := capturedLab(t)
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Fatal(err)
	}
	_, err := startCapture(l.Node("client").Netns, lab.Capture{Interfaces: []string{"eth0"}, File: "/dev/full"}, usual, DefaultRingBytes, "")
	if err == nil || !strings.Contains(err.Error(), "write capture /dev/full: ") {
		t.Errorf("a full disk: %v", err)
	}
}

// TestDiskFull goes on counting what can be written no more, and says so at the end.
func TestDiskFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "full.pcapng")
	f, err := createFile(lab.Capture{Interfaces: []string{"eth0"}, File: path}, []int{5}, usual, "")
	if err != nil {
		t.Fatal(err)
	}
	f.f.Close() // as good as a full disk
	const all = 10_000
	for range all {
		f.write(captured{ifindex: 5, at: time.Unix(1, 0), length: 100, data: make([]byte, 100)})
	}
	f.write(captured{ifindex: 6, length: 100, data: make([]byte, 100)}) // another interface's
	if f.cut == 0 || f.packets+f.cut != all {
		t.Errorf("%d packets written, %d not, of %d", f.packets, f.cut, all)
	}
	if err := f.close(0); err == nil || !strings.Contains(err.Error(), "write capture "+path) {
		t.Errorf("close: %v", err)
	}
}

// BenchmarkWrite is what a packet costs in the program, besides the kernel's copy.
func BenchmarkWrite(b *testing.B) {
	f, err := createFile(lab.Capture{Interfaces: []string{"eth0"}, File: filepath.Join(b.TempDir(), "x")}, []int{5}, CaptureOptions{SnapLen: DefaultSnapLen, MaxBytes: 1 << 40}, "")
	if err != nil {
		b.Fatal(err)
	}
	defer f.close(0)
	packet := captured{ifindex: 5, at: time.Unix(1, 0), length: 140, data: make([]byte, 140)}
	for b.Loop() {
		f.write(packet)
	}
}

// TestBlockSize: several packets fit, however much is kept of them.
func TestBlockSize(t *testing.T) {
	for _, keep := range []int{MinSnapLen, DefaultSnapLen, 9000, 16 << 10, 64 << 10, MaxSnapLen} {
		if got := blockSize(keep); got < 3*keep || got%os.Getpagesize() != 0 {
			t.Errorf("%d bytes of packets of %d", got, keep)
		}
	}
}
