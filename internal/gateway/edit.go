package gateway

import (
	"bytes"
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

func (e Edit) String() string { return document.Shown(e.text) }

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
				return nil, fmt.Errorf("a bracket is not closed")
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

// Edition is a gateway file with edits.
type Edition struct {
	Text []byte
	// File is what the text is, with the files that it names.
	File *File
	// Also are what edits change beside what they name.
	Also []SideEffect
}

// SideEffect are rules that an edit of something else changes: one value of the file stands in them, too.
type SideEffect struct {
	Edit string `json:"edit"`
	// By is the name of the value: "define", or "&" of an anchor.
	By string `json:"by"`
	// Rules are named as they are after the edit.
	Rules []Ref `json:"rules"`
}

// Edited makes edits in turn in the text of a file. Lines that they do not concern stay as they are. An edit that the
// text has no place for, and a result that is not a gateway file, are *document.SyntaxError, whose position is in the
// text before the edit and after it.
func Edited(files Files, name string, text []byte, edits []Edit) (*Edition, error) {
	former, also := text, []SideEffect(nil)
	var file *File // of the text; nil where it is none, as it may be between two edits
	var wrong error
	parse := func() {
		if file == nil && wrong == nil {
			file, wrong = ParseWith(files, name, text)
		}
	}
	for _, e := range edits {
		changed, err := source(name, text).Edit(e.change)
		if err != nil {
			parse()
			return nil, e.failed(files, file, fmt.Errorf("%s: %w", e, err))
		}
		by := e.sharedBy(text)
		if by != "" {
			parse()
		}
		was, wasWrong := file, wrong
		text, file, wrong = changed, nil, nil
		if by != "" && wasWrong == nil {
			if parse(); wrong == nil {
				also = append(also, e.besides(was, file, by)...)
			}
		}
	}
	if parse(); wrong == nil {
		return &Edition{text, file, also}, nil
	}
	was, before := ParseWith(files, name, former)
	if before == nil || before.Error() != wrong.Error() {
		wrong = fmt.Errorf("with the edit: %w", wrong)
	}
	for _, e := range edits {
		wrong = e.failed(files, was, wrong)
	}
	return nil, wrong
}

// sharedBy is how the value of an edit may stand in several rules of a text; empty where it cannot.
func (e Edit) sharedBy(text []byte) string {
	switch {
	case e.change.Path[1] == any("define"):
		return "define"
	case bytes.ContainsRune(text, '&') && bytes.ContainsRune(text, '*'):
		return "&"
	}
	return ""
}

// besides are the rules that differ, but for the one that the edit names; none where it adds or removes one.
func (e Edit) besides(was, is *File, by string) []SideEffect {
	own, _ := was.target(e)
	var differ []Ref
	before := was.Config.lists()
	for i, l := range is.Config.lists() {
		if len(l.rules) != len(before[i].rules) {
			return nil
		}
		for at, r := range l.rules {
			if isOwn := l.name == own.List && at == own.Index; !isOwn && MarshalRule(r) != MarshalRule(before[i].rules[at]) {
				differ = append(differ, r.ref(l.name, at))
			}
		}
	}
	if len(differ) == 0 {
		return nil
	}
	return []SideEffect{{e.text, by, differ}}
}

// target is the rule of a file that an edit is about; false where it is about none.
func (f *File) target(e Edit) (Ref, bool) {
	path := e.change.Path[1:]
	if !isRuleList(path[0]) {
		return Ref{}, false
	}
	var step any = document.Named(e.change.Value)
	if len(path) > 1 {
		step = path[1]
	} else if e.change.Kind != document.Remove {
		return Ref{}, false
	}
	for _, l := range f.Config.lists() {
		for i, r := range l.rules {
			if l.name == path[0] && (step == any(i) || r.Name != "" && step == any(document.Named(r.Name))) {
				return r.ref(l.name, i), true
			}
		}
	}
	return Ref{}, false
}

// failed is the error of an edit: where what it names stands in a file that f includes, how to edit that one.
func (e Edit) failed(files Files, f *File, err error) error {
	path := e.change.Path[1:]
	if f == nil {
		return err
	}
	if composed := source("", nil).Compose; slices.Contains(composed.Mappings, fmt.Sprint(path[0])) {
		path = path[:min(len(path), 2)] // these come together, key by key
	} else {
		path = path[:1]
	}
	what, edit := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(path)), "."), "[]"), e.text
	if ref, is := f.target(e); is {
		path, what = []any{ref.List, ref.Index}, ref.String()
		edit = e.within(f, ref)
	} else if isRuleList(path[0]) {
		return err
	}
	place := f.place(path...)
	if place.File == f.Name || place == f.place(path[:len(path)-1]...) { // the latter where it does not have it
		return err
	}
	advice := fmt.Sprintf("use natkit gateway set %s '%s'", document.Shown(place.File), strings.ReplaceAll(document.Shown(edit), "'", `'\''`))
	if text, notRead := files.Read(place.File, MaxSource); notRead != nil {
		return err
	} else if _, none := ParseWith(files, place.File, text); none != nil {
		advice = "change it by hand, as this file is none without " + document.Shown(f.Name)
	}
	return fmt.Errorf("%s: %w", e, &document.SyntaxError{File: place.File, Line: place.Line, Column: place.Column, Excerpt: place.Excerpt,
		Message: what + " stands here: " + advice})
}

// within is the text of an edit of a rule, with the rule's place in the file that has it.
func (e Edit) within(f *File, r Ref) string {
	here, index := f.place(r.List, r.Index).File, 0
	for i := range r.Index {
		if f.place(r.List, i).File == here {
			index++
		}
	}
	before, after, _ := strings.Cut(e.text, r.List)
	if len(e.change.Path) > 2 && e.change.Path[2] == any(r.Index) {
		after = strings.Replace(after, strconv.Itoa(r.Index), strconv.Itoa(index), 1)
	}
	return before + r.List + after
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
