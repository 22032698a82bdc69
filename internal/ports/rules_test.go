package ports

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/natkit/natkit/internal/snapshot"
)

// TestRulesAboutAnAddress: none that may give it is left out, and the order is kept.
func TestRulesAboutAnAddress(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	address := func() netip.Addr { return netip.AddrFrom4([4]byte{198, 18, 0, byte(random.IntN(6))}) }
	for range 200 {
		rules := make([]snapshot.NATRule, random.IntN(8))
		for i := range rules {
			r := &rules[i]
			switch random.IntN(4) {
			case 0: // masquerade
			case 1:
				r.First, r.Last = address(), address()
			case 2:
				r.First = address()
			default:
				r.First = address()
				r.Last = r.First
			}
		}
		x, a := indexRules(rules), address()
		got := x.about(a)
		if !slices.IsSorted(got) {
			t.Fatalf("%v are not in order", got)
		}
		for i := range rules {
			r := &rules[i]
			may := !r.First.IsValid() || r.First.Compare(a) <= 0 && a.Compare(lastOf(r)) <= 0
			if may && !slices.Contains(got, i) {
				t.Errorf("%s: rule %d of %+v is left out", a, i, rules)
			}
		}
	}
}
