package apply

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
)

func TestPersistOnlyWhereTheFilesAreReadBack(t *testing.T) {
	change := sysctl(someValue, "100", "1000")
	file := filepath.Join("root", tune.ConfPath(tune.SysctlConf))
	for name, c := range map[string]struct {
		prepare func(t *testing.T, h fakeHost)
		want    string
	}{
		"in a namespace of its own": {func(t *testing.T, h fakeHost) { h.netns(t, "thread-self", 77) }, "network namespace (77) is not the initial one"},
		"perhaps in one":            {func(t *testing.T, h fakeHost) { remove(t, filepath.Join(h.procRoot(), "1")) }, "is not the initial one"},
		"masked by a link": {func(t *testing.T, h fakeHost) {
			path := filepath.Join(h.dir, file)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink("/dev/null", path)); err != nil {
				t.Fatal(err)
			}
		}, "not a regular file"},
		"a folder": {func(t *testing.T, h fakeHost) {
			if err := os.MkdirAll(filepath.Join(h.dir, file), 0o755); err != nil {
				t.Fatal(err)
			}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := newFakeHost(t)
			opt := h.options(t)
			opt.Persist = true
			c.prepare(t, h)
			before, _ := os.Lstat(filepath.Join(h.dir, file))
			if _, err := Apply(t.Context(), plan(change), opt); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want %q", err, c.want)
			}
			h.want(t, someValue, "100")
			after, err := os.Lstat(filepath.Join(h.dir, file))
			if before == nil && !errors.Is(err, fs.ErrNotExist) || before != nil && (err != nil || !os.SameFile(before, after)) {
				t.Errorf("the file is touched: %v, %v", after, err)
			}
			opt.Persist = false
			mustApply(t, plan(change), opt)
		})
	}
}

func TestInitialNamespaceWhereNobodyMayLookAtTheFirstProcess(t *testing.T) {
	h := newFakeHost(t)
	remove(t, filepath.Join(h.procRoot(), "1"))
	h.set(t, "net.core.dev_weight", "64")
	opt := h.options(t)
	opt.Persist = true
	mustApply(t, plan(sysctl(someValue, "100", "1000")), opt)
	if h.file(tune.SysctlConf) == "" {
		t.Error("no file")
	}
}

// The kernel shows net.core.dev_weight in the initial namespace only.
func TestANewNamespaceIsNotTheInitialOne(t *testing.T) {
	testutil.NeedRoot(t)
	ns, err := netns.New("tune-persist")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	err = ns.Do(func() error {
		if IsInitialNetns(journal.NamespaceInode("/proc", "net"), "/proc") {
			t.Error("taken for the initial one")
		}
		if _, err := os.Lstat("/proc/sys/net/core/dev_weight"); err == nil {
			t.Error("net.core.dev_weight is shown")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
