package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// childEnv makes the test binary a natkit that fills, for tests that kill it.
const childEnv = "NATKIT_TEST_FILL"

// childMain fills the namespace of the file descriptor 3. It prints a line when
// it stands, or in the midst of it, and waits to be killed, at most a minute.
func childMain(mode string) int {
	ns, err := netns.At("/proc/self/fd/3", "child")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	mix, err := lab.FindMix("gateway")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	stop := func(made, of int64) {
		if mode == "midway" && made > some/2 {
			fmt.Println("midway")
			time.Sleep(time.Minute)
		}
	}
	_, err = StartFill(context.Background(), FillOptions{Netns: ns, Where: "child", Mix: mix, Target: some, Dir: os.Getenv("DIR"), Progress: stop})
	fmt.Println("filled", err)
	if err != nil {
		return 1
	}
	time.Sleep(time.Minute)
	return 0
}

// TestKilledIsCleaned kills natkit with kill -9, when it stands and in the midst
// of filling.
func TestKilledIsCleaned(t *testing.T) {
	for _, mode := range []string{"standing", "midway"} {
		t.Run(mode, func(t *testing.T) {
			testutil.NeedRoot(t)
			testutil.ShareHost(t)
			ns := testutil.Namespace(t)
			foreign(t, ns, 3, 0)
			killed(t, ns, mode)
		})
	}
}

func killed(t *testing.T, ns *netns.Handle, mode string) {
	t.Helper()
	dir := t.TempDir()
	file, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"="+mode, "DIR="+dir)
	cmd.ExtraFiles = []*os.File{file}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 100)
	n, err := out.Read(line)
	said := strings.TrimSpace(string(line[:n]))
	if err != nil || said != "filled <nil>" && said != "midway" {
		t.Errorf("the child said %q, error %v", said, err)
	}
	if removed, held, err := CleanFills(t.Context(), dir, 0); err != nil || len(removed) > 0 || len(held) != 1 || held[0].PID != cmd.Process.Pid {
		t.Errorf("while it runs: removed %v, held %+v, error %v", removed, held, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if count(t, ns) <= 3 {
		t.Fatal("nothing was left to clean")
	}
	if removed, held, err := CleanFills(t.Context(), dir, ns.Inode()+1); err != nil || len(removed)+len(held) > 0 {
		t.Errorf("of another namespace: removed %v, held %v, error %v", removed, held, err)
	}
	removed, held, err := CleanFills(t.Context(), dir, 0)
	if err != nil || len(removed) != 1 || len(held) > 0 || removed[0].Deleted == 0 || removed[0].Gone || removed[0].Where != "child" {
		t.Errorf("removed %+v, held %v, error %v", removed, held, err)
	}
	if got := count(t, ns); got != 3 {
		t.Errorf("%d entries are left, want 3", got)
	}
	wantNoRecords(t, dir)
}

func TestCleanOfWhatIsGone(t *testing.T) {
	testutil.ShareHost(t)
	ns := testutil.Namespace(t)
	o := options(t, ns, "established", 100)
	o.Keep = true
	f := start(t, o)
	if err := f.Release(); err != nil {
		t.Fatal(err)
	}
	earlier := f.FillRecord
	earlier.Mark++
	file, err := earlier.write(o.Dir)
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
	rebooted := strings.NewReplacer(earlier.BootID, "another-boot")
	text, err := os.ReadFile(recordPath(o.Dir, earlier.Mark))
	if err == nil {
		err = os.WriteFile(recordPath(o.Dir, earlier.Mark), []byte(rebooted.Replace(string(text))), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	ns.Close()
	id := netns.ID{Inode: f.Netns, Cookie: f.NetnsCookie}
	for deadline := time.Now().Add(testutil.Patience(5 * time.Second)); ; time.Sleep(5 * time.Millisecond) {
		still, err := netns.Open(id)
		if errors.Is(err, os.ErrNotExist) {
			break
		}
		if still.Close(); time.Now().After(deadline) {
			t.Fatalf("the namespace does not end: %v", err)
		}
	}
	removed, _, err := CleanFills(t.Context(), o.Dir, 0)
	if err != nil || len(removed) != 2 || !removed[0].Gone || !removed[1].Gone {
		t.Errorf("removed %+v, error %v; want two that were gone", removed, err)
	}
	wantNoRecords(t, o.Dir)
}

// TestCleanOfAnothersNumber: a namespace that came later has the number of one that is
// gone. Entries there are not the fill's, whatever their mark.
func TestCleanOfAnothersNumber(t *testing.T) {
	testutil.ShareHost(t)
	ns, dir, _ := leftBehind(t, func(r *FillRecord) { r.NetnsCookie-- })
	removed, _, err := CleanFills(t.Context(), dir, 0)
	if err != nil || len(removed) != 1 || !removed[0].Gone || removed[0].Deleted != 0 {
		t.Errorf("removed %+v, error %v", removed, err)
	}
	if got := count(t, ns); got != 100 {
		t.Errorf("%d entries are left, want 100", got)
	}
	wantNoRecords(t, dir)
}

// TestCleanInDoubt: a record without a cookie cannot name one namespace among those that
// had its number, and nothing is removed by it.
func TestCleanInDoubt(t *testing.T) {
	testutil.ShareHost(t)
	ns, dir, path := leftBehind(t, func(r *FillRecord) { r.NetnsCookie = 0 })
	removed, _, err := CleanFills(t.Context(), dir, 0)
	if err == nil || len(removed) != 0 || !strings.Contains(err.Error(), fmt.Sprintf("remove %s, ", path)) || strings.Contains(err.Error(), "\n") {
		t.Errorf("removed %+v, error %v", removed, err)
	}
	if got := count(t, ns); got != 100 {
		t.Errorf("%d entries are left, want 100", got)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

// leftBehind fills a namespace with 100 entries and leaves them with a record that change
// has altered. It returns the namespace, the directory of records and the record's path.
func leftBehind(t *testing.T, change func(*FillRecord)) (ns *netns.Handle, dir, path string) {
	t.Helper()
	testutil.NeedFeature(t, testutil.NetnsCookie)
	ns = testutil.Namespace(t)
	o := options(t, ns, "established", 100)
	o.Keep = true
	f := start(t, o)
	path = recordPath(o.Dir, f.Mark)
	if err := errors.Join(f.Release(), os.Remove(path)); err != nil {
		t.Fatal(err)
	}
	former := f.FillRecord
	change(&former)
	file, err := former.write(o.Dir)
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
	return ns, o.Dir, path
}

func TestDamagedRecord(t *testing.T) {
	dir := t.TempDir()
	if removed, held, err := CleanFills(t.Context(), dir, 0); err != nil || len(removed)+len(held) > 0 {
		t.Errorf("without any: removed %v, held %v, error %v", removed, held, err)
	}
	if err := os.MkdirAll(recordDir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	damaged := map[string]string{
		"1.json":        "{",
		"66696c6d.json": `{"schema":"natkit.fill-record/1","mark":1}`,
		"00000000.json": `{"schema":"natkit.fill-record/1","mark":0}`, // would be all that have no mark
		"66696d6d.json": `{"schema":"natkit.fill-record/1","mark":1718185325}`,
	}
	for name, text := range damaged {
		if err := os.WriteFile(filepath.Join(recordDir(dir), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, _, err := CleanFills(t.Context(), dir, 0)
	if err == nil || strings.Count(err.Error(), "is not a natkit.fill-record/1; remove it by hand") != len(damaged) {
		t.Errorf("error %v, want all files named", err)
	}
}

// TestRecordIsWhole: a mark is given once, and its record is locked as soon as it
// can be seen.
func TestRecordIsWhole(t *testing.T) {
	dir := t.TempDir()
	r := FillRecord{Mark: firstMark, Where: "here"}
	file, err := r.write(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.write(dir); !errors.Is(err, os.ErrExist) {
		t.Errorf("a second record of the mark: error %v", err)
	}
	got, again, held, err := findFill(recordPath(dir, firstMark))
	if err != nil || !held || got != r {
		t.Errorf("while it is held: %+v, %v, error %v", got, held, err)
	}
	again.Close()
	file.Close()
	got, again, held, err = findFill(recordPath(dir, firstMark))
	if err != nil || held {
		t.Fatalf("when it is left: %+v, %v, error %v", got, held, err)
	}
	if err := errors.Join(os.Remove(recordPath(dir, firstMark)), again.Close()); err != nil {
		t.Error(err)
	}
	if _, _, _, err := findFill(recordPath(dir, firstMark)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("when it is removed: error %v", err)
	}
	wantNoRecords(t, dir)
}
