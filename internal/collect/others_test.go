package collect

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/testutil"
)

func TestOtherTicksOfProcesses(t *testing.T) {
	all := map[int]process{}
	for _, line := range []string{
		"1 (init) S 0 1 1 0 -1 0 0 0 0 0 1 2 3 4 20 0",
		"2 (kthreadd) S 0 0 0 0 -1 0 0 0 0 0 0 100 0 0 20 0",
		"7 (ksoftirqd/0) S 2 0 0 0 -1 0 0 0 0 0 0 1000 0 0 20 0",
		"40 (sh) S 1 0 0 0 -1 0 0 0 0 0 10 0 0 0 20 0",
		"50 (natkit) S 40 0 0 0 -1 0 0 0 0 0 10000 0 0 0 20 0",
		"60 (a) 1 (b) S 50 0 0 0 -1 0 0 0 0 0 100000 0 0 0 20 0",
		"70 (nginx) S 60 0 0 0 -1 0 0 0 0 0 100000 0 0 0 20 0",
		"80 (circle) S 81 0 0 0 -1 0 0 0 0 0 5 0 0 0 20 0",
		"81 (circle) S 80 0 0 0 -1 0 0 0 0 0 5 0 0 0 20 0",
	} {
		pid, p, ok := parseProcess([]byte(line))
		if !ok {
			t.Fatalf("%s is not understood", line)
		}
		all[pid] = p
	}
	if got := otherTicks(all, 50); got != 30 {
		t.Errorf("%d ticks of others, want 30", got)
	}
	for _, bad := range []string{"", "1", "1 (x", "x (y) S 1", "1 (x) S 0 1"} {
		if _, _, ok := parseProcess([]byte(bad)); ok {
			t.Errorf("%q is taken for a process", bad)
		}
	}
}

// TestOtherTicksOfThisMachine: a loop beside grows them, and is not counted where it is
// one's own.
func TestOtherTicksOfThisMachine(t *testing.T) {
	loop := exec.Command("sh", "-c", "while :; do :; done")
	if err := loop.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = loop.Process.Kill(); _ = loop.Wait() })
	ticks := func() uint64 {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", loop.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		_, p, _ := parseProcess(text)
		return p.ticks
	}
	other := func(own int) uint64 {
		n, err := OtherTicks(own)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before, own := other(1<<30), ticks()
	for end := time.Now().Add(testutil.Patience(30 * time.Second)); ticks() < own+10; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the loop got no CPU")
		}
	}
	if grown := other(1<<30) - before; grown < 10 {
		t.Errorf("the loop is not seen: %d ticks", grown)
	}
	mine := other(loop.Process.Pid)
	if whole := other(1 << 30); whole < mine+10 {
		t.Errorf("%d ticks without the loop, %d with it", mine, whole)
	}
}
