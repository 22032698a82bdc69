package report

import (
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/gateway/explain"
)

// GatewayExplain writes the way of a packet and of its answer.
func GatewayExplain(w io.Writer, style Style, e *explain.Way) error {
	p := &printer{w: w, style: style}
	p.line(style.Paint(Bold, e.Packet.String()) + clean(cameBy(e)))
	p.blank()
	p.gatewaySteps(e.Steps)
	p.blank()
	p.gatewayFate(e)
	if len(e.Reply) > 0 {
		p.blank()
		p.line(style.Paint(Bold, "The answer"))
		p.gatewaySteps(e.Reply)
	}
	if e.ReplyLost != "" {
		p.mark(2, Cell{"lost: ", Bad}, e.ReplyLost, Plain)
	}
	p.gatewayNear(e)
	for _, n := range e.Notes {
		p.mark(0, Cell{"note: ", Dim}, n, Plain)
	}
	return p.err
}

func cameBy(e *explain.Way) string {
	if e.Packet.In == "" {
		return ", of a program on the gateway"
	}
	return ", in by " + e.Packet.In
}

func (p *printer) gatewaySteps(steps []explain.Step) {
	t := &Table{Indent: 2, Columns: []Column{{}, {Right: true}, {}, {Wrap: true}}}
	for _, s := range steps {
		t.Cells(Cell{s.Hook, Dim}, Cell{priority(s), Dim}, Cell{Text: chainText(s)}, doesCell(s))
	}
	p.table(t)
}

// priority is not told of what is no chain, nor of the very end.
func priority(s explain.Step) string {
	if s.Priority == math.MaxInt32 || s.Chain == "" && s.Priority == 0 {
		return ""
	}
	return fmt.Sprint(s.Priority)
}

func chainText(s explain.Step) string {
	if s.Owner != "" {
		return s.Chain + " (" + s.Owner + ")"
	}
	return s.Chain
}

func doesCell(s explain.Step) Cell {
	c := Cell{Text: s.Does}
	if s.Rule != nil {
		c = Cell{s.Rule.String() + ": " + s.Does, Bold}
	}
	if s.Unsure {
		c.Tone = Warn
	}
	return c
}

func (p *printer) gatewayFate(e *explain.Way) {
	flow := fmt.Sprintf("%s %s -> %s", conntrack.ProtocolName(e.Packet.Protocol), e.Source, e.Destination)
	switch e.Fate {
	case explain.Forwarded:
		p.line(howCertain(e, "becomes ") + p.style.Paint(Bold, clean(flow)) + ", leaves by " + clean(e.Out))
	case explain.Local:
		p.line(howCertain(e, "stays here as ") + p.style.Paint(Bold, clean(flow)))
	case explain.Unreachable, explain.Dropped:
		p.line(p.style.Paint(Bad, "goes nowhere"))
	}
	for _, u := range e.Unless {
		p.mark(2, Cell{"unless ", Warn}, u, Plain)
	}
}

// howCertain is what is said of the fate: where other programs' rules may make something else of
// the packet, it is not certain.
func howCertain(e *explain.Way, does string) string {
	if len(e.Unless) > 0 {
		return "not certain: " + does
	}
	return does
}

func (p *printer) gatewayNear(e *explain.Way) {
	if len(e.Near) == 0 {
		return
	}
	p.blank()
	p.line(p.style.Paint(Bold, "Rules about these addresses that do nothing to it"))
	for _, n := range e.Near {
		p.mark(2, Cell{n.Rule.String() + ": ", Plain}, strings.Join(n.Why, "; "), Plain)
	}
	if e.NearMore > 0 {
		p.line(fmt.Sprintf("  … and %d more", e.NearMore))
	}
}
