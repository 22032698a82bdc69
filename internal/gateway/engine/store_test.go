package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/pcp"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune/journal"
)

func examplePlan(to string) *gateway.Plan {
	return &gateway.Plan{
		Schema: gateway.PlanSchema, Engine: gateway.EngineNetfilter, IPv4: true,
		Sources: []gateway.Entry{{
			Rule:   gateway.Ref{List: "nat", Kind: "snat"},
			Match:  nat.Match{From: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
			Action: nat.Action{Kind: nat.SNAT, To: nat.AddrRanges{nat.OneAddr(netip.MustParseAddr(to))}},
		}},
	}
}

func newStore(t *testing.T) *Store { return StoreBeside(filepath.Join(t.TempDir(), "journal")) }

func mustPut(t *testing.T, s *Store, p *gateway.Plan) string {
	t.Helper()
	digest, err := s.Put(p)
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

func TestPlanComesBack(t *testing.T) {
	s := newStore(t)
	p := examplePlan("203.0.113.7")
	digest := mustPut(t, s, p)
	if digest != gateway.Digest(p) {
		t.Errorf("digest %s, gateway.Digest %s", digest, gateway.Digest(p))
	}
	got, err := s.Get(digest)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(p, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
		t.Error(d)
	}
	if again := mustPut(t, s, p); again != digest {
		t.Errorf("the same plan again: %s", again)
	}
	if st, err := os.Stat(filepath.Join(s.Dir(), digest+planSuffix)); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("%v %v", st, err)
	}
}

func TestTextComesBack(t *testing.T) {
	s := newStore(t)
	text := []byte("gateway: {}\n")
	digest, err := s.PutText(text)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.Text(digest); err != nil || !bytes.Equal(got, text) {
		t.Errorf("%q, %v", got, err)
	}
}

func TestMissingAndMalformed(t *testing.T) {
	s := newStore(t)
	absent := strings.Repeat("ab", 32)
	if _, err := s.Get(absent); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no store: %v", err)
	}
	mustPut(t, s, examplePlan("203.0.113.7"))
	if _, err := s.Get(absent); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("not in the store: %v", err)
	}
	for _, digest := range []string{"", "../../../etc/passwd", "none", "AB" + absent[2:]} {
		if _, err := s.Get(digest); err == nil || !strings.Contains(err.Error(), "not a digest") {
			t.Errorf("%q: %v", digest, err)
		}
	}
}

func TestDamagedIsRefused(t *testing.T) {
	for name, damage := range map[string]func(text []byte) []byte{
		"a bit":     func(text []byte) []byte { text[len(text)/2] ^= 1; return text },
		"cut off":   func(text []byte) []byte { return text[:len(text)/2] },
		"emptied":   func([]byte) []byte { return nil },
		"continued": func(text []byte) []byte { return append(text, ' ') },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			digest := mustPut(t, s, examplePlan("203.0.113.7"))
			path := filepath.Join(s.Dir(), digest+planSuffix)
			text, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, damage(text), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Get(digest); err == nil || !strings.Contains(err.Error(), "damaged") {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestOtherSchemaIsRefused(t *testing.T) {
	s := newStore(t)
	p := examplePlan("203.0.113.7")
	p.Schema = "natkit.gateway-plan/9"
	if _, err := s.Get(mustPut(t, s, p)); err == nil || !strings.Contains(err.Error(), "another version") {
		t.Errorf("%v", err)
	}
}

func TestStoreThatOthersCouldWriteIsRefused(t *testing.T) {
	s := newStore(t)
	digest := mustPut(t, s, examplePlan("203.0.113.7"))
	if err := os.Chmod(s.Dir(), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(digest); err == nil || !strings.Contains(err.Error(), "only you can write") {
		t.Errorf("get: %v", err)
	}
	if _, err := s.Put(examplePlan("203.0.113.8")); err == nil {
		t.Error("put: no error")
	}
	if _, err := s.Collect(time.Now().Add(time.Hour), func(string) bool { return false }); err == nil {
		t.Error("collect: no error")
	}
}

func TestLinkIsNotFollowed(t *testing.T) {
	s := newStore(t)
	digest := mustPut(t, s, examplePlan("203.0.113.7"))
	path := filepath.Join(s.Dir(), digest+planSuffix)
	if err := os.Rename(path, path+"-elsewhere"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path+"-elsewhere", path); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(digest); err == nil {
		t.Error("a link was followed")
	}
}

func TestCollectKeepsWhatIsNamed(t *testing.T) {
	s := newStore(t)
	if n, err := s.Collect(time.Now().Add(time.Hour), func(string) bool { return false }); n != 0 || err != nil {
		t.Errorf("no store: %d, %v", n, err)
	}
	kept, dropped := mustPut(t, s, examplePlan("203.0.113.7")), mustPut(t, s, examplePlan("203.0.113.8"))
	stranger := filepath.Join(s.Dir(), "README")
	if err := os.WriteFile(stranger, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Collect(time.Now().Add(-time.Hour), func(string) bool { return false }); n != 0 || err != nil {
		t.Errorf("just put: %d, %v", n, err)
	}
	if n, err := s.Collect(time.Now().Add(time.Hour), func(digest string) bool { return digest == kept }); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if got, err := s.names(); err != nil || len(got) != 1 || got[0] != kept+planSuffix {
		t.Errorf("%v, %v; want %s, not %s", got, err, kept, dropped)
	}
	if _, err := os.Stat(stranger); err != nil {
		t.Errorf("another's file: %v", err)
	}
}

func TestOneClaim(t *testing.T) {
	s := newStore(t)
	if got := s.Claimant(42); got != "" {
		t.Errorf("without a claim: %q", got)
	}
	release, err := s.Claim(42, "natkit gateway run (pid 7)")
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Claimant(42); got != "natkit gateway run (pid 7)" {
		t.Errorf("claimant %q", got)
	}
	var claimed Claimed
	if _, err := s.Claim(42, "another"); !errors.As(err, &claimed) || !strings.Contains(err.Error(), "pid 7") {
		t.Errorf("twice: %v", err)
	}
	if other, err := s.Claim(43, "in another namespace"); err != nil {
		t.Error(err)
	} else {
		other()
	}
	release()
	if again, err := s.Claim(42, "again"); err != nil {
		t.Error(err)
	} else {
		again()
	}
	if got := s.Claimant(42); got != "" {
		t.Errorf("released: %q", got)
	}
}

// Many claim and release at once: never have two of them the claim.
func TestOneClaimAtATime(t *testing.T) {
	s := newStore(t)
	var holders, most atomic.Int32
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 500 {
				release, err := s.Claim(42, "one of them")
				if err != nil {
					continue
				}
				most.Store(max(most.Load(), holders.Add(1)))
				runtime.Gosched()
				holders.Add(-1)
				release()
			}
		})
	}
	wg.Wait()
	if n := most.Load(); n != 1 {
		t.Errorf("%d had the claim at once", n)
	}
}

// FuzzGet reads a plan that was changed, under the digest that it has now.
func FuzzGet(f *testing.F) {
	s := StoreBeside(filepath.Join(f.TempDir(), "journal"))
	plan, err := json.Marshal(examplePlan("10.0.0.1"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(plan)
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		defer testutil.Bounded(t, len(text))()
		digest := TextDigest(text)
		if err := s.put(digest+planSuffix, text); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(s.path(digest + planSuffix))
		if p, err := s.Get(digest); err == nil && p.Schema != gateway.PlanSchema {
			t.Errorf("schema %q", p.Schema)
		}
	})
}

// What another user put there that user could take away: root puts its own in its place.
// Root's stays where another user puts the same.
func TestPutInThePlaceOfAnothers(t *testing.T) {
	testutil.NeedRoot(t)
	s := newStore(t)
	text := []byte("gateway: {}\n")
	digest, err := s.PutText(text)
	if err != nil {
		t.Fatal(err)
	}
	path := s.path(digest + textSuffix)
	if err := os.Chown(path, 12345, 12345); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutText(text); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil || st.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("%+v, %v", st, err)
	}
}

// TestLeasesComeBack: those that have not expired, until they have and no service has them.
func TestLeasesComeBack(t *testing.T) {
	s, ns := newStore(t), netns.ID{Inode: 7, Cookie: 70}
	if s.PCP(ns) != nil || s.Leases(7, 70) != nil {
		t.Error("leases of nothing")
	}
	server := pcp.New(nil, time.Now())
	state := server.State(time.Now())
	left := gateway.Lease{Protocol: 17, External: netip.MustParseAddrPort("203.0.113.7:5000"), Internal: netip.MustParseAddrPort("192.168.0.9:4000"), Expires: state.Saved.Add(time.Hour)}
	gone := left
	gone.Expires = state.Saved
	put := func(leases ...gateway.Lease) {
		t.Helper()
		state.Leases = leases
		text, err := json.Marshal(state)
		if err == nil {
			err = s.PutLeases(ns, text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	put(left, gone)
	if got := s.Leases(7, 70); len(got) != 1 || got[0].External != left.External || s.Leases(8, 70) != nil {
		t.Errorf("%+v", got)
	}
	if _, err := s.Put(&gateway.Plan{Schema: gateway.PlanSchema}); err != nil { // Collect does nothing in an empty store
		t.Fatal(err)
	}
	collect := func() {
		t.Helper()
		if _, err := s.Collect(time.Now().Add(time.Hour), func(string) bool { return true }); err != nil {
			t.Fatal(err)
		}
	}
	if collect(); s.PCP(ns) == nil {
		t.Error("leases that have not expired are collected")
	}
	put(gone)
	release, err := s.Claim(7, "a service")
	if err != nil {
		t.Fatal(err)
	}
	if collect(); s.PCP(ns) == nil {
		t.Error("the epoch of a service that runs is collected")
	}
	release()
	if collect(); s.PCP(ns) != nil {
		t.Error("leases that have expired are not collected")
	}
	if err := s.PutLeases(ns, nil); err != nil {
		t.Error(err)
	}
}

// TestStateOfAnotherNamespace: the inode of one that is gone is given to another one, which gets none of its state.
func TestStateOfAnotherNamespace(t *testing.T) {
	testutil.NeedFeature(t, testutil.HostNetns)
	s := newStore(t)
	initial, err := journal.InitialNamespace("/proc", "net")
	if err != nil {
		t.Fatal(err)
	}
	for _, what := range []struct {
		path func(uint64) string
		put  func(netns.ID, []byte) error
		get  func(netns.ID) []byte
	}{
		{s.healthPath, s.PutHealth, s.Health},
		{s.leasesPath, s.PutLeases, func(ns netns.ID) []byte { return s.owned(s.leasesPath(ns.Inode), ns) }},
	} {
		want := func(when string, ns netns.ID, has bool) {
			t.Helper()
			if got := what.get(ns); (string(got) == "{}") != has || !has && got != nil {
				t.Errorf("%s: %+v has %q", when, ns, got)
			}
		}
		for _, ns := range []netns.ID{{Inode: 7, Cookie: 70}, {Inode: initial, Cookie: 1}} {
			if err := what.put(ns, []byte("{}")); err != nil {
				t.Fatal(err)
			}
			want("the same", ns, true)
			want("no cookie is known", netns.ID{Inode: ns.Inode}, true)
			want("another of its inode", netns.ID{Inode: ns.Inode, Cookie: 71}, false)
			text := fmt.Appendf(nil, owner+"\n{}", "former", 71)
			if err := os.WriteFile(what.path(ns.Inode), text, 0o640); err != nil {
				t.Fatal(err)
			}
			want("after a boot", ns, ns.Inode == initial)
			if err := os.WriteFile(what.path(ns.Inode), []byte("{}"), 0o640); err != nil {
				t.Fatal(err)
			}
			want("without an owner", ns, false)
		}
	}
}
