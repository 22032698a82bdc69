package look

import (
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/health"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/netns"
)

// hosts adds those that rules choose from, with what the service has found that checks them.
func (v *view) hosts() {
	if v.plan == nil {
		return
	}
	hosts := observe.HostsOf(v.plan)
	for i := range v.Rules {
		v.Rules[i].Hosts = hosts[v.Rules[i].Rule]
	}
	checked := v.plan.Checked()
	if len(checked) == 0 {
		return
	}
	used, err := v.o.Engines.InUse(v.o.Netns, v.plan)
	if err != nil {
		v.note("which hosts new connections go to is not known: %v", err)
	}
	var found health.Report
	if id, err := netns.IDOf(v.o.Netns); err != nil || v.o.Store == nil {
		v.note("whether hosts are checked is not known: natkit's store was not read")
	} else if v.Checker = v.o.Store.Claimant(id.Inode); v.Checker != "" {
		found = health.ParseReport(v.o.Store.Health(id))
	} else {
		v.Unchecked = true
	}
	for i := range v.Rules {
		if e := checked[v.Rules[i].Rule]; e != nil {
			states(v.Rules[i].Hosts, e, used[e.Rule], found)
		}
	}
}

// leases adds the ports that hosts inside have opened, and has the connections to them counted.
func (v *view) leases() {
	if v.plan == nil || v.plan.PCP == nil {
		return
	}
	leases, err := v.o.Engines.Leases(v.o.Netns, v.plan)
	if err != nil {
		v.note("which ports hosts inside have opened is not known: %v", err)
	}
	if inode, err := netns.InodeOf(v.o.Netns); err == nil && v.o.Store != nil && v.o.Store.Claimant(inode) == "" {
		v.note("no 'natkit gateway run' answers hosts inside that ask for ports (pcp): those that are open end in their time")
	}
	v.plan.Leases = leases
	v.Leases = observe.LeasesOf(v.plan, v.at)
}

// states adds to the hosts of a rule which of them are in use and up.
func states(hosts []observe.Host, e *gateway.Entry, used []bool, found health.Report) {
	for i := range hosts {
		if used != nil {
			hosts[i].InUse = &used[i]
		}
		if s, ok := found.State(health.TargetOf(&e.Action, e.Action.Backends[i])); ok {
			hosts[i].Up, hosts[i].LastError = &s.Up, s.Error
			if !s.Since.IsZero() {
				hosts[i].Since = &s.Since
			}
		}
	}
}
