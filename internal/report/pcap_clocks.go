package report

import (
	"fmt"

	"github.com/natkit/natkit/internal/pcap"
	"github.com/natkit/natkit/internal/units"
)

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
