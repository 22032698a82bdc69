package look

import (
	"testing"

	"github.com/natkit/natkit/internal/testutil"
)

// A hairpin's source is the address outside, which other rules give too.
const hairpinned = `gateway:
  interfaces: {wan: wan0, lan: lan0}
  nat:
    - masquerade: {from: 192.168.0.0/16}
    - dnat: {on: 203.0.113.1, port: udp/8080, to: 192.168.0.2:8080, hairpin: on}
`

func TestHairpinnedConnectionsCountOnce(t *testing.T) {
	testutil.NeedFeature(t, testutil.Hairpin)
	w := newWorld(t)
	w.apply(hairpinned, w.facts())
	w.connect(w.inside, "203.0.113.1:8080", 3)
	w.connect(w.outside, "203.0.113.1:8080", 2)
	s := w.look()
	if r := s.Rules[1]; r.New == nil || *r.New != 5 || r.Flows != 5 {
		t.Errorf("%+v, want 5 new connections and 5 flows", r)
	}
}

func TestPortsOfMasqueradeAreNotTheHairpins(t *testing.T) {
	testutil.NeedFeature(t, testutil.Hairpin)
	w := newWorld(t)
	w.apply(hairpinned, w.facts())
	w.connect(w.inside, "203.0.113.100:7", 4)
	w.connect(w.inside, "203.0.113.1:8080", 1)
	used := map[string]int64{}
	for _, p := range w.look().Pools {
		used[p.Rule.String()+" "+p.Destination] = p.Used
	}
	if len(used) != 2 || used["nat[0] masquerade 203.0.113.100:7"] != 4 || used["nat[1] dnat 192.168.0.2:8080"] != 1 {
		t.Errorf("ports %v", used)
	}
}
