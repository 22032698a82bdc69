package profile

import (
	_ "embed"
	"strings"
)

//go:embed classes.txt
var classesText string

// classes is the table of the binary.
var classes = parseClasses(classesText)

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

// parseClasses reads a table; the form is described in classes.txt, and a test holds that the
// built-in one has no mistakes.
func parseClasses(text string) *classTable {
	t := &classTable{}
	lists := map[string]*list{"@receive": &t.receive, "@interrupt": &t.interrupt, "@idle": &t.idle}
	var into *list // none before the first heading
	value := 0
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		line = strings.TrimSpace(line)
		heading, isHeading := strings.CutPrefix(strings.TrimSuffix(line, "]"), "[")
		switch {
		case lists[heading] != nil:
			into, value = lists[heading], 0
		case isHeading:
			into, value = &t.functions, len(t.names)
			t.names = append(t.names, heading)
		case into != nil:
			into.add(strings.Fields(line), value)
		}
	}
	return t
}

// class is the index of a frame's class.
func (t *classTable) class(f Frame) (index int, ok bool) {
	if index, ok = t.functions.find(f.Function); !ok {
		index, ok = t.functions.exact["module:"+f.Module]
	}
	return index, ok
}

func (l *list) add(names []string, value int) {
	if l.exact == nil {
		l.exact = map[string]int{}
	}
	for _, name := range names {
		if before, after, ok := strings.Cut(name, "*"); ok {
			l.patterns = append(l.patterns, pattern{before, after, value})
		} else {
			l.exact[name] = value
		}
	}
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
