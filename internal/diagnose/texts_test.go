package diagnose

import (
	"testing"

	"github.com/natkit/natkit/internal/snapshot"
)

// TestTextsUndecided: what a few pasted lines leave out is no health.
func TestTextsUndecided(t *testing.T) {
	const full, overflow = "nf_conntrack: nf_conntrack: table full, dropping packet", "neighbour: arp_cache: neighbor table overflow!"
	rules := &snapshot.NATRules{Rules: []snapshot.NATRule{{Family: "ip", Table: "nat", Chain: "POSTROUTING", Kind: snapshot.NATMasquerade, Text: "masquerade"}}}
	half := snapshot.Sysctls{snapshot.ConntrackMax: "1000", snapshot.ConntrackCount: "50"}
	stat := &snapshot.ConntrackStat{PerCPU: []map[string]uint64{{"drop": 7, "insert_failed": 7, "early_drop": 0}}}
	logged := func(text string, at float64) []snapshot.LogLine {
		return []snapshot.LogLine{{Seq: 1, UptimeSeconds: at, Text: text}}
	}
	for name, c := range map[string]struct {
		check    func(*snapshot.Recording) (*Finding, Check)
		s        snapshot.Snapshot
		noUptime bool
		all      bool
		want     State
	}{
		"full, at an unknown time":   {check: checkFull, s: snapshot.Snapshot{Sysctls: half, ConntrackStat: stat, KernelLog: logged(full, 100)}, noUptime: true, want: NotChecked},
		"full, a minute ago":         {check: checkFull, s: snapshot.Snapshot{UptimeSeconds: 160, Sysctls: half, ConntrackStat: stat, KernelLog: logged(full, 100)}, want: NotChecked},
		"full, a day ago":            {check: checkFull, s: snapshot.Snapshot{UptimeSeconds: 90000, Sysctls: half, ConntrackStat: stat, KernelLog: logged(full, 100)}, want: OK},
		"recycle, kernel not known":  {check: checkTWRecycle, s: snapshot.Snapshot{Sysctls: half}, want: NotChecked},
		"recycle, old kernel":        {check: checkTWRecycle, s: snapshot.Snapshot{Sysctls: half, Kernel: snapshot.Kernel{Release: "3.10.0-327.el7.x86_64"}}, want: NotChecked},
		"recycle, new kernel":        {check: checkTWRecycle, s: snapshot.Snapshot{Sysctls: half, Kernel: snapshot.Kernel{Release: "5.15.0-91-generic"}}, want: OK},
		"recycle, all sysctls":       {check: checkTWRecycle, s: snapshot.Snapshot{Sysctls: half}, all: true, want: OK},
		"forwarding not known":       {check: checkForwarding, s: snapshot.Snapshot{Sysctls: half, NATRules: rules}, want: NotChecked},
		"forwarding off, no counter": {check: checkForwarding, s: snapshot.Snapshot{Sysctls: snapshot.Sysctls{ipForward: "0"}, NATRules: rules}, want: NotChecked},
		"forwarding on":              {check: checkForwarding, s: snapshot.Snapshot{Sysctls: snapshot.Sysctls{ipForward: "1"}, NATRules: rules}, want: OK},
		"neighbours of whom":         {check: hostFaultNamed("neighbour-table-full").check, s: snapshot.Snapshot{Sysctls: half, KernelLog: logged(overflow, 100), KernelLogNext: 2}, want: NotChecked},
	} {
		rec := &snapshot.Recording{Schema: snapshot.RecordingSchema, Snapshots: []*snapshot.Snapshot{c.s.AtStart(), &c.s}, SinceStart: true, SomeSysctls: !c.all, NoUptime: c.noUptime}
		if f, check := c.check(rec); f != nil || check.State != c.want {
			t.Errorf("%s: finding %v, %q: %s; want %q", name, f, check.State, check.Why, c.want)
		}
	}
}

// TestTextsLogged: a line of the log alone does not say that the table is full now.
func TestTextsLogged(t *testing.T) {
	s := &snapshot.Snapshot{KernelLog: []snapshot.LogLine{{Seq: 1, UptimeSeconds: 100, Text: "nf_conntrack: table full, dropping packet"}}, KernelLogNext: 2}
	f, _ := checkFull(&snapshot.Recording{Snapshots: []*snapshot.Snapshot{s.AtStart(), s}, SinceStart: true, NoUptime: true})
	if f == nil || f.Severity != Warning || f.Confidence != "possible" {
		t.Errorf("%+v", f)
	}
}

func hostFaultNamed(id string) *hostFault {
	for _, f := range hostFaults() {
		if f.id == id {
			return &f
		}
	}
	return nil
}
