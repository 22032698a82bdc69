package loose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/lazyregexp"
)

// readListed reads what 'iptables -S' prints: the chains and rules of one table, which it does not name.
func readListed(s *Sample, t *Text) error {
	saved, err := asSaved(string(t.Data), t.Command)
	if err != nil {
		return err
	}
	text := *t
	text.Data = []byte(saved)
	return s.addRules(&text)
}

// builtin are the chains that the kernel has in each table, as far as they tell the tables apart; nat has INPUT since
// Linux 2.6.36.
var builtin = []struct {
	table  string
	chains []string
}{
	{"filter", []string{"FORWARD", "INPUT", "OUTPUT"}},
	{"nat", []string{"INPUT", "OUTPUT", "POSTROUTING", "PREROUTING"}},
	{"nat", []string{"OUTPUT", "POSTROUTING", "PREROUTING"}},
	{"mangle", []string{"FORWARD", "INPUT", "OUTPUT", "POSTROUTING", "PREROUTING"}},
	{"raw", []string{"OUTPUT", "PREROUTING"}},
}

var (
	chainLine  = lazyregexp.New(`^(?:-P (\S+) (\S+)|-N (\S+))(?: -c (\d+) (\d+))?\s*$`)
	ruleCounts = lazyregexp.New(` -c (\d+) (\d+)\b`)
	ofTable    = lazyregexp.New(`(?:-t ?|--table[ =])(\w+)`)
)

// asSaved writes it as iptables-save would; with -v each line has its counters. The command may name the table, the
// chains that have a policy do.
func asSaved(text, command string) (string, error) {
	var chains, rules []string
	var policies []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if m := chainLine.FindStringSubmatch(line); m != nil {
			name, policy, counters := m[1], m[2], ""
			if name == "" {
				name, policy = m[3], "-"
			} else {
				policies = append(policies, name)
			}
			if m[4] != "" {
				counters = fmt.Sprintf(" [%s:%s]", m[4], m[5])
			}
			chains = append(chains, fmt.Sprintf(":%s %s%s", name, policy, counters))
		} else if strings.HasPrefix(line, "-A ") {
			if m := ruleCounts.FindStringSubmatchIndex(line); m != nil {
				line = fmt.Sprintf("[%s:%s] %s%s", line[m[2]:m[3]], line[m[4]:m[5]], line[:m[0]], line[m[1]:])
			}
			rules = append(rules, line)
		}
	}
	table := ""
	if m := ofTable.FindStringSubmatch(command); m != nil {
		table = m[1]
	}
	slices.Sort(policies)
	for _, b := range builtin {
		if table == "" && slices.Equal(policies, b.chains) {
			table = b.table
		}
	}
	if table == "" {
		return "", fmt.Errorf("does not show which table it is of: its chains with a policy are %s", strings.Join(policies, ", "))
	}
	return strings.Join(append(append(append([]string{"*" + table}, chains...), rules...), "COMMIT"), "\n") + "\n", nil
}
