package gateway

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/document"
)

// Edit is one change to a gateway file, as it is written: nat[web].to=10.0.0.4:80.
type Edit struct {
	text   string
	change document.Change
}

func (e Edit) String() string { return e.text }

// editForms are what an Edit may look like, for errors.
const editForms = "expected WORD[…].WORD=VALUE, such as nat[2].enabled=off, or += or -= and an item of a list"

// ParseEdit reads PATH=VALUE, PATH+=ITEM, PATH-=ITEM, or PATH= to remove a word. A path is words with dots between
// them; a rule is named by its place or its name, nat[2] or nat[web] (also nat.2, nat.web). What is not a word of the
// rule itself is one of its kind: nat[web].to is nat[web].dnat.to.
func ParseEdit(text string) (Edit, error) {
	path, value, found := strings.Cut(text, "=")
	e := Edit{text: text, change: document.Change{Value: value, Order: slices.Concat(document.ComposeWords, document.Words(reflect.TypeFor[Config]()))}}
	switch short := strings.TrimRight(path, "+-"); {
	case !found:
		return e, fmt.Errorf("%q: %s", text, editForms)
	case path == short+"+":
		path, e.change.Kind = short, document.Add
	case path == short+"-":
		path, e.change.Kind = short, document.Remove
		e.change.KeepOne = strings.Contains(short, ".") // without any item a rule would hold for everybody
	case value == "":
		e.change.Kind = document.Unset
	}
	if value == "" && e.change.Kind != document.Unset {
		return e, fmt.Errorf("%q: the item is missing: %s", text, editForms)
	}
	steps, err := editSteps(path)
	if err != nil {
		return e, fmt.Errorf("%q: %w: %s", text, err, editForms)
	}
	if steps[0] == any("gateway") {
		steps = steps[1:]
	}
	if e.change.Path = append([]any{"gateway"}, ruleSteps(steps)...); len(e.change.Path) == 1 {
		return e, fmt.Errorf("%q: %s", text, editForms)
	}
	if number, err := strconv.Atoi(value); err == nil && e.change.Kind == document.Remove && len(steps) == 1 && isRuleList(steps[0]) {
		e.change.Path, e.change.Kind = append(e.change.Path, number), document.Unset // nat-=2
	}
	return e, nil
}

// editSteps takes a path apart: words and numbers with dots between them, or in brackets.
func editSteps(path string) (steps []any, err error) {
	for rest, first := path, true; rest != ""; first = false {
		var word string
		inner, bracket := strings.CutPrefix(rest, "[")
		if bracket && !first {
			if word, rest, bracket = strings.Cut(inner, "]"); !bracket {
				return nil, fmt.Errorf("%s: a bracket is not closed", path)
			}
		} else {
			if !first {
				rest = strings.TrimPrefix(rest, ".")
			}
			end := strings.IndexAny(rest, ".[")
			if end < 0 {
				end = len(rest)
			}
			bracket, word, rest = false, rest[:end], rest[end:]
		}
		number, notNumber := strconv.Atoi(word)
		switch {
		case word == "" || strings.ContainsAny(word, " \t\n,[]{}"):
			return nil, fmt.Errorf("%q is not a path of words", path)
		case notNumber == nil && number >= 0 && !first:
			steps = append(steps, number)
		case bracket:
			steps = append(steps, document.Named(word))
		default:
			steps = append(steps, word)
		}
	}
	if len(steps) == 0 {
		return nil, fmt.Errorf("the path is missing")
	}
	return steps, nil
}

func isRuleList(step any) bool { return step == any("nat") || step == any("ipv6") }

// ruleSteps leads to a rule by its name, and to the words of its kind.
func ruleSteps(steps []any) []any {
	if len(steps) < 2 || !isRuleList(steps[0]) {
		return steps
	}
	if name, isWord := steps[1].(string); isWord {
		steps[1] = document.Named(name)
	}
	if len(steps) > 2 && !slices.Contains(document.Words(reflect.TypeFor[Rule]()), fmt.Sprint(steps[2])) {
		steps = slices.Insert(steps, 2, any(document.Either(kindWords)))
	}
	return steps
}

// Edited returns the text of a file with edits, in turn, and the file that it is then with those that it names. Lines that they do not concern
// stay as they are. An edit that the text has no place for, and a result that is not a gateway file, are
// *document.SyntaxError, whose position is in the text before the edit and after it.
func Edited(files Files, name string, text []byte, edits []Edit) ([]byte, *File, error) {
	for _, e := range edits {
		changed, err := source(name, text).Edit(e.change)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", e, err)
		}
		text = changed
	}
	now, err := ParseWith(files, name, text)
	if err != nil {
		return nil, nil, fmt.Errorf("with the edit: %w", err)
	}
	return text, now, nil
}

// EditPaths are the paths of the values that a file has, as ParseEdit reads them.
func EditPaths(text []byte) (all []string) {
	for _, path := range source("", text).Paths() {
		if path = path[1:]; len(path) > 2 && isRuleList(path[0]) && slices.Contains(kindWords, path[2]) {
			path = slices.Delete(slices.Clone(path), 2, 3)
		}
		if len(path) != 0 && (len(path) != 2 || !isRuleList(path[0])) {
			text := path[0]
			for _, word := range path[1:] {
				if strings.Contains(word, ".") {
					text += "[" + word + "]"
				} else {
					text += "." + word
				}
			}
			all = append(all, text)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
