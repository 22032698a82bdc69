package document

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v4"
)

// library is a document that several files may make up.
type library struct {
	Shelves []shelf           `yaml:"shelves"`
	Tags    map[string]string `yaml:"tags"`
	Owner   string            `yaml:"owner"`
}

// files are texts by their paths.
type files map[string]string

func (f files) Read(path string, _ int) ([]byte, error) {
	text, there := f[path]
	if !there {
		return nil, errors.New("no such file")
	}
	return []byte(text), nil
}

func decodeLibrary(f files) (library, *Tree, error) {
	var read struct {
		Library struct {
			library `yaml:",inline"`
			Include skipped `yaml:"include"`
			Define  skipped `yaml:"define"`
		} `yaml:"library"`
	}
	parts := &Compose{Key: "library", Read: f.Read, Lists: []string{"shelves"}, Mappings: []string{"tags", "define"}, Names: []string{"tags"}}
	tree, err := Source{File: "l.yaml", What: "library", Text: []byte(f["l.yaml"]), Limit: 4000, Whole: true, Compose: parts}.DecodeTree(&read, nil)
	return read.Library.library, tree, err
}

type skipped struct{}

// UnmarshalYAML skips it.
func (skipped) UnmarshalYAML(*yaml.Node) error { return nil }

func TestCompose(t *testing.T) {
	for _, tt := range []struct {
		name  string
		files files
		want  library
	}{
		{"a name for text", files{"l.yaml": "library:\n  define: {o: Ann}\n  owner: $o\n"}, library{Owner: "Ann"}},
		{"a name within text", files{"l.yaml": "library:\n  define: {o: Ann, n: 7}\n  owner: ${o}s $n $$n $ 5$\n"}, library{Owner: "Anns 7 $n $ 5$"}},
		{"names in names", files{"l.yaml": "library:\n  define: {o: [$p, c], p: [a, b]}\n  shelves: [{books: [x, $o, y]}]\n"}, library{Shelves: []shelf{{Books: titles{"x", "a", "b", "c", "y"}}}}},
		{"a list for one value", files{"l.yaml": "library:\n  define: {o: [a, b]}\n  shelves: [{books: $o}]\n"}, library{Shelves: []shelf{{Books: titles{"a", "b"}}}}},
		{"a name for a mapping", files{"l.yaml": "library:\n  define: {s: {books: a}}\n  shelves: [$s]\n"}, library{Shelves: []shelf{{Books: titles{"a"}}}}},
		{"names of another kind stay", files{"l.yaml": "library:\n  tags: {t: x}\n  shelves: [{books: ['$t', '${t}']}]\n"},
			library{Tags: map[string]string{"t": "x"}, Shelves: []shelf{{Books: titles{"$t", "$t"}}}}},
		{"a dollar sign before what is a name", files{"l.yaml": "library:\n  tags: {t: x}\n  owner: $$t\n"}, library{Tags: map[string]string{"t": "x"}, Owner: "$t"}},
		{"two files", files{"l.yaml": "library:\n  include: more.yaml\n  shelves: [{books: a}]\n", "more.yaml": "library:\n  owner: $o\n  define: {o: Ann}\n  shelves: [{books: b}]\n"},
			library{Owner: "Ann", Shelves: []shelf{{Books: titles{"a"}}, {Books: titles{"b"}}}}},
		{"files beside another", files{"l.yaml": "library: {include: [d/x.yaml], tags: {a: x}}", "d/x.yaml": "library: {include: ../y.yaml, tags: {b: y}}", "y.yaml": "library: {owner: Ann}"},
			library{Owner: "Ann", Tags: map[string]string{"a": "x", "b": "y"}}},
		{"merge keys", files{"l.yaml": "library:\n  shelves:\n  - &s {books: a, room: 7h}\n  - {<<: *s, room: 8h}\n  - {<<: [{books: c}, *s]}\n"},
			library{Shelves: []shelf{{titles{"a"}, Labels{hour{"7h"}}}, {titles{"a"}, Labels{hour{"8h"}}}, {titles{"c"}, Labels{hour{"7h"}}}}}},
		{"names that mappings share", files{"l.yaml": "library:\n  define: {r: 7h}\n  shelves:\n  - &s {books: a$$b, room: $r}\n  - {<<: *s}\n"},
			library{Shelves: []shelf{{titles{"a$b"}, Labels{hour{"7h"}}}, {titles{"a$b"}, Labels{hour{"7h"}}}}}},
	} {
		got, _, err := decodeLibrary(tt.files)
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(hour{})); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", tt.name, err, diff)
		}
	}
}

func TestComposeErrors(t *testing.T) {
	doubled := "library:\n  define:\n    a: [x, x]\n"
	for i := range 26 {
		doubled += fmt.Sprintf("    a%d: [$a%s, $a%s]\n", i, number(i), number(i))
	}
	chain := files{"l.yaml": "library: {include: f1.yaml}"}
	for i := 1; i < 20; i++ {
		chain[fmt.Sprintf("f%d.yaml", i)] = fmt.Sprintf("library: {include: f%d.yaml}", i+1)
	}
	for _, tt := range []struct {
		name  string
		files files
		want  string
	}{
		{"unknown name", files{"l.yaml": "library:\n  define: {inside: a}\n  owner: $insde\n"}, `l.yaml:3:10: $insde is not defined (did you mean "inside"?); a dollar sign itself is written $$`},
		{"no names at all", files{"l.yaml": "library:\n  owner: $x\n"}, `l.yaml:2:10: $x is not defined; a dollar sign itself is written $$`},
		{"bad value of a name", files{"l.yaml": "library:\n  define:\n    r: noon\n  shelves: [{room: $r}]\n"}, `l.yaml:4:20: expected an hour such as 7h, found "noon" ($r is defined in line 3)`},
		{"bad value in another file", files{"l.yaml": "library:\n  include: m.yaml\n  define: {r: noon}\n", "m.yaml": "library:\n  shelves:\n  - room: $r\n"}, `m.yaml:3:11: expected an hour such as 7h, found "noon" ($r is defined in l.yaml line 3)`},
		{"a list within text", files{"l.yaml": "library:\n  define: {o: [a]}\n  owner: x $o\n"}, `l.yaml:3:10: $o is a list (line 2): it stands alone, or as an item of a list`},
		{"another kind within text", files{"l.yaml": "library:\n  tags: {o: a}\n  owner: x $o\n"}, `l.yaml:3:10: $o is a set: it stands alone, or as an item of a list`},
		{"itself", files{"l.yaml": "library:\n  define: {a: $b, b: [$a]}\n"}, `l.yaml:2:15: $a stands for itself`},
		{"an alias of itself", files{"l.yaml": "library:\n  define: {a: &a [*a]}\n  owner: $a\n"}, `l.yaml:3:10: too many values: names and aliases (*name) repeat what they stand for too often`},
		{"a bad name", files{"l.yaml": "library:\n  define: {a b: x}\n"}, `l.yaml:2:12: "a b": a name begins with a letter and has up to 40 letters, digits and underscores, with single hyphens between`},
		{"a name of another kind for a value", files{"l.yaml": "library:\n  tags: {t: x}\n  shelves: [{room: $t}]\n"}, "l.yaml:3:20: expected an hour such as 7h, found $t, which is a set: write the value itself here, or give it a name below define"},
		{"a name of another kind for text", files{"l.yaml": "library: {tags: {t: x}, define: {o: $t}, owner: $o}"}, "l.yaml:1:49: expected text, found $t, which is a set: write the value itself here, or give it a name below define"},
		{"a dollar sign as a name", files{"l.yaml": "library:\n  define: {$: x}\n"}, `l.yaml:2:12: "$": a name begins with a letter`},
		{"braces as a name", files{"l.yaml": "library:\n  tags: {'{a}': x}\n"}, `l.yaml:2:10: "{a}": a name begins with a letter`},
		{"no value", files{"l.yaml": "library:\n  define: {a: }\n"}, `l.yaml:2:15: a: expected a value, found nothing`},
		{"a name twice", files{"l.yaml": "library:\n  define: {a: x}\n  include: m.yaml", "m.yaml": "library: {define: {a: y}}"}, `m.yaml:1:20: a is defined in l.yaml line 2 already`},
		{"one name space", files{"l.yaml": "library:\n  define: {a: x}\n  tags: {a: y}"}, `l.yaml:2:12: a is the name of a set in line 3: give one of them another name`},
		{"repeated too often", files{"l.yaml": doubled + "  owner: $a25\n"}, `too many values: names and aliases (*name) repeat what they stand for too often`},
		{"missing file", files{"l.yaml": "library:\n  include: [m.yaml]\n"}, `l.yaml:2:13: include m.yaml: no such file`},
		{"broken file", files{"l.yaml": "library:\n  include: [m.yaml]\n", "m.yaml": "library:\n  owner: [\n"}, `m.yaml:3:1: did not find expected node content`},
		{"empty file", files{"l.yaml": "library:\n  include: [m.yaml]\n", "m.yaml": ""}, `m.yaml:1:1: expected a library, found an empty document`},
		{"another key", files{"l.yaml": "library:\n  include: [m.yaml]\n", "m.yaml": "\nlibary: {}\n"}, `m.yaml:2:1: unknown field "libary"; expected library`},
		{"unknown field", files{"l.yaml": "library:\n  include: [m.yaml]\n", "m.yaml": "library:\n  shelves: [{boks: a}]\n"}, `m.yaml:2:14: unknown field "boks" (did you mean "books"?); expected one of: books, room`},
		{"a cycle", files{"l.yaml": "library:\n  include: d/m.yaml\n", "d/m.yaml": "library:\n  include: ../l.yaml\n"}, `d/m.yaml:2:12: l.yaml includes itself: l.yaml → d/m.yaml → l.yaml`},
		{"twice", files{"l.yaml": "library:\n  include: [m.yaml, ./m.yaml]\n", "m.yaml": "library: {}"}, `l.yaml:2:21: m.yaml is included twice`},
		{"too deep", chain, `f8.yaml:1:20: include f9.yaml: files include others in turn at most 8 times`},
		{"too large together", files{"l.yaml": "library:\n  include: [m.yaml]\n", "m.yaml": strings.Repeat("#", 3999)}, `l.yaml:2:13: include m.yaml: the files of a library have at most 4000 bytes together`},
		{"a setting twice", files{"l.yaml": "library:\n  owner: a\n  include: [m.yaml]\n", "m.yaml": "library:\n  owner: b\n"}, `m.yaml:2:3: owner stands in l.yaml line 2 already: one of the files has it`},
		{"a key twice", files{"l.yaml": "library:\n  tags: {a: x}\n  include: [m.yaml]\n", "m.yaml": "library:\n  tags: {a: y}\n"}, `m.yaml:2:10: the key "a" is in l.yaml line 2 already`},
		{"no list", files{"l.yaml": "library:\n  shelves: [{books: a}]\n  include: [m.yaml]\n", "m.yaml": "library:\n  shelves: {books: a}\n"}, `m.yaml:2:12: expected a list, as shelves has in l.yaml line 2`},
		{"merging text", files{"l.yaml": "library:\n  shelves: [{<<: a}]\n"}, `l.yaml:2:18: expected a mapping whose keys are taken over, such as *name, or a list of these`},
		{"merging itself", files{"l.yaml": "library:\n  shelves:\n  - &s {<<: *s}\n"}, `l.yaml:3:13: it takes over keys from itself`},
		{"merged faults", files{"l.yaml": "library:\n  shelves:\n  - &s {room: noon}\n  - {<<: *s}\n"}, `l.yaml:3:15: expected an hour such as 7h, found "noon"`},
	} {
		_, _, err := decodeLibrary(tt.files)
		var syntax *SyntaxError
		if !errors.As(err, &syntax) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s:\n got %v\nwant %s", tt.name, err, tt.want)
		}
	}
}

func number(i int) string {
	if i == 0 {
		return ""
	}
	return fmt.Sprint(i - 1)
}

// A mark of byte order is no part of an included file's first line.
func TestComposeMarked(t *testing.T) {
	_, _, err := decodeLibrary(files{"l.yaml": "library:\n  include: [m.yaml]\n", "m.yaml": "\ufefflibary: {}\n"})
	var syntax *SyntaxError
	if !errors.As(err, &syntax) || syntax.Column != 1 || syntax.Excerpt != "    1 | libary: {}\n      | ^" {
		t.Errorf("%v\n%q", err, syntax.Excerpt)
	}
}

// Places are those of the file that has them.
func TestComposePlaces(t *testing.T) {
	_, tree, err := decodeLibrary(files{"l.yaml": "library:\n  define: {b: x}\n  include: m.yaml\n  shelves: [{books: $b}]\n", "m.yaml": "library:\n  shelves:\n  - {books: y}\n"})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]Place{
		"0": {"l.yaml", 4, 21, "    4 |   shelves: [{books: $b}]\n      |                     ^", "$b is defined in line 2"},
		"1": {"m.yaml", 3, 13, "    3 |   - {books: y}\n      |             ^", ""},
	} {
		if diff := cmp.Diff(want, tree.At("library", "shelves", int(path[0]-'0'), "books")); diff != "" {
			t.Error(diff)
		}
	}
	if diff := cmp.Diff([]string{"l.yaml", "m.yaml"}, tree.Files()); diff != "" {
		t.Error(diff)
	}
}

func FuzzCompose(f *testing.F) {
	f.Add("library:\n  define: {o: [$p, c], p: &a [a, b, *a]}\n  shelves: [{books: [x, $o, y]}, &s {<<: *s}]\n", "library: {include: [l.yaml, m.yaml], shelves: [{<<: {books: a}}]}")
	f.Fuzz(func(t *testing.T, text, other string) {
		_, tree, err := decodeLibrary(files{"l.yaml": text, "m.yaml": other})
		if (err == nil) == (tree == nil) {
			t.Fatal(tree, err)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Fatalf("%q", err)
		}
	})
}
