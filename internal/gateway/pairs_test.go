package gateway

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

const pairsFile = `gateway:
  interfaces: {wan: eth0, lan: eth1}
  sets:
    floating: {file: pairs.txt}
    more: {directory: /pairs}
    few: {pairs: ["203.0.113.200 10.9.0.1", "203.0.113.201 10.9.0.2"]}
  nat:
    - static: {pairs: $floating}
    - static: {pairs: $more, except-to: 192.0.2.0/24, port: tcp/80}
      name: more
    - static: {pairs: $few, stateless: on}
  ipv6:
    - static: {pairs: $floating}
`

var pairTexts = texts{
	"/etc/gw/pairs.txt": "# outside inside\n203.0.113.7 10.0.0.7\n  203.0.113.8\t10.0.0.9 # a comment\r\n\n2001:db8::7 fd00::7\n",
	"/pairs/a":          "203.0.113.100 10.1.0.1\n", "/pairs/b": "203.0.113.101 10.1.0.2\n",
}

// A set of pairs is one rule, with one entry in each direction for each family.
func TestPairsOfAFile(t *testing.T) {
	f := withSetFiles(t, pairTexts, pairsFile)
	if found := Check(f, Facts{}); len(found) > 0 {
		t.Error(found)
	}
	p, err := Compile(&f.Config, Facts{})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Sources) != 3 || len(p.Destinations) != 3 || len(p.Stateless) != 1 {
		t.Errorf("%d sources, %d destinations, %d stateless", len(p.Sources), len(p.Destinations), len(p.Stateless))
	}
	var all []string
	for _, r := range TextsOf(p) {
		all = append(all, r.Text)
	}
	if diff := cmp.Diff([]string{"the pairs of $floating out eth0", "the pairs of $more tcp/80 except to 192.0.2.0/24 out eth0", "the pairs of $few out eth0 stateless", "the pairs of $floating out eth0"}, all); diff != "" {
		t.Error(diff)
	}
	got := map[string]string{}
	for _, s := range p.Sets {
		got[s.Name] = strings.ReplaceAll(strings.TrimSpace(string(s.Text())), "\n", ", ")
	}
	if diff := cmp.Diff(map[string]string{"floating": "203.0.113.7 10.0.0.7, 203.0.113.8 10.0.0.9, 2001:db8::7 fd00::7",
		"more": "203.0.113.100 10.1.0.1, 203.0.113.101 10.1.0.2", "few": "203.0.113.200 10.9.0.1, 203.0.113.201 10.9.0.2"}, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"pairs.txt"}, f.Beside()); diff != "" {
		t.Error(diff)
	}
	text := Marshal(&f.Config)
	for _, part := range []string{`static: {pairs: "$floating"}`, `few: {pairs: ["203.0.113.200 10.9.0.1", "203.0.113.201 10.9.0.2"]}`} {
		if !strings.Contains(string(text), part) {
			t.Errorf("no %s in\n%s", part, text)
		}
	}
	if again, err := ParseWith(pairTexts, "/etc/gw/g.yaml", text); err != nil || !cmp.Equal(Marshal(&again.Config), text) {
		t.Errorf("read again: %v", err)
	}
}

func TestPairErrors(t *testing.T) {
	const words = "expected an address outside and the one inside that it stands for, such as 198.51.100.7 10.0.0.7, found "
	for _, tt := range []struct{ name, text, rule, want string }{
		{"three addresses", "1.0.0.1 10.0.0.1 10.0.0.2", "", `p:1:1: ` + words + `"1.0.0.1 10.0.0.1 10.0.0.2": a pair has two addresses`},
		{"a name", "1.0.0.1 10.0.0.1\n 1.0.0.2 host", "", `p:2:2: ` + words + `"1.0.0.2 host"`},
		{"a prefix", "1.0.0.0/24 10.0.0.0/24", "", `p:1:1: ` + words + `"1.0.0.0/24 10.0.0.0/24"`},
		{"a zone", "fe80::1%eth0 fd00::1", "", "an address of a zone cannot be translated"},
		{"two families", "1.0.0.1 fd00::1", "", "one of them is IPv4, the other one IPv6"},
		{"itself", "1.0.0.1 1.0.0.1", "", "it would become itself"},
		{"an address among them", "1.0.0.1 10.0.0.1\n10.0.0.2", "", "p:2:1: expected an address, a range or a prefix"},
		{"among addresses", "10.0.0.2\n1.0.0.1 10.0.0.1", "", "p:2:1: " + words + `"1.0.0.1 10.0.0.1": a set has addresses, ports or pairs`},
		{"among ports", "tcp/80\n1.0.0.1 10.0.0.1", "", "p:2:1: " + words},
		{"a port among them", "1.0.0.1 10.0.0.1\ntcp/80", "", "p:2:1: expected a protocol"},
		{"outside twice", "1.0.0.1 10.0.0.1\n\n1.0.0.2 10.0.0.2\n1.0.0.1 10.0.0.3", "", "p:4:1: 1.0.0.1 is outside of the pair in line 1 already: leave one of them out"},
		{"inside twice", "# x\n1.0.0.1 10.0.0.1\n1.0.0.2 10.0.0.1", "", "p:3:1: 10.0.0.1 is inside of the pair in line 2 already: leave one of them out"},
		{"addresses for pairs", "10.0.0.1", "", "g.yaml:4:21: $p is a set of addresses: it stands in from, only-to, except-from or except-to"},
		{"pairs for addresses", "1.0.0.1 10.0.0.1", "masquerade: {from: $p}", "g.yaml:4:24: $p is a set of pairs: it stands in pairs of a static"},
		{"not a set", "1.0.0.1 10.0.0.1", "static: {pairs: p}", `expected the name of a set, such as $floating, found "p": name it below sets, and write $ before its name`},
		{"no such set", "1.0.0.1 10.0.0.1", "static: {pairs: $q}", "$q is not defined"},
		{"beside inside", "1.0.0.1 10.0.0.1", "static: {pairs: $p, inside: 10.0.0.1}", "g.yaml:4:33: inside is one address, and pairs stands for many"},
		{"neither", "1.0.0.1 10.0.0.1", "static: {inside: 10.0.0.1}", "outside is required"},
	} {
		rule := tt.rule
		if rule == "" {
			rule = "static: {pairs: $p}"
		}
		_, err := ParseWith(texts{"p": tt.text + "\n"}, "g.yaml", []byte("gateway:\n  sets: {p: {file: p}}\n  nat:\n  - "+rule+"\n"))
		var syntax *document.SyntaxError
		if !errors.As(err, &syntax) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s:\n got %v\nwant %s", tt.name, err, tt.want)
		}
	}
	_, err := ParseWith(texts{"d/a": "1.0.0.1 10.0.0.1\n", "d/b": "\n1.0.0.2 10.0.0.1\n"}, "g.yaml", []byte("gateway:\n  sets: {p: {directory: d}}\n  nat:\n  - static: {pairs: $p}\n"))
	if want := "d/b:2:1: 10.0.0.1 is inside of the pair in d/a line 1 already"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("in two files: %v, want %s", err, want)
	}
	_, err = Parse("g.yaml", []byte("gateway:\n  sets: {p: {pairs: [1.0.0.1 10.0.0.1, 1.0.0.1 10.0.0.2]}}\n  nat:\n  - static: {pairs: $p}\n"))
	if want := "g.yaml:2:13: set p: 1.0.0.1 is outside of two pairs: 1.0.0.1 10.0.0.1, and 1.0.0.1 10.0.0.2"; err == nil || err.Error() != want {
		t.Errorf("in the file itself: %v, want %s", err, want)
	}
}

func TestPairFindings(t *testing.T) {
	for _, tt := range []struct {
		name, rule, other string
		want              []string
	}{
		{"alone", "pairs: $p", "", nil},
		{"an address of another", "pairs: $p", "static: {inside: 10.0.0.9, outside: 203.0.113.2}", []string{"rules-overlap"}},
		{"a host of another", "pairs: $p", "static: {inside: 10.0.0.2, outside: 203.0.113.9}", []string{"rules-overlap"}},
		{"apart", "pairs: $p", "static: {inside: 10.0.0.9, outside: 203.0.113.9}", nil},
		{"another set", "pairs: $p", "static: {pairs: $q}", []string{"rules-overlap"}},
		{"another set apart", "pairs: $p", "static: {pairs: $r}", nil},
		{"the other one is for some of it", "pairs: $p", "static: {inside: 10.0.0.2, outside: 203.0.113.2, port: tcp/80}", nil},
		{"a network of it", "pairs: $p", "netmap: {inside: 10.0.0.0/24, outside: 203.0.113.0/24}", nil},
		{"a dnat on one of them", "pairs: $p", "dnat: {on: 203.0.113.2, port: tcp/80, to: 10.0.0.77}", nil},
		{"a dnat that never matches", "pairs: $p", "dnat: {on: 203.0.113.2, to: 10.0.0.77}", []string{"rules-overlap"}},
		{"a pool with one", "pairs: $p", "snat: {from: 10.8.0.0/16, to: 203.0.113.0/30}", []string{"pool-shared"}},
		{"a pool with one that is not tracked", "pairs: $p, stateless: on", "snat: {from: 10.8.0.0/16, to: 203.0.113.2-203.0.113.3}", []string{"pool-held"}},
		{"a pool with many", "pairs: $far", "snat: {from: 10.8.0.0/16, to: 203.0.113.0/24}", []string{"pool-shared"}},
		{"a pool with many that are not tracked", "pairs: $far, stateless: on", "snat: {from: 10.8.0.0/16, to: 203.0.113.0/24}", []string{"pool-held"}},
		{"stateless", "pairs: $p, stateless: on", "", nil},
		{"stateless beside one", "pairs: $p, stateless: on", "static: {inside: 10.0.0.9, outside: 203.0.113.2, stateless: on}", []string{"rules-overlap"}},
		{"stateless beside one inside", "pairs: $p, stateless: on", "static: {inside: 10.0.0.2, outside: 203.0.113.9, stateless: on}", []string{"rules-overlap"}},
		{"stateless apart", "pairs: $p, stateless: on", "static: {inside: 10.0.0.9, outside: 203.0.113.9, stateless: on}", nil},
		{"stateless beside a set", "pairs: $p, stateless: on", "static: {pairs: $q, stateless: on}", []string{"rules-overlap"}},
		{"stateless before", "pairs: $p, stateless: on", "static: {inside: 10.0.0.2, outside: 203.0.113.2}", []string{"rule-never-matches"}},
		{"stateless before others", "pairs: $p, stateless: on", "static: {inside: 10.0.0.9, outside: 203.0.113.9}", nil},
		{"a stateless network with all", "pairs: $p", "netmap: {inside: 10.0.0.0/24, outside: 203.0.113.0/24, stateless: on}", []string{"rule-never-matches"}},
		{"a stateless network with some", "pairs: $far", "netmap: {inside: 10.0.0.4/30, outside: 203.0.113.4/30, stateless: on}", nil},
		{"a stateless network with all outside", "pairs: $p", "netmap: {inside: 10.7.0.0/24, outside: 203.0.113.0/24, stateless: on}", []string{"rule-never-matches"}},
		{"hairpin", "pairs: $p, hairpin: on", "", []string{"pairs-without-hairpin"}},
		{"multicast", "pairs: $bad", "", []string{"unusable-address"}},
		{"empty", "pairs: $none", "", []string{"set-empty"}},
	} {
		text := `gateway:
  interfaces: {wan: eth0, lan: eth1}
  sets:
    p: {pairs: [203.0.113.1 10.0.0.1, 203.0.113.2 10.0.0.2]}
    q: {pairs: [203.0.113.5 10.0.0.5, 203.0.113.6 10.0.0.1]}
    r: {pairs: [203.0.113.5 10.0.0.5, 203.0.113.6 10.0.0.6]}
    far: {pairs: [203.0.113.1 10.0.0.1, 203.0.113.3 10.0.0.3, 203.0.113.5 10.0.0.5, 203.0.113.6 10.0.0.6]}
    bad: {pairs: 224.0.0.7 10.0.0.1}
    none: {file: none}
  nat:
    - static: {` + tt.rule + "}\n"
		if tt.other != "" {
			text += "    - " + tt.other + "\n"
		}
		f := withSetFiles(t, texts{"/etc/gw/none": ""}, text)
		var got []string
		for _, found := range Check(f, Facts{}) {
			got = append(got, found.ID)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v\n%v", tt.name, got, tt.want, Check(f, Facts{}))
		}
	}
}

// One finding is about all that a pool has of a set of pairs, and what the pool gives is the rest.
func TestPairsOfAPool(t *testing.T) {
	f := withSetFiles(t, nil, `gateway:
  interfaces: {wan: eth0, lan: eth1}
  sets: {p: {pairs: [203.0.113.1 10.0.0.1, 203.0.113.3 10.0.0.3, 203.0.113.5 10.0.0.5, 203.0.113.6 10.0.0.6]}}
  nat:
    - static: {pairs: $p, stateless: on}
    - snat: {from: 10.8.0.0/16, to: [203.0.113.0-203.0.113.3, 203.0.113.5-203.0.113.9]}
`)
	var got []string
	for _, found := range Check(f, Facts{}) {
		got = append(got, found.Message)
	}
	if diff := cmp.Diff([]string{"snat: 203.0.113.1 (and 1 more) is not given: it is that of static in line 5, and answers would not find back",
		"snat: 203.0.113.5-203.0.113.6 is not given: it is that of static in line 5, and answers would not find back"}, got); diff != "" {
		t.Error(diff)
	}
	p, err := Compile(&f.Config, Facts{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := p.Sources[0].Action.To.String(), "203.0.113.0, 203.0.113.2, 203.0.113.7-203.0.113.9"; got != want {
		t.Errorf("given %s, want %s", got, want)
	}
}

// Another program's rule that does what a pair does is in nobody's way.
func TestPairsBesideForeign(t *testing.T) {
	f := withSetFiles(t, nil, "gateway:\n  interfaces: {wan: eth0, lan: eth1}\n  sets: {p: {pairs: [203.0.113.7 10.0.0.7, 203.0.113.9 10.0.0.9]}}\n  nat:\n  - static: {pairs: $p}\n")
	addr := netip.MustParseAddr
	for _, tt := range []struct {
		rule snapshot.NATRule
		want bool
	}{
		{snapshot.NATRule{Kind: snapshot.NATDest, First: addr("10.0.0.7"), Last: addr("10.0.0.7"), NATCondition: snapshot.NATCondition{ToDestination: netip.MustParsePrefix("203.0.113.7/32")}}, false},
		{snapshot.NATRule{Kind: snapshot.NATDest, First: addr("10.0.0.9"), Last: addr("10.0.0.9"), NATCondition: snapshot.NATCondition{ToDestination: netip.MustParsePrefix("203.0.113.7/32")}}, true},
		{snapshot.NATRule{Kind: snapshot.NATSource, First: addr("203.0.113.7"), Last: addr("203.0.113.7"), NATCondition: snapshot.NATCondition{FromSource: netip.MustParsePrefix("10.0.0.7/32")}}, false},
		{snapshot.NATRule{Kind: snapshot.NATSource, First: addr("203.0.113.7"), Last: addr("203.0.113.7"), NATCondition: snapshot.NATCondition{FromSource: netip.MustParsePrefix("10.0.0.0/24")}}, true},
	} {
		tt.rule.Family, tt.rule.Table, tt.rule.Hook = "ip", "nat", "prerouting"
		if tt.rule.Kind == snapshot.NATSource {
			tt.rule.Hook = "postrouting"
		}
		facts := here()
		facts.Foreign = docker()[1:2]
		facts.Foreign[0].Hook, facts.Foreign[0].NAT = tt.rule.Hook, []snapshot.NATRule{tt.rule}
		got := slices.ContainsFunc(Check(f, facts), func(f Finding) bool { return f.ID == "foreign-rule-first" })
		if got != tt.want {
			t.Errorf("%+v: found %v", tt.rule, got)
		}
	}
}

// A rule is for pairs of its family alone, whichever its set has beside them.
func TestPairsOfOneFamily(t *testing.T) {
	f := withSetFiles(t, nil, "gateway:\n  interfaces: {wan: eth0}\n  sets: {p: {pairs: [203.0.113.1 10.0.0.1, \"2001:db8::1 fd00::1\"]}}\n  nat:\n  - static: {pairs: $p, stateless: on}\n")
	p, err := Compile(&f.Config, Facts{})
	if err != nil {
		t.Fatal(err)
	}
	e := &p.Stateless[0]
	for text, want := range map[string]bool{"203.0.113.1": true, "2001:db8::1": false, "10.0.0.1": false} {
		if got := e.HasOutside(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s is outside: %v", text, got)
		}
	}
	for text, want := range map[string]bool{"10.0.0.1": true, "fd00::1": false} {
		if got := e.HasInside(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s is inside: %v", text, got)
		}
	}
}

// Pairs of IPv4 that a rule of ipv6 leaves alone take nothing from rules of nat.
func TestPairsBesideOtherFamily(t *testing.T) {
	for _, rule := range []string{"dnat: {on: 203.0.113.7, to: 10.0.0.77}", "static: {inside: 10.0.0.7, outside: 203.0.113.7}", "masquerade: {from: 10.0.0.7}"} {
		for _, stateless := range []string{"", ", stateless: on"} {
			f := withSetFiles(t, nil, "gateway:\n  interfaces: {wan: eth0}\n  sets: {p: {pairs: [203.0.113.7 10.0.0.7, \"2001:db8::1 fd00::1\"]}}\n  nat:\n  - "+rule+"\n  ipv6:\n  - static: {pairs: $p"+stateless+"}\n")
			if found := Check(f, Facts{}); len(found) > 0 {
				t.Errorf("%s%s: %v", rule, stateless, found)
			}
		}
	}
}

// Other pairs are no other rules.
func TestPairsDiffer(t *testing.T) {
	plan := func(text string) *Plan {
		f := withSetFiles(t, texts{"/etc/gw/p": text}, "gateway:\n  interfaces: {wan: eth0}\n  sets: {p: {file: p}}\n  nat:\n  - static: {pairs: $p}\n")
		p, err := Compile(&f.Config, Facts{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	a, b := plan("203.0.113.1 10.0.0.1\n203.0.113.2 10.0.0.2\n"), plan("203.0.113.1 10.0.0.1\n203.0.113.2 10.0.0.3\n203.0.113.4 10.0.0.4\n")
	d := DiffOf(a, b)
	if len(d.Rules) != 0 || d.Unchanged != 1 {
		t.Errorf("rules %v, %d unchanged", d.Rules, d.Unchanged)
	}
	if diff := cmp.Diff([]SetDiff{{Changed, "p", 3, 2, 1, true, pairsEffect}}, d.Sets); diff != "" {
		t.Error(diff)
	}
	if !SameButElements(a, b) {
		t.Error("they differ in more than elements")
	}
}

// A pair in a file is read as it is written, or the line is an error.
func FuzzPairs(f *testing.F) {
	for _, text := range []string{"203.0.113.7 10.0.0.7\n", "203.0.113.7\t10.0.0.7 # x\r\n\n2001:db8::7 fd00::7", "1.0.0.1 1.0.0.1", "1.0.0.1 ::1", "10.0.0.1\n1.0.0.1 10.0.0.1", "\ufeff1.0.0.1  10.0.0.1\n1.0.0.1 10.0.0.2", "a b\n", "1.0.0.1 10.0.0.1 x", "::ffff:1.0.0.1 ::1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		read, err := ParseWith(texts{"p": text}, "g.yaml", []byte("gateway:\n  sets: {p: {file: p}}\n  nat:\n  - static: {pairs: $p}\n"))
		if err != nil {
			var syntax *document.SyntaxError
			if read != nil && read.Config.Sets["p"].set != nil && errors.As(err, &syntax) && syntax.File == "p" {
				t.Fatalf("an error about a line, and a set: %v", err)
			}
			return
		}
		set := read.Config.Sets.named("p")
		left := set.Len()
		for line := range strings.Lines(strings.TrimPrefix(text, "\ufeff")) {
			line, _, _ = strings.Cut(line, "#")
			words := strings.Fields(line)
			if len(words) == 0 {
				continue
			}
			outside, inside := netip.MustParseAddr(words[0]), netip.MustParseAddr(words[1])
			if len(words) != 2 || set.Inward(outside) != inside || set.Outward(inside) != outside {
				t.Fatalf("%q: %s becomes %s, and %s %s", line, outside, set.Inward(outside), inside, set.Outward(inside))
			}
			left--
		}
		if left != 0 {
			t.Fatalf("%d pairs more than lines", left)
		}
		if again, err := nat.ParseSet("p", set.Text()); err != nil || again.Digest() != set.Digest() {
			t.Fatalf("written and read again: %v", err)
		}
	})
}

// manyPairs has that many pairs, one on a line.
func manyPairs(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%s %s\n", netip.AddrFrom4([4]byte{100, byte(i >> 16), byte(i >> 8), byte(i)}), netip.AddrFrom4([4]byte{10, byte(i * 7 >> 16), byte(i * 7 >> 8), byte(i * 7)}))
	}
	return b.String()
}

func BenchmarkPairs(b *testing.B) {
	files := texts{"p": manyPairs(1_000_000)}
	text := []byte("gateway:\n  interfaces: {wan: eth0, lan: eth1}\n  sets: {p: {file: p}}\n  nat:\n  - static: {pairs: $p}\n  - masquerade: {from: 10.0.0.0/8}\n")
	var f *File
	b.Run("parse", func(b *testing.B) {
		for b.Loop() {
			var err error
			if f, err = ParseWith(files, "g.yaml", text); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("check", func(b *testing.B) {
		for b.Loop() {
			if found := Check(f, Facts{}); slices.ContainsFunc(found, func(x Finding) bool { return x.Severity == Refuse }) {
				b.Fatal(found)
			}
		}
	})
}
