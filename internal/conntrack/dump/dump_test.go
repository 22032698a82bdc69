package dump

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/match"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

const testMark = 0x6e61746b

// established is the i-th of many assured TCP entries behind a DNAT.
func established(i int) conntrack.Entry {
	client := netip.AddrFrom4([4]byte{198, 18, byte(i >> 22), byte(i >> 14)})
	orig := conntrack.Tuple{
		Src: client, Dst: netip.MustParseAddr("198.19.0.1"), Proto: unix.IPPROTO_TCP,
		SrcPort: uint16(1024 + i&0x3fff), DstPort: 8080,
	}
	reply := orig.Mirror()
	reply.Src, reply.SrcPort = netip.MustParseAddr("198.19.1.2"), 80
	return conntrack.Entry{
		Family: unix.AF_INET, Orig: orig, Reply: reply,
		Status:   conntrack.SeenReply | conntrack.Assured,
		TCPState: conntrack.TCPEstablished, Timeout: 600, Mark: testMark,
	}
}

// upTo makes the entries first … first+n-1.
func upTo(first, n int, change func(*conntrack.Entry)) func(*conntrack.Entry) bool {
	i := 0
	return func(e *conntrack.Entry) bool {
		if i == n {
			return false
		}
		*e = established(first + i)
		if change != nil {
			change(e)
		}
		i++
		return true
	}
}

func fill(t testing.TB, ns *netns.Handle, first, n int, change func(*conntrack.Entry)) {
	t.Helper()
	taken, err := Insert(t.Context(), ns, upTo(first, n, change))
	if err != nil || taken != int64(n) {
		t.Fatalf("Insert took %d of %d: %v", taken, n, err)
	}
}

func entries(t testing.TB, ns *netns.Handle) (all []conntrack.Entry) {
	t.Helper()
	var e conntrack.Entry
	r, err := Dump(t.Context(), ns, func(msgs []byte) error {
		return conntrack.Each(msgs, &e, func(e *conntrack.Entry) error {
			all = append(all, *e)
			return nil
		})
	})
	if err != nil || !r.Complete {
		t.Fatalf("Dump = %+v, %v", r, err)
	}
	return all
}

func entryCount(t testing.TB, ns *netns.Handle) int64 {
	t.Helper()
	u, err := Count(ns)
	if err != nil {
		t.Fatal(err)
	}
	return u.Entries
}

func TestInsertedEntriesComeBack(t *testing.T) {
	ns := testutil.Namespace(t)
	testutil.ShareHost(t)
	fill(t, ns, 0, 1000, nil)
	got := map[netip.AddrPort]conntrack.Entry{}
	for _, e := range entries(t, ns) {
		if e.ID == 0 || e.Timeout == 0 || e.Timeout > 600 {
			t.Fatalf("entry %+v: no ID, or timeout not within 600 s", e)
		}
		e.ID, e.Use, e.Timeout = 0, 0, 600
		got[netip.AddrPortFrom(e.Orig.Src, e.Orig.SrcPort)] = e
	}
	want := map[netip.AddrPort]conntrack.Entry{}
	for i := range 1000 {
		e := established(i)
		e.Status |= conntrack.Confirmed | conntrack.DstNAT | conntrack.SrcNATDone | conntrack.DstNATDone
		want[netip.AddrPortFrom(e.Orig.Src, e.Orig.SrcPort)] = e
	}
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
		t.Errorf("entries differ (-want +got):\n%s", d)
	}
}

func TestOtherKindsOfEntries(t *testing.T) {
	ns := testutil.Namespace(t)
	v4, v4b := netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("198.18.0.2")
	v6, v6b := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
	public := netip.MustParseAddr("198.19.0.9")
	snat := conntrack.Tuple{Src: v4, Dst: v4b, Proto: unix.IPPROTO_UDP, SrcPort: 4000, DstPort: 53}
	kinds := []conntrack.Entry{
		{Family: unix.AF_INET, Orig: snat, Timeout: 30},
		{Family: unix.AF_INET, Orig: conntrack.Tuple{Src: v4, Dst: v4b, Proto: unix.IPPROTO_ICMP, ICMPID: 7, ICMPType: 8}, Timeout: 30},
		{Family: unix.AF_INET6, Orig: conntrack.Tuple{Src: v6, Dst: v6b, Proto: unix.IPPROTO_ICMPV6, ICMPID: 7, ICMPType: 128}, Timeout: 30},
		{Family: unix.AF_INET6, Orig: conntrack.Tuple{Src: v6, Dst: v6b, Proto: unix.IPPROTO_TCP, SrcPort: 5, DstPort: 6}, Timeout: 120, TCPState: conntrack.TCPSynSent},
		{Family: unix.AF_INET, Orig: conntrack.Tuple{Src: v4, Dst: v4b, Proto: unix.IPPROTO_TCP, SrcPort: 5, DstPort: 6}, Timeout: 120, TCPState: conntrack.TCPSynSent2, Zone: 5, ReplyZone: 5},
	}
	for i := range kinds {
		kinds[i].Reply = kinds[i].Orig.Mirror()
	}
	kinds[0].Reply.Dst, kinds[0].Reply.DstPort = public, 61000
	for i := range kinds {
		once := false
		if _, err := Insert(t.Context(), ns, func(e *conntrack.Entry) bool {
			*e, once = kinds[i], !once
			return once
		}); err != nil {
			t.Errorf("kind %d: %v", i, err)
		}
	}
	// conntrack(8) must see the same.
	program := testutil.NeedProgram(t, "conntrack")
	var out []byte
	if err := ns.Do(func() (err error) {
		out, err = exec.Command(program, "-L").Output()
		if err == nil {
			var v6 []byte
			v6, err = exec.Command(program, "-L", "-f", "ipv6").Output()
			out = append(out, v6...)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"src=198.18.0.1 dst=198.18.0.2 sport=4000 dport=53 [UNREPLIED] src=198.18.0.2 dst=198.19.0.9 sport=53 dport=61000",
		"type=8 code=0 id=7 [UNREPLIED] src=198.18.0.2 dst=198.18.0.1 type=0 code=0 id=7",
		"type=128 code=0 id=7 [UNREPLIED] src=2001:db8::2 dst=2001:db8::1 type=129 code=0 id=7",
		conntrack.TCPSynSent.String() + " src=2001:db8::1",
		conntrack.TCPSynSent2.String() + " src=198.18.0.1",
		"zone=5",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("conntrack -L does not show %q:\n%s", want, out)
		}
	}
	for _, e := range entries(t, ns) {
		if e.Orig == snat && (!e.IsSNAT() || e.IsDNAT() || !e.Status.Has(conntrack.SrcNAT)) {
			t.Errorf("SNAT entry came back as %+v", e)
		}
	}
}

func TestDumpStops(t *testing.T) {
	ns := testutil.Namespace(t)
	testutil.ShareHost(t)
	fill(t, ns, 0, 5000, nil)
	calls := 0
	r, err := Dump(t.Context(), ns, func([]byte) error { calls++; return ErrStop })
	if err != nil || r.Complete || calls != 1 || r.Bytes == 0 {
		t.Errorf("ErrStop: Dump = %+v, %v after %d calls", r, err, calls)
	}
	cause := errors.New("cause")
	if _, err := Dump(t.Context(), ns, func([]byte) error { return cause }); !errors.Is(err, cause) {
		t.Errorf("error of fn: Dump = %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Dump(ctx, ns, func([]byte) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: Dump = %v", err)
	}
}

func TestDeleteRemovesExactlyTheMarked(t *testing.T) {
	ns := testutil.Namespace(t)
	testutil.ShareHost(t)
	fill(t, ns, 0, 1000, nil)
	fill(t, ns, 1000, 10, func(e *conntrack.Entry) { e.Mark = 1 })
	fill(t, ns, 1010, 10, func(e *conntrack.Entry) { e.Mark = 0 })
	if err := Delete(t.Context(), ns, match.Filter{}); err == nil {
		t.Error("a filter that chooses everything was accepted")
	}
	if err := Delete(t.Context(), ns, match.Filter{Mark: testMark, MarkMask: ^uint32(0), Status: conntrack.Assured}); err == nil {
		t.Error("a filter of which the kernel would look at a part only was accepted")
	}
	if n := entryCount(t, ns); n != 1020 {
		t.Fatalf("%d entries, want 1020", n)
	}
	if err := Delete(t.Context(), ns, match.Filter{Mark: testMark, MarkMask: 0xffffffff}); err != nil {
		t.Fatal(err)
	}
	for _, e := range entries(t, ns) {
		if e.Mark == testMark {
			t.Fatalf("left behind: %+v", e)
		}
	}
	if n := entryCount(t, ns); n != 20 {
		t.Errorf("%d entries left, want 20", n)
	}
}

func TestInsertRefusals(t *testing.T) {
	ns := testutil.Namespace(t)
	fill(t, ns, 0, 10, nil)
	taken, err := Insert(t.Context(), ns, upTo(5, 10, nil))
	if !errors.Is(err, ErrExists) || taken != 5 {
		t.Errorf("entries that are there: Insert = %d, %v; want 5 and ErrExists", taken, err)
	}
	_, err = Insert(t.Context(), ns, upTo(100, 1, func(e *conntrack.Entry) { e.Reply.Dst = netip.Addr{} }))
	if err == nil {
		t.Error("an entry without an address was accepted")
	}
	_, err = Insert(t.Context(), ns, upTo(100, 1, func(e *conntrack.Entry) { e.TCPState = 99 }))
	if !errors.Is(err, unix.ERANGE) && !errors.Is(err, unix.EINVAL) { // EINVAL: Linux 5.4
		t.Errorf("a TCP state that does not exist: %v, want ERANGE", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if n, err := Insert(ctx, ns, upTo(200, 10, nil)); !errors.Is(err, context.Canceled) || n != 0 {
		t.Errorf("ended context: Insert = %d, %v", n, err)
	}
}

func TestInsertMeetsTheLimit(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.LockHost(t)
	ns := testutil.Namespace(t)
	u, err := Count(ns)
	if err != nil || u.Max == 0 {
		t.Fatalf("Count = %+v, %v", u, err)
	}
	if u.Max > 1<<20 {
		testutil.Missing(t, fmt.Sprintf("needs nf_conntrack_max up to %d, it is %d: as many entries are made", 1<<20, u.Max))
	}
	taken, err := Insert(t.Context(), ns, upTo(0, int(u.Max)+10, nil))
	if !errors.Is(err, ErrFull) || taken != u.Max {
		t.Errorf("Insert = %d, %v; want %d and ErrFull", taken, err, u.Max)
	}
	if n := entryCount(t, ns); n != u.Max {
		t.Errorf("%d entries, want nf_conntrack_max = %d", n, u.Max)
	}
}

func TestStatsHasTheKernelsCounters(t *testing.T) {
	ns := testutil.Namespace(t)
	stats, err := Stats(ns)
	if err != nil {
		t.Fatal(err)
	}
	online, err := os.ReadFile("/proc/net/softnet_stat")
	if err != nil {
		t.Fatal(err)
	}
	if cpus := strings.Count(string(online), "\n"); len(stats) != cpus {
		t.Errorf("counters of %d CPUs, want %d", len(stats), cpus)
	}
	for _, name := range []string{"found", "invalid", "insert_failed", "drop", "early_drop", "icmp_error", "search_restart"} {
		if _, ok := stats[0][name]; !ok {
			t.Errorf("counter %s is missing: %v", name, stats[0])
		}
	}
}

const unprivilegedEnv = "NATKIT_TEST_UNPRIVILEGED"

// TestWithoutPrivilege runs itself as nobody: every error must name the
// capability.
func TestWithoutPrivilege(t *testing.T) {
	if os.Getenv(unprivilegedEnv) != "" {
		_, statsErr := Stats(nil)
		_, dumpErr := Dump(t.Context(), nil, func([]byte) error { return nil })
		_, countErr := Count(nil)
		_, insertErr := Insert(t.Context(), nil, upTo(0, 1, nil))
		deleteErr := Delete(t.Context(), nil, match.Filter{Mark: 1, MarkMask: 1})
		_, eachErr := Each(t.Context(), nil, &match.Filter{Status: conntrack.Assured}, func(*conntrack.Entry) error { return nil })
		_, keysErr := DeleteKeys(t.Context(), nil, []conntrack.Key{{Orig: established(0).Orig}})
		_, watchErr := Watch(t.Context(), nil, WatchOptions{Kinds: AllEvents}, func(Event) error { return nil })
		for _, err := range []error{statsErr, dumpErr, countErr, insertErr, deleteErr, eachErr, keysErr, watchErr} {
			if err == nil || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
				t.Errorf("error %v does not name CAP_NET_ADMIN", err)
			}
		}
		return
	}
	testutil.NeedRoot(t)
	// nobody may not look into the directory of the test binary.
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	cmd := exec.Command("/proc/self/fd/3", "-test.run=^TestWithoutPrivilege$")
	cmd.ExtraFiles = []*os.File{self}
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), unprivilegedEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}

func BenchmarkInsert100k(b *testing.B) {
	ns := testutil.Namespace(b)
	for range b.N {
		fill(b, ns, 0, 100000, nil)
		b.StopTimer()
		if err := Delete(b.Context(), ns, match.Filter{Mark: testMark, MarkMask: 0xffffffff}); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func BenchmarkDump(b *testing.B) {
	ns := testutil.Namespace(b)
	const n = 200000
	fill(b, ns, 0, n, nil)
	b.Run("raw", func(b *testing.B) {
		for range b.N {
			if _, err := Dump(b.Context(), ns, func([]byte) error { return nil }); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/entry")
	})
	b.Run("summarised", func(b *testing.B) {
		for range b.N {
			s := conntrack.NewSampler()
			var e conntrack.Entry
			if _, err := Dump(b.Context(), ns, func(msgs []byte) error {
				return conntrack.Each(msgs, &e, func(e *conntrack.Entry) error { s.Add(e); return nil })
			}); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/entry")
	})
}
