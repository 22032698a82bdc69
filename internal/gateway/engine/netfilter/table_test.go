package netfilter

import (
	"encoding/json"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

func TestValid(t *testing.T) {
	v4, v6 := netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/64")
	to := nat.AddrRanges{{First: netip.MustParseAddr("203.0.113.1"), Last: netip.MustParseAddr("203.0.113.2")}}
	source := func(does nat.Action, from ...netip.Prefix) []gateway.Entry {
		return []gateway.Entry{{Match: nat.Match{From: from}, Action: does}}
	}
	for _, tt := range []struct {
		want string // part of the error; empty for none
		plan gateway.Plan
	}{
		{"", gateway.Plan{Sources: source(nat.Action{To: to}, v4)}},
		{"family", gateway.Plan{Sources: source(nat.Action{To: to}, v6)}},
		{"no prefix", gateway.Plan{Sources: source(nat.Action{To: to}, v4, netip.Prefix{})}},
		{"nothing to translate", gateway.Plan{Sources: source(nat.Action{}, v4)}},
		{"different lengths", gateway.Plan{Sources: source(nat.Action{Prefix: netip.MustParsePrefix("10.1.0.0/16")}, v4)}},
		{"no range", gateway.Plan{Sources: source(nat.Action{To: nat.AddrRanges{{First: to[0].Last, Last: to[0].First}}}, v4)}},
		{"several prefixes", gateway.Plan{Sources: []gateway.Entry{{Match: nat.Match{Original: []netip.Prefix{v4, v4}}, Action: nat.Action{To: to}}}}},
		{"what one prefix becomes", gateway.Plan{Destinations: []gateway.Entry{{Match: nat.Match{To: []netip.Prefix{v4}}}}}},
		{"what one prefix becomes", gateway.Plan{Destinations: []gateway.Entry{{}}}},
		{"RFC 6296", gateway.Plan{Stateless: source(nat.Action{Prefix: v4, Neutral: true}, v4)}},
		{"no pair", gateway.Plan{Stateless: []gateway.Entry{{}}}},
		{"no address", gateway.Plan{Untracked: []gateway.Entry{{}}}},
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

// TestInvalidChain: packets that cannot be translated are dropped where the kernel knows where they came in and leave.
func TestInvalidChain(t *testing.T) {
	p := planOfText(t, "invalid", "gateway:\n  nat: [{masquerade: {from: 10.0.0.0/8}}]\n")
	for cameIn, want := range map[bool]chain{
		true:  {"invalid", "filter", unix.NF_INET_POST_ROUTING, 109},
		false: {"invalid", "filter", unix.NF_INET_FORWARD, 120},
	} {
		if got := build(p, host{cameIn: cameIn}).chains; !slices.Contains(got, want) {
			t.Errorf("%+v is not among %+v", want, got)
		}
	}
}
