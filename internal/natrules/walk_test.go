package natrules

import (
	"fmt"
	"testing"

	"github.com/natkit/natkit/internal/snapshot"
)

// TestWalkPastMarks: however many rules lead to a chain that only marks packets, as
// kube-proxy has it, what the others translate is told with its conditions.
func TestWalkPastMarks(t *testing.T) {
	table := newTable("ip", "nat")
	first := table.chain("PREROUTING")
	first.bases = []base{{hook: 0, priority: -100}}
	table.chain("MARK").steps = []step{{other: "MARK"}}
	for i := range 2 * maxAgain {
		to := []string{"MARK"}
		if i%1000 == 0 {
			to = append(to, fmt.Sprint(i))
			table.chain(fmt.Sprint(i)).steps = []step{{translates: true, rule: snapshot.NATRule{Kind: snapshot.NATDest}}}
		}
		first.steps = append(first.steps, step{rule: snapshot.NATRule{Protocol: "tcp", DestinationPort: uint16(1 + i)}, to: to})
	}
	all := table.rules()
	if want := 1 + (2*maxAgain-1)/1000; len(all) != want {
		t.Errorf("%d rules, want %d", len(all), want)
	}
	for _, f := range all {
		if f.rule.Partial || f.rule.DestinationPort%1000 != 1 {
			t.Errorf("%+v", f.rule.Condition())
		}
	}
}
