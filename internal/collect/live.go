//go:build linux

package collect

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf/btf"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/snapshot"
	"golang.org/x/sys/unix"
)

// live is the running kernel.
type live struct{ o Options }

func newLive(o Options) *live {
	if o.Proc == "" {
		o.Proc = "/proc"
	}
	if o.Sys == "" {
		o.Sys = "/sys"
	}
	if o.Kmsg == "" {
		o.Kmsg = "/dev/kmsg"
	}
	return &live{o}
}

func (l *live) inside(fn func() error) error { return l.o.Netns.Do(fn) }

// path puts a path below the given roots. /proc/net is the namespace of the
// process's first thread; the one of this thread is elsewhere.
func (l *live) path(path string) string {
	switch {
	case strings.HasPrefix(path, "/proc/net/") && l.o.Proc == "/proc":
		return fmt.Sprintf("/proc/self/task/%d/net/%s", unix.Gettid(), strings.TrimPrefix(path, "/proc/net/"))
	case strings.HasPrefix(path, "/proc/"):
		return filepath.Join(l.o.Proc, strings.TrimPrefix(path, "/proc/"))
	default:
		return filepath.Join(l.o.Sys, strings.TrimPrefix(path, "/sys/"))
	}
}

func (l *live) readStart(path string, max int, patience time.Duration) ([]byte, bool, error) {
	f, err := os.Open(l.path(path))
	if err != nil {
		return nil, false, explainFile(path, err)
	}
	defer f.Close()
	var data []byte
	page := make([]byte, os.Getpagesize()) // the kernel gives no more at once
	for end := time.Now().Add(patience); ; {
		n, err := f.Read(page)
		data = append(data, page[:n]...)
		switch {
		case err == io.EOF:
			return data, true, nil
		case err != nil:
			return nil, false, explainFile(path, err)
		case len(data) >= max:
			return data[:max], false, nil
		case time.Now().After(end):
			return data, false, nil
		}
	}
}

// explainFile names the file as natkit's user knows it, and who may read it.
func explainFile(path string, err error) error {
	var cause error = err
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		cause = pathErr.Err
	}
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("read %s: %w", path, netns.Denied(cause, netns.ReadAll))
	}
	return fmt.Errorf("read %s: %w", path, cause)
}

func (l *live) list(dir, prefix string) ([]string, error) {
	entries, err := os.ReadDir(l.path(dir))
	if err != nil {
		return nil, explainFile(dir, err)
	}
	names := []string{}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func (l *live) counters(ctx context.Context, fn func([]byte) error) error {
	_, err := dump.DumpStats(ctx, l.o.Netns, fn)
	return err
}

func (l *live) table(ctx context.Context, fn func([]byte) error) (dump.Result, error) {
	return dump.Dump(ctx, l.o.Netns, fn)
}

func (l *live) judged() ([]*ruleset.Table, error) { return read.Judged(nil) }

func (l *live) world() (world, error) {
	conn, err := socket.Dial(nil, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	return &kernelWorld{conn}, nil
}

func (l *live) namer() func(context.Context) *snapshot.Names {
	if l.o.Names == nil {
		return nil
	}
	return func(ctx context.Context) *snapshot.Names { return l.o.Names(ctx, l.o.Netns) }
}

func (l *live) answer(_ question, _ any, ask func() error) error { return ask() }

func (l *live) machine() (machine, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return machine{}, fmt.Errorf("read the machine's kind: %w", err)
	}
	m := machine{Arch: unix.ByteSliceToString(u.Machine[:]), PageBytes: os.Getpagesize()}
	ns := l.o.Netns
	if ns == nil {
		var err error
		if ns, err = netns.Current(); err != nil {
			return m, err
		}
		defer ns.Close()
	}
	m.Netns = snapshot.Netns{Inode: ns.Inode(), Name: ns.Name()}
	return m, nil
}

func (l *live) traced(now *snapshot.Trace) (*snapshot.Trace, error) { return now, nil }

func (l *live) clock(string) instant {
	var ts unix.Timespec
	// It cannot fail with this clock and a valid pointer (clock_gettime(2)).
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return instant{Wall: time.Now().Round(0).UTC(), Uptime: float64(ts.Nano()) / 1e9}
}

// structSize reads the kernel's own type information and, where the
// tracker is a module, into the module's.
func (l *live) structSize(name string) (int, error) {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return 0, fmt.Errorf("read the size of struct %s from BTF: %w (a kernel without CONFIG_DEBUG_INFO_BTF)", name, err)
	}
	var s *btf.Struct
	if err = spec.TypeByName(name, &s); err != nil {
		if spec, err = btf.LoadKernelModuleSpec("nf_conntrack"); err == nil {
			err = spec.TypeByName(name, &s)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("read the size of struct %s from BTF: %w", name, err)
	}
	return int(s.Size), nil
}

// recordMax is CONSOLE_EXT_LOG_MAX of kernel/printk: no record is longer.
const recordMax = 8192

// kernelLog reads the ring from its oldest record to its newest one
// (Documentation/ABI/testing/dev-kmsg). Reading does not remove records.
func (l *live) kernelLog(fn func([]byte) bool) (next uint64, err error) {
	fd, err := unix.Open(l.o.Kmsg, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, explainKmsg(l.o.Kmsg, err)
	}
	defer unix.Close(fd)
	buf := make([]byte, recordMax)
	// A ring of the largest size (32 MiB) holds fewer records; a flood of new ones
	// must not keep the reader.
	for range 1 << 19 {
		n, err := unix.Read(fd, buf)
		switch err {
		case nil:
			if n == 0 {
				return next, nil
			}
			next = max(next, nextSeq(buf[:n]))
			fn(buf[:n])
		case unix.EAGAIN:
			return next, nil
		case unix.EPIPE, unix.EINTR: // records were overwritten meanwhile
		default:
			return next, explainKmsg(l.o.Kmsg, err)
		}
	}
	return next, nil
}

func explainKmsg(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("read %s (kernel.dmesg_restrict is 1): %w", path, netns.Denied(err, netns.Syslog))
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("read %s: %w (containers have none: run it on the host)", path, err)
	default:
		return fmt.Errorf("read %s: %w", path, err)
	}
}

// ReadLight takes a snapshot of what costs less than a millisecond, however large
// the machine and its table are: kernel, namespace, sysctls and conntrack's counters; and names, if these are asked for.
func ReadLight(ctx context.Context, o Options) *snapshot.Snapshot {
	r := newObservation(newLive(o))
	r.collect(ctx, only("kernel", snapshot.PartNames, snapshot.PartSysctls, snapshot.PartStat))
	return r.Snapshot
}

// ReadSettings is ReadLight with what an entry of the table costs.
func ReadSettings(ctx context.Context, o Options) *snapshot.Snapshot {
	r := newObservation(newLive(o))
	r.collect(ctx, only("kernel", "conntrack_size", snapshot.PartSysctls, snapshot.PartStat))
	return r.Snapshot
}

// CPUTimes are what all CPUs together have spent since boot, in ticks.
type CPUTimes struct {
	All, Idle, SoftIRQ, Stolen uint64
	CPUs                       int
}

const procCPU = "/proc/stat"

// ReadCPUTimes reads /proc/stat, which requires no privilege.
func ReadCPUTimes() (CPUTimes, error) {
	f, err := os.Open(procCPU)
	if err != nil {
		return CPUTimes{}, explainFile(procCPU, err)
	}
	defer f.Close()
	return parseCPUTimes(f)
}

// Columns of a line of /proc/stat (proc_stat(5)). Guests' time, the ninth and tenth,
// is in user's and nice's already.
const (
	cpuIdle    = 3
	cpuIOWait  = 4
	cpuSoftIRQ = 6
	cpuStolen  = 7
	cpuColumns = 8
)

// parseCPUTimes reads the lines that begin with "cpu", which come first.
func parseCPUTimes(r io.Reader) (t CPUTimes, err error) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) == 0 || !strings.HasPrefix(fields[0], "cpu"):
			if t.CPUs == 0 {
				return t, errors.New("parse " + procCPU + ": it does not begin with the CPUs")
			}
			return t, nil
		case fields[0] != "cpu":
			t.CPUs++
		default:
			if err := t.sum(fields[1:]); err != nil {
				return t, err
			}
		}
	}
	if t.CPUs == 0 {
		return t, errors.New("parse " + procCPU + ": no CPU")
	}
	return t, nil
}

func (t *CPUTimes) sum(fields []string) error {
	if len(fields) < cpuColumns {
		return fmt.Errorf("parse %s: %d columns, fewer than %d", procCPU, len(fields), cpuColumns)
	}
	for i, field := range fields[:cpuColumns] {
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return fmt.Errorf("parse %s, column %d: %w", procCPU, i+1, err)
		}
		t.All += n
		switch i {
		case cpuIdle, cpuIOWait:
			t.Idle += n
		case cpuSoftIRQ:
			t.SoftIRQ += n
		case cpuStolen:
			t.Stolen += n
		}
	}
	return nil
}
