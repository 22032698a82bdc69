package convert

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/ruleset"
)

// imported are the rules that a text becomes, as the file writes them, and the kinds of its notes by their lines.
func imported(t *testing.T, text string) (rules []string, notes map[int]ruleset.Note, all *Result) {
	t.Helper()
	r, err := Import(ruleset.Parse(text, 4))
	if err != nil {
		t.Fatal(err)
	}
	readsBack(t, r)
	for _, rule := range slices.Concat(r.Config.NAT, r.Config.IPv6) {
		rules = append(rules, gateway.MarshalRule(rule))
	}
	notes = map[int]ruleset.Note{}
	for _, n := range r.Notes {
		notes[n.Line] = n
	}
	return rules, notes, r
}

// TestStatementsOfNft: what stands beside a translation is taken, or refuses its rule.
func TestStatementsOfNft(t *testing.T) {
	const dnat = "dnat: {on: any, port: tcp/80, to: 192.168.1.10, in: eth0}"
	for statements, want := range map[string]struct{ rule, kind, word string }{
		"counter": {rule: dnat},
		"counter packets 3 bytes 180 log prefix \"web: \"": {rule: "{" + dnat + ", log: {prefix: \"web: \"}}", kind: ruleset.Differs},
		"log": {rule: "{" + dnat + ", log: on}", kind: ruleset.Differs},
		"log prefix \"web: \" level info flags tcp sequence":    {rule: "{" + dnat + ", log: {prefix: \"web: \"}}", kind: ruleset.Differs, word: "flags tcp sequence"},
		"log group 2 snaplen 100 queue-threshold 5":             {rule: "{" + dnat + ", log: on}", kind: ruleset.Differs, word: "group 2"},
		"log prefix \"x\" limit rate 5/second":                  {kind: ruleset.Untranslated, word: "limit rate 5/second"},
		"log limit rate over 5/second":                          {kind: ruleset.Untranslated, word: "limit rate"},
		"limit rate 5/second log":                               {kind: ruleset.Untranslated, word: "limit rate"},
		"log prefix \"x\" ct count over 10":                     {kind: ruleset.Untranslated, word: "ct count over 10"},
		"log prefix \"x\" quota until 10 mbytes":                {kind: ruleset.Untranslated, word: "quota"},
		"log prefix \"x\" ip ttl > 5":                           {kind: ruleset.Untranslated, word: "ip ttl > 5"},
		"counter packets 3 limit rate 5/second":                 {kind: ruleset.Untranslated, word: "limit rate"},
		"notrack":                                               {kind: ruleset.Untranslated, word: "two things (notrack, dnat)"},
		"tcp flags syn / syn,rst tcp option maxseg size set 99": {kind: ruleset.Untranslated, word: "two things (mss, dnat)"},
		"meta mark set 0x1":                                     {kind: ruleset.Untranslated, word: "meta mark set"},
		"ip ttl set 5":                                          {kind: ruleset.Untranslated, word: "ip ttl set"},
	} {
		text := "table ip nat {\n\tchain pre {\n\t\ttype nat hook prerouting priority dstnat; policy accept;\n\t\tiifname \"eth0\" tcp dport 80 " + statements + " dnat to 192.168.1.10\n\t}\n}\n"
		rules, notes, _ := imported(t, text)
		if diff := cmp.Diff(ruleset.Some(want.rule), rules); diff != "" {
			t.Errorf("%s (-want +got):\n%s", statements, diff)
		}
		if n := notes[4]; n.Kind != want.kind || !strings.Contains(n.Reason, want.word) {
			t.Errorf("%s: %+v, want %q with %q", statements, n, want.kind, want.word)
		}
	}
}

// TestScriptOfNft: what people write by hand means the same as what nft lists.
func TestScriptOfNft(t *testing.T) {
	const chain = "type nat hook postrouting priority srcnat; policy accept;"
	for name, c := range map[string]struct {
		text  string
		rules []string
	}{
		"one line":                {"table ip nat { chain post { " + chain + " oifname \"eth0\" masquerade } }", []string{"masquerade: {out: eth0}"}},
		"no policy":               {"table nat { chain post { type nat hook postrouting priority 100; oifname eth0 masquerade; } }", []string{"masquerade: {out: eth0}"}},
		"comments":                {"table ip nat { # a {\n chain post { # b }\n " + chain + "# c\n oifname \"a#b\" masquerade # d\n } }", []string{"masquerade: {out: \"a#b\"}"}},
		"definition":              {"define wan = eth0\ntable ip nat { chain post { " + chain + " oifname $wan masquerade } }", []string{"masquerade: {out: eth0}"}},
		"definition of another":   {"define a = \"eth0\"\ndefine wan = $a\ntable ip nat { define a = eth1\n chain post { " + chain + " oifname $wan masquerade } }", []string{"masquerade: {out: eth0}"}},
		"definitions in a set":    {"define a = 10.0.0.0/8\ndefine b = { 192.168.0.0/16, 172.16.0.0/12 }\ntable ip nat { chain post { " + chain + " ip saddr { $a, $b } masquerade } }", []string{"masquerade: {from: [10.0.0.0/8, 192.168.0.0/16, 172.16.0.0/12]}"}},
		"redefined":               {"define wan = eth0\nredefine wan = eth1\ntable ip nat { chain post { " + chain + " oifname $wan masquerade } }", []string{"masquerade: {out: eth1}"}},
		"undefined":               {"define wan = eth0\nundefine wan\ntable ip nat { chain post { " + chain + " oifname $wan masquerade } }", nil},
		"priority":                {"define p = srcnat\ntable ip nat { chain post { type nat hook postrouting priority $p; masquerade } }", []string{"masquerade: {}"}},
		"commands":                {"add table ip nat\nadd chain ip nat post { " + chain + " }\nadd rule ip nat post oifname \"eth0\" masquerade", []string{"masquerade: {out: eth0}"}},
		"inserted":                {"add chain ip nat post { " + chain + " }\nadd rule ip nat post masquerade\ninsert rule ip nat post ip saddr 10.0.0.1 return", []string{"masquerade: {except-from: 10.0.0.1}"}},
		"flushed":                 {"add chain ip nat post { " + chain + " }\nadd rule ip nat post masquerade\nflush chain ip nat post\nadd rule ip nat post oifname eth0 masquerade", []string{"masquerade: {out: eth0}"}},
		"deleted":                 {"add chain ip nat post { " + chain + " }\nadd rule ip nat post masquerade\ndelete rule ip nat post handle 4", nil},
		"put at a place":          {"add chain ip nat post { " + chain + " }\nadd rule ip nat post masquerade\nadd rule ip nat post handle 4 ip saddr 10.0.0.1 return", nil},
		"elements":                {"table ip nat { set s { type ipv4_addr; }\n chain post { " + chain + " ip saddr @s masquerade } }\nadd element ip nat s { 10.0.0.1, 10.0.0.2 }", []string{"masquerade: {from: [10.0.0.1, 10.0.0.2]}"}},
		"twice":                   {"table ip nat { chain post { " + chain + " oifname eth0 masquerade } }\ntable ip nat { chain post { oifname eth1 masquerade } }", []string{"masquerade: {out: eth0}", "masquerade: {out: eth1}"}},
		"dormant":                 {"table ip nat { flags dormant; chain post { " + chain + " masquerade } }", nil},
		"several lines":           {"table ip nat {\n chain post {\n  " + chain + "\n  ip saddr {\n   10.0.0.1,\n   10.0.0.2 # two\n  } masquerade\n }\n}", []string{"masquerade: {from: [10.0.0.1, 10.0.0.2]}"}},
		"a line that goes on":     {"table ip nat {\n chain post {\n  " + chain + "\n  oifname eth0 \\\n   masquerade\n }\n}", []string{"masquerade: {out: eth0}"}},
		"another file in a chain": {"table ip nat { chain post { " + chain + "\n include \"more.nft\"\n masquerade } }", nil},
	} {
		t.Run(name, func(t *testing.T) {
			rules, notes, r := imported(t, c.text)
			if diff := cmp.Diff(c.rules, rules); diff != "" {
				t.Errorf("rules (-want +got):\n%s%+v", diff, notes)
			}
			if whole := len(c.rules) > 0; whole != r.Exact() && name != "dormant" {
				t.Errorf("exact: %v, %+v", r.Exact(), r.Notes)
			}
			if len(r.Notes) == 0 && len(c.rules) == 0 {
				t.Error("nothing is said of what is left")
			}
		})
	}
}
