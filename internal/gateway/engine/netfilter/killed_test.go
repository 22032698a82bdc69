package netfilter

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/testutil"
)

// applyForever makes this program one that applies two plans in turn, until killed.
const applyForever = "NATKIT_TEST_APPLY_FOREVER"

func TestMain(m *testing.M) {
	if os.Getenv(applyForever) != "" {
		fmt.Println("ready")
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
	ns := testutil.Namespace(t)
	whole := map[string]string{} // seals by digest
	start := time.Now()
	for i := range 2 {
		if err := Apply(ns, killedPlan(i)); err != nil {
			t.Fatal(err)
		}
		s, err := Read(ns)
		if err != nil {
			t.Fatal(err)
		}
		whole[s.Digest] = seal(t, ns)
	}
	both := time.Since(start)
	seen := map[string]int{}
	for i := 0; i < 40 || len(seen) < 2 && i < 400; i++ {
		killOne(t, ns, rand.N(both)) // the moment is chance
		s, err := Read(ns)
		if err != nil {
			t.Fatal(err)
		}
		if !s.Present || seal(t, ns) != whole[s.Digest] {
			t.Fatalf("neither the old nor the new rules: %+v", s.Changes)
		}
		seen[s.Digest]++
	}
	if len(seen) != 2 {
		t.Errorf("the kills left always the same rules: %v", seen)
	}
	t.Logf("left: %v", seen)
}

// seal is that of the table that is there.
func seal(t *testing.T, ns *netns.Handle) string {
	t.Helper()
	table, err := read.TableNamed(ns, Family, Table)
	if err != nil || table == nil {
		t.Fatal(table, err)
	}
	return sealOf(table)
}

// killOne starts a process that applies, and kills it that long after.
func killOne(t *testing.T, ns *netns.Handle, after time.Duration) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), applyForever+"=1"), os.Stderr
	ready, err := cmd.StdoutPipe()
	if err == nil {
		err = ns.Do(cmd.Start)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ready.Read(make([]byte, 1)); err != nil {
		t.Errorf("the process did not start: %v", err)
	}
	time.Sleep(after)
	cmd.Process.Kill()
	cmd.Wait()
}
