package apply

import (
	"bufio"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
)

// killsEnv sets how often natkit is killed, killSeedEnv the seed of the moments.
const (
	killsEnv    = "NATKIT_GATEWAY_KILLS"
	killSeedEnv = "NATKIT_GATEWAY_KILL_SEED"
)

func number(t *testing.T, name string, usual uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return usual
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestKilledWhileApplying kills a natkit that applies, at random moments from its first
// to the deadline of the guard. At once either the old rules or the new ones are in
// force, whole; once the guard has ended, the old ones with the old sysctls or, where all
// was done and no confirmation is required (every other round), the new ones with theirs.
func TestKilledWhileApplying(t *testing.T) {
	w := newWorld(t)
	seed := number(t, killSeedEnv, uint64(time.Now().UnixNano()))
	t.Logf("%s=%d", killSeedEnv, seed)
	random := rand.New(rand.NewPCG(seed, 0))
	k := newKills(t, w)
	for round := range int(number(t, killsEnv, 5)) {
		delay := time.Duration(random.Int64N(int64(2 * k.takes)))
		k.round(round, delay)
		if t.Failed() {
			return
		}
	}
	t.Logf("at once: %v", k.found)
}

type kills struct {
	t *testing.T
	*world
	// old and new are digests, prints the fingerprints of their tables.
	old, new string
	prints   map[string]string
	// takes is how long a whole application takes, the start of its process included.
	takes time.Duration
	found map[string]int
}

func newKills(t *testing.T, w *world) *kills {
	k := &kills{t: t, world: w, prints: map[string]string{}, found: map[string]int{}}
	k.old, _ = w.apply(masqueradeText, 0)
	k.prints[k.old] = w.ip("nft -s list table inet natkit")
	began := time.Now()
	cmd := w.start(helperBrief{Text: manyText(), Confirm: time.Minute})
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	k.takes = time.Since(began)
	k.new = w.state().Digest
	k.prints[k.new] = w.ip("nft -s list table inet natkit")
	open, err := w.Transactions()
	if err != nil || len(open) != 2 || k.new == k.old {
		t.Fatalf("%+v, %v", open, err)
	}
	if _, err := w.Undo(open[1].ID); err != nil {
		t.Fatal(err)
	}
	return k
}

func (k *kills) round(round int, delay time.Duration) {
	k.t.Helper()
	confirm := time.Duration((round+1)%2) * time.Second
	cmd := k.start(helperBrief{Text: manyText(), Confirm: confirm})
	out, err := cmd.StdoutPipe()
	if err != nil {
		k.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		k.t.Fatal(err)
	}
	stage := "start"
	lines := make(chan string, 2)
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
		close(lines)
	}()
	time.Sleep(delay)
	killHard(k.t, cmd)
	for line := range lines {
		stage = line
	}
	k.whole(round, delay, stage)
	within(k.t, 30*time.Second, "end of the guard", func() bool { return !k.guarded() })
	if confirm == 0 {
		k.takeBack(round, delay, stage)
	}
	k.backAgain(round, delay, stage)
}

// takeBack undoes what is in force altogether.
func (k *kills) takeBack(round int, delay time.Duration, stage string) {
	open, err := k.Transactions()
	if err != nil {
		k.t.Fatal(err)
	}
	if len(open) != 2 || !open[1].Complete {
		return
	}
	if got := k.value(); got != k.new {
		k.t.Errorf("round %d, killed at %s (%s): in force is %s, want the new %s", round, delay, stage, got, k.new)
	}
	k.wantSysctl(Accounting, "1")
	k.found["new, to stay"]++
	if _, err := k.Undo(open[1].ID); err != nil {
		k.t.Error(err)
	}
}

func killHard(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil && cmd.ProcessState == nil {
		t.Log(err) // it had ended: the deadline counts
	}
	cmd.Wait()
}

// whole: one table or the other is there, entire, whatever its mark says.
func (k *kills) whole(round int, delay time.Duration, stage string) {
	var s *gateway.State
	text := ""
	for again := true; again; again = k.state().Digest != s.Digest { // its guard put the old one back meanwhile
		s, text = k.state(), k.ip("nft -s list table inet natkit")
	}
	want, known := k.prints[s.Digest]
	if !known || text != want || s.Integrity == gateway.RulesChanged {
		k.t.Errorf("round %d, killed at %s (%s): the table is neither the old nor the new one: %+v", round, delay, stage, s)
	}
	name := map[string]string{k.old: "old", k.new: "new", "": "none"}[s.Digest]
	k.found[name+" after "+stage]++
}

// backAgain: the guard, where there was time to start one, has put everything back.
func (k *kills) backAgain(round int, delay time.Duration, stage string) {
	if got := k.value(); got != k.old {
		k.t.Errorf("round %d, killed at %s (%s): in force is %s, want the old %s", round, delay, stage, got, k.old)
	}
	if s, err := k.State(); err != nil || s.Integrity != gateway.RulesIntact {
		k.t.Errorf("round %d, killed at %s (%s): the old rules are not known to be as they were written: %+v, %v", round, delay, stage, s, err)
	}
	k.wantSysctl(Accounting, "0")
	k.wantSysctl(Forward4, "1")
	// What was journaled and not begun is finished by the next natkit.
	err := k.ns.Do(func() error { _, err := apply.Clean(k.options(k.keeps())); return err })
	if err != nil {
		k.t.Error(err)
	}
	open, err := k.Transactions()
	if err != nil || len(open) != 1 {
		k.t.Errorf("round %d: open are %+v, %v", round, open, err)
	}
	if got := k.value(); got != k.old {
		k.t.Errorf("round %d: cleaning left %s", round, tune.Change{Kind: tune.Gateway}.Shown(got))
	}
}

// guarded reports whether a guard of a transaction lives. One that was started and is
// not yet written down is found as the lock's holder.
func (k *kills) guarded() bool {
	all, _, err := k.Apply.Journal.List()
	if err != nil {
		return true
	}
	for _, tx := range all {
		if tx.Guard != (journal.Process{}) && tx.Guard.Alive("/proc") {
			return true
		}
	}
	return orphanGuards(k.ns.Inode())
}
