package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/lab"
)

// byFill chooses the entries of a fill, byLoad those that the load left.
var (
	byFill = dump.Filter{Mark: lab.FillMark, Mask: ^uint32(0)}
	byLoad = dump.Filter{Mark: 0, Mask: ^uint32(0)}
)

// fillRounds bounds how often a fill is topped up where entries expire meanwhile.
const fillRounds = 5

// ClearLoad removes the entries that the load left in the nodes' connection
// tables, and leaves those of a fill.
func (l *Lab) ClearLoad(ctx context.Context) error {
	for _, n := range l.nodes {
		if err := dump.Delete(ctx, n.Netns, byLoad); err != nil {
			return fmt.Errorf("clear the connection table of %s: %w", n.Name, err)
		}
	}
	return nil
}

// SetFill brings the connection table of f.Node to so many entries in all (see
// lab.FillTarget), by entries that the kernel does not evict. It keeps those that
// are there already. A nil f removes all that were made.
func (l *Lab) SetFill(ctx context.Context, f *lab.Fill, entries int64) error {
	if l.fillNode != "" && (f == nil || f.Node != l.fillNode) {
		if err := dump.Delete(ctx, l.Node(l.fillNode).Netns, byFill); err != nil {
			return fmt.Errorf("empty the connection table of %s: %w", l.fillNode, err)
		}
		l.fillNode, l.filled = "", 0
	}
	if f == nil {
		return nil
	}
	l.fillNode = f.Node
	if err := l.fill(ctx, l.Node(f.Node), entries); err != nil {
		return fmt.Errorf("fill the connection table of %s: %w", f.Node, err)
	}
	return nil
}

func (l *Lab) fill(ctx context.Context, n *Node, entries int64) error {
	var usage dump.Usage
	for range fillRounds {
		var err error
		if usage, err = dump.Count(n.Netns); err != nil {
			return err
		}
		missing := entries - usage.Entries
		if missing <= 0 {
			return nil
		}
		if int64(l.filled)+missing > lab.MaxFill {
			return fmt.Errorf("%d entries are more than a fill makes (%d)", int64(l.filled)+missing, lab.MaxFill)
		}
		_, err = dump.Insert(ctx, n.Netns, func(e *conntrack.Entry) bool {
			if missing == 0 {
				return false
			}
			missing--
			lab.FillEntry(l.filled, e)
			l.filled++
			return true
		})
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("%d of %d entries after %d rounds: the kernel loses them as fast as they are made", usage.Entries, entries, fillRounds)
}

// FillTarget is how many entries a table must hold so that free places are left
// below the maximum that the host has now.
func FillTarget(free int64) (int64, error) {
	limit, err := readInt("/proc/sys/net/netfilter/nf_conntrack_max")
	if err != nil {
		return 0, fmt.Errorf("read nf_conntrack_max: %w (needs nf_conntrack in the kernel)", err)
	}
	available, err := memAvailable()
	if err != nil {
		return 0, err
	}
	return lab.FillTarget(limit, free, available)
}

func readInt(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}

// memAvailable is MemAvailable of /proc/meminfo, in bytes.
func memAvailable() (int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("read the memory available: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); n == 1 {
			return kib << 10, nil
		}
	}
	return 0, errors.New("read the memory available: no MemAvailable in /proc/meminfo")
}
