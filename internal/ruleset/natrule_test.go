package ruleset

import (
	"testing"

	"github.com/natkit/natkit/internal/nat"
)

// TestSeveralPorts: a rule for several ports is Partial, and says which they are.
func TestSeveralPorts(t *testing.T) {
	for _, c := range []struct {
		ports       []nat.Ports
		first, last uint16
	}{
		{nil, 0, 0},
		{[]nat.Ports{{First: 80, Last: 80}}, 0, 0},
		{[]nat.Ports{{First: 10000, Last: 10999}}, 10000, 10999},
		{[]nat.Ports{{First: 8080, Last: 8090}, {First: 80, Last: 80}}, 80, 8090},
	} {
		e := &Entry{Table: &Table{}, Chain: &Chain{}, Base: &Chain{}, Rule: &Rule{}}
		e.Match.Ports = c.ports
		if r := e.NATRule(false); r.FirstOfSeveral != c.first || r.LastOfSeveral != c.last || r.Partial != (c.last != 0) {
			t.Errorf("%v: %+v", c.ports, r)
		}
	}
}
