package run

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/tune/apply"
)

const sysctlMax = "net.netfilter.nf_conntrack_max"

// hostMax is the host's present limit of tracked connections.
func hostMax() (int64, error) {
	text, err := apply.ReadSysctl("/proc", sysctlMax)
	if err != nil {
		return 0, err
	}
	v, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s: %q is not a number", sysctlMax, text)
	}
	return v, nil
}

// undisturbed fails where somebody else changed the host's maximum since the lab
// began: what the stages show would not be what the scenario says.
func (c *conductor) undisturbed() error {
	want := c.hostMax
	for _, a := range c.applied {
		for _, change := range a.Changes() {
			if change.Target == sysctlMax {
				want, _ = strconv.ParseInt(change.After, 10, 64)
			}
		}
	}
	now, err := hostMax()
	if err == nil && now != want {
		err = fmt.Errorf("%s was %d and is %d now: somebody else changes it; find out who (another lab, kube-proxy, a configuration agent) and run again", sysctlMax, want, now)
	}
	return err
}

// mayLower refuses to lower the host's maximum where another namespace tracks
// more than half of what would be left: it would lose connections.
func (c *conductor) mayLower() error {
	if c.LowerMax >= c.hostMax {
		return fmt.Errorf("lower %s to %d: it is %d already", sysctlMax, c.LowerMax, c.hostMax)
	}
	if c.Force {
		return nil
	}
	all, err := netns.All()
	if err != nil {
		return err
	}
	defer netns.CloseAll(all)
	for _, ns := range all {
		usage, err := dump.Count(ns)
		if err != nil {
			return fmt.Errorf("count the connections of network namespace %s (%d): %w; --force lowers without looking", ns.Name(), ns.Inode(), err)
		}
		if usage.Entries > c.LowerMax/2 {
			return fmt.Errorf("lower %s to %d: network namespace %s (%d) tracks %d connections, more than half of it, and would lose new ones; --force does it all the same",
				sysctlMax, c.LowerMax, ns.Name(), ns.Inode(), usage.Entries)
		}
	}
	return nil
}
