package journal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune"
)

func newJournal(t *testing.T) *Journal {
	t.Helper()
	j, err := At(filepath.Join(t.TempDir(), "state", "journal"))
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func lock(t *testing.T, j *Journal) (unlock func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	unlock, err := j.Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return unlock
}

func TestDir(t *testing.T) {
	env := map[string]string{}
	if got := Dir(func(k string) string { return env[k] }); got != "/var/lib/natkit/journal" {
		t.Errorf("default %s", got)
	}
	env[StateDirEnv] = "/x"
	if got := Dir(func(k string) string { return env[k] }); got != "/x/journal" {
		t.Errorf("with %s: %s", StateDirEnv, got)
	}
}

func TestJournalKeepsWhatItWasGiven(t *testing.T) {
	j := newJournal(t)
	if all, damaged, err := j.List(); len(all)+len(damaged) != 0 || err != nil {
		t.Fatalf("a journal that does not exist: %v %v %v", all, damaged, err)
	}
	defer lock(t, j)()
	var want []*Transaction
	for i := range 3 {
		tx := sample()
		tx.Origin = fmt.Sprint("test ", i)
		if _, err := j.Begin(tx); err != nil {
			t.Fatal(err)
		}
		want = append(want, tx)
	}
	want[1].Changes[0].State = Undone
	if err := j.Save(want[1]); err != nil {
		t.Fatal(err)
	}
	got, damaged, err := j.List()
	if err != nil || damaged != nil {
		t.Fatal(err, damaged)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got[2].ID != "t0003" {
		t.Errorf("third id %s", got[2].ID)
	}
}

func TestDamagedFilesAreReportedAndKept(t *testing.T) {
	j := newJournal(t)
	defer lock(t, j)()
	files := map[string]string{
		"t0001.json": "{", "t0002.json": "", "t0003.json": "\x00\xff", "t0012.json": `{"schema":"natkit.journal/9"}`,
		"notes.txt": "mine", "t1.json": "no id", ".natkit-1.tmp": "of a killed natkit",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(j.Dir(), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tx := sample()
	if _, err := j.Begin(tx); err != nil {
		t.Fatal(err)
	}
	if tx.ID != "t0013" {
		t.Errorf("id %s, want one after every file that is there", tx.ID)
	}
	all, damaged, err := j.List()
	if err != nil || len(all) != 1 || len(damaged) != 4 {
		t.Fatalf("%d good, %v damaged, %v", len(all), damaged, err)
	}
	for _, err := range damaged {
		if !strings.Contains(err.Error(), j.Dir()) {
			t.Errorf("%v does not name the file", err)
		}
	}
	delete(files, ".natkit-1.tmp")
	for name, text := range files {
		if b, err := os.ReadFile(filepath.Join(j.Dir(), name)); err != nil || string(b) != text {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	if _, err := os.Stat(filepath.Join(j.Dir(), ".natkit-1.tmp")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary file of a killed natkit stays: %v", err)
	}
	renamed := filepath.Join(j.Dir(), "t0020.json")
	if err := os.Rename(j.path("t0013"), renamed); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Load("t0020"); err == nil || !strings.Contains(err.Error(), "holds transaction t0013") {
		t.Errorf("a file under another's name: %v", err)
	}
}

func TestLoadRefusesOtherNames(t *testing.T) {
	j := newJournal(t)
	for _, id := range []string{"", "t1", "../t0001", "t0001.json", "T0001"} {
		if _, err := j.Load(id); err == nil || !strings.Contains(err.Error(), "not an id") {
			t.Errorf("%q: %v", id, err)
		}
	}
	if _, err := j.Load("t0001"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
}

func TestLockKeepsOthersOut(t *testing.T) {
	j := newJournal(t)
	unlock := lock(t, j)
	ctx, cancel := context.WithTimeout(t.Context(), 3*lockRetry)
	defer cancel()
	if _, err := j.Lock(ctx); err == nil || !strings.Contains(err.Error(), "another natkit holds it") {
		t.Fatalf("locked twice: %v", err)
	}
	unlock()
	lock(t, j)()
}

func TestJournalOthersCanWriteToIsRefused(t *testing.T) {
	j := newJournal(t)
	lock(t, j)()
	if err := os.Chmod(j.Dir(), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Lock(t.Context()); err == nil || !strings.Contains(err.Error(), "others could forge") {
		t.Errorf("mode 0777: %v", err)
	}
	if os.Geteuid() == 0 {
		if err := errors.Join(os.Chmod(j.Dir(), 0o700), os.Chown(j.Dir(), 65534, 65534)); err != nil {
			t.Fatal(err)
		}
		if _, err := j.Lock(t.Context()); err == nil || !strings.Contains(err.Error(), "uid 65534") {
			t.Errorf("owned by uid 65534: %v", err)
		}
	}
	file, err := At(filepath.Join("/dev/null", "journal"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.Lock(t.Context()); err == nil {
		t.Error("a journal inside a device was locked")
	}
}

func TestOldFinishedTransactionsGo(t *testing.T) {
	j := newJournal(t)
	defer lock(t, j)()
	const extra = 5
	for i := range keepFinished + extra {
		tx := sample()
		tx.ID, tx.UID = fmt.Sprintf("t%04d", i+1), os.Geteuid()
		switch i {
		case 0: // in force
		case 1: // its files are, after a boot
			tx.BootID, tx.Confirm.Confirmed = "boot-0", true
		case 2: // nothing of it is, after a boot
			tx.BootID, tx.Changes = "boot-0", tx.Changes[:1]
		default:
			tx.Changes[0].State, tx.Changes[1].State = Undone, Left
		}
		if err := j.Save(tx); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := j.Begin(sample()); err != nil {
		t.Fatal(err)
	}
	all, _, err := j.List()
	if err != nil {
		t.Fatal(err)
	}
	// The two in force, keepFinished others, the new one.
	if len(all) != keepFinished+3 || all[1].ID != "t0002" || all[2].ID != fmt.Sprintf("t%04d", extra+1) {
		t.Errorf("%d kept, beginning with %s, %s, %s", len(all), all[0].ID, all[1].ID, all[2].ID)
	}
}

func ownerFiles(t *testing.T, j *Journal) int {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(j.Dir(), "*"+ownerSuffix))
	if err != nil {
		t.Fatal(err)
	}
	return len(paths)
}

func TestOwnersLock(t *testing.T) {
	j := newJournal(t)
	defer lock(t, j)()
	runs := func(tx *Transaction) bool {
		t.Helper()
		now, err := j.Reload(tx)
		if err != nil {
			t.Fatal(err)
		}
		return now.OwnerRuns
	}
	first := sample()
	end, err := j.Begin(first)
	if err != nil {
		t.Fatal(err)
	}
	first.Changes[0].State = Planned
	if err := errors.Join(j.Note(first, 0), j.Save(first)); err != nil {
		t.Fatal(err)
	}
	if !runs(first) {
		t.Error("the owner is not seen")
	}
	end()
	if runs(first) || ownerFiles(t, j) != 0 {
		t.Error("the owner is seen after its end")
	}
	// What a killed one has left goes with the next Begin, and nothing else does.
	left := j.ownerPath(first)
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if runs(first) {
		t.Error("a file without a lock is an owner")
	}
	for range 2 {
		end, err := j.Begin(sample())
		if err != nil {
			t.Fatal(err)
		}
		defer end()
	}
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) || ownerFiles(t, j) != 2 {
		t.Errorf("%v, %d files of owners", err, ownerFiles(t, j))
	}
}

// TestManyChanges: what is written can be read back, and what could not be is not begun.
func TestManyChanges(t *testing.T) {
	j := newJournal(t)
	defer lock(t, j)()
	many := sample()
	many.Changes = nil
	for i := range 6000 {
		many.Changes = append(many.Changes, Change{Change: tune.Change{
			Kind: tune.Sysctl, Target: fmt.Sprintf("net.ipv4.conf.eth%d.rp_filter", i), Before: "1", After: "2"}, State: Planned})
	}
	end, err := j.Begin(many)
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	begun, err := os.Stat(j.path(many.ID))
	if err != nil {
		t.Fatal(err)
	}
	for i := range many.Changes {
		many.Changes[i].State = Applied
		if err := j.Note(many, i); err != nil {
			t.Fatal(err)
		}
	}
	if noted, err := os.Stat(j.path(many.ID)); err != nil || !os.SameFile(begun, noted) {
		t.Errorf("all of it was written again: %v", err)
	}
	for _, read := range []string{"noted", "saved"} {
		if got, err := j.Load(many.ID); err != nil {
			t.Errorf("%s: %v", read, err)
		} else if diff := cmp.Diff(many, got); diff != "" {
			t.Errorf("%s: %s", read, diff)
		}
		if err := j.Save(many); err != nil {
			t.Fatal(err)
		}
	}
	huge := sample()
	huge.Changes[0].Before = strings.Repeat("1", maxBeginBytes)
	if _, err := j.Begin(huge); err == nil || !strings.Contains(err.Error(), "change less at a time") {
		t.Errorf("%v", err)
	}
	if all, damaged, err := j.List(); len(all) != 1 || len(damaged) != 0 || err != nil || ownerFiles(t, j) != 1 {
		t.Errorf("%d transactions, %v, %v, %d files of owners", len(all), damaged, err, ownerFiles(t, j))
	}
}

func TestFullDisk(t *testing.T) {
	if err := onFullDisk(testutil.SmallDisk(t, "64k")); err != nil {
		t.Error(err)
	}
}

func onFullDisk(dir string) error {
	j, err := At(filepath.Join(dir, "journal"))
	if err != nil {
		return err
	}
	unlock, err := j.Lock(context.Background())
	if err != nil {
		return err
	}
	defer unlock()
	first := sample()
	if _, err := j.Begin(first); err != nil {
		return err
	}
	if err := fill(filepath.Join(dir, "rest")); err != nil {
		return err
	}
	if _, err := j.Begin(sample()); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), StateDirEnv) {
		return fmt.Errorf("a new transaction on a full disk: %v; want ENOSPC and what to do", err)
	}
	first.Origin = "changed"
	if err := j.Save(first); !errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("a changed transaction on a full disk: %v", err)
	}
	all, damaged, err := j.List()
	if err != nil || len(damaged) != 0 || len(all) != 1 || all[0].Origin != "tune" {
		return fmt.Errorf("the former journal is not as it was: %v %v %v", all, damaged, err)
	}
	entries, err := os.ReadDir(j.Dir())
	if err != nil || len(entries) != 3 {
		return fmt.Errorf("want the lock, one transaction and its owner's lock, got %v, %v", entries, err)
	}
	return nil
}

func fill(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for range 1000 {
		if _, err := f.Write(make([]byte, 4096)); errors.Is(err, unix.ENOSPC) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return errors.New("the small disk never becomes full")
}

func TestIDsThatBeginAgainAreOtherTransactions(t *testing.T) {
	j := newJournal(t)
	first, second := sample(), sample()
	for _, tx := range []*Transaction{first, second} {
		unlock := lock(t, j)
		if _, err := j.Begin(tx); err != nil {
			t.Fatal(err)
		}
		if now, err := j.Reload(tx); err != nil || !now.Is(tx) {
			t.Errorf("%+v, %v", now, err)
		}
		unlock()
		if tx == first {
			if err := os.RemoveAll(j.Dir()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if first.ID != second.ID || first.Is(second) {
		t.Errorf("%+v is %+v", first, second)
	}
	if now, err := j.Reload(first); !errors.Is(err, os.ErrNotExist) || now != nil {
		t.Errorf("%+v, %v", now, err)
	}
}

func TestLockExistingDoesNotMakeAJournal(t *testing.T) {
	j := newJournal(t)
	if _, err := j.LockExisting(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if _, err := os.Lstat(j.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// A lock whose file was deleted excludes no process.
func TestLockIsTheFileThatIsThere(t *testing.T) {
	j := newJournal(t)
	first := lock(t, j)
	defer first()
	if err := os.Remove(filepath.Join(j.Dir(), "lock")); err != nil {
		t.Fatal(err)
	}
	second := lock(t, j)
	defer second()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := j.Lock(ctx); !errors.Is(err, ErrBusy) {
		t.Errorf("%v", err)
	}
}

func TestJournalThatOthersCouldReplaceIsRefused(t *testing.T) {
	testutil.NeedRoot(t)
	for name, c := range map[string]struct {
		prepare func(j *Journal) error
		want    string
	}{
		"link": {func(j *Journal) error {
			to := filepath.Join(filepath.Dir(j.Dir()), "to")
			return errors.Join(os.Mkdir(to, 0o700), os.Symlink(to, j.Dir()))
		}, "link or file"},
		"parent of everyone": {func(j *Journal) error { return os.Chmod(filepath.Dir(j.Dir()), 0o777) }, "another one there"},
		"parent of another":  {func(j *Journal) error { return os.Chown(filepath.Dir(j.Dir()), 65534, 0) }, "uid 65534"},
		"sticky parent":      {func(j *Journal) error { return os.Chmod(filepath.Dir(j.Dir()), 0o777|os.ModeSticky) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJournal(t)
			if err := errors.Join(os.Mkdir(filepath.Dir(j.Dir()), 0o755), c.prepare(j)); err != nil {
				t.Fatal(err)
			}
			unlock, err := j.Lock(t.Context())
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				unlock()
				return
			}
			_, _, listErr := j.List()
			for _, err := range []error{err, listErr} {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v; want %q", err, c.want)
				}
			}
		})
	}
}
