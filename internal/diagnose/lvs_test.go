package diagnose

import (
	"testing"

	"github.com/natkit/natkit/internal/snapshot"
)

// TestReuseRemedy: a mode is advised only where the present one does not do the same.
func TestReuseRemedy(t *testing.T) {
	through := &snapshot.IPVSService{Servers: []snapshot.IPVSServer{{Forward: "Masq", Weight: 1}}}
	passing := &snapshot.IPVSService{Servers: []snapshot.IPVSServer{{Forward: "Route", Weight: 1}}}
	for _, tt := range []struct {
		mode    string
		service *snapshot.IPVSService
		want    string
	}{
		{"0", through, "set net.ipv4.vs.conn_reuse_mode to 1 (now 0)"},
		{"1", through, ""},
		{"2", through, ""},
		{"4", through, ""},
		{"0", passing, "set net.ipv4.vs.conn_reuse_mode to 3 (now 0)"},
		{"1", passing, "set net.ipv4.vs.conn_reuse_mode to 3 (now 1)"},
		{"2", passing, ""},
		{"3", passing, ""},
		{"", passing, ""},
	} {
		s := &snapshot.Snapshot{Sysctls: snapshot.Sysctls{}}
		if tt.mode != "" {
			s.Sysctls[snapshot.IPVSReuse] = tt.mode
		}
		b := &balancer{rec: &snapshot.Recording{Snapshots: []*snapshot.Snapshot{s}}}
		got := ""
		if m := b.reuseRemedy(tt.service); m != nil {
			got = m[0].Title
		}
		if got != tt.want {
			t.Errorf("mode %q, forward %s: %q, want %q", tt.mode, tt.service.Servers[0].Forward, got, tt.want)
		}
	}
}
