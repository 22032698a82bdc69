package cli

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// tuneBench runs `natkit tune` on a folder in the place of the host.
type tuneBench struct {
	t   *testing.T
	dir string
}

const tuneMax = "net.netfilter.nf_conntrack_max"

// slabinfo has 1,000,000 entries of 320 bytes in use, and room for 24,000 more in its slabs.
const slabinfo = `slabinfo - version: 2.1
# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables <limit> <batchcount> <sharedfactor> : slabdata <active_slabs> <num_slabs> <sharedavail>
nf_conntrack      1000000 1000000    320   25    2 : tunables    0    0    0 : slabdata  40000  40000      0
kmalloc-128       1000000 1000000    128   32    1 : tunables    0    0    0 : slabdata  31250  31250      0`

// transaction loads one from the journal.
func (b tuneBench) transaction(id string) (*journal.Journal, *journal.Transaction) {
	b.t.Helper()
	j, err := journal.At(filepath.Join(b.dir, "state/journal"))
	if err != nil {
		b.t.Fatal(err)
	}
	tx, err := j.Load(id)
	if err != nil {
		b.t.Fatal(err)
	}
	return j, tx
}

func newTuneBench(t *testing.T) tuneBench {
	b := tuneBench{t, t.TempDir()}
	for path, text := range map[string]string{
		"proc/sys/kernel/random/boot_id":              "boot-a",
		"proc/sys/net/netfilter/nf_conntrack_max":     "1000",
		"proc/sys/net/netfilter/nf_conntrack_count":   "600",
		"proc/sys/net/netfilter/nf_conntrack_buckets": "512",
		"proc/sys/net/core/somaxconn":                 "128",
		"proc/sys/kernel/modules_disabled":            "0",
		"proc/slabinfo":                               slabinfo,
		"proc/meminfo":                                "MemTotal: 1024 kB",
		"root/etc/sysctl.d/99-mine.conf":              tuneMax + "=5",
	} {
		b.write(path, text)
	}
	self := strconv.Itoa(os.Getpid())
	if err := os.Symlink("/proc/"+self, filepath.Join(b.dir, "proc", self)); err != nil {
		t.Fatal(err)
	}
	for _, process := range []string{"1", "thread-self"} {
		link := filepath.Join(b.dir, "proc", process, "ns/net")
		if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.Symlink("net:[4026531840]", link)); err != nil {
			t.Fatal(err)
		}
	}
	// Also where the test fails: no guard outlives it.
	t.Cleanup(func() { b.run("tune", "undo", "--all") })
	return b
}

func (b tuneBench) write(path, text string) {
	b.t.Helper()
	path = filepath.Join(b.dir, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text+"\n"), 0o644)); err != nil {
		b.t.Fatal(err)
	}
}

func (b tuneBench) host() tuneHost {
	return tuneHost{filepath.Join(b.dir, "proc"), filepath.Join(b.dir, "root")}
}

func (b tuneBench) env(out, errs io.Writer) *Env {
	return &Env{Stdin: strings.NewReader(""), Stdout: out, Stderr: errs, Getenv: func(k string) string {
		if k == journal.StateDirEnv {
			return filepath.Join(b.dir, "state")
		}
		return ""
	}}
}

func (b tuneBench) run(args ...string) (code int, stdout, stderr string) {
	b.t.Helper()
	var out, errs bytes.Buffer
	env := b.env(&out, &errs)
	root := &cobra.Command{Use: "natkit", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(tuneCommand(env, b.host()))
	setUp(root, env)
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&errs)
	cmd, err := root.ExecuteContextC(context.Background())
	return exitCode(&errs, cmd, err), out.String(), errs.String()
}

// must runs a command that has to succeed and say all of want, however it is laid
// out.
func (b tuneBench) must(args []string, want ...string) string {
	b.t.Helper()
	code, out, errs := b.run(args...)
	if code != exitOK {
		b.t.Fatalf("%v: exit %d, %s%s", args, code, out, errs)
	}
	text := strings.Join(strings.Fields(out), " ")
	for _, w := range want {
		if !strings.Contains(text, w) {
			b.t.Errorf("%v: %q is missing in\n%s", args, w, out)
		}
	}
	return out
}

func (b tuneBench) value(name, want string) {
	b.t.Helper()
	got, err := apply.ReadSysctl(filepath.Join(b.dir, "proc"), name)
	if err != nil || got != want {
		b.t.Errorf("%s is %s, %v; want %s", name, got, err, want)
	}
}

func words(s string) []string { return strings.Fields(s) }

func TestTunePrintsThePlanAndStops(t *testing.T) {
	b := newTuneBench(t)
	b.must(words("tune apply --dry-run --persist "+tuneMax+"=500 net.netfilter.nf_conntrack_buckets=1024"),
		"1000 → 500", "600 connections are tracked now", "450 ms (estimate) while 1,000,000 entries",
		"/etc/sysctl.d/90-natkit.conf "+tuneMax+" = 500", "/etc/modprobe.d/natkit.conf nf_conntrack.hashsize = 1024",
		"99-mine.conf sets "+tuneMax+" too")
	b.must(words("tune apply "+tuneMax+"=1000"), tuneMax+" is 1000 already", "nothing to change")
	b.value(tuneMax, "1000")
	if _, err := os.Stat(filepath.Join(b.dir, "state")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("printing left a journal: %v", err)
	}
	var doc struct {
		Schema  string
		Applied bool
		Plan    struct {
			Changes []struct{ Target, Before, After, Risk string }
		}
	}
	out := b.must(words("tune apply --dry-run --json " + tuneMax + "=2000"))
	if err := json.Unmarshal([]byte(out), &doc); err != nil || doc.Schema != "natkit.tune/1" || doc.Applied || doc.Plan.Changes[0].After != "2000" {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestTuneApplyUnasked: a plan is not carried out without a terminal to confirm it on, and
// that is not success.
func TestTuneApplyUnasked(t *testing.T) {
	b := newTuneBench(t)
	for args, want := range map[string]string{
		"tune apply " + tuneMax + "=2000":        "natkit: stdin is not a terminal; use --yes to skip the confirmation\n",
		"tune apply --json " + tuneMax + "=2000": "natkit: nothing was changed; --json does not ask: use --yes to skip the confirmation\n",
	} {
		code, out, errs := b.run(words(args)...)
		if code != exitUsage || !strings.HasPrefix(errs, want) || !strings.Contains(out, "2000") {
			t.Errorf("%s: exit %d\n%s%s", args, code, out, errs)
		}
	}
	b.value(tuneMax, "1000")
	b.must(words("tune apply " + tuneMax + "=1000"))
}

func TestTuneApplyListUndo(t *testing.T) {
	b := newTuneBench(t)
	b.must(words("tune list"), "changed nothing")
	b.must(words("tune apply --yes "+tuneMax+"=2000 net.core.somaxconn=256"), "applied as t0001; undo it with 'natkit tune undo t0001'")
	b.must(words("tune apply -y --persist net.core.somaxconn=512"), "applied as t0002")
	b.value(tuneMax, "2000")
	b.must(words("tune list"), "t0001", "applied", tuneMax+" 1000 → 2000 net.core.somaxconn 128 → 256", "t0002", "256 → 512 persisted")
	b.write("proc/sys/net/netfilter/nf_conntrack_max", "7777")
	b.must(words("tune undo t0001"), "t0001 left", `net.core.somaxconn undone (handed over to t0002`, `left (is "7777"`)
	b.must(words("tune undo --last"), "t0002 undone", "net.core.somaxconn 128")
	b.value("net.core.somaxconn", "128")
	b.value(tuneMax, "7777")
	b.must(words("tune undo --all"), "nothing is in force")
	b.must(words("tune list"), "left", "undone", `t0001: `+tuneMax+` left: is "7777"`)
}

func TestTuneConfirm(t *testing.T) {
	b := newTuneBench(t)
	b.must(words("tune apply --yes --confirm 1m "+tuneMax+"=2000"), "applied as t0001", "unless you run 'natkit tune confirm t0001'")
	b.must(words("tune apply --yes --confirm 1m net.core.somaxconn=256"), "applied as t0002")
	var doc struct {
		Transactions []struct {
			ID, Status string
			Remaining  float64 `json:"remaining_seconds"`
			GuardAlive bool    `json:"guard_alive"`
			Guard      journal.Process
		}
	}
	if err := json.Unmarshal([]byte(b.must(words("tune list --json"))), &doc); err != nil || len(doc.Transactions) != 2 {
		t.Fatal(err, doc)
	}
	for _, tx := range doc.Transactions {
		if tx.Status != "pending" || tx.Remaining < 30 || tx.Remaining > 60 || !tx.GuardAlive {
			t.Errorf("%+v", tx)
		}
	}
	if code, _, errs := b.run(words("tune confirm")...); code != exitUsage || !strings.Contains(errs, "t0001 t0002") {
		t.Errorf("two wait: %d %s", code, errs)
	}
	_, completed, _ := b.run("__complete", "tune", "confirm", "")
	if !strings.Contains(completed, "t0001\tpending: "+tuneMax) {
		t.Errorf("completion: %s", completed)
	}
	b.must(words("tune confirm t0001"), "t0001 confirmed")
	b.must(words("tune list"), " left", "applied")
	b.must(words("tune undo --all"), "t0002 undone net.core.somaxconn 128", "t0001 undone "+tuneMax+" 1000")
	for _, tx := range doc.Transactions {
		awaitEnd(t, tx.Guard)
	}
	b.value(tuneMax, "1000")
	b.value("net.core.somaxconn", "128")
	if code, _, errs := b.run(words("tune confirm")...); code != exitFailed || !strings.Contains(errs, "waits for confirmation") {
		t.Errorf("nothing waits: %d %s", code, errs)
	}
}

// TestTuneListWhatIsSpecial: a write that was refused, a newer natkit's file, and a value
// that this kernel does not have.
func TestTuneListWhatIsSpecial(t *testing.T) {
	refused := transaction{Status: journal.StatusUndone, Transaction: &journal.Transaction{}}
	if got := refused.state(); got != "undone, incomplete" {
		t.Errorf("refused: %q", got)
	}
	b := newTuneBench(t)
	b.write("state/journal/t0009.json", `{"schema": "natkit.journal/2"}`)
	defer os.Remove(filepath.Join(b.dir, "state/journal/t0009.json")) // of the clean-up at the end
	if err := os.Chmod(filepath.Join(b.dir, "state/journal"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, out, _ := b.run(words("tune list")...); !strings.Contains(out, "use the natkit that wrote it") || strings.Contains(out, "by hand") {
		t.Error(out)
	}
	if _, _, errs := b.run(words("tune apply net.netfilter.nosuch=1")...); !strings.Contains(errs, "this kernel does not have it") || strings.Contains(errs, "modprobe") {
		t.Error(errs)
	}
}

// TestTuneGuardKilled: the change stays until its deadline; list and clean say so.
func TestTuneGuardKilled(t *testing.T) {
	b := newTuneBench(t)
	b.must(words("tune apply --yes --confirm 1h "+tuneMax+"=2000"), "applied as t0001")
	_, tx := b.transaction("t0001")
	if err := unix.Kill(tx.Guard.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, tx.Guard)
	const gone = "t0001: its guard process is gone: 'natkit tune undo t0001' undoes it now"
	b.must(words("tune list"), "pending", "no guard", gone)
	var out bytes.Buffer
	undone, waits, err := (&tuner{env: b.env(&out, &out), host: b.host()}).clean()
	if err != nil || len(undone) > 0 || !strings.HasPrefix(waits, gone) {
		t.Errorf("clean: %v, %v, %q", undone, err, waits)
	}
	b.value(tuneMax, "2000")
	b.must(words("tune undo t0001"), "t0001 undone")
	b.value(tuneMax, "1000")
}

// awaitEnd reaps a guard, which is a child of the test where natkit did not exit.
func awaitEnd(t *testing.T, guard journal.Process) {
	t.Helper()
	deadline := time.Now().Add(testutil.Patience(time.Minute))
	for guard.Alive("/proc") {
		if time.Now().After(deadline) {
			syscall.Kill(guard.PID, syscall.SIGKILL)
			t.Errorf("guard %d outlives its transaction", guard.PID)
		}
		time.Sleep(10 * time.Millisecond)
	}
	var status syscall.WaitStatus
	syscall.Wait4(guard.PID, &status, 0, nil)
}

func TestTuneListUndoesWhatARebootMadeVoid(t *testing.T) {
	b := newTuneBench(t)
	b.must(words("tune apply --yes " + tuneMax + "=2000"))
	b.write("proc/sys/kernel/random/boot_id", "boot-b")
	b.write("state/journal/t0009.json", "{")
	code, out, errs := b.run(words("tune list")...)
	if code != exitFailed || !strings.Contains(out, "unreadable: read journal") || !strings.Contains(errs, "undid t0001") {
		t.Errorf("%d\n%s\n%s", code, out, errs)
	}
	b.value(tuneMax, "2000") // of the new boot: not natkit's
}

// What a guard or another natkit has undone since --all listed it is no error.
func TestTuneUndoAllBesideAnother(t *testing.T) {
	b := newTuneBench(t)
	b.must(words("tune apply --yes " + tuneMax + "=2000"))
	tuner := &tuner{b.env(io.Discard, io.Discard), b.host()}
	opt, err := tuner.options()
	if err != nil {
		t.Fatal(err)
	}
	ids, _, err := tuner.undoIDs(opt, nil, false)
	b.must(words("tune undo t0001"))
	if again := tuner.undo(opt, ids, true, true); err != nil || len(ids) != 1 || again != nil {
		t.Errorf("%v, %v: %v", ids, err, again)
	}
	if err := tuner.undo(opt, ids, false, true); !errors.Is(err, apply.ErrUndone) {
		t.Errorf("by its id: %v", err)
	}
}

// What cannot be read may be in force.
func TestTuneUndoWithADamagedJournal(t *testing.T) {
	b := newTuneBench(t)
	b.must(words("tune apply --yes " + tuneMax + "=2000"))
	damaged := filepath.Join(b.dir, "state/journal/t0009.json")
	b.write("state/journal/t0009.json", "{")
	defer os.Remove(damaged) // of the clean-up at the end
	if code, _, errs := b.run(words("tune undo --last")...); code != exitFailed || !strings.Contains(errs, "t0009.json") || !strings.Contains(errs, "move the file away") {
		t.Errorf("last: exit %d, %s", code, errs)
	}
	b.value(tuneMax, "2000")
	for _, want := range []string{"t0001 undone", ""} {
		code, out, errs := b.run(words("tune undo --all")...)
		if code != exitFailed || !strings.Contains(out, want) || !strings.Contains(errs, "t0009.json") || strings.Contains(out, "nothing is in force") {
			t.Errorf("all: exit %d, %s%s", code, out, errs)
		}
		b.value(tuneMax, "1000")
	}
	if code, _, errs := b.run(words("tune confirm")...); code != exitFailed || !strings.Contains(errs, "t0009.json") {
		t.Errorf("confirm: exit %d, %s", code, errs)
	}
}

func TestTuneListIsShort(t *testing.T) {
	b := newTuneBench(t)
	b.must(words("tune apply --yes net.core.somaxconn=256"))
	const more = 3
	for range listed + more {
		b.must(words("tune apply --yes " + tuneMax + "=2000"))
		b.must(words("tune undo --last"))
	}
	list := func(args string) (ids []string, omitted int) {
		t.Helper()
		var doc struct {
			Transactions []struct{ ID string }
			Omitted      int
		}
		if err := json.Unmarshal([]byte(b.must(words(args))), &doc); err != nil {
			t.Fatal(err)
		}
		for _, tx := range doc.Transactions {
			ids = append(ids, tx.ID)
		}
		return ids, doc.Omitted
	}
	if ids, omitted := list("tune list --json"); len(ids) != listed+1 || ids[0] != "t0001" || ids[1] != "t0005" || omitted != more {
		t.Errorf("%v, %d", ids, omitted)
	}
	if ids, omitted := list("tune list --json --all"); len(ids) != listed+more+1 || omitted != 0 {
		t.Errorf("%v, %d", ids, omitted)
	}
	b.must(words("tune list"), "t0001", "3 more", "--all")
}

// TestTuneListOfManyChanges: a transaction does not push the others off the screen, and
// is listed whole where it is asked for, and where another program reads it.
func TestTuneListOfManyChanges(t *testing.T) {
	const changes = fewChanges + 3
	b := newTuneBench(t)
	args := words("tune apply --yes")
	for i := range changes {
		b.write(fmt.Sprintf("proc/sys/net/ipv4/v%d", i), "0")
		args = append(args, fmt.Sprintf("net.ipv4.v%d=1", i))
	}
	b.must(args)
	b.must(words("tune apply --yes net.core.somaxconn=256"))
	count := func(args string) int { return strings.Count(b.must(words(args)), "net.ipv4.v") }
	if short, whole := count("tune list"), count("tune list t0001"); short != fewChanges || whole != changes {
		t.Errorf("%d and %d changes", short, whole)
	}
	b.must(words("tune list"), "3 more", "tune list t0001", "net.core.somaxconn")
	lines, err := csv.NewReader(strings.NewReader(b.must(words("tune list -o csv")))).ReadAll()
	if err != nil || len(lines) != 1+changes+1 || lines[0][0] != "id" || lines[1][slices.Index(lines[0], "target")] != "net.ipv4.v0" {
		t.Errorf("%v, %v", err, lines)
	}
}

func TestTuneUndoForce(t *testing.T) {
	b := newTuneBench(t)
	b.must(words("tune apply --yes " + tuneMax + "=2000"))
	for _, args := range []string{"tune undo --force --all", "tune undo --force --last"} {
		if code, _, errs := b.run(words(args)...); code != exitUsage || !strings.Contains(errs, "--force") {
			t.Errorf("%s: exit %d, %s", args, code, errs)
		}
	}
	b.must(words("tune undo --force t0001"), "t0001 undone")
	b.value(tuneMax, "1000")
}

func TestTuneWrongUse(t *testing.T) {
	b := newTuneBench(t)
	cases := []struct {
		args string
		code int
		want string
	}{
		{"tune apply", exitUsage, "an argument is missing"},
		{"tune apply x", exitUsage, "expected NAME=VALUE"},
		{"tune apply kernel.modules_disabled=1", exitUsage, "set back"},
		{"tune apply net..x=1", exitUsage, "relative part"},
		{"tune apply " + tuneMax + "=1 " + tuneMax + "=2", exitUsage, "changed twice"},
		{"tune apply --confirm 1ms net.core.somaxconn=1", exitUsage, "must be from"},
		{"tune apply --confirm 48h net.core.somaxconn=1", exitUsage, "must be from"},
		{"tune apply net.no.such=1", exitFailed, "this kernel does not have it"},
		{"tune apply --yes --dry-run net.core.somaxconn=1", exitUsage, "--dry-run and --yes are mutually exclusive"},
		{"tune undo", exitUsage, "one of ID, --last, --all is required"},
		{"tune undo t0001 --all", exitUsage, "t0001 and --all are mutually exclusive"},
		{"tune undo t0001", exitFailed, "natkit tune list"},
		{"tune undo nonsense", exitUsage, "not an id"},
		{"tune undo lst", exitUsage, "did you mean"},
		{"tune confirm nonsense", exitUsage, "not an id"},
		{"tune list nonsense", exitUsage, "not an id"},
		{"tune list t0009", exitFailed, "natkit tune list"},
		{"tune undo --last", exitFailed, "nothing is in force"},
		{"tune confirm t0001", exitFailed, "natkit tune list"},
		{"tune frobnicate", exitUsage, "unknown command"},
		{"tune list --frobnicate", exitUsage, "unknown flag"},
	}
	for _, c := range cases {
		code, out, errs := b.run(words(c.args)...)
		if code != c.code || !strings.Contains(errs, c.want) || out != "" {
			t.Errorf("%s: exit %d, want %d\n%s%s", c.args, code, c.code, out, errs)
		}
	}
	b.value(tuneMax, "1000")
}

// A value that waits for its confirmation is not there to stay.
func TestTuneKeepsWhatIsThereForAWhile(t *testing.T) {
	b := newTuneBench(t)
	b.must(words("tune apply --yes --confirm 1m net.core.somaxconn=256"), "applied as t0001")
	b.must(words("tune apply --yes net.core.somaxconn=256"), "t0001 (tune) set it for a while", "applied as t0002")
	b.must(words("tune apply --yes net.core.somaxconn=256"), "is 256 already")
	b.must(words("tune undo t0001"), "handed over to t0002")
	b.value("net.core.somaxconn", "256")
	b.must(words("tune undo t0002"), "net.core.somaxconn 128")
	b.value("net.core.somaxconn", "128")
}

func TestTuneListSaysWhatAnUndoCouldNotTakeBack(t *testing.T) {
	b := newTuneBench(t)
	b.must(words("tune apply --yes --persist net.core.somaxconn=256"), "applied as t0001")
	conf := filepath.Join(b.dir, "root/etc/sysctl.d/90-natkit.conf")
	text, err := os.ReadFile(conf)
	if err := errors.Join(err, os.Remove(conf), os.Symlink(filepath.Join(b.dir, "mine"), conf)); err != nil {
		t.Fatal(err)
	}
	b.write("mine", strings.TrimSpace(string(text)))
	if code, _, errs := b.run(words("tune undo t0001")...); code != exitFailed || !strings.Contains(errs, "not a regular file") {
		t.Errorf("exit %d, %s", code, errs)
	}
	b.value("net.core.somaxconn", "128")
	b.must(words("tune list"), "applied, partly undone", "90-natkit.conf net.core.somaxconn could not be undone; 'natkit tune undo t0001'")
	if err := errors.Join(os.Remove(conf), os.WriteFile(conf, text, 0o644)); err != nil {
		t.Fatal(err)
	}
	b.must(words("tune undo t0001"), "t0001 undone")
	if _, err := os.Stat(conf); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

func TestTuneUndoOfBucketsSaysTheStall(t *testing.T) {
	b := newTuneBench(t)
	b.must(words("tune apply --yes net.netfilter.nf_conntrack_buckets=1024"))
	code, _, errs := b.run(words("tune undo --last")...)
	if code != exitOK || !strings.Contains(errs, "all packets of the host wait for 450 ms (estimate) while 1,000,000 entries") {
		t.Errorf("exit %d, %s", code, errs)
	}
	b.value("net.netfilter.nf_conntrack_buckets", "512")
}

// One that was not confirmed in time, and is not rolled back yet, is named.
func TestTuneConfirmTooLate(t *testing.T) {
	b := newTuneBench(t)
	b.must(words("tune apply --yes " + tuneMax + "=2000"))
	j, tx := b.transaction("t0001")
	tx.Confirm = &journal.Confirm{DeadlineAt: tx.CreatedAt}
	if err := j.Save(tx); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := b.run(words("tune confirm")...); code != exitFailed || !strings.Contains(errs, "'natkit tune undo t0001'") {
		t.Errorf("%d %s", code, errs)
	}
	b.must(words("tune undo t0001"), "t0001 undone")
}
