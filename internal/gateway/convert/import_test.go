package convert

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/tools/txtar"
)

// TestImport compares each testdata/*.txtar: "rules" is the text (one of ip6tables
// where the comment says so), "file" the gateway file, "notes" what is not in it.
func TestImport(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) { importCase(t, name) })
	}
}

func importCase(t *testing.T, name string) {
	archive, err := txtar.ParseFile(name)
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string]string{}
	for _, f := range archive.Files {
		parts[f.Name] = string(f.Data)
	}
	version := 4
	if strings.Contains(string(archive.Comment), "IPv6") {
		version = 6
	}
	r, err := Import(ruleset.Parse(parts["rules"], version))
	if err != nil {
		t.Fatal(err)
	}
	got := []txtar.File{{Name: "rules", Data: []byte(parts["rules"])}, {Name: "file", Data: []byte(r.YAML())}, {Name: "notes", Data: []byte(notesText(r))}}
	if os.Getenv("UPDATE") != "" {
		archive.Files = got
		if err := os.WriteFile(name, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range got {
		if diff := cmp.Diff(parts[f.Name], string(f.Data)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", f.Name, diff)
		}
	}
	readsBack(t, r)
	for _, finding := range checked(t, r) {
		if finding.ID != "any-interface" { // which is true of rules without an interface
			t.Errorf("check says of the printed file: %d:%d %s [%s]", finding.Line, finding.Column, finding.Message, finding.ID)
		}
	}
}

func notesText(r *Result) string {
	var b strings.Builder
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "%d %s %d: %s\n", n.Line, n.Kind, n.Rules, n.Reason)
	}
	return b.String()
}

// readsBack reports whether the file that is printed is the one that is meant.
func readsBack(t *testing.T, r *Result) {
	t.Helper()
	f, err := gateway.Parse("imported.yaml", []byte(r.YAML()))
	if err != nil {
		t.Fatalf("the printed file cannot be read: %v\n%s", err, r.YAML())
	}
	want, _ := json.Marshal(r.Config)
	if got, err := json.Marshal(f.Config); err != nil || string(got) != string(want) {
		t.Errorf("the printed file is another one:\n%s\n%+v\n%+v", r.YAML(), f.Config, r.Config)
	}
	for _, finding := range checked(t, r) {
		if finding.Severity == gateway.Refuse {
			t.Errorf("the printed file is refused: %d:%d %s\n%s", finding.Line, finding.Column, finding.Message, r.YAML())
		}
	}
}

// checked is what check says of the printed file.
func checked(t *testing.T, r *Result) []gateway.Finding {
	t.Helper()
	f, err := gateway.Parse("imported.yaml", []byte(r.YAML()))
	if err != nil {
		t.Fatal(err)
	}
	return gateway.Check(f, gateway.Facts{})
}

// TestScripts: what only a shell understands puts its chain in doubt, and a text without
// rules says so.
func TestScripts(t *testing.T) {
	const good = "iptables -t nat -A POSTROUTING -s 10.0.0.0/8 -j MASQUERADE\n"
	for _, line := range []string{
		"iptables -t nat -D POSTROUTING 1", "iptables -t nat -F", "iptables -t nat -I POSTROUTING -s 10.0.0.7 -j SNAT --to-source 203.0.113.7",
		"iptables -t nat -A POSTROUTING -o $WAN -j MASQUERADE", "PostUp = iptables -t nat -A POSTROUTING -o eth0 -j MASQUERADE || true",
		"for n in 10.1.0.0/16; do iptables -t nat -A POSTROUTING -s $n -j MASQUERADE; done", "iptables -t nat -A \"POSTROUTING -j MASQUERADE",
		"iptables -t nat -A POSTROUTING -s 10.1.0.0/16 \\",
	} {
		for _, text := range []string{line + "\n" + good, good + line + "\n"} {
			r, err := Import(ruleset.Parse(text, 4))
			if err != nil || len(r.Untranslated()) == 0 {
				t.Errorf("%s: %v, %+v", text, err, r.Notes)
			}
			if len(r.Config.NAT) > 0 && !strings.HasSuffix(line, "\\") {
				t.Errorf("%s: translated\n%s", text, r.YAML())
			}
		}
	}
	if set := ruleset.Parse("[Interface]\nAddress = 10.8.0.1/24\n", 4); !set.Foreign {
		t.Error("a text without rules has some")
	}
}

// TestSetsAreBounded: a set that many rules ask makes as many rules of each as it has
// elements; those that are too many are reported.
func TestSetsAreBounded(t *testing.T) {
	var list []string
	for i := range 10_000 {
		list = append(list, fmt.Sprintf("10.0.%d.%d", i>>8, i&255))
	}
	text := "table ip nat {\n\tset s {\n\t\ttype ipv4_addr\n\t\telements = { " + strings.Join(list, ", ") + " }\n\t}\n\tchain post {\n" +
		"\t\ttype nat hook postrouting priority srcnat; policy accept;\n" + strings.Repeat("\t\tip saddr @s snat to 203.0.113.1\n", 1000) + "\t}\n}\n"
	defer testutil.Bounded(t, len(text))()
	set := ruleset.Parse(text, 4)
	if len(set.Notes) != 1000-300_000/20_000 {
		t.Errorf("%d notes", len(set.Notes))
	}
}

// TestTooManyToFollow are texts of some KB that become more than anybody can follow.
func TestTooManyToFollow(t *testing.T) {
	each := func(n int, text string) string { // with % for an address
		var b strings.Builder
		for i := range n {
			b.WriteString(strings.ReplaceAll(text, "%", fmt.Sprintf("10.0.%d.%d", i>>8, i&255)))
		}
		return b.String()
	}
	ports := ""
	for i := range 1000 {
		ports += fmt.Sprintf("%d, ", 2*i+1)
	}
	for name, text := range map[string]string{
		"addresses by ports": "table ip nat {\n\tchain pre {\n\t\ttype nat hook prerouting priority dstnat; policy accept;\n\t\tip saddr { " + each(1000, "%, ") +
			"} tcp dport { " + ports + "} dnat to 192.0.2.1\n\t}\n}\n",
		"chains by jumps": "*nat\n" + strings.Repeat("-A POSTROUTING -j A\n", 600) + strings.Repeat("-A A -j B\n", 600) + strings.Repeat("-A B -j C\n", 600) + "-A C -j MASQUERADE\nCOMMIT\n",
		"exceptions":      "*nat\n" + each(2000, "-A POSTROUTING -d % -j RETURN\n-A POSTROUTING -s % -o eth0 -j MASQUERADE\n") + "COMMIT\n",
	} {
		t.Run(name, func(t *testing.T) {
			defer testutil.Bounded(t, max(len(text), 128<<10))()
			if _, err := Import(ruleset.Parse(text, 4)); !errors.Is(err, ruleset.ErrTooMany) {
				t.Errorf("%v, want %v", err, ruleset.ErrTooMany)
			}
		})
	}
}

// TestLinearTexts: what is only long is read in the time of its size.
func TestLinearTexts(t *testing.T) {
	const n = 100_000
	for name, text := range map[string]string{
		"open brackets":     "table ip nat {\n" + strings.Repeat("a { b\n", n),
		"blocks in blocks":  "table ip nat {\n" + strings.Repeat("{\n", n),
		"tables":            strings.Repeat("table ip nat {\n }\n", n),
		"words":             "table ip nat {\n\tchain post {\n\t\t" + strings.Repeat("foo ", n) + "\n\t}\n}\n",
		"chains":            "*nat\n" + strings.Repeat(":A - [0:0]\n", n) + "COMMIT\n",
		"options":           "iptables -t nat -A POSTROUTING " + strings.Repeat("--dport=1 ", n) + "-j MASQUERADE\n",
		"unknown arguments": "iptables -t nat -A POSTROUTING -m x --x " + strings.Repeat("a ", n) + "-j MASQUERADE\n",
	} {
		t.Run(name, func(t *testing.T) {
			defer testutil.Bounded(t, len(text))()
			if _, err := Import(ruleset.Parse(text, 4)); err != nil {
				t.Error(err)
			}
		})
	}
}

func FuzzImport(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.txtar")
	for _, name := range files {
		if archive, err := txtar.ParseFile(name); err == nil {
			f.Add(string(archive.Files[0].Data), true)
		}
	}
	scripts, _ := filepath.Glob("testdata/corpus/5*.nft")
	for _, name := range scripts {
		if text, err := os.ReadFile(name); err == nil {
			f.Add(string(text), true)
		}
	}
	f.Add("*nat\n:A - [0:0]\n-A A -g A\n-A POSTROUTING -j A\n-A POSTROUTING -j A\nCOMMIT\n", true)
	f.Fuzz(func(t *testing.T, text string, four bool) {
		defer testutil.Bounded(t, len(text)+8)()
		if len(text) > 4096 {
			return
		}
		version := 6
		if four {
			version = 4
		}
		set := ruleset.Parse(text, version)
		r, err := Import(set)
		if errors.Is(err, ruleset.ErrTooMany) {
			return
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		readsBack(t, r)
		accounted(t, set, r)
	})
}

// accounted wants each rule that does something to be in the file, or to have a note.
func accounted(t *testing.T, set *ruleset.Ruleset, r *Result) {
	t.Helper()
	texts, lines := slices.Concat(slices.Concat(r.NAT...), slices.Concat(r.IPv6...), r.MSS), map[int]bool{}
	together := map[string]bool{}
	for _, n := range r.Notes {
		lines[n.Line], together[n.Reason] = true, true
	}
	for _, table := range set.Tables {
		for _, c := range table.Chains {
			for _, rule := range c.Rules {
				k := rule.Target.Kind
				if rule.Target.Translates() || k == ruleset.Notrack || k == ruleset.MSS || k == ruleset.Drop {
					left := together[notNAT(table.Name)] || together["is "+ruleset.Possessive(table.OwnerOf(c, rule))]
					if !slices.Contains(texts, rule.Text) && !lines[rule.Line] && !left && !r.cutShort() {
						t.Errorf("line %d is lost: %s\n%s%+v", rule.Line, rule.Text, r.YAML(), r.Notes)
					}
				}
			}
		}
	}
}

// cutShort reports whether the chains were not followed to their end.
func (r *Result) cutShort() bool {
	return slices.ContainsFunc(r.Notes, func(n ruleset.Note) bool { return n.Line == 0 && n.Kind == ruleset.Untranslated })
}

// Of a text that was cut off not all is translated, even if all that is left is.
func TestImportOfTextCutOff(t *testing.T) {
	for _, text := range []string{
		"*nat\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -s 10.0.0.0/24 -o eth0 -j MASQUERADE\nCOMMIT\n",
		"table ip nat {\n\tset s {\n\t\ttype ipv4_addr\n\t}\n\tchain a {\n\t\ttype nat hook postrouting priority 100; policy accept;\n" +
			"\t\toifname \"eth0\" ip saddr 10.0.0.0/24 masquerade\n\t}\n}\n",
	} {
		lines := strings.SplitAfter(text, "\n")
		for n := 1; n < len(lines); n++ {
			whole := n == len(lines)-1
			notes := ruleset.Parse(strings.Join(lines[:n], ""), 4).Notes
			untranslated := slices.ContainsFunc(notes, func(n ruleset.Note) bool { return n.Kind == ruleset.Untranslated })
			if untranslated == whole {
				t.Errorf("%d of %d lines: %+v", n, len(lines)-1, notes)
			}
		}
	}
}
