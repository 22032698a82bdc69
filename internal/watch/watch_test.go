package watch

import (
	"math"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

func newNetns(t *testing.T) *netns.Handle {
	t.Helper()
	testutil.NeedRoot(t)
	testutil.ShareHost(t)
	return testutil.Namespace(t)
}

// fill makes the connections first to first+n-1: half of them from 198.18.0.1, which
// is translated.
func fill(t *testing.T, ns *netns.Handle, first, n int) {
	t.Helper()
	i := first
	taken, err := dump.Insert(t.Context(), ns, func(e *conntrack.Entry) bool {
		orig := conntrack.Tuple{Src: netip.AddrFrom4([4]byte{198, 18, byte(i % 2), 1}), Proto: unix.IPPROTO_TCP,
			Dst: netip.AddrFrom4([4]byte{203, 0, 113, byte(i / 50000)}), SrcPort: uint16(1024 + i%50000), DstPort: 443}
		reply := orig.Mirror()
		if i%2 == 0 {
			reply.Dst = netip.MustParseAddr("198.19.0.1")
		}
		*e = conntrack.Entry{Family: unix.AF_INET, Orig: orig, Reply: reply, Status: conntrack.SeenReply | conntrack.Assured,
			TCPState: conntrack.TCPEstablished, Timeout: 3600}
		i++
		return i <= first+n
	})
	if err != nil || taken != int64(n) {
		t.Fatalf("inserted %d of %d: %v", taken, n, err)
	}
}

// samplerOf looks at another handle of the namespace, which it closes.
func samplerOf(t *testing.T, ns *netns.Handle, b Budget) *Sampler {
	t.Helper()
	again, err := ns.Dup()
	if err != nil {
		t.Fatal(err)
	}
	s := New(again, b)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestSample compares what is shown with what was put in, though only a part is read.
func TestSample(t *testing.T) {
	ns := newNetns(t)
	const before, newer = 40000, 8000
	fill(t, ns, 0, before)
	s := samplerOf(t, ns, Unlimited())
	first := s.Sample(t.Context(), Filter{}, time.Second)
	if first.Flows != nil || first.Before != nil || first.Table == nil {
		t.Fatalf("the first sample has flows %+v, before %v, table %+v", first.Flows, first.Before, first.Table)
	}
	fill(t, ns, before, newer)
	second := s.Sample(t.Context(), Filter{}, time.Second)
	if second.EntriesRead < 16384 || second.EntriesRead > 16384+2000 || second.Table.Complete {
		t.Errorf("looked at %d entries of %d, want about %d", second.EntriesRead, before+newer, 16384)
	}
	if n, ok := second.Sysctls.Int(snapshot.ConntrackCount); !ok || n != before+newer {
		t.Errorf("the table has %d entries, want %d", n, before+newer)
	}
	f := second.Flows
	if f == nil || math.Abs(f.TotalPerSecond*f.Seconds-newer) > 4*f.StandardErrorPerSecond*f.Seconds || f.StandardErrorPerSecond > f.TotalPerSecond/10 {
		t.Errorf("flows %+v, want %d", f, newer)
	}
	half := float64(second.Table.SNAT) / float64(second.Table.Sampled)
	if half < 0.47 || half > 0.53 {
		t.Errorf("%.3f of the entries are translated, want half", half)
	}
	checkPorts(t, second.Ports)
	if second.Drops == nil && second.PartError(snapshot.PartDrops) == "" {
		t.Error("neither drops nor a reason")
	}
	if c := second.Cost; c.Own <= 0 || c.Table <= 0 {
		t.Errorf("cost %+v", c)
	}
}

func checkPorts(t *testing.T, p *snapshot.Ports) {
	t.Helper()
	if p == nil || len(p.Pools) != 1 || p.Pools[0].Address != "198.19.0.1" || p.Pools[0].Destination != "203.0.113.0:443" {
		t.Fatalf("ports %+v, want those of 198.19.0.1 towards one destination", p)
	}
	// Sampled and scaled.
	if used := p.Pools[0].Used; used < 22000 || used > 26000 {
		t.Errorf("%d ports in use, want about 24,000", used)
	}
}

// TestBoundedReading: the usual budget reads a small part, and not again at once.
func TestBoundedReading(t *testing.T) {
	ns := newNetns(t)
	fill(t, ns, 0, 50000)
	s := samplerOf(t, ns, Continuous())
	first := s.Sample(t.Context(), Filter{}, 10*time.Second)
	second := s.Sample(t.Context(), Filter{}, 10*time.Second)
	early := first.Cost.Table > longest // which ends it on a slow machine
	if first.EntriesRead < 1024 && !early || first.EntriesRead > 2048+2000 {
		t.Errorf("the first reading is of %d entries, for %s", first.EntriesRead, first.Cost.Table)
	}
	if second.TableAt != first.TableAt || second.Table == nil {
		t.Errorf("the table was read again at once")
	}
	// Another filter is worth a reading.
	from := Filter{Key: 1, Match: func(e *conntrack.Entry) bool { return e.Orig.Src == netip.MustParseAddr("198.18.1.1") }}
	third := s.Sample(t.Context(), from, 10*time.Second)
	if third.TableAt == first.TableAt || third.EntriesRead > 1024+2000 {
		t.Errorf("with a filter %d entries were read at %s", third.EntriesRead, third.TableAt)
	}
	if n := third.Table.Sampled; n == 0 || n >= third.EntriesRead || third.Table.TopSources[0].Who != "198.18.1.1" || len(third.Table.TopSources) != 1 {
		t.Errorf("chose %d of %d entries: %+v", n, third.EntriesRead, third.Table.TopSources)
	}
}

// TestEnter: nothing of the namespace before is left.
func TestEnter(t *testing.T) {
	ns := newNetns(t)
	fill(t, ns, 0, 100)
	other, err := netns.New("other")
	if err != nil {
		t.Fatal(err)
	}
	s := samplerOf(t, ns, Continuous())
	s.Sample(t.Context(), Filter{}, time.Second)
	inode := other.Inode()
	if err := s.Enter(other); err != nil {
		t.Fatal(err)
	}
	got := s.Sample(t.Context(), Filter{}, time.Second)
	if got.Netns.Inode != inode || got.Before != nil || got.Flows != nil {
		t.Errorf("looked at %d with %v before and flows %v, want %d alone", got.Netns.Inode, got.Before, got.Flows, inode)
	}
	if got.Table == nil || !got.Table.Complete || got.EntriesRead != 0 {
		t.Errorf("an empty namespace: looked at %d in %s: %+v", got.EntriesRead, got.Cost.Table, got.Table)
	}
}

const unprivilegedEnv = "NATKIT_TEST_UNPRIVILEGED"

// TestWithoutPrivilege runs itself as nobody: what is unavailable has its reason.
func TestWithoutPrivilege(t *testing.T) {
	if os.Getenv(unprivilegedEnv) != "" {
		unprivileged(t)
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

func unprivileged(t *testing.T) {
	s := New(nil, Continuous())
	defer s.Close()
	s.Sample(t.Context(), Filter{}, time.Second)
	got := s.Sample(t.Context(), Filter{}, time.Second)
	if _, ok := got.Sysctls.Int(snapshot.ConntrackMax); !ok {
		t.Errorf("the limit is for everybody to read: %v", got.Sysctls)
	}
	if n, _ := got.Sysctls.Int(snapshot.ConntrackCount); n > 0 && !strings.Contains(got.PartError(snapshot.PartTable), "CAP_NET_ADMIN") {
		t.Errorf("the table: %q", got.PartError(snapshot.PartTable))
	}
	if why := got.PartError(snapshot.PartDrops); !strings.Contains(why, "CAP_") {
		t.Errorf("drops: %q", why)
	}
}

// TestFull: a sample for rules has all that a recording of doctor has, and rules come to the same results.
func TestFull(t *testing.T) {
	ns := testutil.Namespace(t)
	other := testutil.Namespace(t, "other")
	testutil.Veth(t, testutil.End{Netns: other, Name: "eth0", Addresses: []string{"198.18.0.2/24"}},
		testutil.End{Netns: ns, Name: "eth0", Addresses: []string{"198.18.0.1/24"}})
	s := NewFull(other, Unlimited())
	defer s.Close()
	s.Sample(t.Context(), Filter{}, time.Second)
	sample := s.Sample(t.Context(), Filter{}, time.Second)
	rec, err := collect.Record(t.Context(), collect.RecordOptions{Options: collect.Options{Netns: other}})
	if err != nil {
		t.Fatal(err)
	}
	parts := func(s *snapshot.Snapshot) (names []string) {
		for _, p := range s.Parts {
			if p.Error != "" {
				t.Errorf("%s: %s", p.Name, p.Error)
			}
			if p.Name != snapshot.PartPorts { // here it belongs to the table
				names = append(names, p.Name)
			}
		}
		slices.Sort(names)
		return names
	}
	if diff := cmp.Diff(parts(rec.Last()), parts(sample.Snapshot)); diff != "" {
		t.Errorf("parts of a recording of doctor (-) and of a sample (+):\n%s", diff)
	}
	states := func(r diagnose.Report) map[string]diagnose.State {
		all := map[string]diagnose.State{}
		for _, c := range r.Checks {
			all[c.ID] = c.State
		}
		return all
	}
	if diff := cmp.Diff(states(diagnose.Run(rec, diagnose.Rules())), states(diagnose.Run(sample.Recording(), diagnose.Rules()))); diff != "" {
		t.Errorf("checks of a recording of doctor (-) and of a sample (+):\n%s", diff)
	}
}
