package report

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/snapshot"
)

func TestProfile(t *testing.T) {
	p := &snapshot.Profile{
		Seconds: 5, Hz: 99, CPUs: 2, Event: "cpu-clock", Samples: 500, Idle: 490, Lost: 3, Receive: 300,
		Classes: []snapshot.ProfileClass{
			{Name: "conntrack lookup", Receive: true, Samples: 200}, {Name: "rules", Receive: true}, {Name: "driver and rest", Receive: true, Samples: 100},
			{Name: "conntrack lookup", Samples: 50}, {Name: "user programs", Samples: 150},
		},
		Functions: []snapshot.ProfileSymbol{
			{Function: "nf_conntrack_in", Module: "nf_conntrack", Class: "conntrack lookup", Self: 250, Total: 250},
			{Function: "evil\x1b[2J", Module: "user", Class: "user programs", Self: 150, Total: 150},
		},
	}
	var b strings.Builder
	if err := (ProfileDocument{Kernel: "6.1.0", Profile: p}).Text(&b, Style{}); err != nil {
		t.Fatal(err)
	}
	want := `2 CPUs over 5.0 s, Linux 6.1.0: 99 samples per second of each by cpu-clock
3 samples were lost and are in none of these figures: the kernel gave no stack for them, or natkit's table was full

of all CPU time                        share  of these  samples
busy                                  50.5 %                500
  packet receive                      30.3 %                300
    conntrack lookup                  20.2 %    66.7 %      200
    driver and rest                   10.1 %    33.3 %      100
  not in packet receive               20.2 %                200
    conntrack lookup                   5.1 %      25 %       50
    user programs                     15.2 %      75 %      150
idle                                  49.5 %                490
conntrack, NAT and rules outside packet receive worked on what this host sends

self  total  of busy time in                 kind of work
50 %   50 %  nf_conntrack_in [nf_conntrack]  conntrack lookup
30 %   30 %  evil␛[2J [user]                 user programs
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
	b.Reset()
	if err := (ProfileDocument{Profile: &snapshot.Profile{}}).Text(&b, Style{}); err != nil || strings.Contains(b.String(), "kind of work") {
		t.Errorf("nothing sampled: %v\n%s", err, &b)
	}
}
