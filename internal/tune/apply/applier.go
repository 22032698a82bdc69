package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/permit"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
	"golang.org/x/sys/unix"
)

// Applier reads and writes the things of one Kind. This package has those of sysctls and
// of files under /etc; a program hands in the others (Init, Options.Appliers).
type Applier interface {
	// Read gives the present value of a target in the form in which it is kept in
	// Change.Before; empty where absence is a value of its own.
	Read(target string) (string, error)
	// Writable returns an error if a target cannot be written, naming what is missing,
	// without writing.
	Writable(target string) error
	// Write sets the target.
	Write(target, value string) error
	// Honours is true where got, read back, is what the kernel makes of asked.
	Honours(target, asked, got string) bool
	// Durable is true where values outlast a reboot.
	Durable() bool
}

// Kinds returns appliers that work on the journal and the roots of the options.
type Kinds func(Options) map[tune.Kind]Applier

// more are the kinds of the program beside this package's; armed reports whether it
// called Init.
var (
	more  Kinds
	armed bool
)

// Init makes the program ready to apply: every program that imports this package, test
// binaries included, calls it at its start, with the appliers of the kinds that this
// package does not have (nil: none). Where the program was started as a guard process, it
// is the guard, and Init does not return.
func Init(kinds Kinds) {
	more, armed = kinds, true
	if len(os.Args) == 1 && os.Args[0] == guardName {
		os.Exit(guardMain())
	}
}

// appliers are all that these options can use; those of Options.Appliers come first.
func (o Options) appliers() map[tune.Kind]Applier {
	all := map[tune.Kind]Applier{
		tune.Sysctl:       sysctls{o.ProcRoot},
		tune.SysctlConf:   confFile{tune.SysctlConf, o.Root},
		tune.ModulesLoad:  confFile{tune.ModulesLoad, o.Root},
		tune.ModuleOption: confFile{tune.ModuleOption, o.Root},
	}
	if more != nil && o.Journal != nil {
		maps.Copy(all, more(o))
	}
	maps.Copy(all, o.Appliers)
	return all
}

// sysctls applies values under /proc/sys of the calling thread's namespaces.
type sysctls struct{ procRoot string }

// ReadSysctl is a sysctl's value by its dotted name, blanks normalised.
func ReadSysctl(procRoot, name string) (string, error) { return sysctls{procRoot}.Read(name) }

// ReadSysctlInt reads one that is a number.
func ReadSysctlInt(procRoot, name string) (int64, error) {
	text, err := ReadSysctl(procRoot, name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s: %q is not a number", name, text)
	}
	return n, nil
}

func (s sysctls) path(name string) (string, error) {
	rel, err := tune.SysctlPath(name)
	if err != nil {
		return "", err
	}
	return filepath.Join(s.procRoot, "sys", filepath.FromSlash(rel)), nil
}

func (s sysctls) Read(name string) (string, error) {
	path, err := s.path(name)
	if err != nil {
		return "", err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", name, s.explain(name, err))
	}
	return tune.NormalValue(string(b)), nil
}

func (s sysctls) Writable(name string) error {
	path, err := s.path(name)
	if err != nil {
		return err
	}
	if err := unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS); err != nil {
		return fmt.Errorf("write sysctl %s: %w", name, s.explain(name, err))
	}
	return nil
}

func (s sysctls) Write(name, value string) error {
	if err := permit.ChangeOf("write sysctl", name); err != nil {
		return err
	}
	path, err := s.path(name)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return fmt.Errorf("write sysctl %s: %w", name, s.explain(name, err))
	}
	// One write: the kernel takes each as a whole value.
	_, err = f.WriteString(value + "\n")
	if err = cmp.Or(err, f.Close()); err != nil {
		return fmt.Errorf("write sysctl %s = %q: %w", name, value, s.explain(name, err))
	}
	return nil
}

// nearest is the name beside one that does not exist that may have been meant; "" where
// there is none.
func (s sysctls) nearest(name string, err error) string {
	path, e := s.path(name)
	if e != nil || !errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	entries, _ := os.ReadDir(filepath.Dir(path)) // none where its module is not loaded
	var beside []string
	for _, f := range entries {
		if !f.IsDir() {
			beside = append(beside, f.Name())
		}
	}
	word := filepath.Base(path)
	near := document.Nearest(word, beside)
	if near == "" {
		return ""
	}
	return strings.TrimSuffix(name, word) + near
}

// tracks reports whether the connection tracker's own values are there.
func (s sysctls) tracks() bool {
	_, err := os.Stat(filepath.Join(s.procRoot, "sys/net/netfilter/nf_conntrack_max"))
	return err == nil
}

// explain adds what to do about the kernel's refusal.
func (s sysctls) explain(name string, err error) error {
	switch near := s.nearest(name, err); {
	case near != "":
		return fmt.Errorf("%w: did you mean %s?", err, near)
	case errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(name, "net.netfilter.") && !s.tracks():
		return fmt.Errorf("%w; it appears with the module nf_conntrack (modprobe nf_conntrack), and only where the kernel has connection tracking", err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w; this kernel does not have it, its module is not loaded, or its interface is gone", err)
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w; /proc/sys is mounted read-only, as in containers: run natkit on the host", err)
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 && strings.HasPrefix(name, "net."):
		return netns.Denied(err, netns.NetAdmin)
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		return fmt.Errorf("%w; run it as root", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w; read-only here: values that hold for the whole host (nf_conntrack_max, nf_conntrack_buckets) can only be written in the initial network namespace, with CAP_NET_ADMIN there", err)
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w; the kernel does not accept this value", err)
	}
	return err
}

// Honours: nf_ct_alloc_hashtable rounds the number of buckets up to whole pages
// of pointers; every other value must read back as it was written.
func (s sysctls) Honours(name, asked, got string) bool {
	if tune.SameValue(asked, got) {
		return true
	}
	if name != snapshot.ConntrackBuckets {
		return false
	}
	want, errWant := strconv.ParseInt(asked, 0, 64)
	have, errHave := strconv.ParseInt(got, 0, 64)
	page := int64(os.Getpagesize() / 8)
	return errWant == nil && errHave == nil && have >= want && have-want < page
}

func (s sysctls) Durable() bool { return false }

// lockPatience is how long natkit waits for another one to finish with the host.
const lockPatience = 10 * time.Second

// Options specify how a plan is applied and where the host is.
type Options struct {
	Journal *journal.Journal
	// ProcRoot and Root are "/proc" and "/" where empty.
	ProcRoot, Root string
	// Confirm undoes the plan after this time unless it is confirmed, by a guard
	// process. Files (Persist) are then only written at confirmation, so that a reboot
	// alone undoes the plan.
	Confirm time.Duration
	// Persist makes the changes hold after a boot.
	Persist bool
	// Lifeline undoes the plan within a second of this process' death.
	Lifeline bool
	// Guarded undoes the plan where this process dies before all of it is in force.
	// Without it the next Clean does.
	Guarded bool
	// Force also undoes what a running natkit holds, and abandons what an undo would
	// refuse to touch: rules changed since, and changes in a network namespace that
	// cannot be found.
	Force bool
	// Clock is the system's where nil.
	Clock journal.Clock
	// Appliers take the place of the program's for their kinds.
	Appliers map[tune.Kind]Applier
}

func (o Options) withDefaults() Options {
	o.ProcRoot = cmp.Or(o.ProcRoot, "/proc")
	o.Root = cmp.Or(o.Root, "/")
	if o.Clock == nil {
		o.Clock = journal.SystemClock{}
	}
	o.Appliers = o.appliers()
	return o
}

func (o Options) check() error {
	switch {
	case o.Journal == nil:
		return errors.New("apply: no journal is given")
	case o.Lifeline && (o.Confirm != 0 || o.Persist):
		return errors.New("apply: what ends with its process (lifeline) can be neither confirmed nor persisted")
	case o.Confirm < 0:
		return fmt.Errorf("apply: time to confirm %s is negative", o.Confirm)
	}
	return nil
}

func (o Options) view() (journal.View, error) { return journal.NewView(o.ProcRoot, o.Clock) }

func (o Options) lock(ctx context.Context) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	return o.Journal.Lock(ctx)
}
