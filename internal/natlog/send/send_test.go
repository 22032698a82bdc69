//go:build linux

package send

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/natlog"
	"github.com/natkit/natkit/internal/natlog/files"
	"github.com/natkit/natkit/internal/table/store"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// record is the n-th of many.
func record(n int) natlog.Record {
	return natlog.Record{Kind: natlog.Start, Time: noon, Node: "gw", Protocol: 6, Src: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(n)),
		NAT: netip.MustParseAddrPort("203.0.113.1:1"), Dst: netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(n >> 16)}), 80)}
}

func number(r *natlog.Record) int { return int(r.Src.Port()) | int(r.Dst.Addr().As4()[3])<<16 }

func records(from, to int) (all []natlog.Record) {
	for n := from; n < to; n++ {
		all = append(all, record(n))
	}
	return all
}

func lost() natlog.Record { return natlog.Record{Time: noon, Node: "gw"} }

// receiver is an output that a test holds up.
type receiver struct {
	mu     sync.Mutex
	got    []natlog.Record
	refuse bool
}

func (r *receiver) Send(_ context.Context, all []natlog.Record) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuse {
		return 0, errors.New("refused")
	}
	r.got = append(r.got, all...)
	return len(all), nil
}

func (*receiver) Close() error { return nil }

func (r *receiver) set(refuse bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse = refuse
}

// seen are the numbers of connections in order, and how many records were said to be lost.
func (r *receiver) seen() (numbers []int, lost uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.got {
		if r.got[i].Kind == natlog.Lost {
			lost += r.got[i].Count
		} else {
			numbers = append(numbers, number(&r.got[i]))
		}
	}
	return numbers, lost
}

func inOrder(t *testing.T, got []int, from, to int) {
	t.Helper()
	for i, n := range got {
		if n != from+i {
			t.Fatalf("record %d is number %d, want %d", i, n, from+i)
		}
	}
	if len(got) != to-from {
		t.Fatalf("%d records, want %d", len(got), to-from)
	}
}

func openSpool(t *testing.T, dir string, limit int64) *Spool {
	t.Helper()
	s, err := OpenSpool(dir, limit)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestWhatFindsNoRoomInMemoryIsSaid(t *testing.T) {
	r := &receiver{refuse: true}
	var noted atomic.Int32
	o := NewOutlet(r, Options{Name: "x", Lost: lost, queue: 100, retry: time.Millisecond, Note: func(error) { noted.Add(1) }})
	const n = 1000
	for i := range n {
		o.Put(records(i, i+1))
	}
	testutil.Eventually(t, "a refusal", func() bool { return noted.Load() > 0 })
	r.set(false)
	testutil.Eventually(t, "the records that had room", func() bool { got, said := r.seen(); return uint64(len(got))+said == n && said > 0 })
	tally, err := o.Close(time.Minute)
	got, said := r.seen()
	if err != nil || tally.Lost != said || tally.Delivered != uint64(len(got)) || tally.Records != n || len(got) < 100 {
		t.Errorf("%+v, %v; %d came, %d said to be lost", tally, err, len(got), said)
	}
	if n := noted.Load(); n != 1 {
		t.Errorf("noted %d times", n)
	}
}

func TestTheEndDoesNotWaitForever(t *testing.T) {
	o := NewOutlet(&receiver{refuse: true}, Options{Name: "x", Lost: lost, retry: time.Millisecond})
	o.Put(records(0, 10))
	if tally, err := o.Close(10 * time.Millisecond); err != nil || tally.Lost != 10 || tally.Unsaid != 10 {
		t.Errorf("%+v, %v", tally, err)
	}
	dir := t.TempDir()
	o = NewOutlet(&receiver{refuse: true}, Options{Name: "x", Lost: lost, retry: time.Millisecond, Spool: openSpool(t, dir, LeastSpool)})
	o.Put(records(0, 10))
	tally, err := o.Close(10 * time.Millisecond)
	if err != nil || tally.Lost != 0 || tally.Waiting == 0 {
		t.Errorf("%+v, %v", tally, err)
	}
	r := &receiver{} // the next run delivers them
	o = NewOutlet(r, Options{Name: "x", Lost: lost, Spool: openSpool(t, dir, LeastSpool)})
	o.Put(records(10, 20))
	if tally, err := o.Close(time.Minute); err != nil || tally.Waiting != 0 || tally.Delivered != 20 {
		t.Errorf("%+v, %v", tally, err)
	}
	got, _ := r.seen()
	inOrder(t, got, 0, 20)
}

func TestAFullSpoolSaysWhatItLost(t *testing.T) {
	dir := t.TempDir()
	r := &receiver{refuse: true}
	s := openSpool(t, dir, LeastSpool)
	o := NewOutlet(r, Options{Name: "x", Lost: lost, retry: time.Millisecond, Spool: s})
	const n = 20_000 // some 4 MB
	for i := 0; i < n; i += 500 {
		o.Put(records(i, i+500))
	}
	testutil.Eventually(t, "a full spool", func() bool { o.mu.Lock(); defer o.mu.Unlock(); return o.all.Lost > 0 && len(o.queue) == 0 })
	var used int64
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		info, err := e.Info()
		if err == nil {
			used += info.Size()
		}
	}
	if used > LeastSpool+100 {
		t.Errorf("the spool has %d bytes", used)
	}
	r.set(false)
	testutil.Eventually(t, "all, come or said to be lost", func() bool { got, said := r.seen(); return uint64(len(got))+said == n })
	tally, err := o.Close(time.Minute)
	got, said := r.seen()
	if err != nil || tally.Lost != said || len(got) == 0 || said == 0 || tally.Waiting != 0 {
		t.Errorf("%+v, %v; %d came, %d said to be lost", tally, err, len(got), said)
	}
}

func TestSpoolIsHeldByOne(t *testing.T) {
	dir := t.TempDir()
	s := openSpool(t, dir, LeastSpool)
	defer s.Close()
	if _, err := OpenSpool(dir, LeastSpool); !errors.Is(err, errSpoolHeld) {
		t.Error(err)
	}
}

// killedEnv has TestMain fill a spool until it is killed.
const killedEnv = "NATKIT_TEST_SPOOL"

func TestMain(m *testing.M) {
	if dir := os.Getenv(killedEnv); dir != "" {
		s, err := OpenSpool(dir, 64<<20)
		for n := 0; err == nil; n++ {
			r := record(n)
			if _, err = s.Append(r.AppendJSON(nil)); err == nil {
				fmt.Println(n)
			}
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestKilled kills a process that writes to a spool: what Append took is there, in order, whatever a torn end.
func TestKilled(t *testing.T) {
	for round := range 5 {
		dir := t.TempDir()
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), killedEnv+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines, last := bufio.NewScanner(out), -1
		for lines.Scan() {
			last, _ = strconv.Atoi(lines.Text())
			if last == 500*(round+1) {
				_ = cmd.Process.Kill()
			}
		}
		_ = cmd.Wait()
		if last < 500 {
			t.Fatalf("it ended at %d", last)
		}
		// A torn line, as a machine that goes down leaves one.
		names, _ := filepath.Glob(filepath.Join(dir, "*"+segmentSuffix))
		f, err := os.OpenFile(names[len(names)-1], os.O_APPEND|os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(`{"schema":"natkit.nat-lo`)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		r := &receiver{}
		o := NewOutlet(r, Options{Name: "x", Lost: lost, Spool: openSpool(t, dir, 64<<20)})
		if _, err := o.Close(time.Minute); err != nil {
			t.Fatal(err)
		}
		got, said := r.seen()
		if len(got) < last+1 || said != 0 {
			t.Errorf("%d came, %d were taken, %d said to be lost", len(got), last+1, said)
		}
		inOrder(t, got, 0, len(got))
	}
}

func lines(t *testing.T, path string) (n int) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		if _, err := natlog.ParseJSON(bytes.TrimSpace(line)); err != nil {
			t.Errorf("%q: %v", line, err)
		}
		n++
	}
	return n
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nat.jsonl")
	f, err := NewFile(path, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	sendAll := func(n int) {
		t.Helper()
		if sent, err := f.Send(t.Context(), records(0, n)); err != nil || sent != n {
			t.Fatal(sent, err)
		}
	}
	sendAll(10)
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	sendAll(5) // to the file that was renamed, as logrotate expects
	f.Reopen()
	sendAll(3)
	if a, b := lines(t, path+".old"), lines(t, path); a != 15 || b != 3 {
		t.Errorf("%d and %d lines", a, b)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	torn, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = torn.WriteString(`{"schema":"na`)
	torn.Close()
	if f, err = NewFile(path, 2000, 2); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		sendAll(10)
	}
	f.Close()
	if a, b, c := lines(t, path), lines(t, path+".1"), lines(t, path+".2"); a != 10 || b != 10 || c != 10 {
		t.Errorf("%d, %d and %d lines", a, b, c)
	}
	if _, err := os.Stat(path + ".3"); err == nil {
		t.Error("three old ones stay")
	}
}

// TestAFileOfARun: a file that is begun amid a run says so, wants a list, and is not rotated before as much as the list is behind it.
func TestAFileOfARun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nat.jsonl")
	const most = 2000
	f, err := NewFile(path, most, 9)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { f.Close() }()
	send := func(all ...natlog.Record) {
		t.Helper()
		if n, err := f.Send(t.Context(), all); err != nil || n != len(all) {
			t.Fatal(n, err)
		}
	}
	of := func(kind natlog.Kind) natlog.Record {
		return natlog.Record{Kind: kind, Time: noon, Node: "gw", Netns: "red"}
	}
	first := func(name string) natlog.Record {
		t.Helper()
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		line, _, _ := bytes.Cut(text, []byte("\n"))
		r, err := natlog.ParseJSON(line)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	rotated := func(n int) bool {
		_, err := os.Stat(fmt.Sprintf("%s.%d", path, n))
		return err == nil
	}
	begin := of(natlog.Begin)
	begin.Reason, begin.Within = "readings", 5*time.Second
	send(begin)
	send(records(0, 2*most/100)...) // the list at the begin
	send(records(0, 1)...)
	if rotated(1) || f.IsListWanted() {
		t.Error("rotated amid the list of the begin")
	}
	send(of(natlog.Listed))
	listed := f.size
	for !rotated(1) {
		if f.size > 2*listed+most {
			t.Fatal("it is not rotated")
		}
		late := record(1)
		late.Time = noon.Add(30 * time.Second) // another one of before is written behind it
		send(late, record(2))
	}
	if info, err := os.Stat(path + ".1"); err != nil || info.Size() < 2*(listed-int64(len(begin.AppendJSON(nil)))) {
		t.Errorf("rotated before as much as the list was behind it: %v, %v", info, err)
	}
	want := begin
	want.Kind, want.Time, want.Started, want.Part = natlog.Continue, noon.Add(30*time.Second), noon, 2
	if got := first(path); got != want {
		t.Errorf("the next file begins with %+v, want %+v", got, want)
	}
	if !f.IsListWanted() || f.IsListWanted() {
		t.Error("a list is wanted once")
	}
	send(records(0, 20)...)
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	f.Reopen()
	send(records(0, 1)...)
	send(of(natlog.Listed))
	if _, err := os.Stat(path); rotated(2) || err == nil || lines(t, path+".old") < 23 {
		t.Errorf("another file before the list that it waits for: %v", err)
	}
	send(record(1))
	if got := first(path); got.Kind != natlog.Continue || got.Part != 3 || !f.IsListWanted() {
		t.Errorf("the file after SIGHUP begins with %+v", got)
	}
	f.Reopen() // of a file that nobody renamed
	send(record(1))
	if lines(t, path) != 3 || f.IsListWanted() {
		t.Errorf("%d lines of a file that was opened again", lines(t, path))
	}
	for _, r := range []natlog.Record{of(natlog.Stop), {Kind: natlog.Begin, Time: noon, Without: natlog.WithoutStarts}} {
		send(r)
		if err := os.Rename(path, path+"."+string(r.Kind)); err != nil {
			t.Fatal(err)
		}
		f.Reopen()
		send(record(1))
		wants := map[natlog.Kind]natlog.Kind{natlog.Stop: natlog.Start, natlog.Begin: natlog.Continue}[r.Kind]
		if got := first(path); got.Kind != wants || f.IsListWanted() {
			t.Errorf("the file after %s begins with %+v", r.Kind, got)
		}
	}
}

// TestSyslogOverTCP: a receiver that ends the connection gets the rest by the next one.
func TestSyslogOverTCP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	frames := make(chan string, 1000)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r := bufio.NewReader(c)
			for n := 0; ; n++ {
				count, err := r.ReadString(' ')
				size, numErr := strconv.Atoi(strings.TrimSpace(count))
				if err != nil || numErr != nil {
					break
				}
				b := make([]byte, size)
				if _, err := io.ReadFull(r, b); err != nil {
					break
				}
				frames <- string(b)
			}
			c.Close()
		}
	}()
	s := NewSyslog("tcp", l.Addr().String())
	defer s.Close()
	for range 2 {
		if n, err := s.Send(t.Context(), records(0, 50)); err != nil || n != 50 {
			t.Fatal(n, err)
		}
		s.close() // the way breaks
	}
	for i := range 100 {
		if f := <-frames; !strings.HasPrefix(f, "<30>1 2026-03-01T12:00:00.000000Z gw natkit ") || !strings.HasSuffix(f, `"]`) || !strings.Contains(f, fmt.Sprintf(`sourceTransportPort="%d"`, i%50)) {
			t.Fatalf("frame %d: %q", i, f)
		}
	}
}

func TestSyslogToASocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	c, err := net.ListenPacket("unixgram", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s := NewSyslog("unixgram", path)
	defer s.Close()
	if n, err := s.Send(t.Context(), records(0, 3)); err != nil || n != 3 {
		t.Fatal(n, err)
	}
	b := make([]byte, 4096)
	for range 3 {
		n, _, err := c.ReadFrom(b)
		if err != nil || !bytes.HasPrefix(b[:n], []byte("<30>1 ")) {
			t.Errorf("%q, %v", b[:n], err)
		}
	}
}

func TestAReceiverThatIsAway(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	for _, out := range []Output{NewSyslog("tcp", l.Addr().String()), NewCollector("tcp", l.Addr().String(), 1, time.Now)} {
		if n, err := out.Send(t.Context(), records(0, 3)); err == nil || n != 0 {
			t.Errorf("%T: %d, %v", out, n, err)
		}
		out.Close()
	}
}

func TestKafka(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(2), kfake.SeedTopics(3, "nat"))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	k, err := NewKafka(cluster.ListenAddrs(), "nat")
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	const n = 2000
	for i := 0; i < n; i += 500 {
		if sent, err := k.Send(t.Context(), records(i, i+500)); err != nil || sent != 500 {
			t.Fatal(sent, err)
		}
	}
	reader, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics("nat"))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	var got []int
	for len(got) < n {
		fetches := reader.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(m *kgo.Record) {
			r, err := natlog.ParseJSON(m.Value)
			if err != nil || string(m.Key) != "203.0.113.1" {
				t.Errorf("%q %q: %v", m.Key, m.Value, err)
			}
			got = append(got, number(&r))
		})
	}
	inOrder(t, got, 0, n)
}

func TestTablesComeBack(t *testing.T) {
	dir, now := t.TempDir(), noon
	out, err := NewTables(t.Context(), store.Options{To: dir, Node: "gw", Version: "1"}, "6.1", func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	read := func() (n int) {
		_, err := files.Read(t.Context(), dir, netip.MustParseAddr("203.0.113.1"), func(r *natlog.Record) {
			if r.Node != "gw" || r.NAT != netip.MustParseAddrPort("203.0.113.1:1") {
				t.Errorf("%+v", r)
			}
			n++
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	batch := append(records(0, 10), natlog.Record{Kind: natlog.Lost, Count: 1, Time: noon})
	if n, err := out.Send(t.Context(), batch); err != nil || n != 11 {
		t.Fatal(n, err)
	}
	if n := read(); n != 0 {
		t.Errorf("%d rows of a file that is not whole", n)
	}
	now = now.Add(tablesEvery)
	if _, err := out.Send(t.Context(), records(10, 20)); err != nil {
		t.Fatal(err)
	}
	if n := read(); n != 20 {
		t.Errorf("%d rows, want 20", n)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestASpoolOnAFullDisk fills the disk that the spool has alone: what is delivered after that makes room again, by the
// position in place and by segments that are removed, in this run and in the next.
func TestASpoolOnAFullDisk(t *testing.T) {
	dir := testutil.SmallDisk(t, "1200k") + "spool"
	var first, next int
	for run := range 2 {
		r := &receiver{refuse: true}
		var noted atomic.Int32
		s := openSpool(t, dir, 1<<30)
		o := NewOutlet(r, Options{Name: "x", Lost: lost, retry: time.Millisecond, Spool: s, Note: func(error) { noted.Add(1) }})
		for i := 0; i < 10_000; i += 500 {
			o.Put(records(i, i+500))
		}
		testutil.Eventually(t, "a full disk", func() bool { o.mu.Lock(); defer o.mu.Unlock(); return o.all.Lost > 0 && len(o.queue) == 0 })
		r.set(false)
		testutil.Eventually(t, "room", func() bool { return s.Waiting() == 0 })
		got, _ := r.seen()
		first = len(got)
		o.Put(records(20_000, 22_000))
		tally, err := o.Close(time.Minute)
		got, said := r.seen()
		next = len(got) - first
		if err != nil || next != 2000 || tally.Waiting != 0 || tally.Lost != said || tally.Unsaid != 0 || first < 1000 {
			t.Errorf("run %d: %+v, %v; %d came, then %d, %d said to be lost", run, tally, err, first, next, said)
		}
		if n := noted.Load(); n > 2 { // the receiver, the spool
			t.Errorf("noted %d times", n)
		}
	}
}

// TestPositionIsWrittenInPlace: of two slots the newer whole one counts, and the text of an earlier natkit.
func TestPositionIsWrittenInPlace(t *testing.T) {
	dir := t.TempDir()
	r := record(1)
	line := r.AppendJSON(nil)
	s := openSpool(t, dir, LeastSpool)
	for range 3 {
		if ok, err := s.Append(line); err != nil || !ok {
			t.Fatal(ok, err)
		}
	}
	number := s.segments[len(s.segments)-1].number
	at := func(n int) position { return position{number, int64(n * len(line))} }
	for n := 1; n <= 2; n++ {
		if err := s.Delivered(at(n)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, positionName)
	text, err := os.ReadFile(name)
	if err != nil || len(text) != int(2*slotSize) {
		t.Fatalf("%q, %v", text, err)
	}
	torn := bytes.Clone(text)
	torn[5] ^= 1 // of the second write
	for _, tt := range []struct {
		text []byte
		want position
	}{{text, at(2)}, {torn, at(1)}, {fmt.Appendf(nil, "%d %d\n", number, len(line)), at(1)}, {[]byte("x"), position{}}, {nil, position{}}} {
		if err := os.WriteFile(name, tt.text, 0o600); err != nil {
			t.Fatal(err)
		}
		s := openSpool(t, dir, LeastSpool)
		if s.read != tt.want {
			t.Errorf("%q: %+v, want %+v", tt.text, s.read, tt.want)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func rowsIn(t *testing.T, dir string) (n int) {
	t.Helper()
	if _, err := files.Read(t.Context(), dir, netip.MustParseAddr("203.0.113.1"), func(*natlog.Record) { n++ }); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestTablesOnAFullDisk: what could not be written is kept and written when there is room, and is lost, and said to be, at the end
// alone; what has no row does not count as delivered.
func TestTablesOnAFullDisk(t *testing.T) {
	for _, room := range []bool{true, false} {
		disk := testutil.SmallDisk(t, "64k")
		rest := disk + "rest"
		if err := os.WriteFile(rest, make([]byte, 60<<10), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := NewTables(t.Context(), store.Options{To: disk + "pq", Node: "gw", Version: "1"}, "6.1", time.Now)
		if err != nil {
			t.Fatal(err)
		}
		o := NewOutlet(out, Options{Name: "x", Lost: lost, retry: time.Millisecond})
		const n = 3000
		o.Put([]natlog.Record{{Kind: natlog.Begin, Time: noon}})
		o.Put(records(0, n))
		testutil.Eventually(t, "records that are taken", func() bool { o.mu.Lock(); defer o.mu.Unlock(); return o.all.Delivered == n+1 })
		if room {
			err = os.Remove(rest)
			if err != nil {
				t.Fatal(err)
			}
		}
		tally, err := o.Close(time.Minute)
		want := Tally{Records: n + 1, Omitted: 1, Delivered: n}
		if !room {
			want = Tally{Records: n + 1, Omitted: 1, Lost: n, Unsaid: n}
		}
		if tally != want || (err == nil) != room {
			t.Errorf("%+v, %v, want %+v", tally, err, want)
		}
		if room && rowsIn(t, disk+"pq") != n {
			t.Errorf("%d rows", rowsIn(t, disk+"pq"))
		}
	}
}

// TestTablesAreWrittenAgain: a file that fails leaves its records for the next attempt, and a spool keeps them until then.
func TestTablesAreWrittenAgain(t *testing.T) {
	dir, now := t.TempDir(), noon
	to := filepath.Join(dir, "pq")
	refuse := func() { // it is no directory any more
		if err := os.WriteFile(to, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	newTables := func() *Tables {
		out, err := NewTables(t.Context(), store.Options{To: to, Node: "gw", Version: "1"}, "6.1", func() time.Time { return now })
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	out := newTables()
	refuse()
	if out, err := NewTables(t.Context(), out.o, "6.1", time.Now); err == nil {
		t.Errorf("%+v writes into a file", out.o)
	}
	if n, err := out.Send(t.Context(), records(0, 10)); n != 10 || err != nil {
		t.Fatal(n, err)
	}
	now = now.Add(tablesEvery)
	if n, err := out.Send(t.Context(), records(10, 20)); n != 0 || err == nil || out.Kept() != 10 {
		t.Fatal(n, err, out.Kept())
	}
	if err := os.Remove(to); err != nil {
		t.Fatal(err)
	}
	if n, err := out.Send(t.Context(), records(10, 20)); n != 10 || err != nil || out.Kept() != 0 || rowsIn(t, to) != 20 {
		t.Fatal(n, err, out.Kept(), rowsIn(t, to))
	}
	if err := os.RemoveAll(to); err != nil {
		t.Fatal(err)
	}
	spool := filepath.Join(dir, "spool")
	for _, refused := range []bool{true, false} {
		out := newTables()
		if refused {
			refuse()
		}
		o := NewOutlet(out, Options{Name: "x", Lost: lost, Spool: openSpool(t, spool, LeastSpool)})
		if refused {
			o.Put(records(0, 10))
		}
		tally, err := o.Close(time.Minute)
		if (err != nil) != refused || tally.Lost != 0 || (tally.Waiting != 0) != refused {
			t.Errorf("%+v, %v", tally, err)
		}
		if refused {
			if err := os.Remove(to); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := rowsIn(t, to); n != 10 {
		t.Errorf("%d rows", n)
	}
}

// TestAFileOnAFullDisk: the lines that had room are there once, whole ones alone, also where somebody makes the file shorter.
func TestAFileOnAFullDisk(t *testing.T) {
	path := testutil.SmallDisk(t, "64k") + "nat.jsonl"
	f, err := NewFile(path, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewFile(path, 0, 0); !errors.Is(err, errHeld) {
		t.Errorf("a second log: %v", err)
	}
	all := records(0, 1000)
	sent, err := f.Send(t.Context(), all)
	if err == nil || sent == 0 || sent == len(all) || lines(t, path) != sent {
		t.Fatalf("%d sent, %d lines, %v", sent, lines(t, path), err)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	again, err := f.Send(t.Context(), all)
	if err == nil || again != sent || lines(t, path) != sent {
		t.Fatalf("%d sent, %d lines, %v", again, lines(t, path), err)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if n, err := f.Send(t.Context(), all[:10]); n != 10 || err != nil || lines(t, path) != 10 {
		t.Errorf("%d sent, %d lines, %v", n, lines(t, path), err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// What a table has of records comes back as it was: of a connection of which the destination alone is translated, of those that were
// there before, and of zones.
func TestRowsComeBack(t *testing.T) {
	dir := t.TempDir()
	out, err := NewTables(t.Context(), store.Options{To: dir, Node: "gw", Version: "1"}, "6.1", func() time.Time { return noon })
	if err != nil {
		t.Fatal(err)
	}
	one := natlog.Record{Kind: natlog.Start, Time: noon, Node: "gw", Protocol: 6, Started: noon,
		Src: netip.MustParseAddrPort("198.18.0.2:40000"), Dst: netip.MustParseAddrPort("203.0.113.80:443"), Server: netip.MustParseAddrPort("10.0.0.9:8443")}
	want := []natlog.Record{one, one, one, one}
	want[1].Before, want[1].Started = true, time.Time{}
	want[2].Before, want[2].Started = true, noon.Add(-time.Hour)
	want[3].Zone, want[3].ReplyZone = 65535, 7
	alive := natlog.Record{Kind: natlog.Alive, Time: noon, Node: "gw"}
	if _, err := out.Send(t.Context(), append(want[:4:4], alive)); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	var got []natlog.Record
	if _, err := files.Read(t.Context(), dir, one.Src.Addr(), func(r *natlog.Record) { got = append(got, *r) }); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if n := out.Omitted(); n != 1 {
		t.Errorf("%d records without a row", n)
	}
}

// A bucket that there is not ends it at once; a store that is away does not.
func TestTablesToNoBucket(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	o := store.Options{To: "s3://nat/tables", Node: "gw", Version: "1", S3: store.S3{Endpoint: server.URL, AccessKey: "k", SecretKey: "s"}}
	if _, err := NewTables(t.Context(), o, "6.1", time.Now); err == nil || !strings.Contains(err.Error(), "bucket nat does not exist") {
		t.Error(err)
	}
	o.S3.Endpoint, o.S3.Patience = "http://127.0.0.1:1", 50*time.Millisecond
	if _, err := NewTables(t.Context(), o, "6.1", time.Now); err != nil {
		t.Error(err)
	}
}

// TestRoomIsAwaited: there is room for what can wait until half of the queue is full, and again when the receiver takes something, or
// takes nothing for long.
func TestRoomIsAwaited(t *testing.T) {
	r := &receiver{refuse: true}
	o := NewOutlet(r, Options{Name: "x", Lost: lost, queue: 100, retry: time.Millisecond})
	defer o.Close(0)
	if !o.Room(50) || o.Room(51) {
		t.Error("half of the queue is not what there is room for")
	}
	for i := 0; o.Room(10); i++ { // some of it is with the receiver
		o.Put(records(i, i+1))
	}
	o.mu.Lock()
	took := o.took
	o.took = took.Add(-2 * roomPatience)
	o.mu.Unlock()
	if !o.Room(10) {
		t.Error("a receiver that takes nothing is waited for")
	}
	o.mu.Lock()
	o.took = time.Now()
	o.mu.Unlock()
	if o.Room(10) {
		t.Error("there is room, with more than half of the queue full")
	}
	r.set(false)
	testutil.Eventually(t, "room", func() bool { return o.Room(10) })
}
