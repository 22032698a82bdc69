package collect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/ports"
	"github.com/natkit/natkit/internal/snapshot"
)

// process is a line of /proc/PID/stat (proc_pid_stat(5)), as far as it counts here.
type process struct {
	parent int
	// ticks of the process and of its children that have ended.
	ticks uint64
}

// userHZ is the rate of ticks in /proc, on every architecture that natkit runs on.
const userHZ = 100

// WatchOthers returns a function that returns the share of the machine's CPUs that
// processes other than this one and those it has started used since; 0 where /proc does
// not say.
func WatchOthers() func() float64 {
	before, err := OtherTicks(os.Getpid())
	began := time.Now()
	return func() float64 {
		after, errAfter := OtherTicks(os.Getpid())
		seconds := time.Since(began).Seconds() * float64(runtime.NumCPU())
		if err != nil || errAfter != nil || after < before || seconds <= 0 {
			return 0
		}
		return float64(after-before) / userHZ / seconds
	}
}

// OtherTicks returns the CPU time in ticks of all processes except own, its descendants
// and the kernel's threads, which work for the source of packets. Its growth is what
// others have used: the time of a child that ends is added to its parent's.
func OtherTicks(own int) (uint64, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(paths) == 0 {
		return 0, fmt.Errorf("read the CPU time of other processes: no processes in /proc")
	}
	all := map[int]process{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		if pid, p, ok := parseProcess(text); ok {
			all[pid] = p
		}
	}
	return otherTicks(all, own), nil
}

// kthreadd is the parent of the kernel's threads.
const kthreadd = 2

func otherTicks(all map[int]process, own int) (ticks uint64) {
	for pid, p := range all {
		if pid != kthreadd && !descends(all, pid, own) && p.parent != kthreadd {
			ticks += p.ticks
		}
	}
	return ticks
}

func descends(all map[int]process, pid, from int) bool {
	for range len(all) { // what was read is no instant: it may have a circle
		if pid == from {
			return true
		}
		p, there := all[pid]
		if !there {
			return false
		}
		pid = p.parent
	}
	return false
}

// parseProcess takes the fields behind the name, which may have anything in it.
func parseProcess(text []byte) (pid int, p process, ok bool) {
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return 0, p, false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text[:open])))
	fields := strings.Fields(string(text[end+1:]))
	const ppid, utime, cstime = 1, 11, 14
	if err != nil || len(fields) <= cstime {
		return 0, p, false
	}
	if p.parent, err = strconv.Atoi(fields[ppid]); err != nil {
		return 0, p, false
	}
	for _, field := range fields[utime : cstime+1] {
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return 0, p, false
		}
		p.ticks += n
	}
	return pid, p, true
}

// What a snapshot has of the ports: the most pressed pools, with a few users each.
const (
	snapshotPools  = 20
	snapshotUsers  = 3
	snapshotMemory = 16 << 20
)

// portReader collects the ports of one observation's table, in the pass that reads
// it.
type portReader struct {
	collector *ports.Collector
	at        *observation
}

// with has every entry also collected, before next gets it.
func (p *portReader) with(next entryFunc) entryFunc {
	return func(o *observation) func(*conntrack.Entry) {
		fn := next(o)
		p.at = o
		p.collector = ports.NewCollector(ports.Options{
			MemoryBytes: snapshotMemory, Now: o.tableAt.Wall, Addresses: ports.Given(o.NATRules),
		})
		if fn == nil {
			return p.collector.Add
		}
		return func(e *conntrack.Entry) {
			p.collector.Add(e)
			fn(e)
		}
	}
}

// finish adds the part to the observation that was read; before is that of an
// earlier one, nil where there was none.
func (p *portReader) finish(ctx context.Context, before *portReader) {
	p.at.part(snapshot.PartPorts, func() error {
		if !p.at.tableRead {
			return errors.New("count used ports: the connection table could not be read")
		}
		p.at.Ports = p.collector.Ports(p.query(before))
		return p.addNarrow(ctx, before)
	})
}

func (p *portReader) query(before *portReader) ports.Query {
	o := p.at
	entries, _ := o.Sysctls.Int(snapshot.ConntrackCount)
	q := ports.Query{
		Complete: o.Table.Complete, Entries: entries, Rules: o.NATRules, Release: o.Kernel.Release,
		Top: snapshotPools, Users: snapshotUsers,
	}
	if before != nil && before.at.tableRead && before.at.Table.Complete {
		q.Before, q.Seconds = before.collector, o.tableMiddle()-before.at.tableMiddle()
	}
	return q
}
