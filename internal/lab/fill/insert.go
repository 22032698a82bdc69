// Package fill fills the connection table of a network namespace with the entries
// of a lab.Mix, and removes exactly these. What it has filled it writes down
// first, so that another natkit can remove it.
package fill

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
	"github.com/natkit/natkit/internal/netns"
)

// rounds bounds how often a fill is topped up where entries expire meanwhile.
const rounds = 5

// reportEvery is how many entries lie between two calls of a progress function: a
// few milliseconds.
const reportEvery = 4096

// Insert brings the table of a namespace (nil: this one) to target entries in
// all, by entries of f from the number first on. It returns how many it made;
// after an error up to a batch (about 150) more may be there. progress, where set,
// is told how many of how many are made. Needs CAP_NET_ADMIN.
func Insert(ctx context.Context, ns *netns.Handle, f *lab.Filler, first, target int64, progress func(made, of int64)) (made int64, err error) {
	var usage dump.Usage
	for range rounds {
		if usage, err = dump.Count(ns); err != nil {
			return made, err
		}
		missing := target - usage.Entries
		if missing <= 0 {
			return made, nil
		}
		if room := f.Room(); first+made+missing > room {
			return made, fmt.Errorf("%d entries are wanted, mix %s makes %d", first+made+missing, f.Mix().Name, room)
		}
		n, err := insert(ctx, ns, f, first+made, missing, progress)
		made += n
		if err != nil {
			return made, err
		}
	}
	if usage, err = dump.Count(ns); err != nil || usage.Entries >= target {
		return made, err
	}
	return made, fmt.Errorf("%d of %d entries after %d rounds: the kernel loses them as fast as they are made", usage.Entries, target, rounds)
}

func insert(ctx context.Context, ns *netns.Handle, f *lab.Filler, first, n int64, progress func(made, of int64)) (int64, error) {
	made, err := dump.Insert(ctx, ns, nextOf(f, first, n, progress))
	if errors.Is(err, dump.ErrExists) {
		err = fmt.Errorf("%w; another fill has it ('natkit lab fill --remove' removes what was left): another mix or seed does without it", err)
	}
	return made, err
}

// nextOf hands out n entries.
func nextOf(f *lab.Filler, first, n int64, progress func(made, of int64)) func(*conntrack.Entry) bool {
	i := int64(0)
	return func(e *conntrack.Entry) bool {
		if i == n {
			return false
		}
		f.Entry(first+i, e)
		if i++; progress != nil && i%reportEvery == 0 {
			progress(i, n)
		}
		return true
	}
}

// Max is nf_conntrack_max, which holds for every namespace by itself; 0 is no
// limit.
func Max() (int64, error) {
	n, err := readInt("/proc/sys/net/netfilter/nf_conntrack_max")
	if err != nil {
		return 0, fmt.Errorf("read nf_conntrack_max: %w (needs nf_conntrack in the kernel)", err)
	}
	return n, nil
}

func readInt(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}

// MemAvailable is MemAvailable of /proc/meminfo, in bytes.
func MemAvailable() (int64, error) {
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
