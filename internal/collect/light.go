package collect

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
)

// ReadLight takes a snapshot of what costs less than a millisecond, however large
// the machine and its table are: kernel, namespace, sysctls and conntrack's counters.
func ReadLight(ctx context.Context, o Options) *snapshot.Snapshot {
	src := newLive(o)
	now := src.clock("snapshot")
	r := &observation{src: src, Snapshot: &snapshot.Snapshot{
		Schema: snapshot.Schema, TakenAt: now.Wall, UptimeSeconds: now.Uptime, Parts: []snapshot.Part{},
	}}
	err := src.inside(func() error {
		r.part("kernel", func() error {
			m, err := src.machine()
			if err == nil {
				r.Netns = m.Netns
				r.Kernel, err = readKernel(src, m)
			}
			return err
		})
		r.part("sysctls", func() (err error) { r.Sysctls, err = readSysctls(src); return err })
		return nil
	})
	if err != nil {
		r.Parts = append(r.Parts, snapshot.Part{Name: "netns", Error: err.Error()})
	}
	r.part("conntrack_stat", func() (err error) { r.ConntrackStat, err = readStat(ctx, src); return err })
	return r.Snapshot
}

// ReadSettings is ReadLight with what an entry of the table costs.
func ReadSettings(ctx context.Context, o Options) *snapshot.Snapshot {
	s := ReadLight(ctx, o)
	src := newLive(o)
	r := &observation{src: src, Snapshot: s}
	r.part("conntrack_size", func() error {
		m, err := src.machine()
		if err == nil {
			s.ConntrackSize, err = readSize(src, m, s.Kernel)
		}
		return err
	})
	return s
}

// CPUTimes are what all CPUs together have spent since boot, in ticks.
type CPUTimes struct {
	All, Idle, SoftIRQ uint64
	CPUs               int
}

const procCPU = "/proc/stat"

// ReadCPUTimes reads /proc/stat, which everybody may.
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
		}
	}
	return nil
}
