package snapshot

import (
	"slices"
	"testing"
)

// TestPoolOrder: those in which new connections fail come first, ports of single programs last though all are in use.
func TestPoolOrder(t *testing.T) {
	pool := func(last uint16, share, fails float64, rule int) PortPool {
		return PortPool{FirstPort: 1000, LastPort: last, Share: share, Fails: fails, Rule: rule}
	}
	p := &Ports{Pools: []PortPool{pool(1009, 1, 1, 0), pool(2000, 0.7, 0, 1)}}
	p.Replace([]PortPool{pool(1099, 0.9, 0.1, 2), pool(1199, 0.9, 0.2, -1), pool(1020, 0, 0, 3)})
	var got []uint16
	for i := range p.Pools {
		got = append(got, p.Pools[i].LastPort)
	}
	if want := []uint16{1199, 1099, 2000, 1020, 1009}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	given, whole := NATRule{FirstPort: 1000}, NATRule{}
	for name, c := range map[string]struct {
		rules *NATRules
		want  bool
	}{
		"a range that a rule gives":       {&NATRules{Rules: []NATRule{given, given, given}}, true},
		"all ports":                       {&NATRules{Rules: []NATRule{given, given, whole}}, false},
		"another range is the full one":   {&NATRules{Rules: []NATRule{given, whole, given}}, true},
		"rules are not known":             {nil, false},
		"the rule is not in what is read": {&NATRules{}, false},
	} {
		if got := p.IsPressed(0.8, c.rules); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
