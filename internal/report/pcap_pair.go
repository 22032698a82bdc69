package report

import (
	"fmt"
	"io"
	"math"
	"net/netip"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/pcap/pair"
	"github.com/natkit/natkit/internal/units"
)

// PcapPairJSON writes a comparison as one document; the files are named as it turned out
// which is inside.
func PcapPairJSON(w io.Writer, version string, v PcapView, r *pair.Report) error {
	return JSON(w, struct {
		Schema      string `json:"schema"`
		Version     string `json:"version"`
		InsideFile  string `json:"inside_file"`
		OutsideFile string `json:"outside_file"`
		Interrupted bool   `json:"interrupted,omitempty"`
		*pair.Report
	}{pair.Schema, version, v.Source, v.Outside, v.Interrupted, r})
}

// PcapPair writes what captures of both sides of a NAT show together.
func PcapPair(w io.Writer, style Style, v PcapView, r *pair.Report) error {
	p := &pairPrinter{pcapPrinter{printer{w: w, style: style}, v, nil}, r}
	p.side("inside", v.Source, &r.Inside)
	p.side("outside", v.Outside, &r.Outside)
	p.remarks()
	p.clock()
	p.through()
	p.translation()
	p.flows()
	return p.err
}

type pairPrinter struct {
	pcapPrinter
	r *pair.Report
}

// side prints what one of the captures is, and how much of it could be compared.
func (p *pairPrinter) side(which, name string, s *pair.Side) {
	text := fmt.Sprintf("%s: %s, %s", name, s.File.Format, units.Plural(s.File.Packets, "packet", "packets"))
	if s.File.Packets > 0 {
		text += fmt.Sprintf(" in %s, %s compared", units.Seconds(s.File.Duration().Seconds()), units.Count(s.Compared))
	}
	p.mark(0, Cell{padRight(which, 9), Bold}, text, Bold)
	p.fact("not compared", counts(portion{s.Local, "of this machine's own"}, portion{s.Unforwardable, "that are not forwarded"}, portion{s.Unreadable, "not read"},
		portion{s.Uncovered.Before, "before the other capture began"}, portion{s.Uncovered.After, "after it ended"}))
	p.damage(s.File.Damage, s.File.DamageMore)
}

func (p *pairPrinter) remarks() {
	if p.r.Swapped {
		p.fact("note", "The files were given in reverse order: the translations show which one is inside.")
	} else if p.r.SidesBy == pair.AsGiven {
		p.fact("note", "No translation shows which side is inside: the first file is taken for it.")
	}
	p.interrupted()
	if l := p.r.Limits; l.Early+l.ForgottenFlows > 0 {
		p.caution(fmt.Sprintf("Out of memory (%s; --memory allows more): %s", units.Bytes(l.Memory),
			counts(portion{l.Early, "packets were judged too early"}, portion{l.ForgottenFlows, "flows were dropped"})))
	}
	for _, note := range p.r.Notes {
		p.fact("note", note)
	}
}

// clock prints how far the clocks of the captures are apart, and how that is known.
func (p *pairPrinter) clock() {
	c := p.r.Clock
	offset := apart(c.Offset) + " ahead"
	if c.Offset < 0 {
		offset = apart(-c.Offset) + " behind"
	}
	text := "not compared: no packet was matched"
	switch c.By {
	case pair.SameClock:
		text = "the same for both captures: no packet came out before it went in"
	case pair.BothWays:
		text = fmt.Sprintf("that of the outside capture is %s, which makes the least delays of both directions equal", offset)
		if c.Lowest != nil && c.Highest != nil {
			text += fmt.Sprintf(" (from %s to %s is possible)", apart(min(*c.Lowest, *c.Highest)), apart(max(*c.Lowest, *c.Highest)))
		}
	case pair.OneWay:
		text = fmt.Sprintf("that of the outside capture is assumed to be %s; packets of one direction only were matched, so delays are relative to the least one", offset)
	}
	if c.Drift != 0 {
		text += fmt.Sprintf("; it drifted by %s", apart(c.Drift))
	}
	p.fact("clock", text)
}

// apart is an offset of clocks, which on one machine is less than a millisecond.
func apart(seconds float64) string {
	if seconds != 0 && math.Abs(seconds) < 1e-3 {
		return units.Millis(seconds*1e6) + " µs"
	}
	return units.Millis(seconds*1e3) + " ms"
}

// through is a table of both directions: what went through, what did not, how long it took.
func (p *pairPrinter) through() {
	ways := []struct {
		name string
		*pair.Direction
	}{{"inside to outside", &p.r.Out}, {"outside to inside", &p.r.In}}
	p.heading("Through the NAT")
	t := &Table{Indent: 2, Columns: []Column{{Head: "packets"}, {Head: "went in", Right: true}, {Head: "came out", Right: true}, {Head: "lost", Right: true},
		{Head: "share", Right: true}, {Head: "twice", Right: true}, {Head: "from nowhere", Right: true}, {Head: "lost ones are"}}}
	for _, d := range ways {
		in := d.Matched + d.Lost
		row := texts(d.name, units.Count(in), units.Count(d.Matched), units.Count(d.Lost), share(uint64(d.Lost), uint64(in)), units.Count(d.Twice), units.Count(d.Appeared),
			someOf(d.LostBy, ", ", func(k *pair.KindCount) string { return fmt.Sprintf("%s %s", k.Kind, units.Count(k.Packets)) }))
		if d.Lost > 0 {
			row[3].Tone = Bad
		}
		t.Cells(row...)
	}
	p.table(t)
	if p.r.Ambiguous > 0 {
		p.fact("", fmt.Sprintf("%s several possible counterparts and are not counted.", units.Plural(p.r.Ambiguous, "packet has", "packets have")))
	}
	if p.r.Out.Matched+p.r.In.Matched == 0 {
		return
	}
	// In the unit of a forwarder, or in that of a queue.
	unit, perMilli := "ms", 1.0
	if max(p.r.Out.Delay.P99, p.r.In.Delay.P99) < 1 {
		unit, perMilli = "µs", 1e3
	}
	p.heading("Added delay, " + unit)
	t = &Table{Indent: 2, Columns: []Column{{Head: "direction"}, {Head: "min", Right: true}, {Head: "median", Right: true}, {Head: "p90", Right: true},
		{Head: "p99", Right: true}, {Head: "p99.9", Right: true}, {Head: "max", Right: true}, {Head: "mean", Right: true}}}
	for _, d := range ways {
		if d.Matched > 0 {
			t.Row(append([]string{d.name}, delays(&d.Delay, perMilli)...)...)
		}
	}
	p.table(t)
}

func delays(d *load.Times, perMilli float64) (row []string) {
	for _, v := range []float64{d.Min, d.Median, d.P90, d.P99, d.P999, d.Max, d.Mean} {
		row = append(row, units.Millis(v*perMilli))
	}
	return row
}

// translation prints the fields that the NAT rewrote.
func (p *pairPrinter) translation() {
	if p.r.Out.Matched+p.r.In.Matched == 0 {
		return
	}
	t, f := p.r.Translation, p.r.Flows
	p.heading("Translation")
	p.fact("packets", counts(portion{t.None, "unchanged"}, portion{t.SourceAddress, "with another source address outside"}, portion{t.SourcePort, "source port"},
		portion{t.DestinationAddress, "destination address"}, portion{t.DestinationPort, "destination port"},
		portion{t.TCPTimestamps, "with other TCP timestamps"}, portion{t.IPID, "with another IP identification"}))
	p.fact("flows", counts(portion{f.Through, "with packets on both sides"}, portion{f.Translated, "translated"}, portion{f.PortKept, "of them with the same port"},
		portion{f.PortChanged, "with another port"}, portion{f.Incomplete, "with packets lost"}, portion{f.NeverOut, "that never came out"}, portion{f.NeverIn, "that never came in"}))
	if t.Hops > 0 {
		p.fact("hops", units.Count(t.Hops))
	}
}

// flows are tables of those of which packets were lost, and of those that were rewritten.
func (p *pairPrinter) flows() {
	f := p.r.Flows
	lost := &Table{Indent: 2, Columns: []Column{{Head: "lost out", Right: true}, {Head: "lost in", Right: true}, {Head: "through", Right: true},
		{Head: "first lost"}, {Head: "flow", Below: true}}}
	flowRows(p, "What never came out", lost, p.r.Incomplete, f.Incomplete+f.NeverOut+f.NeverIn, func(f *pair.FlowReport) []string {
		side := "inside"
		if f.FirstLost.Outside {
			side = "outside"
		}
		return []string{units.Count(f.LostOut), units.Count(f.LostIn), units.Count(f.Matched),
			fmt.Sprintf("%s in frame %s %s", f.FirstLost.Kind, units.Count(f.FirstLost.Frame), side), flowName(f.Protocol, f.Inside, f.Outside)}
	})
	rewritten := &Table{Indent: 2, Columns: []Column{{Head: "inside", Right: true}, {Head: "outside", Right: true}, {Head: "flow", Below: true}}}
	flowRows(p, "Rewritten, with the frames that show it", rewritten, p.r.Mappings, f.Translated, func(m *pair.Mapping) []string {
		return []string{units.Count(m.InsideFrame), units.Count(m.OutsideFrame), flowName(m.Protocol, &m.Inside, &m.Outside)}
	})
}

// flowRows writes the first of a list as a table, and how many more there are in all.
func flowRows[T any](p *pairPrinter, heading string, t *Table, list []T, all int64, row func(*T) []string) {
	if len(list) == 0 {
		return
	}
	p.heading(heading)
	if p.v.Max > 0 {
		list = list[:min(len(list), p.v.Max)]
	}
	for i := range list {
		t.Row(row(&list[i])...)
	}
	p.table(t)
	if more := all - int64(len(list)); more > 0 {
		p.printf("  … and %s more (--max 0 shows all that are kept)", units.Count(more))
	}
}

// flowName is a flow as seen inside, and what is different outside. Either may be missing.
func flowName(protocol uint8, in, out *frame.Tuple) string {
	name := nat.ProtocolName(protocol) + " "
	switch {
	case in == nil && out == nil:
		return name
	case in == nil:
		return name + "outside " + endsText(*out)
	case out == nil || *in == *out:
		return name + endsText(*in)
	case in.Dst == out.Dst:
		return name + endsText(*in) + ", outside from " + endText(out.Src)
	case in.Src == out.Src:
		return name + endsText(*in) + ", outside to " + endText(out.Dst)
	}
	return name + endsText(*in) + ", outside " + endsText(*out)
}

func endsText(e frame.Tuple) string { return endText(e.Src) + " > " + endText(e.Dst) }

func endText(a netip.AddrPort) string {
	if a.Port() == 0 {
		return a.Addr().String()
	}
	return a.String()
}
