package report

import (
	"fmt"
	"math"

	"github.com/natkit/natkit/internal/pcap/pair"
	"github.com/natkit/natkit/internal/units"
)

// clock says how far the clocks of the captures are apart, and how that is known.
func (p *pairPrinter) clock() {
	c := p.r.Clock
	text := ""
	switch c.By {
	case pair.SameClock:
		text = "the same for both captures: no packet came out before it went in"
	case pair.BothWays:
		text = fmt.Sprintf("that of the outside capture is %s, so that the least delays of both directions are equal", ahead(c.Offset))
	case pair.OneWay:
		text = fmt.Sprintf("that of the outside capture is taken to be %s; packets of one direction only were matched, so delays are those above the least one", ahead(c.Offset))
	default:
		text = "not compared: no packet was matched"
	}
	if c.By == pair.BothWays && c.Lowest != nil && c.Highest != nil {
		text += fmt.Sprintf(" (from %s to %s is possible)", apart(min(*c.Lowest, *c.Highest)), apart(max(*c.Lowest, *c.Highest)))
	}
	if c.Drift != 0 {
		text += fmt.Sprintf("; it drifted by %s", apart(c.Drift))
	}
	p.fact("clock", text)
}

func ahead(seconds float64) string {
	if seconds < 0 {
		return apart(-seconds) + " behind"
	}
	return apart(seconds) + " ahead"
}

// apart is how far clocks are apart: those of one machine are so by less than a
// millisecond.
func apart(seconds float64) string {
	if seconds != 0 && math.Abs(seconds) < 1e-3 {
		return units.Millis(seconds*1e6) + " µs"
	}
	return units.Millis(seconds*1e3) + " ms"
}
