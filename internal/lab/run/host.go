package run

import (
	"fmt"
	"strconv"

	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune/apply"
)

// hostMax is the host's present limit of tracked connections.
func hostMax() (int64, error) { return apply.ReadSysctlInt("/proc", snapshot.ConntrackMax) }

// undisturbed fails where somebody else changed the host's maximum since the lab
// began: what the stages show would not be what the scenario says.
func (c *conductor) undisturbed() error {
	want := c.hostMax
	for _, a := range c.applied {
		for _, change := range a.Changes() {
			if change.Target == snapshot.ConntrackMax {
				want, _ = strconv.ParseInt(change.After, 10, 64)
			}
		}
	}
	now, err := hostMax()
	if err == nil && now != want {
		err = fmt.Errorf("%s was %d and is %d now: somebody else changes it; find out who (another lab, kube-proxy, a configuration agent) and run again", snapshot.ConntrackMax, want, now)
	}
	return err
}

// mayLower refuses to lower the host's maximum where another namespace tracks
// more than half of what would be left: it would lose connections.
func (c *conductor) mayLower() error {
	switch {
	case c.LowerMax >= c.hostMax:
		return fmt.Errorf("lower %s to %d: it is %d already", snapshot.ConntrackMax, c.LowerMax, c.hostMax)
	case c.LowerMax >= c.sc.Load.Requests:
		return fmt.Errorf("lower %s to %d: %d requests do not fill that; a lower limit, or more requests", snapshot.ConntrackMax, c.LowerMax, c.sc.Load.Requests)
	}
	if c.Force {
		return nil
	}
	name, entries, err := dump.Busiest()
	if err != nil {
		return fmt.Errorf("lower %s: %w; --force lowers without looking", snapshot.ConntrackMax, err)
	}
	if entries > c.LowerMax/2 {
		return fmt.Errorf("lower %s to %d: network namespace %s tracks %d connections, more than half of it, and would lose new ones; --force does it all the same",
			snapshot.ConntrackMax, c.LowerMax, name, entries)
	}
	return nil
}
