package report

import (
	"fmt"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/gateway/status"
	"github.com/natkit/natkit/internal/units"
)

func (p *printer) gatewayRules(v GatewayView, s *status.Gateway) {
	rules, more := busiestRules(s.Rules, v.Top)
	if len(rules) == 0 {
		return
	}
	columns := statusColumns(s)
	t := &Table{}
	for _, c := range columns {
		t.Columns = append(t.Columns, c.Column)
	}
	for i := range rules {
		var row []Cell
		for _, c := range columns {
			row = append(row, c.cell(&rules[i], s))
		}
		t.Cells(row...)
	}
	p.blank()
	p.table(t)
	if more > 0 {
		p.line("… and " + units.Count(more) + " more with fewer connections (--top 0 shows all)")
	}
	p.gatewayLegend(v, s)
}

// statusColumn is one of the table of rules.
type statusColumn struct {
	Column
	cell func(*status.Rule, *status.Gateway) Cell
}

// statusColumns are those that there is something to say in.
func statusColumns(s *status.Gateway) []statusColumn {
	columns := []statusColumn{{Column{Head: "rule"}, nameCell}}
	number := func(head string, cell func(*status.Rule, *status.Gateway) Cell) {
		columns = append(columns, statusColumn{Column{Head: head, Right: true}, cell})
	}
	number("new", newCell)
	if slices.ContainsFunc(s.Rules, func(r status.Rule) bool { return r.NewPerSecond != nil }) {
		number("new/s", newRateCell)
	}
	if s.Drops.ByRule != nil {
		number("dropped", droppedCell)
	}
	number("flows", flowsCell)
	if s.Accounting {
		number("packets", packetsCell)
		number("bytes", bytesCell)
	}
	number("ports left", portsCell)
	return append(columns, statusColumn{Column{Head: "what it does", Below: true}, textCell})
}

// gatewayLegend says what the columns count, and since when.
func (p *printer) gatewayLegend(v GatewayView, s *status.Gateway) {
	const width = 9
	p.labelled(0, "new", width, "first packets since the last apply"+ago(s.Applied, v.At))
	if by := s.Drops.ByRule; by != nil {
		p.labelled(0, "dropped", width, "those that found no free port or clashed, since the watch began "+units.Roughly(by.Seconds)+" ago")
	}
	now := "flows, ports left; with 'accounting: on' in the file packets and bytes"
	if s.Accounting {
		now = "flows, packets, bytes, ports left: of the connections that there are"
	}
	p.labelled(0, "now", width, now)
}

// ago is empty where the time is not known.
func ago(then *time.Time, now time.Time) string {
	if then == nil {
		return ""
	}
	at := then.Local().Format("2006-01-02 15:04")
	if seconds := now.Sub(*then).Seconds(); seconds > 0 {
		return ", " + units.Roughly(seconds) + " ago (" + at + ")"
	}
	return ", " + at
}

// busiestRules are all in the file's order where that is not too many, else those
// with most connections.
func busiestRules(rules []status.Rule, top int) (shown []status.Rule, more int) {
	if top <= 0 || len(rules) <= top {
		return rules, 0
	}
	return status.Busiest(rules, top), len(rules) - top
}

func nameCell(r *status.Rule, _ *status.Gateway) Cell { return Cell{Text: r.Rule.String()} }

func textCell(r *status.Rule, _ *status.Gateway) Cell {
	if r.More == 0 {
		return Cell{Text: r.Text}
	}
	return Cell{Text: fmt.Sprintf("%s (and %s)", r.Text, units.Plural(r.More, "more entry", "more entries"))}
}

func newCell(r *status.Rule, _ *status.Gateway) Cell { return Cell{Text: known(r.New)} }

func newRateCell(r *status.Rule, _ *status.Gateway) (c Cell) {
	if r.NewPerSecond != nil {
		c.Text = units.Rate(*r.NewPerSecond)
	}
	return c
}

// droppedCell warns while more are dropped.
func droppedCell(r *status.Rule, _ *status.Gateway) Cell {
	c := Cell{Text: known(r.Dropped)}
	if valueOf(r.DroppedPerSecond) > 0 {
		c.Tone = Warn
	}
	return c
}

// ofNow is a number that was counted in the connection table.
func ofNow(s *status.Gateway, text string) Cell {
	if s.Flows.Sampled == 0 && !s.Flows.Complete {
		return Cell{Text: units.None} // it was not read
	}
	return Cell{Text: about(s) + text}
}

func flowsCell(r *status.Rule, s *status.Gateway) Cell { return ofNow(s, units.Count(r.Flows)) }

func packetsCell(r *status.Rule, s *status.Gateway) Cell {
	return ofNow(s, units.Count(r.Packets))
}

func bytesCell(r *status.Rule, s *status.Gateway) Cell { return ofNow(s, units.Bytes(r.Bytes)) }

// about marks numbers that are scaled up from a sample.
func about(s *status.Gateway) string {
	if s.Flows.Complete {
		return ""
	}
	return "~"
}

func known(n *uint64) string {
	if n == nil {
		return units.None
	}
	return units.Count(*n)
}

func portsCell(r *status.Rule, s *status.Gateway) Cell {
	if r.Ports == nil {
		return Cell{Text: units.None}
	}
	return leftCell(*r.Ports, s)
}

func leftCell(p status.PortsLeft, s *status.Gateway) Cell {
	return Cell{Text: about(s) + units.Count(p.Left), Tone: toneOf(p.InUse(), 0.9, 0.97)}
}
