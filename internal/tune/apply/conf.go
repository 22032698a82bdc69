package apply

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/permit"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
	"golang.org/x/sys/unix"
)

// confFile applies single values in the file that natkit keeps under /etc for a
// kind. Whatever else stands in the file stays.
type confFile struct {
	kind tune.Kind
	root string
}

func (c confFile) file() File { return FileOf(c.root, c.kind) }

func (c confFile) Read(target string) (string, error) {
	text, err := c.file().Text()
	return tune.ConfGet(c.kind, text, target), err
}

// File is the path of a file that makes changes hold after a boot.
type File string

// FileOf is that of a kind.
func FileOf(root string, k tune.Kind) File { return File(filepath.Join(root, tune.ConfPath(k))) }

// Text returns the file's content; empty if there is no file.
func (f File) Text() (string, error) {
	b, err := os.ReadFile(string(f))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read what holds after a boot: %w", err)
	}
	return string(b), nil
}

// regular refuses anything but a regular file: natkit would replace a link that masks
// the file (sysctl.d(5): to /dev/null).
func (f File) regular() error {
	path := string(f)
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("persist: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("persist in %s: it is not a regular file but %s, which may be meant to keep values out; move it away, or go without --persist",
			path, info.Mode().Type())
	}
	return nil
}

// Writable returns an error if the file cannot be written.
func (f File) Writable() error {
	if err := f.regular(); err != nil {
		return err
	}
	path := string(f)
	// The nearest folder that exists decides; the rest is made by Write.
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
		if errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir) {
			continue
		}
		if err != nil {
			return fmt.Errorf("persist in %s: %s: %w", path, dir, netns.Denied(err, netns.WriteAll))
		}
		return nil
	}
}

func (c confFile) Writable(string) error { return c.file().Writable() }

// Write replaces the file in one step, so that a crash leaves the old or the new one. An
// empty text removes it.
func (f File) Write(text []byte) error {
	if err := permit.File(string(f)); err != nil {
		return err
	}
	path := string(f)
	if err := f.regular(); err != nil {
		return err
	}
	if len(text) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("persist: %w", err)
		}
		return disk.SyncDir(filepath.Dir(path))
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("persist: %w", err)
	}
	if err := disk.Replace(path, 0o644, disk.Text(text)); err != nil {
		return fmt.Errorf("persist: %w", err)
	}
	return nil
}

func (c confFile) Write(target, value string) error {
	text, err := c.file().Text()
	if err != nil {
		return err
	}
	return c.file().Write([]byte(tune.ConfSet(c.kind, text, target, value)))
}

func (c confFile) Honours(_, asked, got string) bool { return tune.SameValue(asked, got) }

func (c confFile) Durable() bool { return true }

// sysctlFiles are those that sysctl.d(5) reads, in its order: by file name, the first
// folder's of a name alone; /etc/sysctl.conf last of all, as procps does.
func sysctlFiles(root string) []string {
	byName := map[string]string{}
	for _, dir := range []string{"etc/sysctl.d", "run/sysctl.d", "usr/local/lib/sysctl.d", "usr/lib/sysctl.d", "lib/sysctl.d"} {
		paths, _ := filepath.Glob(filepath.Join(root, dir, "*.conf"))
		for _, p := range paths {
			if _, masked := byName[filepath.Base(p)]; !masked {
				byName[filepath.Base(p)] = p
			}
		}
	}
	var files []string
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		files = append(files, byName[name])
	}
	return append(files, filepath.Join(root, "etc/sysctl.conf"))
}

// Setting lists the files that set a sysctl, the last of which counts; of the hash
// table's size also those with the module's option.
func Setting(root, name string) []string {
	files := slices.DeleteFunc(sysctlFiles(root), func(path string) bool { return !names(path, tune.SysctlConf, name) })
	if name == snapshot.ConntrackBuckets {
		options, _ := filepath.Glob(filepath.Join(root, "etc/modprobe.d/*.conf"))
		for _, path := range options {
			if names(path, tune.ModuleOption, "nf_conntrack.hashsize") {
				files = append(files, path)
			}
		}
	}
	return files
}

func names(path string, kind tune.Kind, target string) bool {
	b, err := os.ReadFile(path)
	return err == nil && strings.TrimSpace(tune.ConfGet(kind, string(b), target)) != ""
}

// Overriding lists the files that set a sysctl and are read after natkit's own, so that
// a persisted value would not hold.
func Overriding(root, name string) []string {
	own := filepath.Base(tune.ConfPath(tune.SysctlConf))
	return slices.DeleteFunc(slices.DeleteFunc(sysctlFiles(root), func(path string) bool { return !names(path, tune.SysctlConf, name) }),
		func(path string) bool { return filepath.Base(path) <= own && filepath.Base(path) != "sysctl.conf" })
}

// PlanPersist lists the lines in files that make the changes hold after a boot,
// with what the files hold now.
func PlanPersist(changes []tune.Change, opt Options) ([]tune.Change, error) {
	opt = opt.withDefaults()
	if err := mayPersist(changes, opt); err != nil {
		return nil, err
	}
	files := tune.Persistent(changes)
	return files, ReadBefore(files, opt)
}

// ReadBefore puts what is there now into the Before of each change.
func ReadBefore(changes []tune.Change, opt Options) error {
	opt = opt.withDefaults()
	for i := range changes {
		c := &changes[i]
		before, err := opt.Appliers[c.Kind].Read(c.Target)
		if err != nil {
			return err
		}
		c.Before = before
	}
	return nil
}

// mayPersist keeps what was tried in a network namespace of its own out of the
// files, which speak for the initial one: most of net.* is each namespace's own.
func mayPersist(changes []tune.Change, opt Options) error {
	for _, c := range changes {
		if c.Kind == tune.NATRule {
			return fmt.Errorf("persist NAT rule %s: natkit keeps no rules over a boot: %s; and apply it without --persist", c.Target, tune.NATRuleByHand(c))
		}
	}
	for _, c := range changes {
		if c.Kind != tune.Sysctl || !strings.HasPrefix(c.Target, "net.") {
			continue
		}
		here := journal.NamespaceInode(opt.ProcRoot, "net")
		if IsInitialNetns(here, opt.ProcRoot) {
			return nil
		}
		return fmt.Errorf("persist %s: this network namespace (%d) is not the initial one, whose values the files under /etc hold: the host would get them at its next boot; run natkit there (nsenter --net --target 1), or without --persist",
			c.Target, here)
	}
	return nil
}

// IsInitialNetns reports whether the network namespace with that inode is the host's
// own. It compares with the first process's. If that one cannot be read, natkit's own
// namespace is recognised by sysctls that the kernel has in no other namespace
// (sysctl_core_init: net_core_table).
func IsInitialNetns(here uint64, procRoot string) bool {
	if initial, err := journal.InitialNamespace(procRoot, "net"); err == nil {
		return here == initial
	}
	_, err := os.Lstat(filepath.Join(procRoot, "sys/net/core/dev_weight"))
	return err == nil
}
