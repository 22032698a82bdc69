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
