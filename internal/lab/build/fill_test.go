package build

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

// some is enough for every part of every mix, and less than a host's maximum.
const some = 20_000

func mixOf(t *testing.T, name string) *lab.Mix {
	t.Helper()
	m, err := lab.FindMix(name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func options(t *testing.T, ns *netns.Handle, mix string, target int64) FillOptions {
	t.Helper()
	return FillOptions{Netns: ns, Where: "test", Mix: mixOf(t, mix), Seed: 5, Target: target, Dir: t.TempDir()}
}

func start(t *testing.T, o FillOptions) *Fill {
	t.Helper()
	f, err := StartFill(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// foreign inserts entries that are not the lab's.
func foreign(t *testing.T, ns *netns.Handle, n int, mark uint32) {
	t.Helper()
	i := 0
	_, err := dump.Insert(t.Context(), ns, func(e *conntrack.Entry) bool {
		orig := conntrack.Tuple{Src: netip.MustParseAddr("198.18.0.1"), Dst: netip.MustParseAddr("198.18.0.2"), Proto: 6, SrcPort: uint16(1000 + i), DstPort: 80}
		*e = conntrack.Entry{Family: unix.AF_INET, Orig: orig, Reply: orig.Mirror(), TCPState: conntrack.TCPEstablished, Timeout: 600, Mark: mark, Status: conntrack.SeenReply | conntrack.Assured}
		i++
		return i <= n
	})
	if err != nil {
		t.Fatal(err)
	}
}

func count(t *testing.T, ns *netns.Handle) int64 {
	t.Helper()
	u, err := dump.Count(ns)
	if err != nil {
		t.Fatal(err)
	}
	return u.Entries
}

// table reads the entries by their original tuple.
func table(t *testing.T, ns *netns.Handle) map[conntrack.Tuple]conntrack.Entry {
	t.Helper()
	all := map[conntrack.Tuple]conntrack.Entry{}
	var e conntrack.Entry
	_, err := dump.Dump(t.Context(), ns, func(msgs []byte) error {
		return conntrack.Each(msgs, &e, func(e *conntrack.Entry) error {
			all[e.Orig] = *e
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestKernelHoldsWhatTheMixSays compares the table with the entries that were to
// be made: tuples, states, timeouts, and the bits of NAT.
func TestKernelHoldsWhatTheMixSays(t *testing.T) {
	testutil.ShareHost(t)
	for _, m := range lab.Mixes() {
		t.Run(m.Name, func(t *testing.T) {
			ns := testutil.Namespace(t)
			began := time.Now()
			f := start(t, options(t, ns, m.Name, some))
			got := table(t, ns)
			slack := uint32(time.Since(began)/time.Second) + 2
			// Where the machine took so long, the shortest ones have ended.
			if least := lastingAtLeast(m.Filler(5, f.Mark), slack); f.Made != some || f.Table.Entries < least || f.Table.Entries > some || int64(len(got)) < least || len(got) > some {
				t.Fatalf("made %d, the table holds %d, read %d; want %d", f.Made, f.Table.Entries, len(got), some)
			}
			removed, err := f.Remove(t.Context())
			lasting := lastingLonger(got, time.Since(began))
			if err != nil || removed.Deleted < lasting || removed.Deleted > some || count(t, ns) != 0 {
				t.Errorf("removed %+v, at least %d were there; error %v; %d are left", removed, lasting, err, count(t, ns))
			}
			compareTable(t, m.Filler(5, f.Mark), got, slack)
		})
	}
}

// lastingAtLeast is how many of the entries of a fill are there after so many seconds.
func lastingAtLeast(filler *lab.Filler, seconds uint32) (n int64) {
	var e conntrack.Entry
	for i := range int64(some) {
		if filler.Entry(i, &e); e.Timeout > seconds {
			n++
		}
	}
	return n
}

// lastingLonger is how many of the entries have not expired after so long.
func lastingLonger(all map[conntrack.Tuple]conntrack.Entry, d time.Duration) (n int64) {
	for _, e := range all {
		if time.Duration(e.Timeout)*time.Second > d+2*time.Second {
			n++
		}
	}
	return n
}

func compareTable(t *testing.T, filler *lab.Filler, got map[conntrack.Tuple]conntrack.Entry, slack uint32) {
	t.Helper()
	var want conntrack.Entry
	for i := range int64(some) {
		part := filler.Mix().Parts[filler.Entry(i, &want)]
		have, there := got[want.Orig]
		if !there && want.Timeout <= slack {
			continue
		}
		if !there {
			t.Fatalf("entry %d (part %s) is not there: %+v", i, part.Name, want)
		}
		if have.Timeout > want.Timeout || have.Timeout+slack < want.Timeout {
			t.Fatalf("entry %d (part %s) has %d s left, was made with %d s", i, part.Name, have.Timeout, want.Timeout)
		}
		if want.IsSNAT() {
			want.Status |= conntrack.SrcNAT
		}
		if want.IsDNAT() {
			want.Status |= conntrack.DstNAT
		}
		if part.NAT != nil {
			want.Status |= conntrack.SrcNATDone | conntrack.DstNATDone
		}
		have.ID, have.Use, have.Timeout = 0, 0, want.Timeout
		if !have.Equal(&want) {
			t.Fatalf("entry %d (part %s):\n%s", i, part.Name, cmp.Diff(want, have, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })))
		}
	}
}

// TestOtherProtocols makes what no mix of natkit has.
func TestOtherProtocols(t *testing.T) {
	const text = `{name: others, title: others, parts: [
	{name: sctp, share: 1, protocol: sctp, status: assured, sources: {prefix: 198.18.128.0/24}, destinations: ["203.0.113.1:2905"]},
	{name: gre, share: 1, protocol: gre, sources: {prefix: 198.18.128.0/24}, source_ports: 1-65535, destinations: ["203.0.113.1:7"]},
	{name: sctp6, share: 1, protocol: sctp, sources: {prefix: "2001:db8::/64", hosts: 9}, destinations: ["[2001:db8:1::1]:2905"], nat: {snat: {to: ["2001:db8:2::1"], order: random}}},
	{name: ping6, share: 1, protocol: icmp, sources: {prefix: "2001:db8::/64", hosts: 9}, destinations: ["2001:db8:1::1"], nat: {snat: {to: ["2001:db8:2::1"], order: random}}},
	{name: ping, share: 1, protocol: icmp, sources: {prefix: 198.18.128.0/24}, destinations: ["203.0.113.1"], nat: {snat: {to: [203.0.113.9], order: random}}},
	{name: full, share: 1, protocol: udp, sources: {prefix: 198.18.128.0/24}, destinations: ["203.0.113.1:53"], nat: {dnat: ["203.0.113.2:5353"], snat: {to: [203.0.113.9], order: sequential}}}]}`
	m, err := lab.ParseMix("others", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	testutil.ShareHost(t)
	ns := testutil.Namespace(t)
	began := time.Now()
	f := start(t, FillOptions{Netns: ns, Where: "test", Mix: m, Seed: 5, Target: some, Dir: t.TempDir()})
	got := table(t, ns)
	compareTable(t, m.Filler(5, f.Mark), got, uint32(time.Since(began)/time.Second)+2)
	if _, err := f.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestRemoveLeavesOthers(t *testing.T) {
	testutil.ShareHost(t)
	ns := testutil.Namespace(t)
	foreign(t, ns, 10, 0)
	dir := t.TempDir()
	o := options(t, ns, "established", some)
	o.Dir = dir
	first := start(t, o)
	if first.Before != 10 || first.Made != some-10 {
		t.Errorf("made %d beside %d, want %d in all", first.Made, first.Before, some)
	}
	o = options(t, ns, "snat-ports", 2*some) // none of both ends while the test runs
	o.Dir = dir
	second := start(t, o)
	if first.Mark == second.Mark {
		t.Fatalf("two fills have the mark %#x", first.Mark)
	}
	removed, err := first.Remove(t.Context())
	if err != nil || removed.Deleted != some-10 {
		t.Errorf("removed %+v, error %v", removed, err)
	}
	if got := count(t, ns); got != some+10 {
		t.Errorf("%d entries are left, want the other fill's %d and 10 of others", got, some)
	}
	if _, err := second.Remove(t.Context()); err != nil || count(t, ns) != 10 {
		t.Errorf("%d entries are left, error %v", count(t, ns), err)
	}
	wantNoRecords(t, dir)
}

func wantNoRecords(t *testing.T, dir string) {
	t.Helper()
	files, err := os.ReadDir(recordDir(dir))
	if err != nil || len(files) > 0 {
		t.Errorf("records are left: %v, error %v", files, err)
	}
}

// TestMarksOfOthersAreAvoided: an entry that is not a fill's has a fill's mark.
func TestMarksOfOthersAreAvoided(t *testing.T) {
	testutil.ShareHost(t)
	ns := testutil.Namespace(t)
	foreign(t, ns, 3, lab.FillMark+1)
	f := start(t, options(t, ns, "established", 100))
	if f.Mark != lab.FillMark+2 {
		t.Errorf("mark %#x, want the one after that of others", f.Mark)
	}
	if _, err := f.Remove(t.Context()); err != nil || count(t, ns) != 3 {
		t.Errorf("%d entries are left, error %v", count(t, ns), err)
	}
}

func TestExpiredEntriesAreNoError(t *testing.T) {
	const text = `{name: short, title: short, parts: [
	{name: a, share: 1, protocol: udp, timeout: 1s, sources: {prefix: 198.18.128.0/24}, destinations: ["203.0.113.1:53"]},
	{name: b, share: 1, protocol: udp, timeout: 1h, sources: {prefix: 198.18.128.0/24}, destinations: ["203.0.113.2:53"]}]}`
	m, err := lab.ParseMix("short", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	testutil.ShareHost(t)
	ns := testutil.Namespace(t)
	f := start(t, FillOptions{Netns: ns, Where: "test", Mix: m, Target: 1000, Dir: t.TempDir()})
	for deadline := time.Now().Add(testutil.Patience(time.Minute)); ; {
		if n, err := dump.Matching(t.Context(), ns, f.filter()); err != nil || n == 500 || time.Now().After(deadline) {
			break
		}
	}
	removed, err := f.Remove(t.Context())
	if err != nil || removed.Deleted != 500 || f.Made != 1000 {
		t.Errorf("removed %+v of %d, error %v; want the 500 that had not expired", removed, f.Made, err)
	}
}

func TestFillThatFailsLeavesNothing(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.LockHost(t)
	limit, err := ConntrackMax()
	if err != nil {
		t.Fatal(err)
	}
	if limit > 1<<20 {
		testutil.Missing(t, fmt.Sprintf("needs nf_conntrack_max up to %d, it is %d: as many entries are made", 1<<20, limit))
	}
	for name, tc := range map[string]struct {
		mix     string
		target  int64
		prepare func(t *testing.T, ns *netns.Handle)
		want    string
	}{
		"table full before the target": {mix: "established", target: limit + 10, want: fmt.Sprintf("the table is full: %d entries, nf_conntrack_max is %d; what was made is removed", limit, limit)},
		"nothing to fill":              {mix: "established", target: 3, want: "it holds 3 entries already, 3 are wanted"},
		"more than the mix has":        {mix: "established", target: 5 << 20, want: "only 4194304 connections of mix established can be distinct"},
		"the same entries are there": {mix: "established", target: 1000, prepare: func(t *testing.T, ns *netns.Handle) {
			if _, err := InsertFill(t.Context(), ns, mixOf(t, "established").Filler(9, 77), 500, 10, nil); err != nil {
				t.Fatal(err)
			}
		}, want: "an entry with these tuples exists; another fill has it"},
	} {
		t.Run(name, func(t *testing.T) {
			ns := testutil.Namespace(t)
			foreign(t, ns, 3, 0)
			if tc.prepare != nil {
				tc.prepare(t, ns)
			}
			before := count(t, ns)
			o := options(t, ns, tc.mix, tc.target)
			f, err := StartFill(t.Context(), o)
			if f != nil || err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, tc.want)
			}
			if got := count(t, ns); got != before {
				t.Errorf("%d entries are left, %d were there", got, before)
			}
			if files, _ := os.ReadDir(recordDir(o.Dir)); len(files) > 0 {
				t.Errorf("records are left: %v", files)
			}
		})
	}
}

func TestInterruptedRemovesWhatItMade(t *testing.T) {
	testutil.ShareHost(t)
	ns := testutil.Namespace(t)
	foreign(t, ns, 3, 0)
	ctx, cancel := context.WithCancel(t.Context())
	o := options(t, ns, "gateway", 10*some)
	o.Progress = func(made, of int64) {
		if made > some {
			cancel()
		}
	}
	_, err := StartFill(ctx, o)
	if want := "fill the connection table of test: interrupted after "; err == nil || !strings.HasPrefix(err.Error(), want) || !strings.HasSuffix(err.Error(), "; what was made is removed") {
		t.Errorf("error %v", err)
	}
	if got := count(t, ns); got != 3 {
		t.Errorf("%d entries are left, want 3", got)
	}
	wantNoRecords(t, o.Dir)
}

// queries inserts n DNS queries from port on without an answer: entries that the
// kernel evicts when the table is full.
func queries(t *testing.T, ns *netns.Handle, port, n uint16) {
	t.Helper()
	end := port + n
	_, err := dump.Insert(t.Context(), ns, func(e *conntrack.Entry) bool {
		orig := conntrack.Tuple{Src: netip.MustParseAddr("198.18.0.1"), Dst: netip.MustParseAddr("198.18.0.2"), Proto: unix.IPPROTO_UDP, SrcPort: port, DstPort: 53}
		*e = conntrack.Entry{Family: unix.AF_INET, Orig: orig, Reply: orig.Mirror(), Timeout: 600}
		port++
		return port <= end
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestConnectionsMeanwhileAreNotEvicted fills a table up to the kernel's limit,
// while real connections come into it.
func TestConnectionsMeanwhileAreNotEvicted(t *testing.T) {
	testutil.LockHost(t)
	ns := testutil.Namespace(t)
	limit, err := ConntrackMax()
	if err != nil {
		t.Fatal(err)
	}
	if limit == 0 || limit > 1<<20 {
		testutil.Missing(t, "needs nf_conntrack_max from 1 to 1048576: as many entries are made")
	}
	const each = 5000
	queries(t, ns, 1000, each)
	came := false
	o := options(t, ns, "established", limit)
	o.Progress = func(made, of int64) {
		if !came && made > of/2 {
			came = true
			queries(t, ns, 1000+each, each)
		}
	}
	f := start(t, o)
	if !came || f.Made < limit-2*each || f.Table.Entries > limit {
		t.Errorf("made %d, the table holds %d; want %d beside %d of others", f.Made, f.Table.Entries, limit-2*each, 2*each)
	}
	if removed, err := f.Remove(t.Context()); err != nil || removed.Deleted != f.Made {
		t.Errorf("removed %+v of %d, error %v", removed, f.Made, err)
	}
	// From 95 % of the limit on the kernel's own sweep, which may come any time, removes
	// such queries and does not count them (gc_worker, net/netfilter/nf_conntrack_core.c).
	if left := count(t, ns); left+f.Made > limit {
		t.Errorf("made %d beside %d of others where %d have room", f.Made, left, limit)
	}
	if evicted := earlyDrops(t, ns); evicted != 0 {
		t.Errorf("%d entries of others were evicted", evicted)
	}
}

func earlyDrops(t *testing.T, ns *netns.Handle) (n uint64) {
	t.Helper()
	cpus, err := dump.Stats(ns)
	if err != nil || len(cpus) == 0 {
		t.Fatalf("counters of %d CPUs, error %v", len(cpus), err)
	}
	for _, cpu := range cpus {
		n += cpu["early_drop"]
	}
	return n
}
