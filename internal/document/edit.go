package document

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// Change is one change to a value of a document.
type Change struct {
	// Path leads to the value. A step is a key (string), a place in a list, counted from 0 (int), Named or Either.
	Path []any
	Kind ChangeKind
	// Value is what is set or added: text, or a list or a mapping in brackets. Of Remove it names the item.
	Value string
	// KeepOne refuses a Remove of the only item.
	KeepOne bool
	// Order is that of the keys beside a new one, which follows the last of those before it, or comes first.
	Order []string
}

// Paths are those of all values of the document, by keys, and by the names of items of lists or their places; nil of a
// text that is none.
func (s Source) Paths() (all [][]string) {
	body, err := s.body()
	if err != nil {
		return nil
	}
	var walk func(n *yaml.Node, path []string)
	walk = func(n *yaml.Node, path []string) {
		below := func(step string, value *yaml.Node) { walk(value, append(path[:len(path):len(path)], step)) }
		if len(path) > 0 {
			all = append(all, path)
		}
		for key, value := range pairs(n) {
			below(key.Value, value)
		}
		if n.Kind != yaml.SequenceNode {
			return
		}
		for i, item := range n.Content {
			if called := names(&yaml.Node{Content: []*yaml.Node{item}}); item.Kind == yaml.MappingNode {
				below(append(called, strconv.Itoa(i))[0], item)
			}
		}
	}
	walk(body, nil)
	return all
}

// Named is the step to the item of a list that is this text, or whose name, address or interface it is; in a mapping it
// is a key.
type Named string

// Either is the step to the first of these keys that is there.
type Either []string

// ChangeKind is what a Change does.
type ChangeKind int

const (
	// Set gives a value to a key, which may be new, or to an item of a list.
	Set ChangeKind = iota
	// Unset removes a key or an item. A list without another item goes as well.
	Unset
	// Add appends an item to a list. A single value becomes a list of two, none a single value.
	Add
	// Remove is Unset of the item of a list that the value names.
	Remove
)

// Edit returns the text with a change. Bytes that it does not concern stay as they are, comments included. A value that
// has an anchor keeps it, and so changes wherever an alias stands for it. It refuses what cannot be changed in place, such
// as what lies in the value that an alias stands for. Its errors are *SyntaxError.
func (s Source) Edit(c Change) ([]byte, error) {
	text := Unmarked(s.Text)
	mark := s.Text[:len(s.Text)-len(text)]
	s.Text = text
	body, err := s.body()
	if err != nil {
		return nil, s.fail(err)
	}
	e := newEditor(text)
	if s.Compose != nil {
		e.lists = s.Compose.Lists
	}
	if err := cmp.Or(e.change(body, c), orphaned(body)); err != nil {
		return nil, s.fail(err)
	}
	// What was changed in the tree and in the text must be the same: layouts that are not foreseen end here.
	s.Text = e.out
	if now, err := s.body(); err != nil || !same(now, body) {
		s.Text = text
		return nil, s.fail(at(locate(body, nil), "this change cannot be made in place, because of the layout around it: change it by hand"))
	}
	return slices.Concat(mark, e.out), nil
}

// same reports whether two trees have the same values, and aliases stand for the same ones.
func same(a, b *yaml.Node) bool { return pairing{}.same(a, b) }

// pairing has for the nodes of one tree those of another in the same places.
type pairing map[*yaml.Node]*yaml.Node

func (p pairing) same(a, b *yaml.Node) bool {
	isNull := func(n *yaml.Node) bool { return n.ShortTag() == "!!null" }
	if a.Anchor != "" {
		p[a] = b
	}
	return a.Kind == b.Kind && a.Value == b.Value && a.Anchor == b.Anchor && (a.Kind != yaml.ScalarNode || isNull(a) == isNull(b)) &&
		(a.Kind != yaml.AliasNode || p[a.Alias] == b.Alias) && slices.EqualFunc(a.Content, b.Content, p.same)
}

// orphaned is an error where an alias stands for a value that is not in the tree any more.
func orphaned(body *yaml.Node) error {
	anchored := map[*yaml.Node]bool{}
	var walk func(n *yaml.Node) error
	walk = func(n *yaml.Node) error {
		if n.Kind == yaml.AliasNode && !anchored[n.Alias] {
			return at(n.Alias, "*%s in line %d stands for what would go here (&%[1]s): write the value there first", n.Value, n.Line)
		}
		anchored[n] = anchored[n] || n.Anchor != ""
		for _, child := range n.Content {
			if err := walk(child); err != nil {
				return err
			}
		}
		return nil
	}
	return walk(body)
}

// editor makes one change, to the tree and to the text.
type editor struct {
	text, out []byte
	// begins are the offsets of lines.
	begins []int
	// lists are the keys whose values are lists, also of one item.
	lists []string
}

func newEditor(text []byte) *editor {
	e := &editor{text: text, begins: []int{0}}
	for i, c := range text {
		if c == '\n' {
			e.begins = append(e.begins, i+1)
		}
	}
	return e
}

// slot is where a value stands: a mapping or list, and its place in Content.
type slot struct {
	in *yaml.Node
	at int
}

func (s slot) node() *yaml.Node { return s.in.Content[s.at] }

func (e *editor) change(body *yaml.Node, c Change) error {
	holder, way := body, []slot(nil)
	for i, step := range c.Path {
		if holder.Kind == yaml.AliasNode {
			return elsewhere(holder)
		}
		if isNothing(holder) && len(way) > 0 && (c.Kind == Set || c.Kind == Add) {
			return e.fill(way[len(way)-1], c.Path[i:], c)
		}
		index, err := find(holder, step)
		if err != nil {
			return err
		}
		if index < 0 {
			if from := inherited(holder, fmt.Sprint(step)); from != nil && (c.Kind != Set || i < len(c.Path)-1) {
				return overridden(holder, from)
			}
			return e.enter(holder, c.Path[i:], c)
		}
		way = append(way, slot{holder, index})
		holder = holder.Content[index]
	}
	if len(way) == 0 {
		return at(body, "a change requires a path")
	}
	last := way[len(way)-1]
	if holder.Kind == yaml.AliasNode && holder.Alias.Kind != yaml.ScalarNode && (c.Kind == Add || c.Kind == Remove) {
		return elsewhere(holder)
	}
	if c.Kind == Add && isNothing(holder) {
		return e.fill(last, nil, c)
	}
	switch c.Kind {
	case Set:
		return e.replace(last, c.Value)
	case Add:
		return e.add(last, c.Value)
	case Remove:
		if holder.Kind == yaml.SequenceNode {
			index, err := find(holder, Named(c.Value))
			if err != nil {
				return err
			}
			way = append(way, slot{holder, index})
		} else if !isCalled(holder, c.Value) {
			return at(holder, "%q is not there to be removed", c.Value)
		}
		if c.KeepOne && (holder.Kind == yaml.ScalarNode || len(holder.Content) == 1) {
			return at(holder, "%q is the only one: without it there is no such condition any more; remove the word itself (WORD=) if that is meant", c.Value)
		}
	}
	return e.cut(way)
}

// isNothing reports whether nothing stands behind a key, or a word for that.
func isNothing(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// fill writes a value, below keys, where nothing stands.
func (e *editor) fill(s slot, keys []any, c Change) error {
	text, err := e.nested(keys, c)
	if err != nil {
		return at(s.node(), "%v", err)
	}
	return e.replace(s, text)
}

// elsewhere is an error about what lies in the value that an alias stands for.
func elsewhere(alias *yaml.Node) error {
	return at(alias, "*%s stands for the value in line %d: change that one, or write a value of its own here", alias.Value, alias.Alias.Line)
}

// inherited is the key by which a mapping takes over a value from another one (<<); nil where it does not.
func inherited(n *yaml.Node, keys ...string) *yaml.Node {
	met := map[*yaml.Node]bool{}
	var search func(n *yaml.Node) *yaml.Node
	search = func(n *yaml.Node) *yaml.Node {
		if met[n] {
			return nil
		}
		met[n] = true
		for key, value := range pairs(n) {
			others := []*yaml.Node{value}
			if list := resolve(value); list.Kind == yaml.SequenceNode {
				others = list.Content
			}
			if !isMerge(key) {
				others = nil
			}
			for _, other := range others {
				for key := range pairs(resolve(other)) {
					if slices.Contains(keys, key.Value) {
						return key
					}
				}
				if found := search(resolve(other)); found != nil {
					return found
				}
			}
		}
		return nil
	}
	return search(n)
}

func overridden(n, from *yaml.Node) error {
	return at(n, "%q comes from line %d (<<): change it there, or set a value of its own here (%[1]s=VALUE)", from.Value, from.Line)
}

// find returns the place of a step in Content; -1 where it is the key of a mapping that does not have it.
func find(n *yaml.Node, step any) (int, error) {
	switch n.Kind {
	case yaml.MappingNode:
		keys := []string{fmt.Sprint(step)}
		either, several := step.(Either)
		if several {
			keys = either
		}
		for i := 0; i < len(n.Content); i += 2 {
			if slices.Contains(keys, n.Content[i].Value) {
				return i + 1, nil
			}
		}
		if from := inherited(n, keys...); several && from != nil {
			return 0, overridden(n, from)
		}
		if several {
			return 0, at(n, "expected one of: %s", strings.Join(keys, ", "))
		}
		return -1, nil
	case yaml.SequenceNode:
		switch step := step.(type) {
		case int:
			if step >= len(n.Content) {
				return 0, at(n, "there is no [%d]: the list has %d items, counted from 0", step, len(n.Content))
			}
			return step, nil
		case Named:
			if i := slices.IndexFunc(n.Content, func(item *yaml.Node) bool { return isCalled(item, string(step)) }); i >= 0 {
				return i, nil
			}
			return 0, at(n, "no item of the list is %q%s", string(step), meant(string(step), names(n)))
		}
		return 0, at(n, "expected a place or a name in the list, such as [0], found %q", fmt.Sprint(step))
	}
	return 0, at(n, "expected a mapping or a list, found %s: there is no %q in it", nodeWords(n), fmt.Sprint(step))
}

// identities are the keys by which people call the items of a list.
var identities = []string{"name", "address", "interface"}

func isCalled(n *yaml.Node, name string) bool {
	n = resolve(n)
	return n.Kind == yaml.ScalarNode && n.Value == name || slices.Contains(names(&yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{n}}), name)
}

// names are what the items of a list are called by.
func names(list *yaml.Node) (all []string) {
	for _, item := range list.Content {
		if item.Kind == yaml.ScalarNode {
			all = append(all, item.Value)
		}
		for key, value := range pairs(item) {
			if slices.Contains(identities, key.Value) {
				all = append(all, value.Value)
			}
		}
	}
	return all
}

// fresh is a value to be written.
type fresh struct {
	text string
	node *yaml.Node
}

// snippet is a text as a single value; nil where it is none on one line.
func snippet(format, text string) *yaml.Node {
	if strings.ContainsAny(text, "\r\n") {
		return nil
	}
	n, err := Source{Text: fmt.Appendf(nil, format, text)}.body()
	for range strings.Count(format, "[") + 1 {
		if err != nil || n.Kind != yaml.SequenceNode || len(n.Content) != 1 {
			return nil
		}
		n = n.Content[0]
	}
	return n
}

// The surroundings of a snippet.
const (
	block = "- %s"
	flow  = "- [%s]"
)

// value is how text is written where another value, or nil, was: in the quotes that it had, or those that it needs.
func value(text string, inFlow bool, former *yaml.Node) (fresh, error) {
	if n := snippet(block, text); n != nil && n.Style&yaml.FlowStyle != 0 {
		return fresh{text, n}, nil
	}
	if strings.HasPrefix(text, "{") {
		return fresh{}, fmt.Errorf("%q is not a mapping in braces without aliases, such as {address: 10.0.0.1, weight: 3}", text)
	}
	around := map[bool]string{false: block, true: flow}[inFlow]
	forms := []string{text, `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`}
	switch {
	case former != nil && former.Style&yaml.DoubleQuotedStyle != 0:
		forms = forms[1:]
	case former != nil && former.Style&yaml.SingleQuotedStyle != 0:
		forms[0] = "'" + strings.ReplaceAll(text, "'", "''") + "'"
	}
	for _, form := range forms {
		if n := snippet(around, form); n != nil && n.Kind == yaml.ScalarNode && n.Value == text && n.ShortTag() != "!!null" && n.Anchor == "" {
			return fresh{form, n}, nil
		}
	}
	return fresh{}, fmt.Errorf("%q cannot be written as a value", text)
}

func isFlow(n *yaml.Node) bool { return n.Style&yaml.FlowStyle != 0 }

// isBlock reports whether a value is a list or mapping on lines of their own.
func isBlock(n *yaml.Node) bool { return len(n.Content) > 0 && !isFlow(n) }

// splice is the text with a part of it replaced.
func (e *editor) splice(from, to int, with string) {
	e.out = slices.Concat(e.text[:from], []byte(with), e.text[to:])
}

// replace writes a value in the place of another, whose anchor it takes over.
func (e *editor) replace(s slot, text string) error {
	former := s.node()
	if former.Style&yaml.TaggedStyle != 0 {
		return e.unforeseen(former)
	}
	_, to, err := e.span(former)
	if err != nil {
		return err
	}
	from, err := e.content(former)
	if err != nil {
		return err
	}
	v, err := value(text, isFlow(s.in), former)
	if err != nil {
		return at(former, "%v", err)
	}
	switch {
	case isBlock(former) && s.in.Kind == yaml.MappingNode: // it moves up, behind its key
		_, from, err = e.span(s.in.Content[s.at-1])
		if err != nil {
			return err
		}
		colon := bytes.IndexByte(e.text[from:], ':')
		if colon < 0 {
			return e.unforeseen(former)
		}
		if former.Anchor != "" {
			v.text = "&" + former.Anchor + " " + v.text
		}
		from, to, v.text = from+colon+1, e.lineEnd(to), " "+v.text
	case from == to: // nothing stood there
		v.text = " " + v.text
	}
	v.node.Anchor = former.Anchor
	*former = *v.node // the node itself, for which aliases stand
	e.splice(from, to, v.text)
	return nil
}

// enter writes a key that is not in a mapping, and in turn those below it.
func (e *editor) enter(n *yaml.Node, rest []any, c Change) error {
	key := fmt.Sprint(rest[0])
	if c.Kind == Unset || c.Kind == Remove {
		return at(n, "there is no %q to be removed", key)
	}
	k, err := value(key, isFlow(n), nil)
	if err != nil {
		return at(n, "%v", err)
	}
	text, onLines := c.Value, e.asList(c) && len(rest) == 1 && !isFlow(n)
	if !onLines {
		if text, err = e.nested(rest[1:], c); err != nil {
			return at(n, "%v", err)
		}
	}
	v, err := value(text, isFlow(n), nil)
	if err != nil {
		return at(n, "%v", err)
	}
	if onLines {
		v, err = e.listOf(n, v)
	} else {
		v.text = " " + v.text
	}
	if err != nil {
		return err
	}
	index := follows(n, key, c.Order)
	if err := e.insert(n, index, k.text+":"+v.text); err != nil {
		return err
	}
	n.Content = slices.Insert(n.Content, index, k.node, v.node)
	return nil
}

// asList reports whether a change adds to a value that is a list, also of one item.
func (e *editor) asList(c Change) bool {
	key, isKey := c.Path[len(c.Path)-1].(string)
	return c.Kind == Add && isKey && slices.Contains(e.lists, key)
}

// nested is the value of a change, in brackets below keys that are not there.
func (e *editor) nested(keys []any, c Change) (string, error) {
	text := c.Value
	if e.asList(c) {
		v, err := value(text, true, nil)
		if err != nil {
			return "", err
		}
		text = "[" + v.text + "]"
	}
	above := c.Path[len(c.Path)-len(keys)-1]
	for _, key := range keys {
		if _, isKey := key.(string); !isKey {
			return "", fmt.Errorf("there is no %q in %q, which has nothing", fmt.Sprint(key), fmt.Sprint(above))
		}
		above = key
	}
	for _, word := range slices.Backward(keys) {
		v, err := value(text, true, nil)
		if err != nil {
			return "", err
		}
		text = fmt.Sprintf("{%s: %s}", word, v.text)
	}
	return text, nil
}

// listOf is a value as the only item of a list, on a line of its own.
func (e *editor) listOf(in *yaml.Node, v fresh) (fresh, error) {
	indent, err := e.indent(in)
	list := &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{v.node}}
	return fresh{e.lineBreak() + strings.Repeat(" ", indent+2) + e.item(v, indent+2), list}, err
}

// follows is the place in Content where a key is to be.
func follows(n *yaml.Node, key string, order []string) int {
	if own := slices.Index(order, key); own >= 0 {
		for i := len(n.Content) - 2; i >= 0; i -= 2 {
			if slices.Contains(order[:own], n.Content[i].Value) {
				return i + 2
			}
		}
		return 0
	}
	return len(n.Content)
}

// add appends an item to a list, or to a value that becomes one.
func (e *editor) add(s slot, text string) error {
	n := s.node()
	if n.Kind != yaml.SequenceNode {
		return e.pair(s, text)
	}
	v, err := value(text, isFlow(n), nil)
	if err != nil {
		return at(n, "%v", err)
	}
	item := v.text
	if isBlock(n) {
		indent, err := e.indent(n)
		if err != nil {
			return err
		}
		item = e.item(v, indent)
	}
	if err := e.insert(n, len(n.Content), item); err != nil {
		return err
	}
	n.Content = append(n.Content, v.node)
	return nil
}

// item is how a value is written as an item on lines of its own: a mapping has one for each key, as people write rules.
func (e *editor) item(v fresh, indent int) string {
	text := "- " + v.text
	if v.node.Kind != yaml.MappingNode {
		return text
	}
	var keys []string
	for of, i := newEditor([]byte(text)), 0; i < len(v.node.Content); i += 2 {
		from, to, err := of.entry(v.node, i, 2)
		if err != nil {
			return text
		}
		keys = append(keys, text[from:to])
	}
	return "- " + strings.Join(keys, e.lineBreak()+strings.Repeat(" ", indent+2))
}

// pair makes a list of a single value and another one.
func (e *editor) pair(s slot, text string) error {
	n := s.node()
	from, to, err := e.span(n)
	if err != nil {
		return err
	}
	if isBlock(n) {
		return at(n, "a mapping over several lines cannot become a list in place: change it by hand")
	}
	v, err := value(text, true, nil)
	if err != nil {
		return at(n, "%v", err)
	}
	first := string(e.text[from:to])
	if one := snippet(flow, first); one == nil || !same(one, n) {
		quoted, err := value(n.Value, true, nil)
		if err != nil {
			return e.unforeseen(n)
		}
		first = quoted.text
	}
	s.in.Content[s.at] = &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle, Content: []*yaml.Node{n, v.node}}
	e.splice(from, to, "["+first+", "+v.text+"]")
	return nil
}

// insert writes an entry of a list or mapping before the place index of Content.
func (e *editor) insert(n *yaml.Node, index int, entry string) error {
	indent, err := e.indent(n)
	if err != nil {
		return err
	}
	if len(n.Content) == 0 {
		from, err := e.content(n)
		e.splice(from+1, from+1, entry)
		return err
	}
	if index == 0 {
		return e.insertFirst(n, entry)
	}
	_, end, err := e.span(n.Content[index-1])
	if err != nil {
		return err
	}
	if isFlow(n) {
		e.splice(end, end, ", "+entry)
		return nil
	}
	end = e.lineEnd(end)
	e.splice(end, end, e.lineBreak()+strings.Repeat(" ", indent)+entry)
	return nil
}

// insertFirst writes an entry before the others, and before comments above these.
func (e *editor) insertFirst(n *yaml.Node, entry string) error {
	first, err := e.start(n.Content[0])
	if err != nil {
		return err
	}
	column, err := e.indent(n)
	if err != nil {
		return err
	}
	begin, indent := e.lineStart(first), strings.Repeat(" ", column)
	switch {
	case isFlow(n):
		e.splice(first, first, entry+", ")
		return nil
	case len(bytes.TrimSpace(e.text[begin:first])) > 0: // behind a hyphen
		e.splice(first, first, entry+e.lineBreak()+indent)
		return nil
	}
	for begin > 0 {
		above := e.lineStart(begin - 1)
		if line := bytes.TrimSpace(e.text[above:begin]); len(line) > 0 && line[0] != '#' {
			break
		}
		begin = above
	}
	e.splice(begin, begin, indent+entry+e.lineBreak())
	return nil
}

// cut removes what the way ends at.
func (e *editor) cut(way []slot) error {
	s := way[len(way)-1]
	step := 1 // of Content
	if s.in.Kind == yaml.MappingNode {
		step = 2
	}
	if len(s.in.Content) == step {
		switch {
		case len(way) == 1:
			return at(s.in, "nothing would be left")
		case step == 1: // a list without items is none
			return e.cut(way[:len(way)-1])
		}
		return e.replace(way[len(way)-2], "{}")
	}
	index := s.at + 1 - step
	from, to, err := e.entry(s.in, index, step)
	if err != nil {
		return err
	}
	if !isFlow(s.in) || e.isAlone(from, to) {
		from, to, err = e.wholeLines(s.in, index, from, to)
	} else if next := index + step; next < len(s.in.Content) {
		to, err = e.start(s.in.Content[next])
	} else {
		_, from, err = e.span(s.in.Content[index-1])
	}
	if err != nil {
		return err
	}
	s.in.Content = slices.Delete(s.in.Content, index, index+step)
	e.splice(from, to, "")
	return nil
}

// entry is where an item stands, or a key with its value.
func (e *editor) entry(n *yaml.Node, index, step int) (from, to int, err error) {
	if from, err = e.start(n.Content[index]); err == nil {
		_, to, err = e.span(n.Content[index+step-1])
	}
	return from, to, err
}

// wholeLines are the lines of an entry. A key that begins an item of a list, behind its hyphen, leaves the next key there.
func (e *editor) wholeLines(n *yaml.Node, index, from, to int) (int, int, error) {
	begin := e.lineStart(from)
	before := bytes.TrimSpace(e.text[begin:from])
	switch hyphen := n.Kind == yaml.SequenceNode && !isFlow(n); {
	case hyphen && string(before) == "-", !hyphen && len(before) == 0:
		return begin, e.afterLine(to), nil
	case n.Kind == yaml.MappingNode && index == 0 && string(before) == "-":
		next, err := e.start(n.Content[2])
		if after := e.afterLine(to); err == nil && after < next { // comments between them stay
			next = after + bytes.IndexFunc(e.text[after:], func(r rune) bool { return !unicode.IsSpace(r) })
		}
		return from, next, err
	}
	return 0, 0, e.unforeseen(n)
}

// isAlone reports whether an entry in brackets has lines of its own.
func (e *editor) isAlone(from, to int) bool {
	rest := bytes.TrimSpace(e.text[to:e.lineEnd(to)])
	rest = bytes.TrimSpace(bytes.TrimPrefix(rest, []byte(",")))
	return len(bytes.TrimSpace(e.text[e.lineStart(from):from])) == 0 && (len(rest) == 0 || rest[0] == '#')
}

// lineStart is where the line of an offset begins, lineEnd where it ends, before its break, afterLine behind it.
func (e *editor) lineStart(offset int) int { return bytes.LastIndexByte(e.text[:offset], '\n') + 1 }

func (e *editor) lineEnd(offset int) int {
	end := bytes.IndexByte(e.text[offset:], '\n')
	if end < 0 {
		return len(e.text)
	}
	if end > 0 && e.text[offset+end-1] == '\r' {
		end--
	}
	return offset + end
}

func (e *editor) afterLine(offset int) int {
	if end := bytes.IndexByte(e.text[offset:], '\n'); end >= 0 {
		return offset + end + 1
	}
	return len(e.text)
}

// lineBreak is the text's.
func (e *editor) lineBreak() string {
	if bytes.Contains(e.text, []byte("\r\n")) {
		return "\r\n"
	}
	return "\n"
}

func (e *editor) unforeseen(n *yaml.Node) error {
	return at(n, "the layout here is one in which natkit changes nothing in place: change it by hand")
}

// start is the offset at which a value begins, with its anchor and its tag.
func (e *editor) start(n *yaml.Node) (int, error) {
	if n.Line < 1 || n.Line > len(e.begins) {
		return 0, e.unforeseen(n)
	}
	offset := e.begins[n.Line-1]
	for range n.Column - 1 {
		_, size := utf8.DecodeRune(e.text[offset:])
		offset += size
	}
	return offset, nil
}

// content is the offset at which a value itself begins, behind its anchor and its tag.
func (e *editor) content(n *yaml.Node) (int, error) {
	offset, err := e.start(n)
	properties := 0
	if n.Anchor != "" {
		properties++
	}
	if n.Style&yaml.TaggedStyle != 0 {
		properties++
	}
	empty := n.Kind == yaml.ScalarNode && n.Value == "" && n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) == 0
	for ; err == nil && properties > 0; properties-- {
		if offset = e.blank(offset); offset == len(e.text) || e.text[offset] != '&' && e.text[offset] != '!' {
			return 0, e.unforeseen(n)
		}
		if end := bytes.IndexAny(e.text[offset:], " \t\r\n,]}"); end >= 0 {
			offset += end
		} else {
			offset = len(e.text)
		}
		if properties == 1 && !empty {
			offset = e.blank(offset)
		}
	}
	return offset, err
}

// blank is the offset of what follows behind blanks, line breaks and comments.
func (e *editor) blank(offset int) int {
	for offset < len(e.text) {
		switch e.text[offset] {
		case ' ', '\t', '\r', '\n':
			offset++
		case '#':
			offset = e.lineEnd(offset)
		default:
			return offset
		}
	}
	return offset
}

// indent is how far the entries of a list or mapping on lines of their own are indented.
func (e *editor) indent(n *yaml.Node) (int, error) {
	offset, err := e.content(n)
	return offset - e.lineStart(offset), err
}

// span is where a value begins, with its anchor and its tag, and where it ends.
func (e *editor) span(n *yaml.Node) (from, to int, err error) {
	if from, err = e.start(n); err != nil {
		return 0, 0, err
	}
	itself, err := e.content(n)
	if err != nil {
		return 0, 0, err
	}
	length := -1
	switch rest := e.text[itself:]; {
	case n.Kind == yaml.AliasNode:
		length = len("*" + n.Value)
	case n.Kind == yaml.ScalarNode && n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0:
		length = quotedLength(rest)
	case n.Kind == yaml.ScalarNode && n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0:
		length = e.textLength(itself)
	case n.Kind == yaml.ScalarNode:
		length = plainLength(rest, n.Value)
	case !isBlock(n):
		length = bracketLength(rest)
	default:
		_, to, err = e.span(n.Content[len(n.Content)-1])
		return from, to, err
	}
	if length < 0 || itself+length > len(e.text) {
		return 0, 0, e.unforeseen(n)
	}
	return from, itself + length, nil
}

// textLength is that of a text on lines of its own, which begins with | or > and has all lines that are indented as its
// first one, or blank.
func (e *editor) textLength(from int) int {
	end, indent := e.lineEnd(from), -1
	for at := e.afterLine(from); at < len(e.text); at = e.afterLine(at) {
		line := e.text[at:e.lineEnd(at)]
		words := bytes.TrimLeft(line, " ")
		if len(words) == 0 {
			continue
		}
		if indent < 0 {
			indent = len(line) - len(words)
		}
		if len(line)-len(words) < indent {
			break
		}
		end = e.lineEnd(at)
	}
	return end - from
}

// plainLength is that of the words of a value without quotes, which may stand on several lines; -1 where text begins
// otherwise.
func plainLength(text []byte, value string) int {
	end := 0
	for _, word := range strings.Fields(value) {
		begin := bytes.IndexFunc(text[end:], func(r rune) bool { return !unicode.IsSpace(r) })
		if begin < 0 || !bytes.HasPrefix(text[end+begin:], []byte(word)) {
			return -1
		}
		end += begin + len(word)
	}
	return end
}

// quotedLength is that of the text in quotes with which text begins; -1 where they do not end.
func quotedLength(text []byte) int {
	for i := 1; i < len(text); i++ {
		switch {
		case text[0] == '"' && text[i] == '\\':
			i++
		case text[i] != text[0]:
		case text[0] == '\'' && i+1 < len(text) && text[i+1] == '\'':
			i++
		default:
			return i + 1
		}
	}
	return -1
}

// bracketLength is that of the brackets with which text begins; -1 where they do not end.
func bracketLength(text []byte) int {
	depth := 0
	for i := 0; i < len(text); i++ {
		begins := i > 0 && bytes.IndexByte([]byte("[{,: \t\r\n"), text[i-1]) >= 0
		switch c := text[i]; {
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			if depth--; depth == 0 {
				return i + 1
			}
		case (c == '"' || c == '\'') && begins:
			length := quotedLength(text[i:])
			if length < 0 {
				return -1
			}
			i += length - 1
		case c == '#' && begins:
			end := bytes.IndexByte(text[i:], '\n')
			if end < 0 {
				return -1
			}
			i += end
		}
	}
	return -1
}
