// Package dump speaks ctnetlink with the kernel: it reads the connection table
// and its counters, and writes and deletes entries. Only Watch subscribes to
// events, which slows the tracker down; nothing else here does.
package dump

import (
	"errors"
	"fmt"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/netlink"
)

// ErrStop ends a Dump early without an error when fn returns it.
var ErrStop = errors.New("stop the dump")

// Result reports the outcome of a Dump.
type Result struct {
	// Bytes were handed to fn.
	Bytes int64
	// Complete is true if the kernel reported the end of the table.
	Complete bool
	// Interrupted: entries may be missing or doubled, as the hash table was resized
	// meanwhile (nf_conntrack_buckets is not what it was before), or the kernel
	// says so (NLM_F_DUMP_INTR).
	Interrupted bool
	// Attempts is how often the dump was begun, 1 unless it was begun again.
	Attempts int
}

// Interruption explains how far an interrupted dump is usable; empty if it was not interrupted.
func (r Result) Interruption() string {
	switch {
	case !r.Interrupted:
		return ""
	case r.Attempts > 1:
		return fmt.Sprintf("the table was resized during each of %d dumps: entries may be missing or doubled", r.Attempts)
	default:
		return "the table was resized during the dump: entries may be missing or doubled"
	}
}

// Usage is how full the table of a namespace is.
type Usage struct {
	// Entries is nf_conntrack_count.
	Entries int64
	// Max is nf_conntrack_max; 0 if the kernel does not report it here (before
	// Linux 4.18) or there is no limit.
	Max int64
}

// AppendStats decodes the counters in a datagram of DumpStats.
func AppendStats(cpus []map[string]uint64, msgs []byte) ([]map[string]uint64, error) {
	for len(msgs) > 0 {
		m, rest, err := netlink.Next(msgs)
		if err != nil {
			return nil, err
		}
		msgs = rest
		if m.Type != conntrack.GetStatsCPU {
			continue
		}
		cpu, err := conntrack.StatsCPU(m.Body)
		if err != nil {
			return nil, err
		}
		cpus = append(cpus, cpu)
	}
	return cpus, nil
}
