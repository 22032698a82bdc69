package netfilter

import (
	"encoding/json"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/testutil"
)

func TestValid(t *testing.T) {
	v4, v6 := netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/64")
	to := []gateway.Range{{First: netip.MustParseAddr("203.0.113.1"), Last: netip.MustParseAddr("203.0.113.2")}}
	for _, tt := range []struct {
		want string // part of the error; empty for none
		plan gateway.Plan
	}{
		{"", gateway.Plan{Sources: []gateway.Source{{From: []netip.Prefix{v4}, To: to}}}},
		{"family", gateway.Plan{Sources: []gateway.Source{{From: []netip.Prefix{v6}, To: to}}}},
		{"family", gateway.Plan{Sources: []gateway.Source{{From: []netip.Prefix{v4, {}}, To: to}}}},
		{"nothing to translate", gateway.Plan{Sources: []gateway.Source{{From: []netip.Prefix{v4}}}}},
		{"different lengths", gateway.Plan{Sources: []gateway.Source{{From: []netip.Prefix{v4}, Prefix: netip.MustParsePrefix("10.1.0.0/16")}}}},
		{"no range", gateway.Plan{Sources: []gateway.Source{{From: []netip.Prefix{v4}, To: []gateway.Range{{First: to[0].Last, Last: to[0].First}}}}}},
		{"no address", gateway.Plan{Destinations: []gateway.Destination{{On: v4}}}},
		{"RFC 6296", gateway.Plan{Stateless: []gateway.Pair{{Inside: v4, Outside: v4, Neutral: true}}}},
		{"no address", gateway.Plan{Untracked: []gateway.Untracked{{}}}},
	} {
		err := valid(&tt.plan)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, not %q", tt.plan, err, tt.want)
		}
	}
}

// FuzzPlan: what is valid becomes messages, whatever it says.
func FuzzPlan(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.yaml")
	for _, file := range files {
		text, err := json.Marshal(planOf(f, file))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		defer testutil.Bounded(t, len(text))()
		var p gateway.Plan
		if json.Unmarshal(text, &p) != nil || valid(&p) != nil {
			return
		}
		for _, h := range []host{{}, {netmap: true, flowtable: p.Flowtable}} {
			build(&p, h).messages(nil) // a refusal is an answer, a panic is none
		}
	})
}
