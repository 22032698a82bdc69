package gateway

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/document"
)

func TestParseEdit(t *testing.T) {
	either := document.Either(kindWords)
	for _, c := range []struct {
		text string
		kind document.ChangeKind
		path []any
	}{
		{"mss=clamp", document.Set, []any{"mss"}},
		{"gateway.mss=clamp", document.Set, []any{"mss"}},
		{"interfaces.lan+=eth1", document.Add, []any{"interfaces", "lan"}},
		{"nat[2].enabled=off", document.Set, []any{"nat", 2, "enabled"}},
		{"nat.2.enabled=", document.Unset, []any{"nat", 2, "enabled"}},
		{"nat[web].to=10.0.0.4:80", document.Set, []any{"nat", document.Named("web"), either, "to"}},
		{"nat.web.to[10.0.0.1:80].weight=3", document.Set, []any{"nat", document.Named("web"), either, "to", document.Named("10.0.0.1:80"), "weight"}},
		{"ipv6[0].dnat.only-to-=fd00::/8", document.Remove, []any{"ipv6", 0, "dnat", "only-to"}},
		{"nat+={masquerade: {from: 10.0.0.0/8}}", document.Add, []any{"nat"}},
		{"nat-=2", document.Unset, []any{"nat", 2}},
		{"nat-=web", document.Remove, []any{"nat"}},
		{"nat[a.b].name=c", document.Set, []any{"nat", document.Named("a.b"), "name"}},
	} {
		e, err := ParseEdit(c.text)
		want := append([]any{"gateway"}, c.path...)
		if err != nil || e.change.Kind != c.kind || !cmp.Equal(e.change.Path, want) {
			t.Errorf("%s: %v %v, %v", c.text, e.change.Kind, e.change.Path, err)
		}
	}
	for _, text := range []string{"", "mss", "=1", "+=1", "gateway=1", "mss+=", "nat-=", "nat[2=1", "nat[]=1", "nat..x=1", "[2]=1", "a b=1", "nat[-1=]"} {
		if e, err := ParseEdit(text); err == nil {
			t.Errorf("%q: %v", text, e.change)
		}
	}
}

// The paths that are offered lead to what they are said to.
func TestEditPaths(t *testing.T) {
	text := inFile("masquerade: {from: 192.168.0.0/16}", "dnat: {on: 203.0.113.7, to: [{address: 10.0.0.1, weight: 3}, 10.0.0.2]}\n    name: web")
	want := []string{"interfaces", "interfaces.lan", "interfaces.wan", "nat", "nat.0.from", "nat.web.name", "nat.web.on", "nat.web.to", "nat.web.to[10.0.0.1]",
		"nat.web.to[10.0.0.1].address", "nat.web.to[10.0.0.1].weight"}
	if diff := cmp.Diff(want, EditPaths([]byte(text))); diff != "" {
		t.Error(diff)
	}
	for _, path := range want {
		if _, err := edited(t, text, path+"="); err != nil && strings.HasPrefix(err.Error(), path) { // otherwise the result is none
			t.Error(err)
		}
	}
	for _, text := range []string{"", "a", "[", "gateway: 1", "gateway: {nat: [[]]}"} {
		EditPaths([]byte(text))
	}
}

func edited(t *testing.T, text string, edits ...string) (string, error) {
	t.Helper()
	var all []Edit
	for _, e := range edits {
		parsed, err := ParseEdit(e)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, parsed)
	}
	got, _, err := Edited(nil, "f", []byte(text), all)
	return string(got), err
}

// One edit changes one line of a file in the order and layout of which nothing else moves.
func TestEdited(t *testing.T) {
	text := inFile("masquerade: {from: 192.168.0.0/16}  # all", "dnat: {on: 203.0.113.7, port: tcp/80, to: 10.0.0.1:80}\n    name: web # ours")
	for edit, want := range map[string][2]string{
		"nat[web].to=10.0.0.4:80":         {"to: 10.0.0.1:80", "to: 10.0.0.4:80"},
		"nat[web].to+=10.0.0.4:80":        {"to: 10.0.0.1:80", "to: [10.0.0.1:80, 10.0.0.4:80]"},
		"nat[web].enabled=off":            {"name: web # ours\n", "name: web # ours\n    enabled: off\n"},
		"nat[web].name=":                  {"    name: web # ours\n", ""},
		"nat[0].except-to=10.0.0.0/8":     {"192.168.0.0/16}", "192.168.0.0/16, except-to: 10.0.0.0/8}"},
		"nat[0].from=":                    {"{from: 192.168.0.0/16}", "{}"},
		"nat-=0":                          {"  - masquerade: {from: 192.168.0.0/16}  # all\n", ""},
		"interfaces.lan-=br0":             {"[eth1, br0]", "[eth1]"},
		"expect.flows=200k":               {"gateway:\n", "gateway:\n"},
		"mss=clamp":                       {"br0]}\n", "br0]}\n  mss: clamp\n"},
		"nat+={masquerade: {from: 10/8}}": {},
	} {
		got, err := edited(t, text, edit)
		switch {
		case want == [2]string{}:
			var syntax *document.SyntaxError
			if !errors.As(err, &syntax) || syntax.Line != 7 || syntax.Column != 24 {
				t.Errorf("%s: %v", edit, err)
			}
		case want[0] == want[1]:
			if err != nil || !strings.HasPrefix(got, "gateway:\n  expect: {flows: 200k}\n  interfaces: ") {
				t.Errorf("%s: %v\n%s", edit, err, got)
			}
		default:
			if diff := cmp.Diff(strings.Replace(text, want[0], want[1], 1), got); diff != "" || err != nil {
				t.Errorf("%s: %v\n%s", edit, err, diff)
			}
		}
	}
}

// FuzzEdited: whatever is edited, the result is a gateway file of which what was not edited reads as before, or an
// error with its place.
func FuzzEdited(f *testing.F) {
	f.Add(every, "nat[2].from+=10.9.0.0/16")
	f.Add(every, "ipv6.1.enabled=off")
	f.Add(every, "interfaces.wan=eth9")
	f.Add(every, "limits=")
	f.Add("gateway: {nat: [{masquerade: {}}]}", "nat[0].masquerade={from: [10.0.0.0/8,\"192.168.0.0/16\"]}")
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatal("no examples", err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text), "mss=1360")
	}
	f.Fuzz(func(t *testing.T, text, edit string) {
		e, err := ParseEdit(edit)
		if err != nil {
			return
		}
		got, now, err := Edited(nil, "f", []byte(text), []Edit{e})
		var syntax *document.SyntaxError
		if err != nil {
			if !errors.As(err, &syntax) || got != nil {
				t.Fatalf("%T %v", err, err)
			}
			return
		}
		again, err := Parse("f", got)
		if err != nil || !cmp.Equal(Marshal(&again.Config), Marshal(&now.Config)) {
			t.Fatalf("%v\n%s", err, got)
		}
		before, err := Parse("f", []byte(text))
		if err != nil {
			return
		}
		// The rules that an edit of another word leaves.
		if word := e.change.Path[1]; !isRuleList(word) && !slices.Equal(rulesText(before), rulesText(now)) {
			t.Fatalf("rules changed by %s:\n%s", edit, got)
		}
	})
}

func rulesText(f *File) (all []string) {
	for _, r := range slices.Concat(f.Config.NAT, f.Config.IPv6) {
		all = append(all, MarshalRule(r))
	}
	return all
}
