//go:build linux

package record

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/doctor"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/pcap"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/ring"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tap"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/watch"
)

// options are those of a recording that is quick.
func options(t *testing.T, ns *netns.Handle) Options {
	return Options{Netns: ns, Dir: filepath.Join(t.TempDir(), "record"), Most: ring.LeastBytes, Every: 100 * time.Millisecond,
		Before: time.Minute, After: 200 * time.Millisecond, Keep: 10, Version: "test", unpaced: true,
		Event: func(ring.RecordedEvent) error { return nil }, Note: func(err error) { t.Log(err) }}
}

// start runs a recorder until stop, which returns what it ended with.
func start(t *testing.T, o Options) (stop func() *End) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	type result struct {
		end *End
		err error
	}
	ended := make(chan result, 1)
	go func() {
		end, err := Run(ctx, o)
		ended <- result{end, err}
	}()
	var once sync.Once
	var last *End
	stop = func() *End {
		once.Do(func() {
			cancel()
			r := <-ended
			if r.err != nil {
				t.Errorf("record: %v", r.err)
			}
			last = r.end
		})
		return last
	}
	t.Cleanup(func() { stop() })
	return stop
}

// read is the ring in a directory; nil before there is one.
func read(dir string) *ring.Ring {
	r, err := ring.Open(os.DirFS(dir))
	if err != nil {
		return nil
	}
	return r
}

// waitSnapshots waits until so many more snapshots are there.
func waitSnapshots(t *testing.T, dir string, more int) *ring.Ring {
	t.Helper()
	count := func() int {
		if r := read(dir); r != nil {
			return len(r.Snapshots())
		}
		return 0
	}
	before := count()
	testutil.Eventually(t, fmt.Sprintf("%d more snapshots", more), func() bool { return count() >= before+more })
	return read(dir)
}

// findings are their ids and severities.
func findings(r *diagnose.Report) (all []string) {
	for _, f := range r.Findings {
		all = append(all, f.ID+" "+f.Severity.String())
	}
	slices.Sort(all)
	return all
}

func diagnosed(t *testing.T, r *ring.Ring, at time.Time) *diagnose.Report {
	t.Helper()
	rec, err := Diagnosable(r, at, snapshot.NewBudget(snapshot.DefaultBudget))
	if err != nil {
		t.Fatal(err)
	}
	report := diagnose.Run(rec, diagnose.Rules())
	return &report
}

// insertFlows adds answered connections of UDP to the table of a namespace, of a row of them those from one number to another.
func insertFlows(t *testing.T, ns *netns.Handle, first, most int64) {
	t.Helper()
	i := first
	if _, err := dump.Insert(t.Context(), ns, func(e *conntrack.Entry) bool {
		orig := conntrack.Tuple{Src: netip.AddrFrom4([4]byte{198, 18, 1 + byte(i>>24), byte(i >> 16)}), Dst: netip.AddrFrom4([4]byte{198, 19, 0, byte(i >> 14)}),
			Proto: unix.IPPROTO_UDP, SrcPort: uint16(1024 + i&0x3fff), DstPort: 53}
		*e = conntrack.Entry{Family: unix.AF_INET, Orig: orig, Reply: orig.Mirror(), Status: conntrack.SeenReply | conntrack.Assured, Timeout: 3600}
		i++
		return i <= most
	}); err != nil && i < first+(most-first)/2 {
		t.Fatal(err)
	}
}

// flood sends connections of UDP to an address of a namespace until the test ends.
func flood(t *testing.T, ns *netns.Handle, to string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	t.Cleanup(func() { cancel(); <-ended })
	go func() {
		ended <- ns.Do(func() error { return testutil.FloodUDP(ctx, netip.MustParseAddrPort(to), 2000) })
	}()
}

// noPorts makes a namespace where a rule gives 200 ports, 20000-20199, to connections towards one destination, and more are wanted,
// beside 200,000 other connections.
func noPorts(family, rule, to string) func(*testing.T) *netns.Handle {
	return func(t *testing.T) *netns.Handle {
		t.Helper()
		testutil.ShareHost(t)
		ns := testutil.Namespace(t)
		testutil.Inside(t, ns, func() error {
			return errors.Join(exec.Command("ip", "link", "set", "lo", "up").Run(), exec.Command("ip", "address", "add", "198.18.0.1/32", "dev", "lo").Run(),
				exec.Command("ip", "address", "add", "2001:db8::1/128", "dev", "lo").Run())
		})
		testutil.Nft(t, ns, fmt.Sprintf("add table %[1]s t\nadd chain %[1]s t post { type nat hook postrouting priority 100; }\nadd rule %[1]s t post %[2]s\n", family, rule))
		insertFlows(t, ns, 0, 200_000)
		flood(t, ns, to)
		testutil.Eventually(t, "all ports taken", func() bool {
			n, err := dump.Matching(t.Context(), ns, &conntrack.Filter{Reply: conntrack.Side{DstPort: conntrack.Is(uint16(20199))}})
			return err == nil && n > 0
		})
		return ns
	}
}

// fullTable is a namespace with as many connections as the host allows, to which clients send more until its end.
func fullTable(t *testing.T) *netns.Handle {
	t.Helper()
	testutil.ShareHost(t)
	ns := testutil.Namespace(t)
	testutil.Inside(t, ns, func() error {
		return errors.Join(exec.Command("ip", "link", "set", "lo", "up").Run(), exec.Command("ip", "address", "add", "198.18.0.1/32", "dev", "lo").Run())
	})
	testutil.Nft(t, ns, "add table ip t\nadd chain ip t out { type nat hook output priority -100; }\nadd rule ip t out udp dport 5353 dnat to 198.18.0.1:9\n")
	usage, err := dump.Count(ns)
	if err != nil {
		t.Fatal(err)
	}
	insertFlows(t, ns, 0, usage.Max)
	flood(t, ns, "198.18.0.1:5353")
	return ns
}

// TestSameFindings: what doctor finds live it finds in the recording of that time, with the same severity; also in what a
// trigger kept, and in the bundle there.
func TestSameFindings(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "nft")
	for name, fault := range map[string]struct {
		make func(*testing.T) *netns.Handle
		want string
	}{
		"full table": {fullTable, "ct-table-full critical"},
		"no ports left, of which a sample of a large table has few": {noPorts("ip", "udp dport 9 snat to 198.18.0.1:20000-20199", "198.18.0.1:9"), "snat-ports-exhausted critical"},
		"no ports left of a masquerade rule":                        {noPorts("ip", "udp dport 9 masquerade to :20000-20199", "198.18.0.1:9"), "snat-ports-exhausted critical"},
		"no ports left of an address of IPv6":                       {noPorts("ip6", "udp dport 9 snat to [2001:db8::1]:20000-20199", "[2001:db8::1]:9"), "snat-ports-exhausted critical"},
		"no ports left of masquerade for both versions":             {noPorts("inet", "meta l4proto udp masquerade to :20000-20199", "[2001:db8::1]:9"), "snat-ports-exhausted critical"},
		"not forwarded": {func(t *testing.T) *netns.Handle {
			ns, client := testutil.Namespace(t), testutil.Namespace(t)
			testutil.Veth(t, testutil.End{Netns: client, Name: "eth0", Addresses: []string{"198.18.0.2/24"}},
				testutil.End{Netns: ns, Name: "eth0", Addresses: []string{"198.18.0.1/24"}})
			testutil.Nft(t, ns, "add table ip nat\nadd chain ip nat pre { type nat hook prerouting priority -100; }\nadd rule ip nat pre tcp dport 80 dnat to 198.18.0.2\n")
			return ns
		}, "forwarding-off warning"},
		"healthy": {func(t *testing.T) *netns.Handle { return testutil.Namespace(t) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ns := fault.make(t)
			o := options(t, ns)
			o.On, o.Every = diagnose.Warning, 300*time.Millisecond
			stop := start(t, o)
			waitSnapshots(t, o.Dir, 2)
			_, live, err := doctor.Look(t.Context(), collect.RecordOptions{Options: collect.Options{Netns: ns}, For: 300 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			at := time.Now()
			r := waitSnapshots(t, o.Dir, 2)
			recorded := diagnosed(t, r, at)
			if diff := cmp.Diff(findings(live), findings(recorded)); diff != "" {
				t.Errorf("the recording has other findings than doctor had: %s", diff)
			}
			if fault.want != "" && !slices.Contains(findings(live), fault.want) {
				t.Errorf("doctor does not find %s, but %q", fault.want, findings(live))
			}
			if fault.want == "" {
				return
			}
			id, _, _ := strings.Cut(fault.want, " ")
			for _, r := range []*diagnose.Report{live, recorded} {
				if f := r.Find(id); id == "snat-ports-exhausted" && (f == nil || f.Evidence[0].Value != int64(200) || !strings.Contains(f.Evidence[0].Source, "chosen by the kernel")) {
					t.Errorf("the ports of the address are not counted one by one: %+v", f)
				}
			}
			stop()
			kept, err := List(o.Dir)
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(kept, func(k report.Kept) bool { return k.ID == id })
			if i < 0 || kept[i].Missing != "" {
				t.Fatalf("nothing was kept of %s: %+v", id, kept)
			}
			part := read(kept[i].Dir)
			fromPart := diagnosed(t, part, kept[i].At)
			file, err := os.Open(filepath.Join(kept[i].Dir, bundleName))
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			rec, err := collect.ReadBundle(file, nil)
			if err != nil {
				t.Fatal(err)
			}
			fromBundle := diagnose.Run(rec, diagnose.Rules())
			if diff := cmp.Diff(findings(fromPart), findings(&fromBundle)); diff != "" || fromPart.Find(id) == nil {
				t.Errorf("the bundle and the minutes have different findings, or not %s: %s", id, diff)
			}
		})
	}
}

// TestMark: a second process marks a moment, whose minutes are kept; without a recorder that is refused.
func TestMark(t *testing.T) {
	testutil.NeedRoot(t)
	t.Parallel()
	o := options(t, testutil.Namespace(t))
	o.Keep = 2
	if err := makeDir(o.Dir); err != nil {
		t.Fatal(err)
	}
	if _, err := Mark(o.Dir, ""); err == nil || !strings.Contains(err.Error(), "no natkit record is running there") {
		t.Errorf("without a recorder: %v", err)
	}
	if err := os.Chmod(o.Dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "others than you may write there") {
		t.Errorf("into a directory of others: %v", err)
	}
	if err := os.Chmod(o.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	stop := start(t, o)
	waitSnapshots(t, o.Dir, 2)
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "another natkit record is writing there") {
		t.Errorf("a second recorder: %v", err)
	}
	if _, err := Mark(o.Dir, strings.Repeat("x", longestMark+1)); err == nil {
		t.Error("a mark of any length is taken")
	}
	for i := range 3 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestChildMarks$")
		cmd.Env = append(os.Environ(), "NATKIT_TEST_MARK="+o.Dir, fmt.Sprintf("NATKIT_TEST_TEXT=number %d", i))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		waitSnapshots(t, o.Dir, 1)
	}
	// A file that is no mark is noted, and removed.
	if err := os.WriteFile(filepath.Join(o.Dir, marksDir, "9"+markSuffix), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	waitSnapshots(t, o.Dir, 5)
	end := stop()
	if end.Kept != 3 || end.Lost != 0 {
		t.Errorf("the end: %+v", end)
	}
	kept, err := List(o.Dir)
	if err != nil || len(kept) != 2 || kept[0].Text != "number 1" || kept[1].Text != "number 2" || kept[0].Snapshots < 2 {
		t.Errorf("kept: %+v: %v", kept, err)
	}
	c := read(o.Dir).Contents()
	var events []string
	for _, e := range c.Events {
		events = append(events, e.Event.Event)
	}
	slices.Sort(events)
	if diff := cmp.Diff([]string{"ended", "kept", "kept", "kept", "mark", "mark", "mark"}, events); diff != "" {
		t.Error(diff)
	}
	if left, _ := filepath.Glob(filepath.Join(o.Dir, marksDir, "*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestChildMarks is the second process.
func TestChildMarks(t *testing.T) {
	dir := os.Getenv("NATKIT_TEST_MARK")
	if dir == "" {
		return
	}
	if _, err := Mark(dir, os.Getenv("NATKIT_TEST_TEXT")); err != nil {
		t.Fatal(err)
	}
}

// TestKilled: a recorder that is killed at any moment leaves a ring that is read, and the next one goes on in it.
func TestKilled(t *testing.T) {
	testutil.NeedRoot(t)
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "record")
	snapshots := 0
	const kills = 3
	for i := range kills {
		cmd := exec.Command(os.Args[0], "-test.run=^TestChildRecords$")
		cmd.Env = append(os.Environ(), "NATKIT_TEST_RECORD="+dir)
		cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		waitSnapshots(t, dir, 3+5*i)
		_ = cmd.Process.Kill()
		if err := cmd.Wait(); err == nil || cmd.ProcessState.Exited() {
			t.Fatalf("it ended before: %s", &out)
		}
		r := read(dir)
		c := r.Contents()
		for _, f := range r.Snapshots() {
			if _, err := r.Members(f); err != nil {
				t.Fatal(err)
			}
		}
		if c.Segments != i+1 || c.Snapshots < snapshots+3 {
			t.Errorf("after kill %d: %+v", i+1, c)
		}
		snapshots = c.Snapshots
		diagnosed(t, r, time.Time{})
	}
	c := read(dir).Contents()
	restarted := 0
	for _, g := range c.Gaps {
		if g.Why == ring.GapRestarted {
			restarted++
		}
	}
	if restarted != kills-1 {
		t.Errorf("%d restarts in %+v", restarted, c.Gaps)
	}
}

// TestKilledAfterMark: a mark whose minutes were not over when the recorder was killed is kept by the next one, once.
func TestKilledAfterMark(t *testing.T) {
	testutil.NeedRoot(t)
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "record")
	cmd := exec.Command(os.Args[0], "-test.run=^TestChildRecords$")
	cmd.Env = append(os.Environ(), "NATKIT_TEST_RECORD="+dir, "NATKIT_TEST_AFTER=1h")
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waitSnapshots(t, dir, 2)
	if _, err := Mark(dir, "now"); err != nil {
		t.Error(err)
	}
	waitSnapshots(t, dir, 3)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	for range 2 {
		o := options(t, testutil.Namespace(t))
		o.Dir = dir
		stop := start(t, o)
		waitSnapshots(t, dir, 2)
		stop()
	}
	if kept, err := List(dir); err != nil || len(kept) != 1 || kept[0].Text != "now" || kept[0].Snapshots < 3 {
		t.Errorf("kept: %+v: %v", kept, err)
	}
}

// TestChildRecords is a recorder that is killed.
func TestChildRecords(t *testing.T) {
	dir := os.Getenv("NATKIT_TEST_RECORD")
	if dir == "" {
		return
	}
	o := options(t, nil)
	o.Dir, o.Every = dir, time.Millisecond
	if after, err := time.ParseDuration(os.Getenv("NATKIT_TEST_AFTER")); err == nil {
		o.After = after
	}
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// smallDisk is a directory with a file system of its own, in a process with mounts of its own; false in the one that starts it.
func smallDisk(t *testing.T) (dir string, own bool) {
	t.Helper()
	testutil.NeedRoot(t)
	if os.Getenv("NATKIT_TEST_MOUNTS") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), "NATKIT_TEST_MOUNTS=own")
		cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return "", false
	}
	dir = t.TempDir()
	if err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("small", dir, "tmpfs", 0, "size=3m")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir, true
}

// fillDisk returns the file that takes all of it.
func fillDisk(t *testing.T, disk string) string {
	t.Helper()
	f, err := os.Create(filepath.Join(disk, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	return f.Name()
}

// TestKeptLater: minutes that a full disk has no room for are kept when there is some, which is said once; at the end those that
// could not be are counted.
func TestKeptLater(t *testing.T) {
	disk, own := smallDisk(t)
	if !own {
		return
	}
	o := options(t, nil)
	o.Dir, o.retryFull = filepath.Join(disk, "record"), time.Minute
	var notes []string
	o.Note = func(err error) { notes = append(notes, err.Error()) }
	if err := makeDir(o.Dir); err != nil {
		t.Fatal(err)
	}
	r, err := begin(o)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := r.snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	_, newest, err := read(o.Dir).Newest()
	if err != nil {
		t.Fatal(err)
	}
	notes = nil
	at, now := newest.Stamp, time.Now()
	r.await(pending{at: at, due: now, event: ring.Event{Event: ring.EventMark}})
	ballast := fillDisk(t, disk)
	keep := func(after time.Duration) {
		t.Helper()
		if err := r.keepDue(now.Add(after), at); err != nil {
			t.Fatal(err)
		}
	}
	keep(0)
	keep(time.Minute)
	if len(notes) != 1 || !strings.Contains(notes[0], "no space left on device; they are kept when there is room") || len(r.keeper.waiting) != 1 || r.end.Kept > 0 {
		t.Fatalf("%q, %+v, %+v", notes, r.keeper.waiting, r.end)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	keep(time.Minute) // it is not yet time
	if r.end.Kept > 0 {
		t.Error("tried again at once")
	}
	keep(2 * time.Minute)
	kept, err := List(o.Dir)
	if err != nil || len(kept) != 1 || kept[0].Snapshots != 2 || kept[0].Missing != "" || r.end.Kept != 1 || len(notes) != 1 {
		t.Fatalf("%+v: %v; %q", kept, err, notes)
	}
	r.await(pending{at: at, due: now, event: ring.Event{Event: ring.EventMark}})
	fillDisk(t, disk)
	if err := r.keepAll(at); err != nil || r.end.NotKept != 1 || len(notes) != 2 || !strings.Contains(notes[1], "they are in the ring") {
		t.Errorf("at the end: %+v, %q: %v", r.end, notes, err)
	}
}

// TestFullDisk: on a full disk the recorder says so once, and goes on when there is room; what is missing is in the ring.
func TestFullDisk(t *testing.T) {
	disk, own := smallDisk(t)
	if !own {
		return
	}
	o := options(t, nil)
	o.Dir, o.Every = filepath.Join(disk, "record"), 20*time.Millisecond
	var mutex sync.Mutex
	var notes []string
	noted := func() []string {
		mutex.Lock()
		defer mutex.Unlock()
		return slices.Clone(notes)
	}
	o.Note = func(err error) {
		mutex.Lock()
		defer mutex.Unlock()
		notes = append(notes, err.Error())
	}
	stop := start(t, o)
	waitSnapshots(t, o.Dir, 2)
	ballast := fillDisk(t, disk)
	testutil.Eventually(t, "a full disk is noted", func() bool { return len(noted()) == 1 })
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, "the recording goes on", func() bool { return len(noted()) == 2 })
	waitSnapshots(t, o.Dir, 2)
	end := stop()
	if n := noted(); !strings.Contains(n[0], "no space left on device; the recording goes on when there is room") || n[1] != "the recording goes on" {
		t.Errorf("noted: %q", n)
	}
	c := read(o.Dir).Contents()
	lost := uint64(0)
	for _, e := range c.Events {
		lost += e.Snapshots
	}
	if lost == 0 || lost != end.Lost || len(c.Damaged) > 0 {
		t.Errorf("%d snapshots are missing in the ring, %d were lost; damaged: %+v", lost, end.Lost, c.Damaged)
	}
}

// TestPackets: SYNs, RSTs and ICMP are there without payload, other packets are not.
func TestPackets(t *testing.T) {
	testutil.NeedRoot(t)
	t.Parallel()
	testutil.NeedProgram(t, "ping")
	ns := testutil.Namespace(t)
	testutil.Inside(t, ns, func() error { return exec.Command("ip", "link", "set", "lo", "up").Run() })
	o := options(t, ns)
	o.Packets, o.Drops = true, true
	stop := start(t, o)
	waitSnapshots(t, o.Dir, 1)
	testutil.Run(t, ns, "", "ping", "-c", "2", "-i", "0.2", "-s", "1000", "127.0.0.1")
	testutil.Inside(t, ns, func() error {
		if c, err := net.Dial("udp", "127.0.0.1:9"); err == nil {
			_, _ = c.Write([]byte("no header of it is kept, but of the answer"))
			c.Close()
		}
		c, err := net.Dial("tcp", "127.0.0.1:9")
		if err == nil {
			c.Close()
			return errors.New("something listens on port 9")
		}
		return nil
	})
	kinds := func() map[byte]int {
		all := map[byte]int{}
		r := read(o.Dir)
		for f := range r.All() {
			if f.Kind != ring.KindPackets {
				continue
			}
			p, err := r.Packets(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, one := range p.List {
				if len(one.Data) > 80 || one.Interface != "lo" {
					t.Errorf("%d bytes of a packet of %d on %s", len(one.Data), one.Length, one.Interface)
				}
				all[one.Data[9]]++
			}
		}
		return all
	}
	// Each is seen twice, as it is sent and received: 4 of ping's and the error, a SYN and a RST.
	testutil.Eventually(t, "headers of TCP and ICMP", func() bool {
		all := kinds()
		return all[unix.IPPROTO_ICMP] >= 10 && all[unix.IPPROTO_TCP] >= 4
	})
	stop()
	if n := kinds()[unix.IPPROTO_UDP]; n > 0 {
		t.Errorf("%d headers of UDP", n)
	}
}

// TestDropped: of what a rule drops the ring has headers without payload, as flows of a diagnosis and in what is exported.
func TestDropped(t *testing.T) {
	testutil.NeedRoot(t)
	t.Parallel()
	ns := testutil.Namespace(t)
	testutil.Inside(t, ns, func() error { return exec.Command("ip", "link", "set", "lo", "up").Run() })
	testutil.Nft(t, ns, "table ip f { chain c { type filter hook input priority 0; udp dport 9 drop; }; }")
	o := options(t, ns)
	o.Packets, o.Drops = true, true
	stop := start(t, o)
	waitSnapshots(t, o.Dir, 2)
	const secret = "payload that is nobody's business"
	testutil.Inside(t, ns, func() error {
		c, err := net.Dial("udp", "127.0.0.1:9")
		if err != nil {
			return err
		}
		defer c.Close()
		for range 3 {
			if _, err := c.Write([]byte(secret)); err != nil {
				return err
			}
		}
		return nil
	})
	testutil.Eventually(t, "headers of dropped packets", func() bool {
		return read(o.Dir).Contents().DroppedHeaders >= 3
	})
	stop()
	r := read(o.Dir)
	var at time.Time
	for f := range r.All() {
		if f.Kind != ring.KindDropped {
			continue
		}
		at = f.Wall
		d, err := r.Dropped(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range d.List {
			if len(one.Data) != 28 || one.Length != uint32(28+len(secret)) || one.Interface != "lo" || one.Site.Protocol != "udp" {
				t.Errorf("%+v", one)
			}
		}
	}
	rec, err := Diagnosable(r, at, nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := rec.Dropped; d == nil || len(d.Flows) == 0 || d.Flows[0].Destination != "127.0.0.1:9" || rec.Drops != nil {
		t.Errorf("%+v", d)
	}
	var exported bytes.Buffer
	if err := ring.WritePcapng(&exported, r, at.Add(-time.Hour), at.Add(time.Hour), ""); err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(exported.Bytes(), []byte("dropped at n")) || bytes.Contains(exported.Bytes(), []byte(secret[:8])) {
		t.Errorf("exported: %q", exported.Bytes())
	}
}

// TestDroppedOnce: a SYN that is in the recording as one that came and as one that was dropped, behind DNAT with another
// destination, is one attempt to connect for natkit pcap.
func TestDroppedOnce(t *testing.T) {
	testutil.NeedRoot(t)
	t.Parallel()
	gw, client := testutil.Namespace(t, "gw"), testutil.Namespace(t, "client")
	testutil.Veth(t, testutil.End{Netns: gw, Name: "in", Addresses: []string{"198.18.0.1/24", "fd00::1/64"}},
		testutil.End{Netns: client, Name: "eth0", Addresses: []string{"198.18.0.2/24", "fd00::2/64"}})
	testutil.Veth(t, testutil.End{Netns: gw, Name: "out", Addresses: []string{"198.19.0.1/24"}}, testutil.End{Netns: client, Name: "eth1"})
	testutil.Sysctl(t, gw, "net/ipv4/ip_forward", "1")
	testutil.Nft(t, gw, `table ip t {
  chain pre { type nat hook prerouting priority -100; tcp dport 80 dnat to 198.19.0.2; }
  chain forward { type filter hook forward priority 0; tcp dport 80 drop; }
}
table ip6 t { chain input { type filter hook input priority 0; tcp dport 80 drop; }; }`)
	testutil.Sysctl(t, client, "net/ipv4/tcp_timestamps", "0") // the sender's clock is none of what packets are recognised by
	o := options(t, gw)
	o.Packets, o.Drops = true, true
	stop := start(t, o)
	waitSnapshots(t, o.Dir, 2)
	ctx, cancel := context.WithCancel(t.Context())
	var dials sync.WaitGroup
	for _, to := range []string{"198.18.0.1:80", "[fd00::1]:80"} {
		dials.Go(func() {
			_ = client.Do(func() error {
				c, err := (&net.Dialer{}).DialContext(ctx, "tcp", to)
				if err == nil {
					c.Close()
					t.Errorf("connected to %s", to)
				}
				return nil
			})
		})
	}
	testutil.Eventually(t, "two SYNs of each, come and dropped", func() bool {
		r, came, dropped := read(o.Dir), 0, 0
		for f := range r.All() {
			switch f.Kind {
			case ring.KindPackets:
				if p, err := r.Packets(f); err == nil {
					for _, one := range p.List { // ICMP is of neighbours
						if ring.IsTCP(one.Data) {
							came++
						}
					}
				}
			case ring.KindDropped:
				if d, err := r.Dropped(f); err == nil {
					dropped += len(d.List)
				}
			}
		}
		return came >= 4 && dropped >= 4
	})
	cancel()
	dials.Wait()
	stop()
	var exported bytes.Buffer
	if err := ring.WritePcapng(&exported, read(o.Dir), time.Now().Add(-time.Hour), time.Now().Add(time.Hour), ""); err != nil {
		t.Fatal(err)
	}
	got, err := pcap.Read(&exported, pcap.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if c := got.Connections; c.Begun != 2 || c.Total != 2 || c.Duplicates < 4 || got.Stats.OutOfOrder > 0 {
		t.Errorf("%+v, %d packets out of order", c, got.Stats.OutOfOrder)
	}
	for _, i := range got.Incidents {
		if to := i.Server.String(); i.Kind != pcap.SYNNotAccepted || to != "198.18.0.1:80" && to != "[fd00::1]:80" {
			t.Errorf("%s: %s", i.Kind, to)
		}
	}
}

// TestSampledFilter: with the samples of a flood the filter keeps few packets, and with variable ones it can be made.
func TestSampledFilter(t *testing.T) {
	for _, samples := range []tap.Samples{{1, 1}, {1 << 10, 1}, {1, 1 << 10}, {mostSample, mostSample}} {
		raw, err := notable(samples)
		if err != nil {
			t.Fatal(err)
		}
		program, all := bpf.Disassemble(raw)
		if !all {
			t.Fatalf("%v: not all of it is understood", samples)
		}
		for i, in := range program { // no jump leads behind its end
			if j, is := in.(bpf.JumpIf); is && i+1+int(max(j.SkipTrue, j.SkipFalse)) >= len(program) {
				t.Errorf("%v: instruction %d jumps out of the filter", samples, i)
			}
		}
	}
	if _, err := notable(tap.Samples{-1, -2}); err != nil {
		t.Error(err)
	}
}

func TestParseCondition(t *testing.T) {
	for text, want := range map[string]Condition{
		"insert_failed > 10/s":           {Name: "insert_failed", Value: 10, PerSecond: true},
		" TcpExtListenDrops>=0.5/s":      {Name: "TcpExtListenDrops", Value: 0.5, PerSecond: true, AtLeast: true},
		"nf_conntrack_count > 200000":    {Name: "nf_conntrack_count", Value: 200000},
		"net.netfilter.nf_conntrack_x>1": {Name: "net.netfilter.nf_conntrack_x", Value: 1},
	} {
		want.Text = strings.TrimSpace(text)
		if got, err := ParseCondition(text); err != nil || got != want {
			t.Errorf("%q: %+v: %v", text, got, err)
		}
	}
	for _, text := range []string{"", "drop", "drop < 3", "> 3", "drop > x", "drop > 3 /m", "drop > -1"} {
		if got, err := ParseCondition(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}

func TestCondition(t *testing.T) {
	snap := func(uptime float64, drop, syn uint64, count string) *snapshot.Snapshot {
		return &snapshot.Snapshot{UptimeSeconds: uptime, ConntrackStat: &snapshot.ConntrackStat{PerCPU: []map[string]uint64{{"drop": drop}}},
			TCP: &snapshot.TCP{Counters: snapshot.Counters{"TcpExtListenDrops": syn}}, Sysctls: snapshot.Sysctls{"net.netfilter.nf_conntrack_count": count}}
	}
	rec := &snapshot.Recording{Snapshots: []*snapshot.Snapshot{snap(10, 5, 1, "100"), snap(14, 45, 1, "180")}}
	for text, want := range map[string][2]bool{
		"drop > 9/s": {true, true}, "drop > 10/s": {false, true}, "drop >= 10/s": {true, true}, "drop > 39": {true, true}, "drop > 40": {false, true},
		"TcpExtListenDrops > 0": {false, true}, "nf_conntrack_count > 179": {true, true}, "nf_conntrack_count > 19/s": {true, true},
		"nf_conntrack_count > 20/s": {false, true}, "no_such > 0": {false, false},
	} {
		c, err := ParseCondition(text)
		if err != nil {
			t.Fatal(err)
		}
		if holds, known := c.Holds(rec); holds != want[0] || known != want[1] {
			t.Errorf("%s: %v, known %v", text, holds, known)
		}
	}
}

// TestWhen: a counter that grows triggers, once, and one that does not exist is noted, once.
func TestWhen(t *testing.T) {
	testutil.NeedRoot(t)
	t.Parallel()
	ns := testutil.Namespace(t)
	o := options(t, ns)
	for _, text := range []string{"Ip6OutNoRoutes >= 0", "no_such_counter > 3/s"} {
		c, err := ParseCondition(text)
		if err != nil {
			t.Fatal(err)
		}
		o.When = append(o.When, c)
	}
	var notes []string
	o.Note = func(err error) { notes = append(notes, err.Error()) }
	var events []string
	o.Event = func(e ring.RecordedEvent) error {
		events = append(events, e.Event.Event+" "+e.Text)
		return nil
	}
	stop := start(t, o)
	waitSnapshots(t, o.Dir, 8)
	stop()
	if diff := cmp.Diff([]string{"trigger Ip6OutNoRoutes >= 0", "kept Ip6OutNoRoutes >= 0"}, events); diff != "" {
		t.Error(diff)
	}
	if len(notes) != 1 || !strings.Contains(notes[0], "no counter or sysctl no_such_counter") {
		t.Errorf("noted: %q", notes)
	}
	kept, err := List(o.Dir)
	if err != nil || len(kept) != 1 || kept[0].Text != "Ip6OutNoRoutes >= 0" {
		t.Fatalf("kept: %+v: %v", kept, err)
	}
	data, err := os.ReadFile(filepath.Join(kept[0].Dir, whyName))
	if err != nil {
		t.Fatal(err)
	}
	var w Why
	if err := json.Unmarshal(data, &w); err != nil || w.Schema != WhySchema || w.At != kept[0].At {
		t.Errorf("%s: %v", data, err)
	}
}

// TestFollowedCost: what the process does while connections are followed is paid for by following, not by snapshots: the one
// after it comes in time.
func TestFollowedCost(t *testing.T) {
	testutil.NeedRoot(t)
	o := options(t, testutil.Namespace(t))
	o.Outcomes = time.Hour
	r := &recorder{Options: o}
	r.follow(t.Context())
	if r.tracer == nil {
		t.Fatal("nothing is followed")
	}
	before, begun := r.besides, watch.CPUTime()
	const work = 20 * time.Millisecond
	for watch.CPUTime() < begun+work {
		_ = fmt.Sprint(begun)
	}
	if r.followed() == nil {
		t.Fatal("nothing was followed")
	}
	if r.besides < before+work || r.cost < work {
		t.Errorf("%v besides snapshots, before the work of %v it was %v; %v of following", r.besides, work, before, r.cost)
	}
}

// TestUnread: a part that cannot be read is noted, once.
func TestUnread(t *testing.T) {
	var notes []string
	r := &recorder{Options: Options{Note: func(err error) { notes = append(notes, err.Error()) }}, unread: map[string]bool{}}
	for range 2 {
		r.noteUnread(&snapshot.Snapshot{Parts: []snapshot.Part{{Name: "conntrack_table", Error: "dump: operation not permitted"}, {Name: "routes"}}})
	}
	if diff := cmp.Diff([]string{"conntrack_table is not recorded: dump: operation not permitted"}, notes); diff != "" {
		t.Error(diff)
	}
}

// TestKeptBound: headers that are larger as pcapng than what is kept may be are left to 'record export', and what was kept
// before stays; triggers beyond those that can wait are noted.
func TestKeptBound(t *testing.T) {
	var notes []string
	o := options(t, nil)
	o.Packets, o.Note = true, func(err error) { notes = append(notes, err.Error()) }
	if err := makeDir(o.Dir); err != nil {
		t.Fatal(err)
	}
	earlier := filepath.Join(o.Dir, keptDir, "20200101T000000.000Z-mark")
	if err := errors.Join(os.Mkdir(earlier, 0o700), os.WriteFile(filepath.Join(earlier, packetsName), make([]byte, o.Most/2), 0o600)); err != nil {
		t.Fatal(err)
	}
	w, err := ring.NewWriter(store{o.Dir}, ring.Options{Most: o.Most})
	if err != nil {
		t.Fatal(err)
	}
	at := ring.Stamp{Wall: time.Now(), Uptime: uptime()}
	syn := append([]byte{0x45, 0, 0, 40, 0, 0, 0, 0, 64, unix.IPPROTO_TCP, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2, 0x9c, 0x40, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 2}, make([]byte, 6)...)
	p := &ring.Packets{Sample: 1, SampleICMP: 1}
	for int64(len(p.List)*len(syn)) <= o.Most/besidesPart {
		p.List = append(p.List, ring.Packet{At: at.Wall, Interface: "eth0", Length: 40, Data: syn})
	}
	if err := errors.Join(w.Snapshot(at, nil), w.Packets(at, p), w.Close()); err != nil {
		t.Fatal(err)
	}
	r := &recorder{Options: o, keeper: keeper{Options: o}}
	for range mostPending + 1 {
		r.await(pending{at: at, event: ring.Event{Event: ring.EventMark}})
	}
	if len(notes) != 1 || !strings.Contains(notes[0], "natkit record export --at") {
		t.Errorf("noted: %q", notes)
	}
	dir, err := r.keeper.keep(r.keeper.waiting[0])
	if err != nil {
		t.Fatal(err)
	}
	if why, err := Trigger(dir); err != nil || !strings.Contains(why.Missing, "headers of packets: it is larger") || exists(filepath.Join(dir, packetsName)) {
		t.Errorf("kept: %+v: %v", why, err)
	}
	if !exists(earlier) || sizeOf(filepath.Join(o.Dir, keptDir)) > o.Most {
		t.Error("what was kept before is gone, or all of it is larger than its bound")
	}
}

// TestNames: what the host called addresses at the time of a snapshot is in it, for 'doctor --from', whatever it calls them now.
func TestNames(t *testing.T) {
	testutil.NeedRoot(t)
	o := options(t, testutil.Namespace(t))
	address := netip.MustParseAddr("198.18.77.2")
	name := snapshot.Name{Kind: snapshot.NameContainer, Text: "web"}
	o.Names = func(context.Context, *netns.Handle) *snapshot.Names {
		return &snapshot.Names{Addresses: map[netip.Addr]snapshot.Name{address: name}}
	}
	stop := start(t, o)
	r := waitSnapshots(t, o.Dir, 3)
	stop()
	rec, err := Diagnosable(r, time.Time{}, snapshot.NewBudget(snapshot.DefaultBudget))
	if err != nil {
		t.Fatal(err)
	}
	if got, known := rec.Last().Names.Addr(address); !known || got != name {
		t.Errorf("%s is called %v", address, got)
	}
}

// TestPostponed: what a snapshot cost postpones the next one by a bounded time, less in the minutes after a trigger.
func TestPostponed(t *testing.T) {
	for _, tc := range []struct {
		due, want time.Duration
		kept      bool
	}{{4 * time.Minute, time.Minute, false}, {4 * time.Minute, 15 * time.Second, true}, {7 * time.Second, 7 * time.Second, false}, {-time.Second, -time.Second, true}} {
		if got := postponed(tc.due, tc.kept); got != tc.want {
			t.Errorf("%+v: %s", tc, got)
		}
	}
}
