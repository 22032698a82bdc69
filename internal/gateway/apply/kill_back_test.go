package apply

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// dying runs a helper that is killed at a random moment of the time that it takes; the
// first one, which measures that time, lives.
func (w *world) dying(b helperBrief, random *rand.Rand, takes *time.Duration) (after time.Duration) {
	w.t.Helper()
	cmd := w.start(b)
	if *takes == 0 {
		began := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			w.t.Fatalf("%v: %s", err, out)
		}
		*takes = time.Since(began)
		return *takes
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	after = time.Duration(random.Int64N(int64(*takes)))
	time.Sleep(after)
	killHard(w.t, cmd)
	return after
}

func killSeed(t *testing.T) *rand.Rand {
	t.Helper()
	seed := number(t, killSeedEnv, uint64(time.Now().UnixNano()))
	t.Logf("%s=%d", killSeedEnv, seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// TestKilledWhileUndoing kills an undo at random moments: at once the old rules or the
// new ones are in force, whole, and the next undo ends what the first one began.
func TestKilledWhileUndoing(t *testing.T) {
	w := newWorld(t)
	random := killSeed(t)
	k := newKills(t, w)
	takes, again := time.Duration(0), 0
	for round := range int(number(t, killsEnv, 5)) {
		_, id := w.apply(manyText(), 0)
		delay := w.dying(helperBrief{Undone: id}, random, &takes)
		k.whole(round, delay, "undo")
		if tx := w.load(id); !tx.Finished() {
			again++
			if _, err := w.Undo(id); err != nil {
				t.Errorf("round %d, killed at %s: %v", round, delay, err)
			}
		}
		w.want(k.old)
		w.wantSysctl(Accounting, "0")
		w.wantSysctl(Forward4, "1")
		if t.Failed() {
			return
		}
	}
	t.Logf("at once: %v; undone again: %d", k.found, again)
}

// TestKilledWhileConfirming kills a confirmation at random moments: the file for the next
// boot is there, whole, or not at all, as a confirmed transaction has it, and whatever
// became of it an undo takes it back.
func TestKilledWhileConfirming(t *testing.T) {
	w := newWorld(t)
	random := killSeed(t)
	w.Apply.ProcRoot = w.bootFolder("boot")
	keep := wish(snatText)
	keep.Persist = true
	file := filepath.Join(w.Apply.Root, "etc/natkit/gateway.yaml")
	takes, confirmed := time.Duration(0), 0
	for round := range int(number(t, killsEnv, 5)) {
		a, err := w.prepare(keep).Apply(t.Context(), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		w.dying(helperBrief{Confirmed: a.ID(), Proc: w.Apply.ProcRoot}, random, &takes)
		isConfirmed := w.load(a.ID()).Confirm.Confirmed
		if isConfirmed {
			confirmed++
		}
		text, err := os.ReadFile(file)
		if err == nil && string(text) != snatText || isConfirmed && err != nil || err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("round %d, confirmed %v: the file has %q, %v", round, isConfirmed, text, err)
		}
		if _, err := w.Undo(a.ID()); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("round %d, confirmed %v: the undo left the file: %v", round, isConfirmed, err)
		}
	}
	t.Logf("confirmed: %d", confirmed)
}
