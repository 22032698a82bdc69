// Package journal remembers on disk what natkit changes on a host, before it is
// changed, so that it can be undone by another process, after a crash, or after
// a reboot.
package journal

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/units"
)

const (
	// DefaultDir survives reboots, which /run does not.
	DefaultDir = "/var/lib/natkit/journal"
	// StateDirEnv names the environment variable that replaces /var/lib/natkit.
	StateDirEnv = "NATKIT_STATE_DIR"

	suffix = ".json"
	// ownerSuffix is that of the file whose lock the owner of a transaction holds.
	ownerSuffix = ".owner"
	// fileMode lets the directory's group read what root writes.
	fileMode = 0o640
	// keepFinished transactions are kept for reading; older ones are deleted.
	keepFinished = 50
	lockRetry    = 20 * time.Millisecond
)

// Dir is the journal's directory, given the environment.
func Dir(getenv func(string) string) string {
	if state := getenv(StateDirEnv); state != "" {
		return filepath.Join(state, "journal")
	}
	return DefaultDir
}

// Journal is a directory with one file per transaction. Only its owner may
// enter it: a user who can write there makes root undo anything, and one who can open
// the lock can stop every undo. It may be a sticky one of a group, for a service with a
// user of its own: what such a user writes is his (Transaction.Foreign), and he can
// neither change nor remove what root wrote.
type Journal struct{ dir string }

// At uses a directory, which Lock creates where it is missing. The path is made
// absolute, as the guard process runs in another working directory.
func At(dir string) (*Journal, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open journal %s: %w", dir, err)
	}
	return &Journal{dir: abs}, nil
}

// Dir is the absolute path.
func (j *Journal) Dir() string { return j.dir }

// ErrBusy: another natkit holds the lock.
var ErrBusy = errors.New("another natkit holds it")

// Lock keeps other natkits from changing the host or the journal until unlock is
// called or the process ends. It waits as long as ctx allows; the error then is
// ErrBusy.
func (j *Journal) Lock(ctx context.Context) (unlock func(), err error) {
	if err := disk.MakeTrusted(j.dir); err != nil {
		return nil, fmt.Errorf("create journal: %w", Hint(err))
	}
	return j.lock(ctx)
}

// LockExisting is Lock, but does not recreate a deleted journal: the error then is
// fs.ErrNotExist.
func (j *Journal) LockExisting(ctx context.Context) (unlock func(), err error) {
	if err := j.trust(); err != nil {
		return nil, err
	}
	return j.lock(ctx)
}

func (j *Journal) lock(ctx context.Context) (unlock func(), err error) {
	path := filepath.Join(j.dir, "lock")
	tick := time.NewTicker(lockRetry)
	defer tick.Stop()
	for {
		f, err := tryLock(path)
		if err != nil {
			return nil, err
		}
		if f != nil {
			return func() { f.Close() }, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("lock journal %s: %w: %w; `fuser %s` names it", path, ErrBusy, ctx.Err(), path)
		case <-tick.C:
		}
	}
}

// tryLock returns the locked file, or nil where another holds it. On a file system that
// became read-only it is locked all the same: values can be put back, even if that cannot
// be written down.
func tryLock(path string) (*os.File, error) {
	f, err := disk.TryLock(path)
	if err != nil && f != nil {
		f.Close()
	}
	switch {
	case err == nil:
		return f, nil
	case errors.Is(err, unix.EWOULDBLOCK), errors.Is(err, unix.EINTR):
		return nil, nil
	}
	return nil, fmt.Errorf("lock journal %s: %w", path, Hint(err))
}

// trust refuses a journal that others could have written, or could replace.
func (j *Journal) trust() error {
	if err := disk.Trust(j.dir); err != nil {
		return fmt.Errorf("open journal %w", Hint(err))
	}
	return nil
}

// Hint adds to the refusal of a file system what to do about it.
func Hint(err error) error {
	switch {
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w; mount it for writing, or set %s to a directory on another disk", err, StateDirEnv)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w; run it as root, or set %s to a directory that you can write to", err, StateDirEnv)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("%w; free some space, or set %s to a directory on another disk", err, StateDirEnv)
	}
	return err
}

// Begin gives the transaction its id and its nonce, makes this process its owner until
// end or its own end, and writes it to disk. The lock must be held.
func (j *Journal) Begin(t *Transaction) (end func(), err error) {
	names, err := j.names()
	if err != nil {
		return nil, err
	}
	last := 0
	for _, id := range names {
		n, _ := idNumber(id)
		last = max(last, n)
	}
	t.Nonce, t.UID = rand.Text(), os.Geteuid()
	t.Schema, t.ID = Schema, fmt.Sprintf("t%04d", last+1)
	if _, ok := idNumber(t.ID); !ok {
		return nil, fmt.Errorf("write journal: no id is left after t%04d in %s; move that file away", last, j.dir)
	}
	j.prune(t.BootID)
	if end, err = j.own(t); err != nil {
		return nil, err
	}
	if err = j.save(t, maxBeginBytes); err != nil {
		end()
		return nil, err
	}
	return end, nil
}

// own takes the owner's lock, before the transaction is visible to other processes.
func (j *Journal) own(t *Transaction) (end func(), err error) {
	path := j.ownerPath(t)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("write journal: %w", Hint(err))
	}
	if err := cmp.Or(disk.Lock(f), f.Chmod(fileMode)); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	t.OwnerLock, t.OwnerRuns = true, true
	return func() { os.Remove(path); f.Close() }, nil
}

func (j *Journal) ownerPath(t *Transaction) string {
	return filepath.Join(j.dir, t.ID+"-"+t.Nonce+ownerSuffix)
}

// Save writes the transaction so that after a crash of the machine either the
// former or the new text is there. The lock must be held.
func (j *Journal) Save(t *Transaction) error { return j.save(t, maxFileBytes) }

// save does not write what could not be read back.
func (j *Journal) save(t *Transaction, limit int) error {
	text, err := t.encode()
	if err != nil {
		return err
	}
	if len(text) > limit {
		return fmt.Errorf("write journal: the transaction has %s, at most %s are allowed; change less at a time", units.Bytes(int64(len(text))), units.Bytes(int64(limit)))
	}
	err = disk.Replace(j.path(t.ID), fileMode, func(w io.Writer) error {
		if f, ok := w.(*os.File); ok && t.UID != os.Geteuid() { // it stays his
			if err := f.Chown(t.UID, -1); err != nil {
				return err
			}
		}
		return disk.Text(text)(w)
	})
	if err != nil {
		return fmt.Errorf("write journal: %w", Hint(err))
	}
	return nil
}

// Note writes what became of one change, for who undoes the transaction should this
// process die. A crash of the machine may take it away: then live values are void, and
// for a file its content shows whether it was written. The lock must be held.
func (j *Journal) Note(t *Transaction, change int) error {
	c := t.Changes[change]
	line, err := json.Marshal(update{change, c.After, c.State, c.Note})
	if err != nil {
		return fmt.Errorf("encode transaction %s: %w", t.ID, err)
	}
	if j.extend(t, append(line, '\n')) != nil { // half a line may be there, which goes with the whole text
		return j.Save(t)
	}
	return nil
}

// extend appends to the file of a transaction. In the directory of a group its writer may
// have put something else in its place: a pipe, on which an open waits, or a link to a
// file that is not his.
func (j *Journal) extend(t *Transaction, text []byte) error {
	f, err := os.OpenFile(j.path(t.ID), os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &st)
	if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != t.UID || st.Nlink != 1) {
		err = errors.New("another file is there")
	}
	if err == nil {
		_, err = f.Write(text)
	}
	return cmp.Or(err, f.Close())
}

func (j *Journal) path(id string) string { return filepath.Join(j.dir, id+suffix) }

// Load reads one transaction.
func (j *Journal) Load(id string) (*Transaction, error) {
	if !IsID(id) {
		return nil, fmt.Errorf("transaction %q: not an id such as t0001; 'natkit tune list' shows them", id)
	}
	if err := j.trust(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	f, err := os.OpenFile(j.path(id), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("transaction %s: %w in %s; 'natkit tune list' shows what is there", id, fs.ErrNotExist, j.dir)
	}
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", Hint(err))
	}
	defer f.Close()
	t, err := read(f)
	if err == nil && t.ID != id {
		t, err = nil, fmt.Errorf("holds transaction %s", t.ID)
	}
	if errors.Is(err, errSchema) {
		return nil, fmt.Errorf("read journal %s: %w: use the natkit that wrote it", j.path(id), err)
	}
	if err != nil {
		return nil, fmt.Errorf("read journal %s: %w; natkit cannot undo what it held: put that back by hand, and move the file away", j.path(id), err)
	}
	t.OwnerRuns = t.OwnerLock && disk.IsHeld(j.ownerPath(t))
	return t, nil
}

// Reload reads what became of a transaction. Where the file was deleted, or its
// id is another transaction's by now, the error is fs.ErrNotExist.
func (j *Journal) Reload(t *Transaction) (*Transaction, error) {
	now, err := j.Load(t.ID)
	if err == nil && !now.Is(t) {
		return nil, fmt.Errorf("transaction %s: %w any more: its id in %s is another's by now", t.ID, fs.ErrNotExist, j.dir)
	}
	return now, err
}

// List reads every transaction, oldest first. Files that cannot be read are
// reported in damaged and otherwise left alone. A missing journal is empty.
func (j *Journal) List() (all []*Transaction, damaged []error, err error) {
	names, err := j.names()
	if err != nil {
		return nil, nil, err
	}
	for _, id := range names {
		t, err := j.Load(id)
		switch {
		case errors.Is(err, fs.ErrNotExist): // pruned meanwhile
		case err != nil:
			damaged = append(damaged, err)
		default:
			all = append(all, t)
		}
	}
	return all, damaged, nil
}

// names are the ids for which there is a file, in order of time.
func (j *Journal) names() ([]string, error) {
	if err := j.trust(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	entries, err := os.ReadDir(j.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", Hint(err))
	}
	var ids []string
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), suffix)
		if _, isID := idNumber(id); ok && isID {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b string) int {
		x, _ := idNumber(a)
		y, _ := idNumber(b)
		return cmp.Compare(x, y)
	})
	return ids, nil
}

// prune deletes transactions beyond keepFinished of which nothing can be undone, and what
// natkits that were killed have left. Failing is no reason not to go on.
func (j *Journal) prune(bootID string) {
	all, _, err := j.List()
	if err != nil {
		return
	}
	all = slices.DeleteFunc(all, func(t *Transaction) bool { return !t.Finished() && !t.isVoid(bootID) })
	for i := 0; i < len(all)-keepFinished; i++ {
		os.Remove(j.path(all[i].ID))
	}
	disk.RemoveLeftovers(j.dir)
	locks, _ := filepath.Glob(filepath.Join(j.dir, "*"+ownerSuffix))
	for _, path := range locks {
		if !disk.IsHeld(path) {
			os.Remove(path)
		}
	}
}
