package gateway

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/document"
)

// texts are files by their paths.
type texts map[string]string

func (t texts) Read(path string, _ int) ([]byte, error) {
	text, there := t[path]
	if !there {
		return nil, fs.ErrNotExist
	}
	return []byte(text), nil
}

func (t texts) List(dir string) (names []string, err error) {
	for name := range t {
		if rest, is := strings.CutPrefix(name, dir+"/"); is {
			names = append(names, rest)
		}
	}
	slices.Sort(names)
	if names == nil {
		return nil, fs.ErrNotExist
	}
	return names, nil
}

const composed = `gateway:
  include: [rules/web.yaml]
  define:
    office: 203.0.113.7
    inside: [192.168.0.0/16, 172.16.0.0/12]
    server: &server 10.0.0.9
  interfaces: {wan: eth0, lan: eth1}
  nat:
    - masquerade: {from: [10.0.0.0/8, $inside]}
    - dnat: &web {on: $office, port: tcp/443, to: *server}
    - dnat: {<<: *web, port: tcp/80, to: "$server:8080"}
`

// A file of several, with names and anchors, is the file that says all of it.
func TestParseComposed(t *testing.T) {
	f, err := ParseWith(texts{"/etc/gw/rules/web.yaml": "gateway:\n  nat:\n    - snat: {from: $server, to: $office}\n"}, "/etc/gw/g.yaml", []byte(composed))
	if err != nil {
		t.Fatal(err)
	}
	want := `gateway:
  interfaces: {wan: eth0, lan: eth1}
  nat:
    - masquerade: {from: [10.0.0.0/8, 192.168.0.0/16, 172.16.0.0/12]}
    - dnat: {on: 203.0.113.7, port: tcp/443, to: 10.0.0.9}
    - dnat: {on: 203.0.113.7, port: tcp/80, to: 10.0.0.9:8080}
    - snat: {from: 10.0.0.9, to: 203.0.113.7}
`
	if diff := cmp.Diff(want, string(Marshal(&f.Config))); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"/etc/gw/rules/web.yaml"}, f.Others()); diff != "" {
		t.Error(diff)
	}
	for i, want := range []string{"line 9", "line 10", "line 11", "/etc/gw/rules/web.yaml line 3"} {
		if got := f.Line(Ref{List: "nat", Index: i}); got != want {
			t.Errorf("nat[%d] is in %s, want %s", i, got, want)
		}
	}
}

func TestComposedErrors(t *testing.T) {
	for _, tt := range []struct{ name, other, want string }{
		{"a value", "nat:\n    - snat: {from: $offices, to: $office}", `web.yaml:3:20: $offices is not defined (did you mean "office"?); a dollar sign itself is written $$`},
		{"a bad value", "nat:\n    - snat: {from: $office, to: $word}", `web.yaml:3:33: expected an address, a range or a prefix such as 203.0.113.7, 203.0.113.8-203.0.113.15 or 203.0.113.32/27, found "x" ($word is defined in g.yaml line 3)`},
		{"a rule without its parts", "nat:\n    - snat: {from: $office}", "web.yaml:3:13: snat.to is required"},
		{"settings twice", "interfaces: {wan: eth7}", "web.yaml:2:3: interfaces stands in g.yaml line 4 already: one of the files has it"},
	} {
		_, err := ParseWith(texts{"web.yaml": "gateway:\n  " + tt.other + "\n"}, "g.yaml", []byte("gateway:\n  include: web.yaml\n  define: {office: 203.0.113.7, word: x}\n  interfaces: {wan: eth0}\n"))
		var syntax *document.SyntaxError
		if !errors.As(err, &syntax) || err.Error() != tt.want {
			t.Errorf("%s:\n got %v\nwant %s", tt.name, err, tt.want)
		}
	}
	if _, err := Parse("g.yaml", []byte("gateway: {include: web.yaml}")); err == nil || !strings.Contains(err.Error(), "cannot be read here") {
		t.Error(err)
	}
}

// Findings name the file that they are about, and the definition of a name that stands there.
func TestComposedFindings(t *testing.T) {
	f, err := ParseWith(texts{"web.yaml": "gateway:\n  nat:\n    - snat: {from: 10.0.0.1, to: $loop}\n"}, "g.yaml", []byte("gateway:\n  include: web.yaml\n  define: {loop: 127.0.0.1}\n  interfaces: {wan: eth0}\n"))
	if err != nil {
		t.Fatal(err)
	}
	found := Check(f, Facts{})
	if len(found) != 1 || found[0].ID != "unusable-address" || found[0].File != "web.yaml" || found[0].Line != 3 || !strings.Contains(found[0].Message, "($loop is defined in g.yaml line 3)") {
		t.Errorf("%+v", found)
	}
}
