// Command testsum reads `go test -json` from standard input and prints one line
// per package, the output of what failed, and at the end which tests were skipped
// and why, and how long each package took. `go test` itself reports skips only among
// thousands of other lines. With -v it prints the output of all tests as it comes.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

func main() {
	verbose := len(os.Args) > 1 && os.Args[1] == "-v"
	if err := summarise(os.Stdin, os.Stdout, verbose); err != nil {
		fmt.Fprintf(os.Stderr, "testsum: %v\n", err)
		os.Exit(1)
	}
}

// event is one line of test2json (`go doc test2json`).
type event struct {
	Action     string
	Package    string
	ImportPath string // of build output, instead of Package
	Test       string
	Output     string
	Time       time.Time
}

// test names one test; an empty name stands for its package as a whole.
type test struct{ pkg, name string }

type summary struct {
	out     io.Writer
	verbose bool
	output  map[test][]string
	// skipped maps a reason to the tests that gave it.
	skipped        map[string][]string
	passed, failed int
	badPackages    int
	// began is when the first test of a package did: go test itself also counts how long
	// the package waited for others.
	began map[string]time.Time
	took  map[string]time.Duration
}

// summarise returns an error if the input cannot be read or contains no test; failed
// tests are reported by the exit code of `go test`.
func summarise(in io.Reader, out io.Writer, verbose bool) error {
	s := &summary{out: out, verbose: verbose, output: map[test][]string{}, skipped: map[string][]string{},
		began: map[string]time.Time{}, took: map[string]time.Duration{}}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			s.line(line)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("read the events of go test: %w", err)
		}
	}
	s.end()
	if s.passed+s.failed+len(s.skipped)+s.badPackages == 0 {
		return errors.New("no test ran: does any have the name that -run gives?")
	}
	return nil
}

func (s *summary) line(line string) {
	var e event
	if json.Unmarshal([]byte(line), &e) != nil {
		fmt.Fprint(s.out, line) // what is not an event is a message of go itself
		return
	}
	key := test{e.Package, e.Test}
	switch e.Action {
	case "run":
		if s.began[e.Package].IsZero() {
			s.began[e.Package] = e.Time
		}
	case "build-output":
		fmt.Fprint(s.out, e.Output)
	case "output":
		if s.verbose {
			fmt.Fprint(s.out, e.Output)
		}
		s.output[key] = append(s.output[key], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			s.endPackage(e)
		} else {
			s.endTest(e, key)
		}
		delete(s.output, key)
	}
}

func (s *summary) endTest(e event, key test) {
	switch e.Action {
	case "pass":
		s.passed++
	case "fail":
		s.failed++
		for _, line := range s.unseen(key) {
			if !strings.HasPrefix(line, "=== ") {
				fmt.Fprint(s.out, line)
			}
		}
	case "skip":
		why := reason(s.output[key])
		s.skipped[why] = append(s.skipped[why], short(e.Package)+"."+e.Test)
	}
}

// unseen is the output of a test that was not shown when it came.
func (s *summary) unseen(key test) []string {
	if s.verbose {
		return nil
	}
	return s.output[key]
}

// endPackage prints the package's own output only if it failed: a panic or a timeout
// belongs to no test.
func (s *summary) endPackage(e event) {
	if e.Action == "skip" {
		return // no test files
	}
	if began := s.began[e.Package]; !began.IsZero() {
		s.took[e.Package] = e.Time.Sub(began)
	}
	switch e.Action {
	case "fail":
		s.badPackages++
		// Tests that a panic or a timeout cut short have no end of their own.
		for _, key := range slices.SortedFunc(maps.Keys(s.output), func(a, b test) int { return strings.Compare(a.name, b.name) }) {
			if key.pkg == e.Package {
				fmt.Fprint(s.out, strings.Join(s.unseen(key), ""))
				delete(s.output, key)
			}
		}
		fmt.Fprintf(s.out, "FAIL  %-24s %6.1f s\n", short(e.Package), s.took[e.Package].Seconds())
	default:
		fmt.Fprintf(s.out, "ok    %-24s %6.1f s\n", short(e.Package), s.took[e.Package].Seconds())
	}
}

func (s *summary) end() {
	skips := 0
	for _, reason := range slices.Sorted(maps.Keys(s.skipped)) {
		tests := s.skipped[reason]
		skips += len(tests)
		fmt.Fprintf(s.out, "skipped, %s:\n", reason)
		for _, name := range tests {
			fmt.Fprintf(s.out, "    %s\n", name)
		}
	}
	all := s.times()
	fmt.Fprintf(s.out, "%d tests passed, %d failed, %d skipped; %s of package time\n", s.passed, s.failed, skips, all.Round(time.Second))
	if s.badPackages > 0 {
		fmt.Fprintf(s.out, "%d packages failed\n", s.badPackages)
	}
}

// times prints how long each package took, the slowest first.
func (s *summary) times() (all time.Duration) {
	slowest := func(a, b string) int { return cmp.Or(cmp.Compare(s.took[b], s.took[a]), cmp.Compare(a, b)) }
	fmt.Fprintln(s.out, "time of each package:")
	for _, pkg := range slices.SortedFunc(maps.Keys(s.took), slowest) {
		fmt.Fprintf(s.out, "%8.1f s  %s\n", s.took[pkg].Seconds(), short(pkg))
		all += s.took[pkg]
	}
	return all
}

// reason is the last thing a test logged before it was skipped, without file and line.
func reason(output []string) string {
	for _, line := range slices.Backward(output) {
		text := strings.TrimSpace(line)
		if text == "" || strings.HasPrefix(text, "---") || strings.HasPrefix(text, "===") {
			continue
		}
		if at := strings.Index(text, ": "); at > 0 && strings.Contains(text[:at], ".go:") {
			text = text[at+2:]
		}
		return text
	}
	return "no reason given"
}

// short drops the module's part of an import path.
func short(pkg string) string {
	return strings.TrimPrefix(strings.TrimPrefix(pkg, "github.com/natkit/natkit/"), "internal/")
}
