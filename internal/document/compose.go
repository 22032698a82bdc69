package document

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Compose says how a document of several files becomes one: below Key the key "include" names files that have the same
// form, "define" gives names to values, and $NAME stands for such a value wherever a value may stand.
type Compose struct {
	Key string
	// Read returns the text of another file, by its path, or a little more than limit bytes of it.
	Read func(path string, limit int) ([]byte, error)
	// Lists and Mappings are the keys that several files may have: what they hold comes together.
	Lists, Mappings []string
	// Names are the mappings whose keys are names too, which $NAME leaves to the reader of the value.
	Names []string
}

const (
	includeKey = "include"
	defineKey  = "define"
	// deepestInclude is how many files may include each other in turn, mostIncluded how many a document has.
	deepestInclude = 8
	mostIncluded   = 100
)

// ComposeWords are the keys of Compose itself.
var ComposeWords = []string{includeKey, defineKey}

// origin is one file of a document. Lines of nodes are counted through all files: the first of this one is base+1.
type origin struct {
	name string
	base int
	lines
}

// origins are the files of a document, in the order of their first lines.
type origins []*origin

func (o *origins) add(name string, text []byte) *origin {
	base := 0
	if n := len(*o); n > 0 {
		base = (*o)[n-1].base + len((*o)[n-1].text) + 1 // whatever ends a line
	}
	*o = append(*o, &origin{name: name, base: base, lines: lines{text: text}})
	return (*o)[len(*o)-1]
}

// of returns the file of a line, and the line in it.
func (o origins) of(line int) (*origin, int) {
	for _, f := range slices.Backward(o) {
		if line > f.base {
			return f, line - f.base
		}
	}
	return o[0], line
}

// where names a line as an error of another does: "line 3", or "other.yaml line 3" where that is another file.
func (o origins) where(line, from int) string {
	f, number := o.of(line)
	if g, _ := o.of(from); f == g {
		return fmt.Sprintf("line %d", number)
	}
	return fmt.Sprintf("%s line %d", f.name, number)
}

// spot is where a node stands.
type spot struct{ line, column int }

// composer makes one document of its files.
type composer struct {
	Source
	tree *Tree
	// parts are those of all texts (meter.parts), bytes their size, left how many values may still be added.
	parts, bytes, left int
	// definitions are the values of names, names those of Compose.Names.
	definitions map[string]*definition
	names       map[string]int
	// replaced are the texts that had names: several mappings may share one (merge).
	replaced map[*yaml.Node]bool
}

// definition is a value with a name, whose own names are replaced when it is first used.
type definition struct {
	value         *yaml.Node
	line          int
	opening, done bool
}

// load reads one file of the document.
func (c *composer) load(name string, text []byte) (*yaml.Node, error) {
	f := c.tree.files.add(name, text)
	c.bytes += len(text)
	n, err := c.read(text, &c.parts)
	if err == nil && strings.Contains(string(text), mergeKey) {
		err = c.merge(n)
	}
	if f.base == 0 {
		return n, err
	}
	if place, ok := err.(*located); ok && place.line > 0 {
		place.line += f.base
	} else if err != nil {
		err = &located{f.base + 1, 1, err.Error()}
	}
	if n != nil {
		shift(n, f.base)
	}
	return n, err
}

// shift counts the lines of a node and all below it from another one on.
func shift(n *yaml.Node, base int) {
	n.Line += base
	for _, child := range n.Content {
		shift(child, base)
	}
}

// mergeKey takes what a mapping lacks from others: "<<: *name", or a list of these of which the first wins (YAML 1.1,
// tag merge).
const mergeKey = "<<"

func isMerge(key *yaml.Node) bool {
	return key.Kind == yaml.ScalarNode && key.Value == mergeKey && key.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) == 0
}

// merge carries out the merge keys of a node and those below it.
func (c *composer) merge(n *yaml.Node) error {
	for _, child := range n.Content {
		if err := c.merge(child); err != nil {
			return err
		}
	}
	if n.Kind != yaml.MappingNode {
		return nil
	}
	var own []*yaml.Node
	var from []*yaml.Node
	has := map[string]bool{}
	for key, value := range pairs(n) {
		if !isMerge(key) {
			own = append(own, key, value)
			has[key.Value] = true
			continue
		}
		all := []*yaml.Node{value}
		if list := resolve(value); list.Kind == yaml.SequenceNode {
			all = list.Content
		}
		from = append(from, all...)
	}
	if len(from) == 0 {
		return nil
	}
	for _, other := range from {
		target := resolve(other)
		if target.Kind != yaml.MappingNode {
			return at(other, "expected a mapping whose keys are taken over, such as *name, or a list of these")
		}
		for key, value := range pairs(target) {
			if isMerge(key) {
				return at(other, "it takes over keys from itself")
			}
			if has[key.Value] {
				continue
			}
			has[key.Value] = true
			if c.left--; c.left < 0 {
				return tooMany(other)
			}
			own = append(own, key, value)
		}
	}
	n.Content = own
	return nil
}

// compose adds the files that the first one includes, and replaces names by their values.
func (c *composer) compose(body *yaml.Node) error {
	top := child(body, c.Compose.Key)
	if top == nil || resolve(top).Kind != yaml.MappingNode {
		return nil
	}
	top = resolve(top)
	if err := c.include(top, top, []string{path.Clean(c.File)}); err != nil {
		return err
	}
	if err := c.define(top); err != nil {
		return err
	}
	if len(c.definitions)+len(c.names) == 0 && !slices.ContainsFunc(c.tree.files, func(o *origin) bool { return strings.Contains(string(o.text), "$") }) {
		return nil
	}
	for key, value := range pairs(top) {
		if key.Value == includeKey || key.Value == defineKey {
			continue
		}
		if err := c.replace(value); err != nil {
			return err
		}
	}
	return nil
}

// include reads the files that the mapping of one names into that of the first; within are those that lead here.
func (c *composer) include(into, from *yaml.Node, within []string) error {
	list := child(from, includeKey)
	if list == nil {
		return nil
	}
	return List(list, func(item *yaml.Node) error {
		name := ""
		err := Scalar(item, "the name of a file", func(text string) error {
			if name = text; name == "" {
				return Advice("name a file")
			}
			return nil
		})
		if err != nil {
			return err
		}
		return c.included(into, resolve(item), name, within)
	})
}

func (c *composer) included(into, item *yaml.Node, name string, within []string) error {
	if len(within) == 1 && !path.IsAbs(name) {
		c.tree.beside = append(c.tree.beside, name)
	}
	name = Beside(within[len(within)-1], name)
	shown := Shown(name)
	wanted := func(o *origin) bool { return path.Clean(o.name) == name }
	switch {
	case slices.Contains(within, name):
		return at(item, "%s includes itself: %s", shown, strings.Join(append(within[slices.Index(within, name):], name), " → "))
	case slices.ContainsFunc(c.tree.files, wanted):
		return at(item, "%s is included twice", shown)
	case len(within) > deepestInclude:
		return at(item, "include %s: files include others in turn at most %d times", shown, deepestInclude)
	case len(c.tree.files) > mostIncluded:
		return at(item, "include %s: a %s has at most %d files", shown, c.What, mostIncluded)
	case c.Compose.Read == nil:
		return at(item, "include %s: files cannot be read here", shown)
	}
	text, err := c.Compose.Read(name, c.Limit-c.bytes)
	switch {
	case err != nil:
		return at(item, "include %s: %v", shown, err)
	case len(text) > c.Limit-c.bytes:
		return at(item, "include %s: the files of a %s have at most %d bytes together", shown, c.What, c.Limit)
	}
	body, err := c.load(name, Unmarked(text))
	if err != nil {
		return err
	}
	if body.Kind != yaml.MappingNode {
		return at(body, "expected a mapping below the key %s, found %s", c.Compose.Key, nodeWords(body))
	}
	for key, value := range pairs(body) {
		if key.Value != c.Compose.Key {
			return at(key, "unknown field %q; expected %s", key.Value, c.Compose.Key)
		}
		part := resolve(value)
		if part.Kind != yaml.MappingNode {
			return at(value, "expected a mapping, found %s", nodeWords(part))
		}
		if err := c.join(into, part); err != nil {
			return err
		}
		if err := c.include(into, part, append(within, name)); err != nil {
			return err
		}
	}
	return nil
}

// Beside is the path of a file that another one names: relative to that.
func Beside(file, name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(path.Dir(file), name)
}

// join adds the keys of an included mapping.
func (c *composer) join(into, part *yaml.Node) error {
	for key, value := range pairs(part) {
		place := 0
		for place < len(into.Content) && into.Content[place].Value != key.Value {
			place += 2
		}
		items, more := slices.Contains(c.Compose.Lists, key.Value), slices.Contains(c.Compose.Mappings, key.Value)
		switch {
		case key.Value == includeKey:
		case place >= len(into.Content):
			into.Content = append(into.Content, key, copied(value))
		case items || more:
			kind := map[bool]yaml.Kind{true: yaml.SequenceNode, false: yaml.MappingNode}[items]
			there, added := into.Content[place+1], resolve(value)
			if there.Kind == yaml.AliasNode {
				there = copied(there)
				into.Content[place+1] = there
			}
			if added.Kind != kind || there.Kind != kind {
				return at(value, "expected %s, as %s has in %s", map[bool]string{true: "a list", false: "a mapping (key: value)"}[items], key.Value, c.tree.files.where(into.Content[place].Line, value.Line))
			}
			there.Content = append(slices.Clip(there.Content), added.Content...)
		default:
			return at(key, "%s stands in %s already: one of the files has it", key.Value, c.tree.files.where(into.Content[place].Line, key.Line))
		}
	}
	return nil
}

// copied is a node that can be added to without changing another one.
func copied(n *yaml.Node) *yaml.Node {
	n = resolve(n)
	own := *n
	own.Content = slices.Clone(n.Content)
	return &own
}

// nameForm is a name that $ stands before; in braces it ends where they do. nameAlone is the name itself.
var nameForm, nameAlone = regexp.MustCompile(`\$(?:\$|\{([A-Za-z][A-Za-z0-9_]*(?:-[A-Za-z0-9_]+)*)\}|([A-Za-z][A-Za-z0-9_]*(?:-[A-Za-z0-9_]+)*))`),
	regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]*(?:-[A-Za-z0-9_]+)*$`)

// longestName bounds the names of values and sets.
const longestName = 40

// CheckName returns what is wrong with a name that $ may stand before; nil if nothing is.
func CheckName(name string) error {
	if len(name) > longestName || !nameAlone.MatchString(name) {
		return Advice(fmt.Sprintf("a name begins with a letter and has up to %d letters, digits and underscores, with single hyphens between", longestName))
	}
	return nil
}

// define takes the values that have names.
func (c *composer) define(top *yaml.Node) error {
	c.definitions, c.names, c.replaced = map[string]*definition{}, map[string]int{}, map[*yaml.Node]bool{}
	for _, of := range c.Compose.Names {
		if list := child(top, of); list != nil {
			for key := range pairs(resolve(list)) {
				if err := CheckName(key.Value); err != nil {
					return at(key, "%q: %v", key.Value, err)
				}
				c.names[key.Value] = key.Line
			}
		}
	}
	list := child(top, defineKey)
	if list == nil {
		return nil
	}
	if list = resolve(list); list.Kind != yaml.MappingNode {
		return at(list, "expected a mapping of names to values, found %s", nodeWords(list))
	}
	for key, value := range pairs(list) {
		if key.Kind != yaml.ScalarNode {
			return at(key, "expected a name, found %s", nodeWords(key))
		}
		if err := CheckName(key.Value); err != nil {
			return at(key, "%q: %v", key.Value, err)
		}
		if known := c.definitions[key.Value]; known != nil {
			return at(key, "%s is defined in %s already", key.Value, c.tree.files.where(known.line, key.Line))
		}
		if line, taken := c.names[key.Value]; taken {
			return at(key, "%s is the name of a set in %s: give one of them another name", key.Value, c.tree.files.where(line, key.Line))
		}
		if v := resolve(value); v.Kind == yaml.ScalarNode && v.ShortTag() == "!!null" {
			return at(value, "%s: expected a value, found nothing", key.Value)
		}
		c.definitions[key.Value] = &definition{value: value, line: key.Line}
	}
	for _, name := range slices.Sorted(maps.Keys(c.definitions)) { // also those that nothing uses
		if err := c.open(c.definitions[name], name); err != nil {
			return err
		}
	}
	return nil
}

// open replaces the names within a definition.
func (c *composer) open(d *definition, name string) error {
	switch {
	case d.done:
		return nil
	case d.opening:
		return at(resolve(d.value), "$%s stands for itself", name)
	}
	d.opening = true
	d.value = copied(d.value)
	err := c.replace(d.value)
	d.done = err == nil
	return err
}

// replace puts values in the place of names in a node and all below it.
func (c *composer) replace(n *yaml.Node) error {
	switch n.Kind {
	case yaml.ScalarNode:
		return c.replaceText(n)
	case yaml.MappingNode:
		for _, value := range pairs(n) {
			if err := c.replace(value); err != nil {
				return err
			}
		}
		return nil
	case yaml.SequenceNode:
		return c.replaceItems(n)
	}
	return nil // what an alias stands for is met where it stands
}

// replaceItems is replace of a list, into which a list that an item stands for is put item by item.
func (c *composer) replaceItems(n *yaml.Node) error {
	items := make([]*yaml.Node, 0, len(n.Content))
	for _, item := range n.Content {
		scalar := resolve(item).Kind == yaml.ScalarNode && strings.Contains(resolve(item).Value, "$")
		if err := c.replace(item); err != nil {
			return err
		}
		if item.Kind == yaml.SequenceNode && scalar {
			items = append(items, item.Content...)
			continue
		}
		items = append(items, item)
	}
	n.Content = items
	return nil
}

// replaceText is replace of text: of one that is a name alone the value takes its place, otherwise text its place in it.
func (c *composer) replaceText(n *yaml.Node) (err error) {
	if !strings.Contains(n.Value, "$") || c.replaced[n] {
		return nil
	}
	c.replaced[n] = true
	text, line, column := n.Value, n.Line, n.Column
	found := nameForm.FindStringSubmatch(text)
	if found != nil && found[0] == text && text != "$$" {
		name := found[1] + found[2]
		if _, taken := c.names[name]; taken {
			n.Value, n.Tag = "$"+name, setTag
			return nil
		}
		d, err := c.definitionOf(n, name)
		if err != nil {
			return err
		}
		value, err := c.clone(d.value, line, column, 0)
		if err == nil {
			*n = *value
			c.used(n, name, d)
		}
		return err
	}
	n.Value = nameForm.ReplaceAllStringFunc(text, func(word string) string {
		if word == "$$" || err != nil {
			return "$"
		}
		name := strings.Trim(word, "${}")
		if _, taken := c.names[name]; taken {
			err = at(n, "$%s is a set: it stands alone, or as an item of a list", name)
			return ""
		}
		var d *definition
		if d, err = c.definitionOf(n, name); err != nil {
			return ""
		}
		if d.value.Kind != yaml.ScalarNode {
			err = at(n, "$%s is %s (%s): it stands alone, or as an item of a list", name, nodeWords(d.value), c.tree.files.where(d.line, line))
			return ""
		}
		c.used(n, name, d)
		return d.value.Value
	})
	if c.left -= len(n.Value) / 64; c.left < 0 && err == nil {
		err = tooMany(n)
	}
	return err
}

func tooMany(n *yaml.Node) error {
	return at(n, "too many values: names and aliases (*name) repeat what they stand for too often")
}

// definitionOf is what a name stands for at a node.
func (c *composer) definitionOf(n *yaml.Node, name string) (*definition, error) {
	d := c.definitions[name]
	if d == nil {
		known := slices.Concat(slices.Sorted(maps.Keys(c.definitions)), slices.Sorted(maps.Keys(c.names)))
		return nil, at(n, "$%s is not defined%s; a dollar sign itself is written $$", name, meant(name, known))
	}
	return d, c.open(d, name)
}

// clone copies a value to another place, and what its aliases stand for.
func (c *composer) clone(n *yaml.Node, line, column, depth int) (*yaml.Node, error) {
	n = resolve(n)
	if c.left--; c.left < 0 || depth > deepest {
		return nil, tooMany(&yaml.Node{Line: line, Column: column})
	}
	own := *n
	own.Line, own.Column, own.Anchor, own.Content = line, column, "", make([]*yaml.Node, len(n.Content))
	for i, child := range n.Content {
		copy, err := c.clone(child, line, column, depth+1)
		if err != nil {
			return nil, err
		}
		own.Content[i] = copy
	}
	return &own, nil
}

// used remembers that a name stands at a node, for errors about its value.
func (c *composer) used(n *yaml.Node, name string, d *definition) {
	if c.tree.uses == nil {
		c.tree.uses = map[spot]string{}
	}
	text, here := fmt.Sprintf("$%s is defined in %s", name, c.tree.files.where(d.line, n.Line)), spot{n.Line, n.Column}
	if before := c.tree.uses[here]; before != "" && !strings.Contains(before, text) {
		text = before + ", " + text
	}
	c.tree.uses[here] = text
}
