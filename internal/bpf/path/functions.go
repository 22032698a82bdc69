package path

import (
	"bufio"
	_ "embed"
	"fmt"
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

// known are the sections of functions.txt, which a test holds to be without mistakes.
var known = parseSections(functionsText)

// parseSections reads the format described in functions.txt: a line that does not
// start with a space opens a section.
func parseSections(text string) sections {
	s := sections{map[string][]string{}, map[string][]string{}}
	into, name := s.lists, ""
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case strings.TrimLeft(line, " \t") != line:
			into[name] = append(into[name], words...)
		case words[0] == "profile":
			into, name = s.profiles, words[len(words)-1]
		default:
			into, name = s.lists, words[0]
		}
	}
	return s
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

// CheckFunctions validates a set of functions as it was typed.
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
	names := map[string]bool{}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		defer f.Close()
		// Lines are a name and, for a function of a module, the module in brackets.
		for lines := bufio.NewScanner(f); lines.Scan(); {
			name, _, _ := strings.Cut(lines.Text(), " ")
			names[name] = true
		}
		return names
	}
	return names
}
