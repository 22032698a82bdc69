package apply

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune/journal"
)

const realBuckets = "net.netfilter.nf_conntrack_buckets"

// realHost gives the host's own values, and watches that they are put back.
func realHost(t *testing.T, names ...string) Options {
	t.Helper()
	testutil.NeedRoot(t)
	testutil.LockHost(t)
	for _, name := range names {
		before := realValue(t, name)
		t.Cleanup(func() {
			if now := realValue(t, name); now != before {
				t.Errorf("%s was %s and is %s", name, before, now)
				sysctls{"/proc"}.Write(name, before)
			}
		})
	}
	j, err := journal.At(filepath.Join(t.TempDir(), "journal"))
	if err != nil {
		t.Fatal(err)
	}
	return Options{Journal: j, ProcRoot: "/proc", Root: t.TempDir()}
}

func realValue(t testing.TB, name string) string {
	t.Helper()
	v, err := ReadSysctl("/proc", name)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func plus(t testing.TB, value string, n int) string {
	t.Helper()
	v, err := strconv.Atoi(value)
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(v + n)
}

func TestRealValueComesBackAfterKill(t *testing.T) {
	opt := realHost(t, realMax)
	before := realValue(t, realMax)
	helper := startHelper(t, self, helperBrief{
		JournalDir: opt.Journal.Dir(), ProcRoot: "/proc", Root: opt.Root, Lifeline: true,
		Plan: plan(sysctl(realMax, before, plus(t, before, 4321))),
	})
	guard := guardOf(t, opt, helper.applied(t))
	if got := realValue(t, realMax); got != plus(t, before, 4321) {
		t.Errorf("applied, but the value is %s", got)
	}
	helper.kill(t)
	took := within(t, time.Second, "value back", func() bool { return realValue(t, realMax) == before })
	t.Logf("value back %s after the kill", took)
	waitGuard(t, guard)
}

// The kernel rounds the number of buckets up; what it made of it is undone.
func TestRealBucketsAreRounded(t *testing.T) {
	opt := realHost(t, realBuckets)
	before := realValue(t, realBuckets)
	a := mustApply(t, plan(sysctl(realBuckets, before, plus(t, before, 1))), opt)
	rounded := plus(t, before, os.Getpagesize()/8)
	if got := a.Changes()[0].After; got != rounded || realValue(t, realBuckets) != rounded {
		t.Errorf("After %s, the kernel has %s; want %s", got, realValue(t, realBuckets), rounded)
	}
	if tx, err := a.Undo(); err != nil || states(tx) != "undone" {
		t.Errorf("%+v, %v", tx, err)
	}
}

func TestRefusedValueIsSaidByTheKernel(t *testing.T) {
	opt := realHost(t, realMax)
	_, err := Apply(t.Context(), plan(sysctl(realMax, realValue(t, realMax), "many")), opt)
	if !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "does not accept this value") {
		t.Errorf("%v", err)
	}
}

// In a namespace of its own the host-wide values are read-only, on kernels that
// show them there at all.
func TestHostValueInANamespaceSaysWhy(t *testing.T) {
	opt := realHost(t, realMax)
	before := realValue(t, realMax)
	ns, err := netns.New("tune-test")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	err = ns.Do(func() error {
		_, err := Apply(t.Context(), plan(sysctl(realMax, before, plus(t, before, 1))), opt)
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "nothing was changed") {
		t.Fatalf("%v", err)
	}
	if errors.Is(err, fs.ErrPermission) && !strings.Contains(err.Error(), "initial network namespace, with CAP_NET_ADMIN") {
		t.Errorf("%v does not say what is missing", err)
	}
}

// TestUnprivilegedSaysWhatIsMissing gives up root on a thread of its own.
func TestUnprivilegedSaysWhatIsMissing(t *testing.T) {
	opt := realHost(t, realMax)
	before := realValue(t, realMax)
	if err := os.Chmod(filepath.Dir(opt.Journal.Dir()), 0o755); err != nil {
		t.Fatal(err)
	}
	asNobody := func(fn func()) {
		err := netns.OnThread(func() error { // the thread dies without its rights
			// The raw call: Go's own would change every thread.
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
				return errno
			}
			fn()
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	asNobody(func() {
		_, err := Apply(t.Context(), plan(sysctl(realMax, before, plus(t, before, 1))), opt)
		if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "run it as root") {
			t.Errorf("journal: %v", err)
		}
		if err := (sysctls{"/proc"}).Writable(realMax); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "; run it as root, or with CAP_NET_ADMIN") {
			t.Errorf("value: %v", err)
		}
	})
}
