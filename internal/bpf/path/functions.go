package path

import (
	"bufio"
	_ "embed"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
)

//go:embed functions.txt
var functionsText string

// few is the profile for kernels that can be asked for one function at a time only.
const few = "few"

// sections are those of functions.txt.
type sections struct {
	profiles map[string][]string
	lists    map[string][]string
}

// known are the sections of functions.txt, which a test parses too.
var known = must(parseSections(functionsText))

func must(s sections, err error) sections {
	if err != nil {
		panic(err) // a mistake in the text that is built in
	}
	return s
}

// parseSections reads the format described in functions.txt: a line that does not
// start with a space opens a section.
func parseSections(text string) (sections, error) {
	s := sections{map[string][]string{}, map[string][]string{}}
	into, name := s.lists, ""
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		indented := strings.TrimLeft(line, " \t") != line
		switch {
		case len(words) == 0:
		case indented && name != "":
			if err := checkPatterns(words); err != nil {
				return s, fmt.Errorf("line %d: %w", i+1, err)
			}
			into[name] = append(into[name], words...)
		case len(words) == 2 && words[0] == "profile" && !indented:
			into, name = s.profiles, words[1]
		case len(words) == 1 && !indented:
			into, name = s.lists, words[0]
		default:
			return s, fmt.Errorf("line %d: %q: not a section", i+1, line)
		}
	}
	return s, nil
}

func checkPatterns(words []string) error {
	for _, w := range words {
		if _, err := path.Match(w, ""); err != nil {
			return fmt.Errorf("%q is no pattern of names: %w", w, err)
		}
	}
	return nil
}

// Profiles are the names of function sets, in order.
func Profiles() []string {
	names := slices.Sorted(maps.Keys(known.profiles))
	return slices.DeleteFunc(names, func(n string) bool { return n == few })
}

// patternsOf expands --functions: a profile, or names and patterns
// with commas between them.
func patternsOf(functions string) ([]string, error) {
	if p, ok := known.profiles[functions]; ok && functions != few {
		return p, nil
	}
	var list []string
	for _, w := range strings.Split(functions, ",") {
		if w = strings.TrimSpace(w); w != "" {
			list = append(list, w)
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("no functions are named: give a profile (%s) or names of functions", strings.Join(Profiles(), ", "))
	}
	return list, checkPatterns(list)
}

// CheckFunctions says what is wrong with a set of functions as it was typed.
func CheckFunctions(functions string) error {
	_, err := patternsOf(functions)
	return err
}

// matcher finds names by patterns: a kernel has 100,000 of them.
type matcher struct {
	names map[string]bool
	globs []glob
}

// glob is a pattern with what it begins with, which most names do not.
type glob struct{ prefix, pattern string }

func newMatcher(patterns []string) matcher {
	m := matcher{names: map[string]bool{}}
	for _, p := range patterns {
		if at := strings.IndexAny(p, `*?[\`); at >= 0 {
			m.globs = append(m.globs, glob{p[:at], p})
		} else {
			m.names[p] = true
		}
	}
	return m
}

func (m matcher) match(name string) bool {
	if m.names[name] {
		return true
	}
	return slices.ContainsFunc(m.globs, func(g glob) bool {
		if !strings.HasPrefix(name, g.prefix) {
			return false
		}
		ok, err := path.Match(g.pattern, name)
		return ok && err == nil
	})
}

// traceableFiles are where tracefs is mounted, if it is: natkit mounts nothing.
var traceableFiles = []string{
	"/sys/kernel/tracing/available_filter_functions",
	"/sys/kernel/debug/tracing/available_filter_functions",
}

// readTraceable reads the first of files that can be; it is empty where none can.
func readTraceable(files []string) map[string]bool {
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		names, err := parseTraceable(f)
		f.Close()
		if err == nil {
			return names
		}
	}
	return map[string]bool{}
}

// parseTraceable reads lines of a name and, for a function of a module, the module
// in brackets.
func parseTraceable(r io.Reader) (map[string]bool, error) {
	names := map[string]bool{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if name, _, _ := strings.Cut(lines.Text(), " "); name != "" {
			names[name] = true
		}
	}
	return names, lines.Err()
}

// offered leaves out what the kernel does not offer to be traced, and counts it as
// refused. Where it says nothing all is kept.
func (a *attachment) offered(list []target) []target {
	if len(a.traceable) == 0 {
		return list
	}
	var some []target
	for _, t := range list {
		if a.traceable[t.Name] {
			some = append(some, t)
		} else {
			a.skipped = append(a.skipped, t)
		}
	}
	return some
}
