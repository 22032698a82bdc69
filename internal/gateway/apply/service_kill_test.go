package apply

import (
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/tune"
)

// TestServiceKilled kills a service at random moments, each time with another file. One
// table or the other is in force, whole, and the next service goes on from there; in the
// end what is open can be undone to what was before the first one.
func TestServiceKilled(t *testing.T) {
	w := newWorld(t)
	seed := number(t, killSeedEnv, uint64(time.Now().UnixNano()))
	t.Logf("%s=%d", killSeedEnv, seed)
	random := rand.New(rand.NewPCG(seed, 1))
	k := newKills(t, w)
	k.prints[""] = ""
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	texts := []string{masqueradeText, manyText()}
	for round := range int(number(t, killsEnv, 5)) {
		delay := time.Duration(random.Int64N(int64(k.takes)))
		s := &service{world: w, file: file}
		s.write(texts[round%2])
		cmd := w.start(helperBrief{Service: file})
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(delay)
		killHard(t, cmd)
		k.whole(round, delay, "start")
	}
	s := w.serve(texts[1])
	w.want(k.new)
	s.end()
	open, err := w.Transactions()
	if err != nil {
		t.Fatal(err)
	}
	for _, tx := range slices.Backward(open) {
		if _, err := w.Undo(tx.ID); err != nil {
			t.Error(err)
		}
	}
	w.want(tune.GatewayNone)
	w.wantSysctl(Forward4, "0")
	w.wantSysctl(Accounting, "0")
	t.Logf("at once: %v, %d transactions were open", k.found, len(open))
}
