package apply

import "testing"

// TestUnitOf: what was started by hand is nobody's unit, whatever cgroup it is in.
func TestUnitOf(t *testing.T) {
	for _, tt := range []struct {
		cgroup string
		parent int
		want   string
	}{
		{"0::/system.slice/natkit-gateway.service\n", 1, "natkit-gateway.service"},
		{"0::/system.slice/system-natkit.slice/natkit@dmz.service\n", 1, "natkit@dmz.service"},
		{"12:cpu:/system.slice\n1:name=systemd:/system.slice/natkit-gateway.service\n0::/\n", 1, "natkit-gateway.service"},
		{"12:cpu:/system.slice/other.service\n", 1, ""},
		{"0::/system.slice/ssh.service\n", 4711, ""},
		{"0::/user.slice/user-1000.slice/session-3.scope\n", 1, ""},
		{"0::/\n", 1, ""},
		{"", 1, ""},
		{"rubbish", 1, ""},
	} {
		if got := unitOf(tt.cgroup, tt.parent); got != tt.want {
			t.Errorf("%q, parent %d: %q, want %q", tt.cgroup, tt.parent, got, tt.want)
		}
	}
}

// TestRunner: who reads a claim has the commands for the process that wrote it.
func TestRunner(t *testing.T) {
	for _, tt := range []struct {
		r            Runner
		stop, reload string
	}{
		{Runner{"natkit gateway run a.yaml", 7, ""}, "'kill 7'", "'kill -HUP 7'"},
		{Runner{"natkit gateway run a, 'b' (c).yaml", 7, "gw.service"}, "'systemctl stop gw.service'", "'systemctl reload gw.service'"},
		{Runner{Command: "what another version wrote (pid seven)"}, "a SIGTERM", "a reload"},
	} {
		text := tt.r.String()
		if tt.r.PID == 0 {
			text = tt.r.Command
		}
		if got := parseRunner(text); got != tt.r || got.Stop() != tt.stop || got.Reload() != tt.reload {
			t.Errorf("%q: %+v, %s, %s", text, got, got.Stop(), got.Reload())
		}
	}
}
