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
	got, err := Edited(nil, "f", []byte(text), all)
	if err != nil {
		return "", err
	}
	return string(got.Text), nil
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

// What stands in several rules changes in all of them, which is said.
func TestEditedAlso(t *testing.T) {
	const text = `gateway:
  include: more.yaml
  define: {server: 10.0.0.9}
  interfaces: {wan: eth0}
  nat:
    - dnat: &web {on: 203.0.113.7, port: tcp/443, to: $server}
    - dnat: {<<: *web, port: tcp/80}
      name: plain
    - dnat: {<<: *web, port: tcp/81, to: 10.0.0.8}
`
	files := texts{"more.yaml": "gateway:\n  nat:\n    - snat: {from: $server, to: 203.0.113.7}\n"}
	for _, c := range []struct {
		edits []string
		want  string
	}{
		{[]string{"nat[0].port=tcp/444"}, ""}, // the others have their own
		{[]string{"nat[0].enabled=off"}, ""},
		{[]string{"nat.plain.to=10.0.0.7"}, ""},
		{[]string{"nat[0].to=10.0.0.7"}, "nat[0].to=10.0.0.7 &: nat[1] dnat plain"},
		{[]string{"nat[0].on=203.0.113.8"}, "nat[0].on=203.0.113.8 &: nat[1] dnat plain, nat[2] dnat"},
		{[]string{"define.server=10.0.0.7"}, "define.server=10.0.0.7 define: nat[0] dnat, nat[1] dnat plain, nat[3] snat"},
		{[]string{"nat-=2", "nat[0].on=203.0.113.8"}, "nat[0].on=203.0.113.8 &: nat[1] dnat plain"},
		{[]string{"nat+={masquerade: {}}", "mss=clamp"}, ""},
	} {
		var edits []Edit
		for _, text := range c.edits {
			e, err := ParseEdit(text)
			if err != nil {
				t.Fatal(err)
			}
			edits = append(edits, e)
		}
		got, err := Edited(files, "g.yaml", []byte(text), edits)
		if err != nil {
			t.Errorf("%s: %v", c.edits, err)
			continue
		}
		var also []string
		for _, s := range got.Also {
			var rules []string
			for _, r := range s.Rules {
				rules = append(rules, r.String())
			}
			also = append(also, s.Edit+" "+s.By+": "+strings.Join(rules, ", "))
		}
		if got := strings.Join(also, "; "); got != c.want {
			t.Errorf("%s: %s", c.edits, got)
		}
	}
}

// What stands in another file is edited there.
func TestEditedElsewhere(t *testing.T) {
	const text = "gateway:\n  include: [web.yaml, own.yaml]\n  define: {server: 10.0.0.9}\n  nat:\n    - masquerade: {}\n"
	files := texts{
		"web.yaml": "gateway:\n  nat:\n    - snat: {from: 10.0.0.2, to: 203.0.113.7}\n    - snat: {from: 10.0.0.3, to: 203.0.113.7}\n      name: web\n  interfaces: {wan: eth0}\n  sets: {a: {ports: tcp/80}}\n  define: {w: 1}\n",
		"own.yaml": "gateway:\n  nat:\n    - snat: {from: $server, to: 203.0.113.7}\n",
	}
	for edit, want := range map[string]string{
		"nat[2].enabled=off":     "web.yaml:4:7: nat[2] snat web stands here: use natkit gateway set web.yaml 'nat[1].enabled=off'",
		"gateway.nat.2.from=":    "web.yaml:4:7: nat[2] snat web stands here: use natkit gateway set web.yaml 'gateway.nat.1.from='",
		"nat-=2":                 "web.yaml:4:7: nat[2] snat web stands here: use natkit gateway set web.yaml 'nat-=1'",
		"nat-=web":               "web.yaml:4:7: nat[2] snat web stands here: use natkit gateway set web.yaml 'nat-=web'",
		"nat[web].from=10.2.2.2": "web.yaml:4:7: nat[2] snat web stands here: use natkit gateway set web.yaml 'nat[web].from=10.2.2.2'",
		"nat[web].note=it's":     "web.yaml:4:7: nat[2] snat web stands here: use natkit gateway set web.yaml 'nat[web].note=it'\\''s'",
		"ipv6[0].to=1":           `g.yaml:2:3: there is no "0" in "ipv6", which has nothing`,
		"nat[3].enabled=off":     "own.yaml:3:7: nat[3] snat stands here: change it by hand, as this file is none without g.yaml",
		"interfaces.wan=eth1":    "web.yaml:6:15: interfaces stands here: use natkit gateway set web.yaml 'interfaces.wan=eth1'",
		"interfaces=":            "web.yaml:6:15: interfaces stands here: use natkit gateway set web.yaml 'interfaces='",
		"sets.a.ports=tcp/81":    "web.yaml:7:13: sets.a stands here: use natkit gateway set web.yaml 'sets.a.ports=tcp/81'",
		"define.w=2":             "web.yaml:8:15: define.w stands here: use natkit gateway set web.yaml 'define.w=2'",
		"nat[4].enabled=off":     "g.yaml:5:5: there is no [4]: the list has 1 items, counted from 0",
		"nat-=db":                "g.yaml:5:5: no item of the list is \"db\"",
		"mss=":                   "g.yaml:2:3: there is no \"mss\" to be removed",
		"sets.b=":                "g.yaml:2:3: there is no \"sets\" to be removed",
		"define.x=":              "g.yaml:3:11: there is no \"x\" to be removed",
		"nat[0].to=1":            "with the edit: g.yaml:5:",
	} {
		e, err := ParseEdit(edit)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Edited(files, "g.yaml", []byte(text), []Edit{e})
		var syntax *document.SyntaxError
		if !errors.As(err, &syntax) || got != nil || !strings.HasPrefix(strings.TrimPrefix(err.Error(), edit+": "), want) {
			t.Errorf("%s:\n got %v\nwant %s", edit, err, want)
		}
	}
	for _, edit := range []string{"sets.b.ports=udp/53", "define.x=1", "mss=clamp"} {
		e, err := ParseEdit(edit)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Edited(files, "g.yaml", []byte(text), []Edit{e}); err != nil {
			t.Error(edit, err)
		}
	}
}

// What was wrong before is not said to be of the edit.
func TestEditedBefore(t *testing.T) {
	if _, err := edited(t, "gateway:\n  mss: 1\n", "ttl=64"); err == nil || !strings.HasPrefix(err.Error(), "f:2:8: ") {
		t.Error(err)
	}
	if _, err := edited(t, "gateway:\n  mss: 1\n", "mss=2"); err == nil || !strings.HasPrefix(err.Error(), "with the edit: f:2:8: ") {
		t.Error(err)
	}
}

// A first rule begins a list.
func TestEditedFirstRule(t *testing.T) {
	got, err := edited(t, "gateway:\n  interfaces: {wan: eth0}\n", "nat+={masquerade: {from: 10.0.0.0/8}, name: all}", "nat+={masquerade: {from: 192.168.0.0/16}}")
	if want := "gateway:\n  interfaces: {wan: eth0}\n  nat:\n    - masquerade: {from: 10.0.0.0/8}\n      name: all\n    - masquerade: {from: 192.168.0.0/16}\n"; err != nil || got != want {
		t.Errorf("%v\n%s", err, got)
	}
}

// FuzzEdited: whatever is edited, the result is a gateway file of which what was not edited reads as before, or an
// error with its place.
func FuzzEdited(f *testing.F) {
	f.Add(every, "nat[2].from+=10.9.0.0/16")
	f.Add(every, "ipv6.1.enabled=off")
	f.Add(every, "interfaces.wan=eth9")
	f.Add(every, "limits=")
	f.Add(composed, "nat[1].to=10.0.0.4")
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
		edition, err := Edited(nil, "f", []byte(text), []Edit{e})
		var syntax *document.SyntaxError
		if err != nil {
			if !errors.As(err, &syntax) || edition != nil {
				t.Fatalf("%T %v", err, err)
			}
			return
		}
		got, now := edition.Text, edition.File
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
