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
			one, err := clean(ctx, r)
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

func clean(ctx context.Context, r *found) (Removed, error) {
	removed := Removed{Record: r.Record}
	ns, err := r.namespace(r.path)
	if err == nil && ns != nil {
		removed.Entries, err = remove(ctx, ns, r.filter())
	}
	removed.Gone = ns == nil
	ns.Close()
	if err != nil {
		r.release()
		return removed, err
	}
	return removed, r.forget()
}

// namespace is the one of a record; nil where it is gone.
func (r Record) namespace(path string) (*netns.Handle, error) {
	boot, err := journal.ReadBootID("/proc")
	if err != nil || boot != r.BootID {
		return nil, err
	}
	id := netns.ID{Inode: r.Netns, Cookie: r.NetnsCookie, SeenFrom: r.PIDNamespace}
	ns, err := netns.Open(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if initial, err := journal.InitialNamespace("/proc", "net"); err == nil && initial == r.Netns { // which never goes
		return ns, nil
	}
	if err := id.Certain(ns); err != nil {
		ns.Close()
		return nil, fmt.Errorf("%w: remove %s, and where entries of it are there, 'natkit conntrack delete --mark %#x'", err, path, r.Mark)
	}
	return ns, nil
}
