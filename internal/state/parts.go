package state

import "time"

// Names of the parts of a Namespace.
const (
	PartCounters = "counters"
	PartTable    = "table"
	PartServices = "services"
	PartPorts    = "ports"
	PartDrops    = "drops"
	PartStack    = "stack"
	PartFindings = "findings"
)

// Parts are all of them.
var Parts = []string{PartCounters, PartTable, PartServices, PartPorts, PartDrops, PartStack, PartFindings}

// Readings returns the readings of the parts that are there, by name.
func (n *Namespace) Readings() map[string]*Reading {
	all := map[string]*Reading{}
	if n.Counters != nil {
		all[PartCounters] = &n.Counters.Reading
	}
	if n.Table != nil {
		all[PartTable] = &n.Table.Reading
	}
	if n.Services != nil {
		all[PartServices] = &n.Services.Reading
	}
	if n.Ports != nil {
		all[PartPorts] = &n.Ports.Reading
	}
	if n.Drops != nil {
		all[PartDrops] = &n.Drops.Reading
	}
	if n.Stack != nil {
		all[PartStack] = &n.Stack.Reading
	}
	if n.Findings != nil {
		all[PartFindings] = &n.Findings.Reading
	}
	return all
}

// Ages returns how old each part is that is there, in seconds.
func (n *Namespace) Ages() map[string]float64 {
	ages := map[string]float64{}
	for part, r := range n.Readings() {
		ages[part] = r.AgeSeconds
	}
	return ages
}

// Aged returns a copy with the ages at now; the parts themselves are shared with n but for their reading.
func (n *Namespace) Aged(now time.Time) Namespace {
	c := *n
	if n.Counters != nil {
		c.Counters = new(*n.Counters)
	}
	if n.Table != nil {
		c.Table = new(*n.Table)
	}
	if n.Services != nil {
		c.Services = new(*n.Services)
	}
	if n.Ports != nil {
		c.Ports = new(*n.Ports)
	}
	if n.Drops != nil {
		c.Drops = new(*n.Drops)
	}
	if n.Stack != nil {
		c.Stack = new(*n.Stack)
	}
	if n.Findings != nil {
		c.Findings = new(*n.Findings)
	}
	for _, r := range c.Readings() {
		r.AgeSeconds = max(0, now.Sub(r.At).Seconds())
	}
	if c.Unread == nil {
		c.Unread = []Unread{}
	}
	return c
}
