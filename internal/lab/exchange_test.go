package lab

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/gateway"
)

func TestJudgeExchange(t *testing.T) {
	ap := netip.MustParseAddrPort
	kept := []Exchanged{{ap("198.18.0.2:4000"), ap("198.19.0.7:4000")}, {ap("198.18.0.3:4001"), ap("198.19.0.8:4001")}}
	moved := []Exchanged{{ap("198.18.0.2:4000"), ap("198.19.0.7:20000")}}
	own := []Exchanged{{ap("198.18.0.2:4000"), ap("198.18.0.2:4000")}}
	pool := Addresses{netip.MustParseAddr("198.19.0.7"), netip.MustParseAddr("198.19.0.8")}
	for name, tc := range map[string]struct {
		e              Exchange
		done           []Exchanged
		asked, entries int64
		want           []string
	}{
		"a pool":            {Exchange{Seen: pool, KeptPorts: true}, kept, 2, 2, nil},
		"out of the pool":   {Exchange{Seen: pool[:1]}, kept, 2, 2, []string{"198.18.0.3 was seen as 198.19.0.8"}},
		"not translated":    {Exchange{}, own, 1, 1, nil},
		"but translated":    {Exchange{}, moved, 1, 1, []string{"198.18.0.2 was seen as 198.19.0.7"}},
		"not kept":          {Exchange{Seen: pool, KeptPorts: true}, moved, 1, 1, []string{"port 4000 was seen as 20000"}},
		"in the range":      {Exchange{Seen: pool, SeenPorts: Ports{20000, 29999}}, moved, 1, 1, nil},
		"out of the range":  {Exchange{Seen: pool, SeenPorts: Ports{30000, 30001}}, moved, 1, 1, []string{"port 4000 was seen as 20000"}},
		"not tracked":       {Exchange{Untracked: true}, own, 1, 0, nil},
		"tracked after all": {Exchange{Untracked: true}, own, 1, 1, []string{"the gateway tracked 1"}},
		"tracked too few":   {Exchange{Seen: pool}, kept, 2, 1, []string{"the gateway tracked 1 of 2"}},
		"some failed":       {Exchange{Seen: pool}, moved, 3, 1, []string{"2 of 3 failed"}},
		"all failed":        {Exchange{Seen: pool}, nil, 3, 0, []string{"3 of 3 failed"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := tc.e.Judge(tc.done, tc.asked, tc.entries, nil)
			if diff := cmp.Diff(tc.want, r.Faults); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
	r := (&Exchange{Name: "x", Server: ServerAt{Node: "web"}}).Judge(append(kept, moved...), 3, 3, nil)
	if len(r.Seen) != 2 || r.Seen[0].Count != 2 || r.KeptPorts != 2 || r.FirstPort != 4000 || r.LastPort != 20000 || r.Protocol != "tcp" {
		t.Errorf("report %+v", r)
	}
}

// TestJudgeByEngine: what the tracker has to have of an exchange depends on the engines of the gateway's rules.
func TestJudgeByEngine(t *testing.T) {
	one := netip.MustParseAddrPort("198.18.0.2:4000")
	carriers := map[string][]gateway.Carrier{"ebpf": {{Engine: gateway.EngineEBPF}}, "both": {{Engine: gateway.EngineEBPF}, {Engine: gateway.EngineNetfilter}},
		"netfilter": {{Engine: gateway.EngineNetfilter}}}
	for engines, want := range map[string][2]bool{"ebpf": {true, false}, "both": {true, true}, "netfilter": {false, true}} {
		for entries := range int64(2) {
			r := (&Exchange{}).Judge([]Exchanged{{one, one}}, 1, entries, carriers[engines])
			if ok := len(r.Faults) == 0; ok != want[entries] {
				t.Errorf("engines %s, %d tracked: %q", engines, entries, r.Faults)
			}
		}
	}
}
