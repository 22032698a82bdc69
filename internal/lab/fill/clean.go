package fill

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/tune/journal"
)

// Clean removes the fills that were left: those of a natkit that was killed, and
// those that were to stay. Where inode is not 0, only those of that namespace.
// held are those that a running natkit keeps up. It goes on after errors. Needs
// CAP_NET_ADMIN and CAP_SYS_ADMIN.
func Clean(ctx context.Context, dir string, inode uint64) (removed []Removed, held []Record, err error) {
	paths, err := filepath.Glob(filepath.Join(recordDir(dir), "*.json"))
	if err != nil || len(paths) == 0 {
		return nil, nil, err
	}
	c := cleaner{}
	defer func() { netns.CloseAll(c.all) }()
	var errs []error
	for _, path := range paths {
		r, err := find(path)
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed meanwhile
		case err != nil:
			errs = append(errs, err)
		case inode != 0 && r.Netns != inode:
			r.release()
		case r.file == nil:
			held = append(held, r.Record)
		default:
			one, err := c.clean(ctx, r)
			if err != nil {
				errs = append(errs, fmt.Errorf("remove the fill of %s: %w", r.Where, err))
				continue
			}
			removed = append(removed, one)
		}
	}
	return removed, held, errors.Join(errs...)
}

func (r *found) release() {
	if r.file != nil {
		r.file.Close()
	}
}

// cleaner has the namespaces of the host, once it needed them.
type cleaner struct{ all []*netns.Handle }

func (c *cleaner) clean(ctx context.Context, r *found) (Removed, error) {
	removed := Removed{Record: r.Record}
	ns, err := c.find(r.Record)
	if err == nil && ns != nil {
		removed.Entries, err = remove(ctx, ns, r.filter())
	}
	if err != nil {
		r.release()
		return removed, err
	}
	removed.Gone = ns == nil
	return removed, r.forget()
}

// initialPIDNamespace is the inode that the first PID namespace always has
// (PROC_PID_INIT_INO, include/linux/proc_ns.h).
const initialPIDNamespace = 0xEFFFFFFC

// find is the namespace of a record; nil where it is gone.
func (c *cleaner) find(r Record) (*netns.Handle, error) {
	boot, err := journal.ReadBootID("/proc")
	if err != nil || boot != r.BootID {
		return nil, err
	}
	if c.all == nil {
		if c.all, err = netns.All(); err != nil {
			return nil, err
		}
	}
	for _, ns := range c.all {
		if ns.Inode() == r.Netns {
			return ns, nil
		}
	}
	// From inside a container the host's namespaces are not to be seen.
	if here := journal.NamespaceInode("/proc", "pid"); here != r.PIDNamespace && here != initialPIDNamespace {
		return nil, fmt.Errorf("its network namespace (%d) cannot be seen from this PID namespace: run natkit on the host", r.Netns)
	}
	return nil, nil
}
