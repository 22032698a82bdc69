package report

import (
	"fmt"

	"github.com/natkit/natkit/internal/gateway/status"
	"github.com/natkit/natkit/internal/units"
)

func (p *printer) gatewayDrops(v GatewayView, s *status.Gateway) {
	p.blank()
	for _, c := range s.Counters {
		p.mark(0, Cell{}, counterText(c, counterWords[c.What]), Plain)
	}
	for _, c := range s.Drops.Counters {
		tone, words := Plain, dropWords[c.What]
		if words == "" {
			words = "dropped"
			if c.Packets > 0 {
				tone = Warn
			}
		}
		p.mark(0, Cell{}, counterText(c, words), tone)
	}
	p.gatewayLosses(v, &s.Drops)
	p.paragraph(tableUse(s))
}

// dropWords say why packets are dropped that every gateway gets some of.
var dropWords = map[string]string{"untranslatable": "dropped, invalid to the connection tracker"}

// gatewayLosses tells those two of the tracker's counters apart: every connection that
// found no port, or clashed, is in both.
func (p *printer) gatewayLosses(v GatewayView, d *status.Drops) {
	drop, failed := valueOf(d.NoEntry), valueOf(d.InsertFailed)
	if drop > failed {
		p.loss(drop-failed, max(0, valueOf(d.NoEntryPerSecond)-valueOf(d.InsertFailedPerSecond)), d.NoEntryPerSecond != nil,
			"dropped as the connection table had no room (conntrack's drop without insert_failed", "")
	}
	if failed > 0 {
		p.loss(failed, valueOf(d.InsertFailedPerSecond), d.InsertFailedPerSecond != nil,
			"dropped as they clashed with another connection, or found no port (insert_failed", whose(v, d.ByRule))
	}
}

// whose says what else there is to know about the connections that found no port.
func whose(v GatewayView, by *status.DropsByRule) (text string) {
	switch {
	case by == nil && v.Watch: // a note says why
		return ""
	case by == nil:
		return "; 'natkit gateway status" + v.Args + " --watch' tells of which rules"
	}
	if by.NoRule > 0 {
		text += fmt.Sprintf("; %s in this watch of connections that none of these rules translated", units.Count(by.NoRule))
	}
	if by.Untold > 0 {
		text += fmt.Sprintf("; %s in this watch of too many different connections to tell whose", units.Count(by.Untold))
	}
	return text
}

// loss is a warning while it goes on, or where nobody knows whether it does.
func (p *printer) loss(packets uint64, rate float64, rated bool, why, more string) {
	text, tone := units.Plural(packets, "first packet", "first packets")+" "+why, Warn
	if text += ", of the whole namespace since it was made)"; rated {
		text += ", " + units.Rate(rate) + "/s now"
		if rate == 0 {
			tone = Plain
		}
	}
	p.mark(0, Cell{}, text+more, tone)
}

// valueOf is 0 for what is not known.
func valueOf[N uint64 | float64](n *N) (value N) {
	if n != nil {
		value = *n
	}
	return value
}

// counterWords say what became of the packets that a counter counts.
var counterWords = map[string]string{"mss": "(SYNs) bounded", "flowtable": "offered to the kernel's fast path"}

func counterText(c status.Counter, became string) string {
	text := fmt.Sprintf("%s: %s %s", c.What, units.Plural(c.Packets, "packet", "packets"), became)
	if c.PacketsPerSecond != nil {
		text += ", " + units.Rate(*c.PacketsPerSecond) + "/s"
	}
	return text
}

func tableUse(s *status.Gateway) string {
	text := "connection table: " + units.Plural(s.Flows.Table, "entry", "entries")
	if s.Flows.Max > 0 {
		text += fmt.Sprintf(" of %s (%s)", units.Count(s.Flows.Max), units.Percent(float64(s.Flows.Table)/float64(s.Flows.Max)))
	}
	if !s.Flows.Complete && s.Flows.Sampled > 0 {
		text += fmt.Sprintf("; %s of them looked at (--all looks at all), and ~ marks what is scaled up from these", units.Count(s.Flows.Sampled))
	}
	return text
}
