package nft

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/testutil"
)

// applyForever makes this program one that applies two plans in turn, until killed.
const applyForever = "NATKIT_TEST_APPLY_FOREVER"

func TestMain(m *testing.M) {
	if os.Getenv(applyForever) != "" {
		for i := 0; ; i++ {
			if err := Apply(nil, killedPlan(i%2)); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
	}
	os.Exit(m.Run())
}

// killedPlan are plans of which the second has all that the first one has, and more.
func killedPlan(i int) *gateway.Plan { return largePlan("static", 300*(1+i)) }

// TestKilled: a process that is killed at any moment of an apply leaves the old rules
// or the new ones.
func TestKilled(t *testing.T) {
	testutil.NeedRoot(t)
	ns := newNetns(t)
	whole := map[string]string{} // digest to fingerprint
	for i := range 2 {
		if err := Apply(ns, killedPlan(i)); err != nil {
			t.Fatal(err)
		}
		s, err := Read(ns)
		if err != nil {
			t.Fatal(err)
		}
		whole[s.Digest] = s.Fingerprint
	}
	seen, unsealed := map[string]int{}, 0
	for range 40 {
		var cmd *exec.Cmd
		if err := ns.Do(func() error {
			cmd = exec.Command(os.Args[0])
			cmd.Env, cmd.Stderr = append(os.Environ(), applyForever+"=1"), os.Stderr
			return cmd.Start()
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10*time.Millisecond + rand.N(40*time.Millisecond)) // the moment is chance
		cmd.Process.Kill()
		cmd.Wait()
		s, err := Read(ns)
		if err != nil {
			t.Fatal(err)
		}
		if !s.Present || s.Fingerprint != whole[s.Digest] || s.Sealed && !s.Intact {
			t.Fatalf("neither the old nor the new rules: %+v", s.Changes)
		}
		seen[s.Digest]++
		if !s.Sealed {
			unsealed++
		}
	}
	if len(seen) != 2 {
		t.Errorf("the kills left always the same rules: %v", seen)
	}
	t.Logf("left: %v; %d killed between the transaction and its seal", seen, unsealed)
}
