package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// selection is what RUN= asks for: tests of packages, or a command line.
type selection struct {
	packages  []string // patterns as `go list` takes them; none stands for the default list
	testFlags []string // as a test binary takes them
	command   string   // for bash in the VM; empty where tests are asked for
}

// testFlagNames are those flags of `go test` that a test binary understands, and
// whether they take a value.
var testFlagNames = map[string]bool{
	"run": true, "skip": true, "count": true, "bench": true, "benchtime": true, "cpu": true, "parallel": true,
	"short": false, "failfast": false, "benchmem": false,
}

// parseRun reads RUN=. What starts with a package or a flag is for tests, as
// arguments of `go test` are; anything else is a command line.
func parseRun(text string) (selection, error) {
	words := strings.Fields(text)
	if len(words) > 0 && !isPattern(words[0]) && !strings.HasPrefix(words[0], "-") {
		return selection{command: text}, nil
	}
	var s selection
	for len(words) > 0 && isPattern(words[0]) {
		s.packages, words = append(s.packages, words[0]), words[1:]
	}
	for len(words) > 0 {
		flag, rest, err := testFlag(words)
		if err != nil {
			return selection{}, err
		}
		s.testFlags, words = append(s.testFlags, flag), rest
	}
	return s, nil
}

func isPattern(word string) bool {
	return word == "." || strings.HasPrefix(word, "./") || strings.HasPrefix(word, modulePath+"/")
}

// testFlag takes one flag of `go test` from words.
func testFlag(words []string) (flag string, rest []string, err error) {
	name, value, hasValue := strings.Cut(strings.TrimLeft(words[0], "-"), "=")
	name = strings.TrimPrefix(name, "test.")
	takesValue, known := testFlagNames[name]
	switch {
	case !strings.HasPrefix(words[0], "-"):
		return "", nil, fmt.Errorf("RUN: %q: packages come before flags", words[0])
	case !known:
		return "", nil, fmt.Errorf("RUN: unknown flag %s; those of go test that apply: %s", words[0], knownFlags())
	case hasValue:
		return "-test." + name + "=" + unquote(value), words[1:], nil
	case !takesValue:
		return "-test." + name, words[1:], nil
	case len(words) == 1:
		return "", nil, fmt.Errorf("RUN: %s needs a value", words[0])
	}
	return "-test." + name + "=" + unquote(words[1]), words[2:], nil
}

// unquote: a shell's quotes around a pattern survive in RUN="… -run 'TestX'".
func unquote(s string) string {
	if len(s) > 1 && (s[0] == '\'' || s[0] == '"') && s[len(s)-1] == s[0] {
		return s[1 : len(s)-1]
	}
	return s
}

func knownFlags() string {
	var names []string
	for name := range testFlagNames {
		names = append(names, "-"+name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// parseTimeout reads TIMEOUT=.
func parseTimeout(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("TIMEOUT=%s: not a duration such as 10m or 90s", text)
	}
	return d, nil
}
