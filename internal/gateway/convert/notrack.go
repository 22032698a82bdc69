package convert

import (
	"fmt"
	"net/netip"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/ruleset"
)

// tracker is the priority of the connection tracker at its hooks (NF_IP_PRI_CONNTRACK).
const tracker = -200

func (e *entry) expressNotrack() string {
	m := e.Match
	from, to := m.Source().IsValid(), m.Dest().IsValid()
	switch {
	case e.Base.Priority >= tracker:
		return fmt.Sprintf("comes after the tracker, and keeps nothing from it (priority %d)", e.Base.Priority)
	case from == to || from && !m.Source().IsSingleIP() || to && !m.Dest().IsSingleIP():
		return "natkit's notrack is for what one address gets and sends"
	case to && len(m.SourcePorts) > 0 || from && len(m.Ports) > 0:
		return "is for ports of the other host; natkit's notrack is for those of its own address"
	case len(e.Except) > 0:
		return fmt.Sprintf("%s keeps some of its packets from it", where(e.Except[0].Rule))
	}
	if word := wordless(&m, "from to protocol sport"); word != "" {
		return ruleset.NoWord + word
	}
	return ""
}

// perPort is an entry for each of the ports of a rule that keeps the tracker off, as a
// rule of the file has one range.
func (e *entry) perPort() []*entry {
	ports := append(append([]nat.Ports{}, e.Match.Ports...), e.Match.SourcePorts...)
	if e.Rule.Target.Kind != ruleset.Notrack || len(ports) < 2 || len(e.Match.Ports)*len(e.Match.SourcePorts) > 0 {
		return []*entry{e}
	}
	var all []*entry
	for _, p := range ports {
		part, one := *e.Entry, *e
		one.Entry = &part
		if len(e.Match.Ports) > 0 {
			one.Match.Ports = []nat.Ports{p}
		} else {
			one.Match.SourcePorts = []nat.Ports{p}
		}
		all = append(all, &one)
	}
	return all
}

// untracked is the address and the ports that such an entry is about, and whether that
// is what comes for them.
func (e *entry) untracked() (on netip.Addr, port gateway.Port, to bool) {
	m := &e.Match
	list := m.Ports
	if to = m.Dest().IsValid(); to {
		on = m.Dest().Addr()
	} else {
		on, list = m.Source().Addr(), m.SourcePorts
	}
	port.Protocol = protocolName(m.Protocol)
	if len(list) == 1 && list[0] != nat.AllPorts {
		port.First, port.Last = list[0].First, list[0].Last
	}
	return on, port, to
}

// makeNotrack wants both directions: what the address gets, and what it sends.
func (t *translator) makeNotrack(e *entry, later []*entry) (*made, string) {
	on, port, _ := e.untracked()
	m := &made{version: e.version, rule: gateway.Rule{Notrack: &gateway.Notrack{On: gateway.Address{Addr: on}, Port: port}}}
	gets, sends := false, false
	for _, x := range append([]*entry{e}, later...) {
		if x.Rule.Target.Kind != ruleset.Notrack {
			continue
		}
		if a, p, to := x.untracked(); a == on && p == port {
			m.from = append(m.from, x)
			gets, sends = gets || to && x.hook == "prerouting", sends || !to
		}
	}
	if !gets || !sends {
		return nil, "is for one direction; natkit's notrack is for what the address gets and for what it sends"
	}
	return m, ""
}
