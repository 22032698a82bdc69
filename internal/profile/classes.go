package profile

import (
	"bufio"
	_ "embed"
	"fmt"
	"regexp"
	"strings"
)

//go:embed classes.txt
var classesText string

// classes is the table of the binary.
var classes = mustParseClasses(classesText)

// Names of the classes of what is in no list.
const (
	ClassReceiveRest = "driver and rest" // in packet receive
	ClassKernelRest  = "other kernel work"
	ClassUser        = "user programs"
)

// classTable is the content of classes.txt.
type classTable struct {
	names                    []string // of classes, in the order of the file
	functions                list     // to the index of its class
	receive, interrupt, idle list
}

// list are names of functions, whole or with a "*".
type list struct {
	exact    map[string]int
	patterns []pattern
}

// pattern is a name with one "*".
type pattern struct {
	before, after string
	value         int
}

func mustParseClasses(text string) *classTable {
	t, err := parseClasses(text)
	if err != nil {
		panic(err) // the file is part of the program
	}
	return t
}

// functionName is what a list may hold.
var functionName = regexp.MustCompile(`^[A-Za-z0-9_]*\*?[A-Za-z0-9_]+$|^[A-Za-z0-9_]+\*$|^module:[A-Za-z0-9_]+$`)

// parseClasses reads a table; the form is described in classes.txt.
func parseClasses(text string) (*classTable, error) {
	t := &classTable{}
	var section *list
	value := 0
	lines := bufio.NewScanner(strings.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		line = strings.TrimSpace(line)
		var err error
		switch {
		case line == "":
		case line[0] == '[':
			section, value, err = t.section(line)
		case section == nil:
			err = fmt.Errorf("%q stands before the first [class]", line)
		default:
			err = section.addAll(strings.Fields(line), value)
		}
		if err != nil {
			return nil, fmt.Errorf("classes of functions, line %d: %w", n, err)
		}
	}
	return t, lines.Err()
}

// class is the index of a frame's class.
func (t *classTable) class(f Frame) (index int, ok bool) {
	if index, ok = t.functions.find(f.Function); !ok {
		index, ok = t.functions.exact["module:"+f.Module]
	}
	return index, ok
}

// section finds or makes the list that a heading begins.
func (t *classTable) section(line string) (*list, int, error) {
	name, ok := strings.CutSuffix(line[1:], "]")
	if !ok || name == "" || strings.ContainsAny(name, "[]") {
		return nil, 0, fmt.Errorf("%q is no [class]", line)
	}
	switch name {
	case "@receive":
		return &t.receive, 0, nil
	case "@interrupt":
		return &t.interrupt, 0, nil
	case "@idle":
		return &t.idle, 0, nil
	case ClassReceiveRest, ClassKernelRest, ClassUser:
		return nil, 0, fmt.Errorf("class %q is of what is in no class", name)
	}
	if name[0] == '@' {
		return nil, 0, fmt.Errorf("there is no list %q", name)
	}
	for _, known := range t.names {
		if known == name {
			return nil, 0, fmt.Errorf("class %q is there twice", name)
		}
	}
	t.names = append(t.names, name)
	return &t.functions, len(t.names) - 1, nil
}

func (l *list) addAll(names []string, value int) error {
	for _, name := range names {
		if err := l.add(name, value); err != nil {
			return err
		}
	}
	return nil
}

func (l *list) add(name string, value int) error {
	if !functionName.MatchString(name) {
		return fmt.Errorf("%q is no name of a function, with one * at most", name)
	}
	if before, after, ok := strings.Cut(name, "*"); ok {
		for _, p := range l.patterns {
			if p.before == before && p.after == after {
				return fmt.Errorf("%s is there twice", name)
			}
		}
		l.patterns = append(l.patterns, pattern{before, after, value})
		return nil
	}
	if _, ok := l.exact[name]; ok {
		return fmt.Errorf("%s is there twice", name)
	}
	if l.exact == nil {
		l.exact = map[string]int{}
	}
	l.exact[name] = value
	return nil
}

// find returns the value of a function: by its whole name, else by the pattern with
// the most letters, the first of several.
func (l *list) find(function string) (value int, ok bool) {
	function = sourceName(function)
	if value, ok := l.exact[function]; ok {
		return value, true
	}
	longest := 0
	for _, p := range l.patterns {
		letters := len(p.before) + len(p.after)
		if letters > longest && len(function) >= letters &&
			strings.HasPrefix(function, p.before) && strings.HasSuffix(function, p.after) {
			value, ok, longest = p.value, true, letters
		}
	}
	return value, ok
}

func (l *list) matches(function string) bool {
	_, ok := l.find(function)
	return ok
}

// sourceName leaves out what compilers add to a function's name: .isra.0,
// .constprop.0, .part.0, .cold, .llvm.123.
func sourceName(function string) string {
	name, _, _ := strings.Cut(function, ".")
	return name
}
