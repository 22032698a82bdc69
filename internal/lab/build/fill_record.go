package build

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/permit"
	"github.com/natkit/natkit/internal/tune/journal"
	"golang.org/x/sys/unix"
)

// FillSchema names the JSON form of a FillRecord.
const FillSchema = "natkit.fill-record/1"

// FillRecord describes a fill: enough to remove it. It lies in DIR/fills/MARK.json
// from before the first entry until after the last. The process that makes or keeps up
// the fill holds a lock on the file, which ends with the process, however that ends.
type FillRecord struct {
	Schema string `json:"schema"`
	// Mark is on all of its entries, and on those of no other fill.
	Mark uint32 `json:"mark"`
	// Netns is the namespace's inode, NetnsCookie what a later one of that
	// number differs in (0 before Linux 5.14), Where what it is called.
	Netns       uint64 `json:"netns"`
	NetnsCookie uint64 `json:"netns_cookie,omitempty"`
	Where       string `json:"where"`
	Mix         string `json:"mix"`
	Seed        uint64 `json:"seed"`
	// Entries were to be made.
	Entries int64     `json:"entries"`
	Started time.Time `json:"started_at"`
	// Keep: it was to stay after natkit's end.
	Keep   bool   `json:"keep"`
	PID    int    `json:"pid"`
	BootID string `json:"boot_id"`
	// PIDNamespace (inode) is where the process was, and where the processes can be
	// seen that hold the namespace.
	PIDNamespace uint64 `json:"pid_namespace"`
}

func recordDir(dir string) string { return filepath.Join(dirOr(dir), "fills") }

func recordPath(dir string, mark uint32) string {
	return filepath.Join(recordDir(dir), fmt.Sprintf("%08x.json", mark))
}

// write makes the record's file appear, and fails where one of its mark is there already.
func (r *FillRecord) write(dir string) (*os.File, error) {
	boot, err := journal.ReadBootID("/proc")
	if err != nil {
		return nil, err
	}
	r.Schema, r.PID, r.BootID = FillSchema, os.Getpid(), boot
	r.PIDNamespace = journal.NamespaceInode("/proc", "pid")
	return writeRecord(recordPath(dir, r.Mark), 0o600, r)
}

// findFill reads a record and takes its lock; held reports that another process has it.
func findFill(path string) (r FillRecord, f *os.File, held bool, err error) {
	f, err = disk.LockExisting(path)
	if held = errors.Is(err, unix.EWOULDBLOCK); err != nil && !held {
		f.Close()
		return r, nil, false, err
	}
	err = readRecord(f, FillSchema, &r, &r.Schema)
	// With a mark that no fill can have, 0 above all, entries of others would be removed.
	if err == nil && (r.Mark < firstMark || r.Mark > lastMark || filepath.Base(recordPath("", r.Mark)) != filepath.Base(path)) {
		err = notRecord(path, FillSchema)
	}
	if err != nil {
		f.Close()
	}
	return r, f, held, err
}

// CleanFills removes the fills that were left: those of a natkit that was killed, and
// those that were to stay. Where inode is not 0, only those of that namespace.
// held are those that a running natkit keeps up. It goes on after errors. Needs
// CAP_NET_ADMIN and CAP_SYS_ADMIN.
func CleanFills(ctx context.Context, dir string, inode uint64) (removed []RemovedFill, held []FillRecord, err error) {
	if err := permit.Change("remove entries of the connection table"); err != nil {
		return nil, nil, err
	}
	paths, err := filepath.Glob(filepath.Join(recordDir(dir), "*.json"))
	if err != nil || len(paths) == 0 {
		return nil, nil, err
	}
	var errs []error
	for _, path := range paths {
		r, file, isHeld, err := findFill(path)
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed meanwhile
			continue
		case err != nil:
			errs = append(errs, err)
			continue
		case inode != 0 && r.Netns != inode:
		case isHeld:
			held = append(held, r)
		default:
			one, err := r.clean(ctx, path)
			if err != nil {
				errs = append(errs, fmt.Errorf("remove the fill of %s: %w", r.Where, err))
			} else {
				removed = append(removed, one)
			}
		}
		file.Close()
	}
	return removed, held, errors.Join(errs...)
}

func (r FillRecord) clean(ctx context.Context, path string) (RemovedFill, error) {
	removed := RemovedFill{FillRecord: r}
	ns, err := r.namespace(path)
	if err == nil && ns != nil {
		defer ns.Close()
		removed.Deleted, err = removeMarked(ctx, ns, r.filter())
	}
	if err != nil {
		return removed, err
	}
	removed.Gone = ns == nil
	return removed, os.Remove(path)
}

// namespace is the one of the record at path; nil where it is gone.
func (r FillRecord) namespace(path string) (*netns.Handle, error) {
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
