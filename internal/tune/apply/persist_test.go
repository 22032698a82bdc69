package apply

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/tune"
)

func TestPersistOnlyWhereTheFilesAreReadBack(t *testing.T) {
	change := sysctl(someValue, "100", "1000")
	file := filepath.Join("root", tune.ConfPath(tune.SysctlConf))
	for name, c := range map[string]struct {
		prepare func(t *testing.T, h fakeHost)
		want    string
	}{
		"in a namespace of its own": {func(t *testing.T, h fakeHost) { h.netns(t, "thread-self", 77) }, "this is network namespace 77"},
		"perhaps in one":            {func(t *testing.T, h fakeHost) { remove(t, filepath.Join(h.procRoot(), "1")) }, "cannot tell whether"},
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
