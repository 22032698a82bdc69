package document

import "go.yaml.in/yaml/v4"

// Tree knows where the things of a document stand.
type Tree struct {
	body  *yaml.Node
	lines [][]byte
}

// Place is a place in a document, counted from 1, and its line with a mark below.
type Place struct {
	Line, Column int
	Excerpt      string
}

// At follows a path of keys and list indexes as far as the document goes.
func (t *Tree) At(path ...any) Place {
	n := locate(t.body, path)
	return Place{n.Line, n.Column, excerpt(t.lines, n.Line, n.Column)}
}

// locate follows a path of keys and list indexes as far as the text goes, so
// that what is missing is reported where it should have been.
func locate(n *yaml.Node, path []any) *yaml.Node {
	for _, step := range path {
		next := child(n, step)
		if next == nil {
			break
		}
		n = next
	}
	return n
}

func child(n *yaml.Node, step any) *yaml.Node {
	n = resolve(n)
	switch step := step.(type) {
	case int:
		if n.Kind == yaml.SequenceNode && step < len(n.Content) {
			return n.Content[step]
		}
	case string:
		for key, value := range pairs(n) {
			if key.Value == step {
				return value
			}
		}
	}
	return nil
}

// pairs are the keys and values of a mapping.
func pairs(n *yaml.Node) func(yield func(key, value *yaml.Node) bool) {
	return func(yield func(key, value *yaml.Node) bool) {
		if n.Kind != yaml.MappingNode {
			return
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
	}
}

// resolve is what an alias (*name) stands for.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}
