package profile

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the classes of testdata/*.folded instead of comparing them")

// TestRealStacks sorts stacks that were sampled while HTTP connections and UDP
// datagrams went through DNAT on Linux 6.18, a bridge in the way of the first, and
// compares with how they were sorted when that was last looked through.
func TestRealStacks(t *testing.T) {
	files, err := filepath.Glob("testdata/*.folded")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stacks: %v", err)
	}
	for _, name := range files {
		got := classesOf(readFolded(t, name))
		golden := strings.TrimSuffix(name, ".folded") + ".classes"
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-update rewrites it):\n%s", golden, diff)
		}
	}
}

// classesOf has a line for each class with samples.
func classesOf(s *Stacks) string {
	var b strings.Builder
	p := s.Summarize()
	fmt.Fprintf(&b, "all %d, packet receive %d\n", p.Samples, p.Receive)
	for _, c := range p.Classes {
		if c.Samples > 0 {
			fmt.Fprintf(&b, "%-5v %-24s %d\n", c.Receive, c.Name, c.Samples)
		}
	}
	return b.String()
}

func readFolded(t *testing.T, name string) *Stacks {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var c Collector
	for lines := bufio.NewScanner(f); lines.Scan(); {
		stack, count, _ := strings.Cut(lines.Text(), " ")
		n, err := strconv.ParseUint(count, 10, 64)
		if err != nil {
			t.Fatalf("%s: %q", name, lines.Text())
		}
		c.Add(frames(stack), n, false)
	}
	s := &Stacks{Hz: 997, CPUs: 2, Seconds: 4}
	c.Into(s)
	return s
}
