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

// losses bounds how many entries are made where they expire meanwhile: so many
// times those that were missing.
const losses = 5

// chunk is how many entries are made between two looks at the table, which real
// connections fill too: a few milliseconds. Beyond the limit each entry more would
// push out one of theirs.
const chunk = 4096

// Insert brings the table of a namespace (nil: this one) to target entries in
// all, by entries of f from the number first on. It returns how many it made;
// after an error up to a batch (about 150) more may be there. progress, where set,
// is told how many of how many are made. Needs CAP_NET_ADMIN.
func Insert(ctx context.Context, ns *netns.Handle, f *lab.Filler, first, target int64, progress func(made, of int64)) (made int64, err error) {
	wanted := int64(0) // what was missing at first
	for {
		usage, err := dump.Count(ns)
		if err != nil {
			return made, err
		}
		missing := target - usage.Entries
		if made == 0 {
			wanted = missing
		}
		if room := f.Room(); missing > 0 && first+made+missing > room {
			return made, fmt.Errorf("%d entries are wanted, mix %s makes %d", first+made+missing, f.Mix().Name, room)
		}
		switch {
		case missing <= 0:
			return made, nil
		case made >= losses*wanted && made > 0:
			return made, fmt.Errorf("%d of %d entries after %d were made: the kernel loses them as fast as they are made", usage.Entries, target, made)
		}
		n, err := insert(ctx, ns, f, first+made, min(missing, chunk))
		made += n
		if err != nil {
			return made, err
		}
		if progress != nil {
			progress(made, made+missing-n)
		}
	}
}

func insert(ctx context.Context, ns *netns.Handle, f *lab.Filler, first, n int64) (int64, error) {
	made, err := dump.Insert(ctx, ns, nextOf(f, first, n))
	if errors.Is(err, dump.ErrExists) {
		err = fmt.Errorf("%w; another fill has it ('natkit lab fill --remove' removes what was left), or a connection: a mix with other addresses or ports does without it", err)
	}
	return made, err
}

// nextOf hands out n entries.
func nextOf(f *lab.Filler, first, n int64) func(*conntrack.Entry) bool {
	i := int64(0)
	return func(e *conntrack.Entry) bool {
		if i == n {
			return false
		}
		f.Entry(first+i, e)
		i++
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
