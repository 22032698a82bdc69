package gateway

import (
	"testing"
)

func TestParseRef(t *testing.T) {
	for _, r := range []Ref{{"nat", 0, "snat"}, {"ipv6", 123, "netmap"}} {
		if got, ok := ParseRef(r.String()); !ok || got != r {
			t.Errorf("%v: %v, %v", r, got, ok)
		}
	}
	for _, text := range []string{"", "nat", "nat[1]", "nat[x] snat", "nat[01] snat", "nat[-1 snat", "10 entries of @snat"} {
		if got, ok := ParseRef(text); ok {
			t.Errorf("%q is %v", text, got)
		}
	}
}
