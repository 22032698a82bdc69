package fill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/tune/journal"
	"golang.org/x/sys/unix"
)

// RecordSchema names the JSON form of a Record.
const RecordSchema = "natkit.fill-record/1"

// Record is what is known of a fill: enough to remove it. It lies in
// DIR/fills/MARK.json from before the first entry until after the last. Whoever
// makes or keeps up the fill holds a lock on the file, which ends with the
// process, however that ends.
type Record struct {
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

// DefaultDir is where fills are written down.
const DefaultDir = "/run/natkit"

func recordDir(dir string) string {
	if dir == "" {
		dir = DefaultDir
	}
	return filepath.Join(dir, "fills")
}

func recordPath(dir string, mark uint32) string {
	return filepath.Join(recordDir(dir), fmt.Sprintf("%08x.json", mark))
}

// write makes the record's file appear, and fails where one of its mark is there already.
func (r *Record) write(dir string) (*os.File, error) {
	boot, err := journal.ReadBootID("/proc")
	if err != nil {
		return nil, err
	}
	r.Schema, r.PID, r.BootID = RecordSchema, os.Getpid(), boot
	r.PIDNamespace = journal.NamespaceInode("/proc", "pid")
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(recordDir(dir), 0o755); err != nil {
		return nil, err
	}
	return disk.CreateLocked(recordPath(dir, r.Mark), 0o600, append(text, '\n'))
}

// found is a record and its locked file; nil where somebody else has the lock.
type found struct {
	Record
	file *os.File
	path string
}

// find reads a record and takes its lock where it is free.
func find(path string) (*found, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	r := &found{file: f, path: path}
	if !r.read() {
		f.Close()
		return nil, fmt.Errorf("%s is not a %s; remove it by hand", path, RecordSchema)
	}
	err = disk.Lock(f)
	if errors.Is(err, unix.EWOULDBLOCK) {
		f.Close()
		r.file = nil
		return r, nil
	}
	if err == nil {
		err = isStill(f, path)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return r, nil
}

// read reports whether the file is a record of its mark. With a mark that no fill can
// have, 0 above all, entries of others would be removed.
func (r *found) read() bool {
	info, err := r.file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	err = json.NewDecoder(io.LimitReader(r.file, 1<<16)).Decode(&r.Record)
	return err == nil && r.Schema == RecordSchema && r.Mark >= firstMark && r.Mark <= lastMark &&
		filepath.Base(recordPath("", r.Mark)) == filepath.Base(r.path)
}

// isStill fails where the file was removed before it was locked.
func isStill(f *os.File, path string) error {
	here, err := f.Stat()
	if err != nil {
		return err
	}
	there, err := os.Stat(path)
	if err == nil && !os.SameFile(here, there) {
		err = fs.ErrNotExist
	}
	return err
}

// forget removes the record.
func (r *found) forget() error { return errors.Join(os.Remove(r.path), r.file.Close()) }

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
		removed.Deleted, err = remove(ctx, ns, r.filter())
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
