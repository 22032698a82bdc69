package dump

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/aggregate"
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
	if _, err := Delete(t.Context(), ns, &conntrack.Filter{}); err == nil {
		t.Error("a filter that matches everything was accepted")
	}
	if n := entryCount(t, ns); n != 1020 {
		t.Fatalf("%d entries, want 1020", n)
	}
	if d, err := Delete(t.Context(), ns, &conntrack.Filter{Mark: testMark, MarkMask: 0xffffffff}); err != nil || d.Deleted != 1000 {
		t.Fatalf("Delete = %+v, %v", d, err)
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
		_, deleteErr := Delete(t.Context(), nil, &conntrack.Filter{Mark: 1, MarkMask: 1})
		_, eachErr := Each(t.Context(), nil, &conntrack.Filter{Status: conntrack.Assured}, func(*conntrack.Entry) error { return nil })
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
	// uid 65534 may not read the directory of the test binary.
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
		if _, err := Delete(b.Context(), ns, &conntrack.Filter{Mark: testMark, MarkMask: 0xffffffff}); err != nil {
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
			s := aggregate.NewSampler()
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

// mixed makes a table with entries of every kind that a filter distinguishes.
func mixed(t testing.TB, ns *netns.Handle) {
	t.Helper()
	fill(t, ns, 0, 300, nil)
	fill(t, ns, 1000, 200, func(e *conntrack.Entry) {
		e.Reply = e.Orig.Mirror()
		e.TCPState, e.Status, e.Mark = conntrack.TCPSynSent, 0, 0
	})
	fill(t, ns, 2000, 200, func(e *conntrack.Entry) {
		e.Orig.Proto, e.TCPState, e.Mark = unix.IPPROTO_UDP, conntrack.TCPNone, 0x10
		e.Orig.Dst, e.Orig.DstPort = netip.MustParseAddr("203.0.113.5"), 53
		e.Reply = e.Orig.Mirror()
		e.Reply.Dst = netip.MustParseAddr("203.0.113.77")
	})
	fill(t, ns, 3000, 100, func(e *conntrack.Entry) { e.Zone, e.ReplyZone = 5, 5 })
	fill(t, ns, 3500, 20, func(e *conntrack.Entry) { e.Zone = 9 })
	fill(t, ns, 3600, 10, func(e *conntrack.Entry) { e.ReplyZone = 9 })
	six := func(e *conntrack.Entry) {
		e.Family = unix.AF_INET6
		src := netip.MustParseAddr("2001:db8::1").As16()
		src[15] = byte(e.Orig.SrcPort & 3)
		e.Orig.Src, e.Orig.Dst = netip.AddrFrom16(src), netip.MustParseAddr("2001:db8:1::1")
		e.Reply = e.Orig.Mirror()
	}
	fill(t, ns, 4000, 200, six)
	fill(t, ns, 5000, 50, func(e *conntrack.Entry) {
		six(e)
		e.Orig.Proto, e.TCPState, e.Mark = unix.IPPROTO_ICMPV6, conntrack.TCPNone, 0
		e.Orig.ICMPID, e.Orig.ICMPType = e.Orig.SrcPort, 128
		e.Orig.SrcPort, e.Orig.DstPort = 0, 0
		e.Reply = e.Orig.Mirror()
	})
}

func ids(t testing.TB, ns *netns.Handle, ask, check *conntrack.Filter) ([]uint32, Result) {
	t.Helper()
	var all []uint32
	r, err := Each(t.Context(), ns, ask, func(e *conntrack.Entry) error {
		if check.Match(e) {
			all = append(all, e.ID)
		}
		return nil
	})
	if err != nil || !r.Complete {
		t.Fatalf("Each = %+v, %v", r, err)
	}
	slices.Sort(all)
	return all, r
}

var idOf = regexp.MustCompile(`id=(\d+)\n?$`)

// shown are the ids that conntrack(8) lists.
func shown(t *testing.T, ns *netns.Handle, program, flags string) []uint32 {
	t.Helper()
	var out []byte
	if err := ns.Do(func() (err error) {
		out, err = exec.Command(program, append([]string{"-L", "-o", "id"}, strings.Fields(flags)...)...).Output()
		return err
	}); err != nil {
		t.Fatalf("conntrack -L %s: %v", flags, err)
	}
	all := []uint32{}
	for line := range strings.Lines(string(out)) {
		m := idOf.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("conntrack -L %s: no id in %q", flags, line)
		}
		id, err := strconv.ParseUint(m[1], 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, uint32(id))
	}
	slices.Sort(all)
	return all
}

// filtersAll reports whether the kernel is new enough for every part of a
// conntrack.Filter.Request (Linux 6.8).
func filtersAll(t *testing.T) bool {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	return major > 6 || major == 6 && minor >= 8
}

// TestFilteredByAllAlike compares what the kernel with natkit, natkit alone, and
// conntrack(8) choose. In kernel says that the kernel of today must send less.
func TestFilteredByAllAlike(t *testing.T) {
	ns := testutil.Namespace(t)
	program := testutil.NeedProgram(t, "conntrack")
	testutil.ShareHost(t)
	mixed(t, ns)
	prefix := netip.MustParsePrefix
	everything, all := ids(t, ns, nil, nil)
	if len(everything) != 1080 {
		t.Fatalf("%d entries, want 1080", len(everything))
	}
	v4 := conntrack.Filter{Family: unix.AF_INET}
	for flags, c := range map[string]struct {
		f        conntrack.Filter
		n        int
		inKernel bool
	}{
		"":                  {conntrack.Filter{}, 1080, false},
		"-f ipv4":           {v4, 830, true},
		"-f ipv6":           {conntrack.Filter{Family: unix.AF_INET6}, 250, true},
		"-p udp":            {conntrack.Filter{Proto: conntrack.Is[uint8](17)}, 200, false},
		"-f ipv4 -p udp":    {conntrack.Filter{Family: unix.AF_INET, Proto: conntrack.Is[uint8](17)}, 200, true},
		"-f ipv6 -p icmpv6": {conntrack.Filter{Family: unix.AF_INET6, Proto: conntrack.Is[uint8](58)}, 50, true},
		"-d 203.0.113.5":    {conntrack.Filter{Orig: conntrack.Side{Dst: prefix("203.0.113.5/32")}}, 200, true},
		"-d 203.0.113.0/24": {conntrack.Filter{Orig: conntrack.Side{Dst: prefix("203.0.113.0/24")}}, 200, true},
		"-s 198.18.0.0 -p tcp --sport 1030 --dport 8080": {conntrack.Filter{Proto: conntrack.Is[uint8](6),
			Orig: conntrack.Side{Src: prefix("198.18.0.0/32"), SrcPort: conntrack.Is[uint16](1030), DstPort: conntrack.Is[uint16](8080)}}, 1, true},
		"-s 2001:db8::2 -f ipv6":     {conntrack.Filter{Orig: conntrack.Side{Src: prefix("2001:db8::2/128")}}, 62, true},
		"-r 203.0.113.5":             {conntrack.Filter{Reply: conntrack.Side{Src: prefix("203.0.113.5/32")}}, 200, true},
		"-q 203.0.113.77":            {conntrack.Filter{Reply: conntrack.Side{Dst: prefix("203.0.113.77/32")}}, 200, true},
		"-p tcp --dport 8080":        {conntrack.Filter{Proto: conntrack.Is[uint8](6), Orig: conntrack.Side{DstPort: conntrack.Is[uint16](8080)}}, 830, true},
		"-p udp --sport 3040":        {conntrack.Filter{Proto: conntrack.Is[uint8](17), Orig: conntrack.Side{SrcPort: conntrack.Is[uint16](3040)}}, 1, true},
		"-p tcp --reply-port-src 80": {conntrack.Filter{Proto: conntrack.Is[uint8](6), Reply: conntrack.Side{SrcPort: conntrack.Is[uint16](80)}}, 430, true},
		"-m 0x10":                    {conntrack.Filter{Mark: 0x10, MarkMask: ^uint32(0)}, 200, true},
		"-m 0x10/0x10":               {conntrack.Filter{Mark: 0x10, MarkMask: 0x10}, 200, true},
		"-m 0":                       {conntrack.Filter{MarkMask: ^uint32(0)}, 250, true},
		"-u ASSURED":                 {conntrack.Filter{Status: conntrack.Assured}, 880, true},
		"-w 5":                       {conntrack.Filter{Zone: conntrack.Is[uint16](5)}, 100, true},
		"--orig-zone 9":              {conntrack.Filter{Orig: conntrack.Side{Zone: conntrack.Is[uint16](9)}}, 20, false},
		"--reply-zone 9":             {conntrack.Filter{Reply: conntrack.Side{Zone: conntrack.Is[uint16](9)}}, 10, false},
		"-p tcp --state SYN_SENT":    {conntrack.Filter{Proto: conntrack.Is[uint8](6), States: conntrack.States{1 << conntrack.TCPSynSent}}, 200, false},
		"-n":                         {conntrack.Filter{SrcNAT: conntrack.NAT{On: true}}, 200, false},
		"-n 203.0.113.77":            {conntrack.Filter{SrcNAT: conntrack.NAT{On: true, Addr: prefix("203.0.113.77/32")}}, 200, true},
		"-g":                         {conntrack.Filter{DstNAT: conntrack.NAT{On: true}}, 430, false},
		"-g 198.19.1.2:80":           {conntrack.Filter{DstNAT: conntrack.NAT{On: true, Addr: prefix("198.19.1.2/32"), Port: conntrack.Is[uint16](80)}}, 430, true},
		"-j":                         {conntrack.Filter{AnyNAT: conntrack.NAT{On: true}}, 630, false},
	} {
		alone, _ := ids(t, ns, nil, &c.f)
		both, r := ids(t, ns, &c.f, nil)
		if len(alone) != c.n {
			t.Errorf("%q: natkit alone chooses %d, want %d", flags, len(alone), c.n)
		}
		if !slices.Equal(alone, both) {
			t.Errorf("%q: with the kernel %d, natkit alone %d", flags, len(both), len(alone))
		}
		if theirs := shown(t, ns, program, flags); !slices.Equal(theirs, alone) {
			t.Errorf("%q: conntrack(8) lists %d, natkit %d", flags, len(theirs), len(alone))
		}
		if c.inKernel && filtersAll(t) && r.Bytes >= all.Bytes {
			t.Errorf("%q: the kernel sent %d bytes, of everything %d", flags, r.Bytes, all.Bytes)
		}
		t.Logf("%q: %d entries, %d of %d bytes", flags, len(both), r.Bytes, all.Bytes)
	}
}

// TestResizeIsSeen resizes the hash table of the host while a dump is read.
func TestResizeIsSeen(t *testing.T) {
	ns := testutil.Namespace(t)
	testutil.LockHost(t)
	mixed(t, ns)
	const path = "/proc/sys/net/netfilter/nf_conntrack_buckets"
	before := buckets()
	size, err := strconv.Atoi(before)
	if err != nil {
		t.Fatal(err)
	}
	set := func(n int) {
		if err := os.WriteFile(path, []byte(strconv.Itoa(n)), 0); err != nil {
			testutil.Missing(t, fmt.Sprintf("a hash table that can be resized: %v", err))
		}
	}
	t.Cleanup(func() { set(size) })
	n := 0
	resize := func(*conntrack.Entry) error {
		if n++; n == 1 {
			set(size * 2)
		}
		return nil
	}
	r, err := Each(t.Context(), ns, nil, resize)
	if err != nil || !r.Interrupted || r.Interruption() == "" {
		t.Errorf("Each = %+v, %v", r, err)
	}
	set(size)
	n = 0
	seen := 0
	r, err = EachWhole(t.Context(), ns, nil, func() { seen = 0 }, func(e *conntrack.Entry) error {
		seen++
		return resize(e)
	})
	if err != nil || r.Interrupted || r.Attempts != 2 || seen != 1080 {
		t.Errorf("EachWhole = %+v, %v, %d entries", r, err, seen)
	}
	// Twice during one dump: what the size was before, it is afterwards.
	set(size)
	const many = 20_000
	fill(t, ns, 10_000, many, nil)
	n = 0
	r, err = Each(t.Context(), ns, nil, func(*conntrack.Entry) error {
		switch n++; n {
		case 1:
			set(size / 2)
		case many / 2:
			set(size)
		}
		return nil
	})
	if err != nil || n < many/2 || !r.Interrupted {
		t.Errorf("Each = %+v, %v, %d entries", r, err, n)
	}
}

// TestUnreplied is what conntrack(8) has no flag for.
func TestUnreplied(t *testing.T) {
	ns := testutil.Namespace(t)
	testutil.ShareHost(t)
	mixed(t, ns)
	f := conntrack.Filter{Unset: conntrack.SeenReply}
	both, _ := ids(t, ns, &f, nil)
	alone, _ := ids(t, ns, nil, &f)
	if len(both) != 200 || !slices.Equal(both, alone) {
		t.Errorf("%d without an answer by the kernel's filter, %d by natkit's, want 200", len(both), len(alone))
	}
}

func TestEachStops(t *testing.T) {
	ns := testutil.Namespace(t)
	testutil.ShareHost(t)
	mixed(t, ns)
	n := 0
	r, err := Each(t.Context(), ns, &conntrack.Filter{Status: conntrack.Assured}, func(*conntrack.Entry) error {
		if n++; n == 3 {
			return ErrStop
		}
		return nil
	})
	if err != nil || n != 3 || r.Interrupted {
		t.Errorf("Each = %+v, %v after %d entries", r, err, n)
	}
	cause := errors.New("cause")
	if _, err := Each(t.Context(), ns, nil, func(*conntrack.Entry) error { return cause }); !errors.Is(err, cause) {
		t.Errorf("error of fn: %v", err)
	}
}

// TestChangingTable reads a table whose entries come and go: those that stay all
// the time must be in every dump.
func TestChangingTable(t *testing.T) {
	ns := testutil.Namespace(t)
	testutil.ShareHost(t)
	const stay, come, dumps = 3000, 1000, 4
	fill(t, ns, 0, stay, func(e *conntrack.Entry) { e.Mark = 1 })
	ctx, cancel := context.WithCancel(t.Context())
	changed := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if _, err := Insert(ctx, ns, upTo(10000, come, nil)); err != nil {
				break
			}
			if _, err := Delete(ctx, ns, &conntrack.Filter{Mark: testMark, MarkMask: ^uint32(0)}); err != nil {
				break
			}
		}
		changed <- ctx.Err()
	}()
	twice := 0
	for range dumps {
		seen := map[conntrack.Key]bool{}
		r, err := Each(t.Context(), ns, nil, func(e *conntrack.Entry) error {
			if e.Mark != 1 {
				return nil
			}
			if seen[e.Key()] {
				twice++
			}
			seen[e.Key()] = true
			return nil
		})
		if err != nil || !r.Complete || r.Interrupted || len(seen) != stay {
			t.Fatalf("Each = %+v, %v; %d of %d entries that stay", r, err, len(seen), stay)
		}
	}
	cancel()
	if err := <-changed; !errors.Is(err, context.Canceled) {
		t.Errorf("the table stopped to change: %v", err)
	}
	t.Logf("%d entries came twice, of %d", twice, dumps*stay)
}

// TestEachSure: where the kernel chooses nothing, nothing else is read; what it chooses is the same.
func TestEachSure(t *testing.T) {
	ns := testutil.Namespace(t)
	testutil.ShareHost(t)
	mixed(t, ns)
	all := entries(t, ns)
	four := slices.IndexFunc(all, func(e conntrack.Entry) bool { return e.Reply.Dst.Is4() })
	for name, f := range map[string]*conntrack.Filter{
		"nothing": {Reply: conntrack.Side{Dst: netip.MustParsePrefix("192.0.2.1/32")}},
		"one":     {Reply: conntrack.Side{Dst: netip.PrefixFrom(all[four].Reply.Dst, 32)}},
	} {
		var sure, each int
		r, err := EachSure(t.Context(), ns, f, func() { sure = 0 }, func(*conntrack.Entry) error { sure++; return nil })
		if err != nil {
			t.Fatal(err)
		}
		again, err := Each(t.Context(), ns, f, func(*conntrack.Entry) error { each++; return nil })
		if err != nil || sure != each || (each == 0) != (name == "nothing") || each == 0 && r.Bytes >= again.Bytes {
			t.Errorf("%s: %d entries in %d bytes, Each %d in %d: %v", name, sure, r.Bytes, each, again.Bytes, err)
		}
	}
}
