package collect

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

// fill puts the entries first … first+n-1 into the table: half TCP behind a DNAT
// in TIME_WAIT, half UDP unanswered.
func fill(t testing.TB, ns *netns.Handle, first, n int) {
	t.Helper()
	i := first
	_, err := dump.Insert(t.Context(), ns, func(e *conntrack.Entry) bool {
		if i == first+n {
			return false
		}
		*e = entry(i)
		i++
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
}

func entry(i int) conntrack.Entry {
	orig := conntrack.Tuple{
		Src:   netip.AddrFrom4([4]byte{198, 18, byte(i >> 23), byte(i >> 15)}),
		Dst:   netip.AddrFrom4([4]byte{198, 19, 0, 1}),
		Proto: unix.IPPROTO_UDP, SrcPort: uint16(1024 + i>>1&0x3fff), DstPort: 53,
	}
	e := conntrack.Entry{Family: unix.AF_INET, Orig: orig, Timeout: 600}
	if i%2 == 0 {
		e.Orig.Proto, e.Orig.DstPort = unix.IPPROTO_TCP, 8080
		e.Status, e.TCPState = conntrack.SeenReply|conntrack.Assured, conntrack.TCPTimeWait
	}
	e.Reply = e.Orig.Mirror()
	if i%2 == 0 {
		e.Reply.Src, e.Reply.SrcPort = netip.AddrFrom4([4]byte{198, 19, 1, 2}), 80
	}
	return e
}

func TestReadNamespace(t *testing.T) {
	ns := testutil.Namespace(t)
	testutil.ShareHost(t)
	fill(t, ns, 0, 1000)
	s, err := Read(t.Context(), Options{Netns: ns})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range s.Parts {
		if p.Error != "" {
			t.Errorf("%s: %s", p.Name, p.Error)
		}
	}
	if s.Netns.Inode != ns.Inode() {
		t.Errorf("namespace %d, want %d", s.Netns.Inode, ns.Inode())
	}
	if n, _ := s.Sysctls.Int("net.netfilter.nf_conntrack_count"); n != 1000 {
		t.Errorf("nf_conntrack_count = %d, want 1000: not of this namespace", n)
	}
	if s.Table.Sampled != 1000 || !s.Table.Complete || s.Table.DNAT != 500 || s.Table.Unreplied != 500 || s.Table.ByTCPState["TIME_WAIT"] != 500 {
		t.Errorf("table = %+v", s.Table)
	}
	if s.ConntrackStat.Source != "ctnetlink" || len(s.ConntrackStat.PerCPU) != s.Kernel.CPUs {
		t.Errorf("counters of %d CPUs from %s, %d CPUs online", len(s.ConntrackStat.PerCPU), s.ConntrackStat.Source, s.Kernel.CPUs)
	}
	if inserted, ok := s.ConntrackStat.Total("insert"); !ok || inserted != 1000 {
		t.Errorf("insert = %d: not of this namespace", inserted)
	}
	if s.ConntrackSize.EntryBytes < 200 || s.ConntrackSize.EntryBytes > 512 || s.Memory.TotalBytes == 0 || s.Kernel.Release == "" {
		t.Errorf("size %+v, memory %+v, kernel %+v", s.ConntrackSize, s.Memory, s.Kernel)
	}
}

func TestStatFileAgreesWithCtnetlink(t *testing.T) {
	ns := testutil.Namespace(t)
	fill(t, ns, 0, 300)
	l := newLive(Options{Netns: ns})
	var text []byte
	testutil.NeedFeature(t, testutil.ConntrackProcfs)
	err := l.inside(func() (err error) { text, _, err = l.readStart(procStat, 1<<20, time.Minute); return err })
	if err != nil {
		t.Fatal(err)
	}
	file, err := parseStat(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	netlink, err := dump.Stats(ns)
	if err != nil {
		t.Fatal(err)
	}
	for i, cpu := range netlink {
		for name, n := range cpu {
			if got, ok := file[i][name]; !ok || got != n {
				t.Errorf("CPU %d: %s is %d by ctnetlink, %d (%v) in the file", i, name, n, got, ok)
			}
		}
	}
}

func TestSizesOfEverySource(t *testing.T) {
	testutil.NeedRoot(t)
	l := newLive(Options{})
	m, err := l.machine()
	if err != nil {
		t.Fatal(err)
	}
	var slab, types snapshot.ConntrackSize
	if err := sizeFromSlabinfo(l, m, &slab); err != nil {
		t.Fatal(err)
	}
	testutil.NeedFeature(t, testutil.BTF)
	if err := sizeFromBTF(l, &types); err != nil {
		t.Fatal(err)
	}
	if slab.EntryBytes != types.EntryBytes {
		t.Errorf("an entry has %d bytes by slabinfo, %d by BTF", slab.EntryBytes, types.EntryBytes)
	}
}

func TestSizePredictsTheSlabs(t *testing.T) {
	testutil.LockHost(t)
	const n = 20000
	read := func(ns *netns.Handle) (slabs, perEntry float64) {
		s, err := Read(t.Context(), Options{Netns: ns, MaxEntries: 1})
		if err != nil || s.ConntrackSize == nil {
			t.Fatalf("%v %s", err, s.PartError("conntrack_size"))
		}
		z := s.ConntrackSize
		return float64(z.SlabBytes) + float64(z.ExtensionSlabBytes), float64(z.PerEntry())
	}
	ns := testutil.Namespace(t)
	var grown []float64
	// Entries that others free meanwhile, and objects that stood empty before, make
	// the growth less: entries are added until it is theirs alone.
	for round, deadline := 0, time.Now().Add(5*time.Minute); round < 10 && time.Now().Before(deadline); {
		before, _ := read(ns)
		time.Sleep(50 * time.Millisecond)
		if now, _ := read(ns); now < before {
			continue // a namespace that was closed is still being emptied
		}
		fill(t, ns, round*n, n)
		round++
		after, want := read(ns)
		grown = append(grown, (after-before)/n)
		if g := grown[len(grown)-1]; g > 0.8*want && g < 1.2*want {
			return
		}
	}
	t.Errorf("the slabs grew by %.0f bytes per entry in each round, 384 were to be expected", grown)
}

func TestRecordFindsTheRate(t *testing.T) {
	ns := testutil.Namespace(t)
	testutil.ShareHost(t)
	fill(t, ns, 0, 20000)
	for name, maxEntries := range map[string]int{"whole": 0, "sample": 8000} {
		t.Run(name, func(t *testing.T) {
			base := 20000 + maxEntries // other tuples in each
			rec, err := Record(t.Context(), RecordOptions{
				Options: Options{Netns: ns, MaxEntries: maxEntries},
				For:     50 * time.Millisecond,
				Progress: func(what string) {
					if strings.HasPrefix(what, "waiting") {
						fill(t, ns, base, 3000)
					}
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			f := rec.Flows
			if f == nil {
				t.Fatal(rec.Last().PartError("conntrack_flows"))
			}
			born, allowed := f.TotalPerSecond*f.Seconds, 3*f.StandardErrorPerSecond*f.Seconds
			if maxEntries == 0 {
				allowed = 0.01
			}
			if born < 3000-allowed || born > 3000+allowed {
				t.Errorf("%.0f ± %.0f new entries, 3000 were made (%+v)", born, allowed, f)
			}
			if f.PerSecond["tcp/TIME_WAIT"] == 0 || f.PerSecond["udp/unreplied"] == 0 || f.Groups < 1 {
				t.Errorf("flows = %+v", f)
			}
			if rec.Seconds() < 0.04 { // 50 ms of another clock than that of the snapshots
				t.Errorf("the snapshots are %v s apart", rec.Seconds())
			}
		})
	}
}

func TestRecordEndsWithTwoWhenInterrupted(t *testing.T) {
	ns := testutil.Namespace(t)
	ctx, cancel := context.WithCancel(t.Context())
	rec, err := Record(ctx, RecordOptions{Options: Options{Netns: ns}, For: time.Hour, Progress: func(what string) {
		if strings.HasPrefix(what, "waiting") {
			cancel()
		}
	}})
	if err != nil || len(rec.Snapshots) != 2 || rec.Last().Table == nil {
		t.Fatalf("Record = %+v, %v", rec, err)
	}
}

// TestRecordSeesNoBirthsInAStillTable has closed entries that were made at many
// moments, and a time between the dumps near a whole second: there rounding would
// first make one look younger than it is.
func TestRecordSeesNoBirthsInAStillTable(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.ShareHost(t)
	ns := testutil.Namespace(t)
	const n = 60000
	for i := 0; i < n; i += 2000 {
		fill(t, ns, i, 2000)
		time.Sleep(20 * time.Millisecond) // spreads the expiries over a second's fractions
	}
	rec, err := Record(t.Context(), RecordOptions{Options: Options{Netns: ns}, For: time.Second})
	if err != nil || rec.Flows == nil {
		t.Fatalf("%v: %s", err, rec.Last().PartError("conntrack_flows"))
	}
	if f := rec.Flows; f.TotalPerSecond != 0 || f.Sampled != n {
		t.Errorf("%+v, want no births among %d entries", f, n)
	}
}

// TestBundleGivesTheSame is what `doctor --from` rests on.
func TestBundleGivesTheSame(t *testing.T) {
	ns := testutil.Namespace(t)
	testutil.ShareHost(t)
	fill(t, ns, 0, 20000)
	for name, maxEntries := range map[string]int{"whole": 0, "sample": 5000} {
		t.Run(name, func(t *testing.T) {
			var file bytes.Buffer
			live, err := WriteBundle(t.Context(), &file, RecordOptions{
				Options: Options{Netns: ns, MaxEntries: maxEntries},
				For:     20 * time.Millisecond,
				Progress: func(what string) {
					if strings.HasPrefix(what, "waiting") {
						fill(t, ns, 30000+maxEntries, 500)
					}
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			again, err := ReadBundle(bytes.NewReader(file.Bytes()), nil)
			if err != nil {
				t.Fatal(err)
			}
			again.Bundle = live.Bundle // a live recording has none
			if d := cmp.Diff(live, again, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})); d != "" {
				t.Errorf("the bundle differs (-live +bundle):\n%s", d)
			}
			if live.Last().Table.Complete != (maxEntries == 0) || live.Flows == nil {
				t.Errorf("complete = %v, flows = %+v", live.Last().Table.Complete, live.Flows)
			}
			t.Logf("%d entries twice: %d bytes", live.Last().Table.Sampled, file.Len())
		})
	}
}

const unprivilegedEnv = "NATKIT_TEST_UNPRIVILEGED"

// TestWithoutPrivilege runs itself as nobody: what cannot be read names what it
// needs, and a bundle repeats it word by word.
func TestWithoutPrivilege(t *testing.T) {
	if os.Getenv(unprivilegedEnv) != "" {
		var file bytes.Buffer
		live, err := WriteBundle(t.Context(), &file, RecordOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s := live.Last()
		if why := s.PartError("conntrack_table"); !strings.Contains(why, "CAP_NET_ADMIN") {
			t.Errorf("conntrack_table: %q", why)
		}
		if why := s.PartError("nat_rules"); !strings.Contains(why, "CAP_NET_ADMIN") {
			t.Errorf("nat_rules: %q", why)
		}
		_, noFile := os.Stat(procStat) // CONFIG_NF_CONNTRACK_PROCFS
		switch why := s.PartError("conntrack_stat"); {
		case noFile != nil && strings.Contains(why, "CAP_NET_ADMIN"):
		case noFile != nil || s.ConntrackStat == nil || s.ConntrackStat.Source != procStat:
			t.Errorf("conntrack_stat: %+v, %q", s.ConntrackStat, why)
		}
		if s.ConntrackSize == nil || s.ConntrackSize.Source != "BTF" {
			t.Errorf("conntrack_size: %+v, %q", s.ConntrackSize, s.PartError("conntrack_size"))
		}
		if why := s.PartError("kernel_log"); why != "" && !strings.Contains(why, "CAP_SYSLOG") {
			t.Errorf("kernel_log: %q", why)
		}
		if n, ok := s.Sysctls.Int("net.netfilter.nf_conntrack_max"); !ok || n == 0 || s.PartError("sysctls") != "" {
			t.Errorf("sysctls: %v, %q", s.Sysctls, s.PartError("sysctls"))
		}
		again, err := ReadBundle(&file, nil)
		if err != nil {
			t.Fatal(err)
		}
		again.Bundle = live.Bundle // a live recording has none
		if d := cmp.Diff(live, again, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})); d != "" {
			t.Errorf("the bundle differs (-live +bundle):\n%s", d)
		}
		return
	}
	testutil.NeedRoot(t)
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

func TestKernelLogIsReadToItsEnd(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.KernelLogWrite)
	// A line of our own: the ring must be read up to it, and as no line of the kernel.
	text := fmt.Sprintf("natkit-test: neighbour table overflow is not meant, %d", time.Now().UnixNano())
	before, err := newLive(Options{}).kernelLog(func([]byte) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	// The kernel may swallow a line from user space (printk_devkmsg=ratelimit).
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		if err := os.WriteFile("/dev/kmsg", []byte("<4>"+text), 0); err != nil {
			t.Fatal(err)
		}
		found := false
		var log logReader
		next, err := newLive(Options{}).kernelLog(func(b []byte) bool {
			found = found || bytes.Contains(b, []byte(text))
			return log.add(b)
		})
		if err != nil {
			t.Fatal(err)
		}
		if found {
			ours := slices.ContainsFunc(log.newest(), func(l snapshot.LogLine) bool { return l.Text == text })
			if ours || next <= before {
				t.Errorf("a program's line counts as the kernel's: %v; the next is %d, was %d", ours, next, before)
			}
			return
		}
	}
	t.Error("the line was not read")
}

// TestAvailableMemory compares with what sysinfo(2) says of the same machine.
func TestAvailableMemory(t *testing.T) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		t.Fatal(err)
	}
	total := int64(info.Totalram) * int64(info.Unit)
	if got, err := AvailableMemory(); err != nil || got <= 0 || got > total {
		t.Errorf("%d bytes of %d, %v", got, total, err)
	}
}

func TestParseCPUTimes(t *testing.T) {
	const two = "cpu  1817162 441 510407 4063894 25031 0 276991 10362 7 0\ncpu0 877138 210 259506 2018444 2759 0 188510 5082 0 0\n" +
		"cpu1 940023 231 250900 2045449 22272 0 88480 5280 0 0\nintr 132438319 0 0\n"
	got, err := parseCPUTimes(strings.NewReader(two))
	want := CPUTimes{All: 1817162 + 441 + 510407 + 4063894 + 25031 + 276991 + 10362, Idle: 4063894 + 25031, SoftIRQ: 276991, Stolen: 10362, CPUs: 2}
	if err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	for _, bad := range []string{"", "intr 1\n", "cpu\n", "cpu 1 2 3\n", "cpu 1 2 3 4 5 6 x 8\ncpu0\n", "\n"} {
		if got, err := parseCPUTimes(strings.NewReader(bad)); err == nil {
			t.Errorf("%q is %+v", bad, got)
		} else if !strings.Contains(err.Error(), procCPU) {
			t.Errorf("%q: %v names no file", bad, err)
		}
	}
}

func TestReadLight(t *testing.T) {
	s := ReadLight(t.Context(), Options{})
	if s.Kernel.Release == "" || s.Netns.Inode == 0 || s.UptimeSeconds == 0 {
		t.Errorf("%+v", s)
	}
	for _, name := range []string{"kernel", "sysctls", "conntrack_stat"} {
		found := false
		for _, p := range s.Parts {
			found = found || p.Name == name
		}
		if !found {
			t.Errorf("%s is not reported: %+v", name, s.Parts)
		}
	}
}
