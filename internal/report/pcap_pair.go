package report

import (
	"fmt"
	"io"
	"math"
	"net/netip"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/pcap"
	"github.com/natkit/natkit/internal/pcap/pair"
	"github.com/natkit/natkit/internal/units"
)

// PairView says how the comparison of two captures is shown.
type PairView struct {
	// Inside and Outside name the captures.
	Inside, Outside string
	// Rows is the most that a table has; 0 is all.
	Rows int
	// Zone is that of times of day.
	Zone *time.Location
	// Interrupted says that the captures were not read to their ends.
	Interrupted bool
}

// PcapPair writes what two captures of both sides of a NAT tell together.
func PcapPair(w io.Writer, style Style, v PairView, r *pair.Report) error {
	p := &pairPrinter{pcapPrinter: pcapPrinter{printer{w: w, style: style}, PcapView{Zone: v.Zone}, &pcap.Report{}}, v: v, r: r}
	p.side("inside", v.Inside, &r.Inside)
	p.side("outside", v.Outside, &r.Outside)
	p.remarks()
	p.clock()
	p.through()
	p.translation()
	p.incomplete()
	p.mappings()
	return p.err
}

type pairPrinter struct {
	pcapPrinter
	v PairView
	r *pair.Report
}

// pairLabel is the width of labels.
const pairLabel = 13

func (p *pairPrinter) fact(label, text string) { p.labelled(2, label, pairLabel, text) }

// side says what one of the captures is, and how much of it could be compared.
func (p *pairPrinter) side(which, name string, s *pair.Side) {
	text := fmt.Sprintf("%s: %s, %s", name, s.File.Format, units.Plural(s.File.Packets, "packet", "packets"))
	if s.File.Packets > 0 {
		text += fmt.Sprintf(" in %s, %s compared", units.Seconds(s.File.Duration().Seconds()), units.Count(s.Compared))
	}
	p.mark(0, Cell{padRight(which, 9), Bold}, text, Bold)
	p.fact("not compared", counts(portion{s.Local, "of this machine's own"}, portion{s.Unforwardable, "that are not forwarded"}, portion{s.Unreadable, "not read"},
		portion{s.Uncovered.Before, "before the other capture began"}, portion{s.Uncovered.After, "after it ended"}))
	damaged := pcapPrinter{p.printer, p.pcapPrinter.v, &pcap.Report{Stats: s.File}}
	damaged.damage()
	p.err = damaged.err
}

func (p *pairPrinter) remarks() {
	if p.r.Swapped {
		p.fact("note", "The files were given the other way round: which one is inside was told by the translations.")
	} else if p.r.SidesBy == pair.AsGiven {
		p.fact("note", "Nothing was translated that tells which side is inside: the first file counts as that.")
	}
	if p.v.Interrupted {
		p.caution("Interrupted: this is what was read until then.")
	}
	if l := p.r.Limits; l.Early+l.ForgottenFlows > 0 {
		p.caution(fmt.Sprintf("Memory (%s; --memory allows more) did not suffice: %s", units.Bytes(l.Memory),
			counts(portion{l.Early, "packets were judged before their time"}, portion{l.ForgottenFlows, "flows were forgotten"})))
	}
	for _, note := range p.r.Notes {
		p.fact("note", note)
	}
}

// through is a table of both directions: what went through, what did not, how long it took.
func (p *pairPrinter) through() {
	p.heading("Through the NAT")
	t := &Table{Indent: 2, Columns: []Column{{Head: "packets"}, {Head: "went in", Right: true}, {Head: "came out", Right: true}, {Head: "lost", Right: true},
		{Head: "share", Right: true}, {Head: "twice", Right: true}, {Head: "from nowhere", Right: true}, {Head: "lost ones are"}}}
	p.way(t, "inside to outside", &p.r.Out)
	p.way(t, "outside to inside", &p.r.In)
	p.table(t)
	if p.r.Ambiguous > 0 {
		p.fact("", fmt.Sprintf("%s had several counterparts that they could be, and count as neither.", units.Plural(p.r.Ambiguous, "packet", "packets")))
	}
	if p.r.Out.Matched+p.r.In.Matched > 0 {
		p.delay()
	}
}

// delay is a table of how long both directions took: in the unit of a forwarder, or in that
// of a queue.
func (p *pairPrinter) delay() {
	unit, perMilli := "ms", 1.0
	if max(p.r.Out.Delay.P99, p.r.In.Delay.P99) < 1 {
		unit, perMilli = "µs", 1e3
	}
	p.heading("Added delay, " + unit)
	d := &Table{Indent: 2, Columns: []Column{{Head: "direction"}, {Head: "min", Right: true}, {Head: "median", Right: true}, {Head: "p90", Right: true},
		{Head: "p99", Right: true}, {Head: "p99.9", Right: true}, {Head: "max", Right: true}, {Head: "mean", Right: true}}}
	delays(d, "inside to outside", p.r.Out.Matched, &p.r.Out.Delay, perMilli)
	delays(d, "outside to inside", p.r.In.Matched, &p.r.In.Delay, perMilli)
	p.table(d)
}

func (p *pairPrinter) way(t *Table, name string, d *pair.Direction) {
	var by []string
	for i, k := range d.LostBy {
		if i == few {
			by = append(by, "…")
			break
		}
		by = append(by, fmt.Sprintf("%s %s", k.Kind, units.Count(k.Packets)))
	}
	lost := Cell{Text: units.Count(d.Lost)}
	if d.Lost > 0 {
		lost.Tone = Bad
	}
	in := d.Matched + d.Lost
	t.Cells(Cell{Text: name}, Cell{Text: units.Count(in)}, Cell{Text: units.Count(d.Matched)}, lost, Cell{Text: share(uint64(d.Lost), uint64(in))},
		Cell{Text: units.Count(d.Twice)}, Cell{Text: units.Count(d.Appeared)}, Cell{Text: strings.Join(by, ", ")})
}

func delays(t *Table, name string, n int64, d *load.Times, perMilli float64) {
	if n == 0 {
		return
	}
	row := []string{name}
	for _, v := range []float64{d.Min, d.Median, d.P90, d.P99, d.P999, d.Max, d.Mean} {
		row = append(row, units.Millis(v*perMilli))
	}
	t.Row(row...)
}

// translation is what the NAT rewrote.
func (p *pairPrinter) translation() {
	if p.r.Out.Matched+p.r.In.Matched == 0 {
		return
	}
	t, f := p.r.Translation, p.r.Flows
	p.heading("Translation")
	p.fact("packets", counts(portion{t.None, "unchanged"}, portion{t.SourceAddress, "with another source address outside"}, portion{t.SourcePort, "source port"},
		portion{t.DestinationAddress, "destination address"}, portion{t.DestinationPort, "destination port"},
		portion{t.TCPTimestamps, "with other TCP timestamps"}, portion{t.IPID, "with another IP identification"}))
	p.fact("flows", counts(portion{f.Through, "with packets on both sides"}, portion{f.Translated, "translated"}, portion{f.PortKept, "of them with the port that they had"},
		portion{f.PortChanged, "with another port"}, portion{f.Incomplete, "with packets lost"}, portion{f.NeverOut, "that never came out"}, portion{f.NeverIn, "that never came in"}))
	if t.Hops > 0 {
		p.fact("hops", units.Count(t.Hops))
	}
}

// incomplete is a table of flows of which packets were lost.
func (p *pairPrinter) incomplete() {
	list := p.r.Incomplete
	if len(list) == 0 {
		return
	}
	p.heading("What never came out")
	t := &Table{Indent: 2, Columns: []Column{{Head: "lost out", Right: true}, {Head: "lost in", Right: true}, {Head: "through", Right: true},
		{Head: "first lost"}, {Head: "flow", Below: true}}}
	for i := range list {
		if p.v.Rows > 0 && i == p.v.Rows {
			break
		}
		f := &list[i]
		t.Row(units.Count(f.LostOut), units.Count(f.LostIn), units.Count(f.Matched), firstLost(f), pairFlow(f))
	}
	p.table(t)
	p.more(len(list), p.r.Flows.Incomplete+p.r.Flows.NeverOut+p.r.Flows.NeverIn)
}

// more says how many rows are not shown: all that there are less those of the table.
func (p *pairPrinter) more(listed int, all int64) {
	shown := int64(listed)
	if p.v.Rows > 0 {
		shown = min(shown, int64(p.v.Rows))
	}
	if all > shown {
		p.line(fmt.Sprintf("  … and %s more (--max 0 shows all that are kept)", units.Count(all-shown)))
	}
}

func firstLost(f *pair.FlowReport) string {
	side := "inside"
	if f.FirstLost.Outside {
		side = "outside"
	}
	return fmt.Sprintf("%s in frame %s %s", f.FirstLost.Kind, units.Count(f.FirstLost.Frame), side)
}

func pairFlow(f *pair.FlowReport) string {
	switch {
	case f.Inside != nil && f.Outside != nil:
		return protocolName(f.Protocol) + " " + rewritten(*f.Inside, *f.Outside)
	case f.Inside != nil:
		return protocolName(f.Protocol) + " " + endsText(*f.Inside)
	case f.Outside != nil:
		return protocolName(f.Protocol) + " outside " + endsText(*f.Outside)
	}
	return protocolName(f.Protocol)
}

func endsText(e frame.Tuple) string { return endText(e.Src) + " > " + endText(e.Dst) }

// rewritten is a flow inside, and what is different outside.
func rewritten(in, out frame.Tuple) string {
	text := endsText(in)
	switch {
	case in == out:
		return text
	case in.Dst == out.Dst:
		return text + ", outside from " + endText(out.Src)
	case in.Src == out.Src:
		return text + ", outside to " + endText(out.Dst)
	}
	return text + ", outside " + endsText(out)
}

func endText(a netip.AddrPort) string {
	if a.Port() == 0 {
		return a.Addr().String()
	}
	return a.String()
}

// protocolName is that of a protocol above IP that has ports or an identifier.
func protocolName(protocol uint8) string {
	switch protocol {
	case 1:
		return "icmp"
	case 6:
		return "tcp"
	case 17:
		return "udp"
	case 58:
		return "icmpv6"
	}
	return fmt.Sprintf("protocol %d", protocol)
}

// mappings is a table of flows on both sides.
func (p *pairPrinter) mappings() {
	list := p.r.Mappings
	if len(list) == 0 {
		return
	}
	p.heading("Rewritten, with the frames that show it")
	t := &Table{Indent: 2, Columns: []Column{{Head: "inside", Right: true}, {Head: "outside", Right: true}, {Head: "flow", Below: true}}}
	for i := range list {
		if p.v.Rows > 0 && i == p.v.Rows {
			break
		}
		m := &list[i]
		t.Row(units.Count(m.InsideFrame), units.Count(m.OutsideFrame), protocolName(m.Protocol)+" "+rewritten(m.Inside, m.Outside))
	}
	p.table(t)
	p.more(len(list), p.r.Flows.Translated)
}

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

// clocks tells how many machines seem to be behind an address: each has a clock.
func (p *pcapPrinter) clocks() {
	several := p.severalClocks()
	if len(several) == 0 {
		return
	}
	p.heading("Clocks behind an address")
	p.fact("", "TCP timestamps from one address to another lie on more than one line: each is a machine behind the address (Linux since 4.10), unless there is one for nearly each port, as Linux of 2026, Windows and FreeBSD have them.")
	for i, pair := range several {
		if i == few {
			p.line(fmt.Sprintf("  … and %s more", units.Count(int64(len(several)-i)+p.r.ClocksMore)))
			break
		}
		p.clocksOf(pair)
	}
}

// severalClocks are the pairs with more than one clock. That a system has one for each
// port is worth a word only where it did harm.
func (p *pcapPrinter) severalClocks() (several []*pcap.PairClocks) {
	harm := count(p.r, pcap.SYNRejectedPAWS) > 0
	for i := range p.r.Clocks {
		if c := &p.r.Clocks[i]; c.Count > 1 && (harm || !c.PerConnection && !fewConnections(c)) {
			several = append(several, c)
		}
	}
	return several
}

// fewConnections says that a clock has hardly ever more than one connection: nobody can
// tell then whether it is a machine's or a port's.
func fewConnections(c *pcap.PairClocks) bool { return 2*c.Count > c.Connections }

// clocksOf names the clocks of one pair of addresses.
func (p *pcapPrinter) clocksOf(pair *pcap.PairClocks) {
	n := units.Plural(pair.Count, "clock", "clocks")
	switch {
	case pair.PerConnection:
		n += ", nearly one for each port: they tell nothing of machines"
	case fewConnections(pair):
		n += ", too few connections to tell machines from ports"
	case pair.More:
		n = "at least " + n
	}
	p.blank()
	p.mark(2, Cell{}, fmt.Sprintf("%s to %s, %s: %s", pair.Source, pair.Destination, units.Plural(pair.Connections, "connection", "connections"), n), Bold)
	if pair.PerConnection {
		return
	}
	for i := range pair.Clocks {
		if i == few {
			p.line(fmt.Sprintf("    … and %s more", units.Count(pair.Count-int64(i))))
			return
		}
		c := &pair.Clocks[i]
		p.mark(4, Cell{}, fmt.Sprintf("%s, TSval %d at the capture's start, %s", hertz(c), c.Offset, units.Plural(c.Connections, "connection", "connections")), Plain)
	}
}

func hertz(c *pcap.Clock) string {
	if !c.Exact {
		return fmt.Sprintf("taken to be %s Hz", units.Fixed(c.Hz, 0))
	}
	return units.Fixed(c.Hz, 0) + " Hz"
}

// icmp is a table of the error messages.
func (p *pcapPrinter) icmp() {
	if len(p.r.ICMPErrors) == 0 || !p.v.shows(pcap.ICMPErrorKind) {
		return
	}
	p.heading("ICMP errors")
	t := &Table{Indent: 2, Columns: []Column{{Head: "messages", Right: true, Min: 9}, {Head: "connections", Right: true}, {Head: "from"}, {Head: "first frame", Right: true}, {Head: "message", Below: true}}}
	for i := range p.r.ICMPErrors {
		e := &p.r.ICMPErrors[i]
		if i == 2*few {
			t.Row("", "", fmt.Sprintf("… and %s more", units.Count(len(p.r.ICMPErrors)-i)))
			break
		}
		t.Row(units.Count(e.Count), units.Count(e.Flows), e.From.String(), units.Count(e.First), icmpMessage(e))
	}
	p.table(t)
}

func icmpMessage(e *pcap.ICMPError) string {
	text := e.Name
	if text == "" {
		text = fmt.Sprintf("type %d code %d", e.Type, e.Code)
	}
	if e.MTU > 0 {
		text += fmt.Sprintf(" (MTU %d)", e.MTU)
	}
	return text
}

func icmpText(e *pcap.ICMPError) string { return e.From.String() + " says: " + icmpMessage(e) }
