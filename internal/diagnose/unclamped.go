package diagnose

import (
	"fmt"
	"slices"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// inward ends the name of the text for packets that are lost before they come here.
const inward = " inward"

// Of the entries of TCP as many, and such a part, are of connections that the client closed and the server did not
// (CLOSE_WAIT, for a minute): the server still sends what does not arrive. Programs that forget to close leave few.
const (
	fewestHalfClosed = 10
	partHalfClosed   = 0.1
)

// unclamped finds uplinks that take smaller packets than hosts inside, which no rule tells servers, while many
// connections are closed by the client alone.
func (g *hostGrowth) unclamped() bool {
	last := g.rec.Last()
	if last.Audit == nil || !last.Audit.MSSFree || last.Table == nil || last.Links == nil || last.NATRules == nil {
		return false
	}
	closed, all := last.Table.ByTCPState["CLOSE_WAIT"], entriesOfTCP(last.Table)
	up, most := smallUplink(last)
	if up == nil || closed < fewestHalfClosed || float64(closed) < partHalfClosed*float64(all) {
		return false
	}
	text := fmt.Sprintf("the MTU of %s is %d, that of links inside %d, no rule limits the MSS, and %s of %s of TCP are CLOSE_WAIT", up.Name, up.MTU, most, units.Count(closed), units.Plural(all, "entry", "entries"))
	g.known, g.n = append(g.known, text), uint64(closed)
	g.sign = sign{variant: inward, place: fmt.Sprintf("%s (MTU %d, inside %d)", up.Name, up.MTU, most)}
	return true
}

// entriesOfTCP are those that were read.
func entriesOfTCP(t *snapshot.ConntrackTable) (all int64) {
	for _, n := range t.ByTCPState {
		all += n
	}
	return all
}

// internetMTU is what servers send at most, whatever hosts inside take.
const internetMTU = 1500

// smallUplink is an uplink with a smaller MTU than links inside, and the largest MTU of these. An uplink is one that rules
// translate sources for, or that has a public address.
func smallUplink(last *snapshot.Snapshot) (up *snapshot.Link, most int) {
	public, _ := (&audit{Audit: last.Audit, rules: last.NATRules}).publicAddress()
	var translating []string
	for i := range last.NATRules.Rules {
		if r := &last.NATRules.Rules[i]; r.TranslatesSource() && r.OutInterface != "" {
			translating = once(translating, r.OutInterface)
		}
	}
	uplink := func(name string) bool {
		return name == public || slices.ContainsFunc(translating, func(out string) bool { return nat.InName(out, name) })
	}
	for i := range last.Links.All {
		l := &last.Links.All[i]
		at := last.Audit.Interface(l.Name)
		switch {
		case at == nil || !at.Up || len(at.Addresses) == 0 || l.Name == "lo":
		case !uplink(l.Name):
			most = max(most, l.MTU)
		case up == nil || l.MTU < up.MTU:
			up = l
		}
	}
	if up == nil || up.MTU >= min(most, internetMTU) {
		return nil, most
	}
	return up, most
}
