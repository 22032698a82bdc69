package ruleset

import (
	"net/netip"
	"testing"

	"github.com/natkit/natkit/internal/nat"
)

// Conditions read from the kernel are printed with the options that people write.
func TestMatchString(t *testing.T) {
	for want, m := range map[string]nat.Match{
		"-p tcp --dport 80": {Protocol: 6, Ports: []nat.Ports{{First: 80, Last: 80}}},
		"-d 203.0.113.7/32 -p udp --sport 53 --dport 5000:5100": {To: []netip.Prefix{netip.MustParsePrefix("203.0.113.7/32")}, Protocol: 17,
			SourcePorts: []nat.Ports{{First: 53, Last: 53}}, Ports: []nat.Ports{{First: 5000, Last: 5100}}},
		"-p tcp -m multiport --dports 80,443,8000:8100": {Protocol: 6, Ports: []nat.Ports{{First: 80, Last: 80}, {First: 443, Last: 443}, {First: 8000, Last: 8100}}},
		"-i ppp+ -p sctp -m multiport --sports 1,2":     {In: []string{"ppp*"}, Protocol: 132, SourcePorts: []nat.Ports{{First: 1, Last: 1}, {First: 2, Last: 2}}},
	} {
		m := Match{Match: m}
		if got := m.String(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if rules, err := parseRule(mustTokens(t, want), 4, new(Budget)); err != nil || len(rules) != 1 || rules[0].Match.String() != want {
			t.Errorf("%s is not read back: %v, %v", want, rules, err)
		}
	}
}

func mustTokens(t *testing.T, line string) []string {
	t.Helper()
	words, err := tokens(line)
	if err != nil {
		t.Fatal(err)
	}
	return words
}
