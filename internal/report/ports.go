package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// PortsView is what there is to say of ports besides the pools.
type PortsView struct {
	// Source says in words where the entries come from.
	Source string
	// Shared are addresses that sockets use, too; Unread why that is not known.
	Shared []snapshot.SharedAddress
	Unread string
	// Notes are what could not be had.
	Notes []string
}

// fewAdvised pools are told what would change; more would be much the same.
const fewAdvised = 3

// Ports writes the pools, and what they mean.
func Ports(w io.Writer, style Style, v PortsView, d *snapshot.Ports) error {
	p := &printer{w: w, style: style}
	if d.Translated == 0 {
		p.line("no connection of " + clean(v.Source) + " has a translated source")
		p.portNotes(v.Notes)
		return p.err
	}
	p.line(style.Paint(Bold, portsHead(v, d)))
	p.blank()
	p.table(portPools(d))
	if more := d.Total - int64(len(d.Pools)); more > 0 {
		p.line("… and " + units.Count(more) + " more with less of their range in use (--top 0 shows all)")
	}
	p.blank()
	p.portsExplained(d)
	for _, advised := range advisedPools(d) {
		p.portAlternatives(advised)
	}
	p.sharedAddresses(v)
	p.portNotes(v.Notes)
	return p.err
}

func portsHead(v PortsView, d *snapshot.Ports) string {
	text := fmt.Sprintf("%s: %s with a translated source, of %s", clean(v.Source),
		units.Plural(d.Translated, "connection", "connections"), units.Count(d.Sampled))
	if d.Seconds > 0 {
		text += fmt.Sprintf(", compared over %s s", units.Fixed(d.Seconds, 1))
	}
	return text
}

func portPools(d *snapshot.Ports) *Table {
	t := &Table{Columns: []Column{{Head: "used", Right: true}, {Head: "of ports", Right: true}, {Head: "share", Right: true},
		{Head: "TIME_WAIT", Right: true}, {Head: "new/s", Right: true}, {Head: "used up in", Right: true},
		{Head: "if taken", Right: true}, {Head: "fails", Right: true}, {Head: "address > destination, top user"}}}
	for i := range d.Pools {
		pool := &d.Pools[i]
		t.Cells(Cell{Text: units.Count(pool.Used)}, Cell{Text: fmt.Sprintf("%d-%d", pool.FirstPort, pool.LastPort)},
			Cell{Text: units.Percent(pool.Share), Tone: toneOf(pool.Share, 0.9, 0.97)}, Cell{Text: timeWait(pool)},
			Cell{Text: knownRate(pool)}, Cell{Text: usedUpIn(pool)},
			chanceCell(pool, pool.FailsIfTaken), chanceCell(pool, pool.Fails), Cell{Text: poolText(pool)})
	}
	return t
}

func toneOf(value, warn, bad float64) Tone {
	switch {
	case value >= bad:
		return Bad
	case value >= warn:
		return Warn
	}
	return ""
}

func timeWait(pool *snapshot.PortPool) string {
	if pool.Protocol != "tcp" {
		return units.None
	}
	return units.Count(pool.TimeWait)
}

func knownRate(pool *snapshot.PortPool) string {
	if !pool.RateKnown {
		return units.None
	}
	return units.Rate(pool.NewPerSecond)
}

func usedUpIn(pool *snapshot.PortPool) string {
	switch {
	case !pool.RateKnown:
		return units.None
	case pool.Share >= 1:
		return "now"
	case pool.SecondsLeft < 0:
		return "never"
	}
	return units.Roughly(pool.SecondsLeft)
}

func chanceCell(pool *snapshot.PortPool, chance float64) Cell {
	if !pool.Known {
		return Cell{Text: units.None}
	}
	return Cell{Text: chanceText(chance), Tone: toneOf(chance, 0.001, 0.05)}
}

// chanceText writes a chance so that what cannot be told from never is never.
func chanceText(chance float64) string {
	if chance < 1e-9 {
		return "0 %"
	}
	return units.Percent(chance)
}

func poolText(pool *snapshot.PortPool) string {
	text := fmt.Sprintf("%s > %s %s", pool.Address, pool.Destination, pool.Protocol)
	if pool.Zone != 0 {
		text += fmt.Sprintf(" zone %d", pool.Zone)
	}
	if pool.Class != "" {
		text += ", " + pool.Class + " ports"
	}
	if len(pool.Users) > 0 && pool.Used > 0 {
		text += fmt.Sprintf(", %s %s", pool.Users[0].Who, units.Percent(min(1, float64(pool.Users[0].Entries)/float64(pool.Used))))
	}
	return text
}

// portsExplained says what the two chances are.
func (p *printer) portsExplained(d *snapshot.Ports) {
	how := "This kernel looks at 128, 64, 32, 16 and 8 consecutive ports from random starts and then drops the packet: what counts is how the used ports lie."
	if d.Probing == snapshot.PortProbeAll {
		how = "This kernel looks at the whole range, so that a connection fails only where all ports are used; vendors' kernels of this age may look at 248 ports only, as newer ones do."
	}
	p.paragraph(`"if taken" is the chance that a new connection finds no port whose own is taken by another, "fails" that of any new one. ` + how)
	if most, ok := keptMost(d); ok {
		p.paragraph("Of TCP the chance is that of a connection past the sequence numbers of all that have ended, whose ports this kernel then takes (Linux 6.6); for one past none it is " + most + ".")
	}
}

// keptMost is the greatest chance without eviction, where that matters.
func keptMost(d *snapshot.Ports) (string, bool) {
	most := 0.0
	for _, pool := range d.Pools {
		if pool.FailsIfKept > pool.FailsIfTaken {
			most = max(most, pool.FailsIfKept)
		}
	}
	return "up to " + chanceText(most), most > 1e-4
}

// advisedPools are the worst ones that something would change.
func advisedPools(d *snapshot.Ports) []*snapshot.PortPool {
	var out []*snapshot.PortPool
	for i := range d.Pools {
		if len(d.Pools[i].Alternatives) > 0 && len(out) < fewAdvised {
			out = append(out, &d.Pools[i])
		}
	}
	return out
}

var alternativeNames = map[string]string{
	snapshot.PortsFullyRandom:    "a random port for every connection (fully-random)",
	snapshot.PortsLongerRange:    "the whole range 1024-65535",
	snapshot.PortsAnotherAddress: "one more address, to share the connections",
}

func (p *printer) portAlternatives(pool *snapshot.PortPool) {
	p.blank()
	t := &Table{Title: fmt.Sprintf("what would change for %s > %s %s (range from %s)", pool.Address, pool.Destination, pool.Protocol, pool.RangeSource),
		Columns: []Column{{Head: "with"}, {Head: "fails at once", Right: true}, {Head: "once ports lie by chance", Right: true}}}
	// Ports that clients keep do not come to lie by chance.
	asIs := Cell{Text: units.None}
	if pool.Draws {
		asIs.Text = chanceText(pool.TakenShare * pool.FailsScattered)
	}
	t.Cells(Cell{Text: "the rule as it is"}, Cell{Text: chanceText(pool.Fails)}, asIs)
	for _, a := range pool.Alternatives {
		name := alternativeNames[a.What]
		if name == "" {
			name = a.What
		}
		t.Row(name, chanceText(a.FailsNow), chanceText(a.FailsLater))
	}
	p.table(t)
}

func (p *printer) sharedAddresses(v PortsView) {
	for _, s := range v.Shared {
		if s.Connected+s.Listening == 0 {
			continue // all of the machine's addresses have these, that is no news
		}
		p.blank()
		p.paragraph(fmt.Sprintf("warning: %s sockets of this machine use %s, too: %s connected, %s bound to it, %s bound to all addresses. Their ports come out of net.ipv4.ip_local_port_range, and NAT does not know that they are taken unless the connection is tracked.",
			s.Protocol, s.Address, units.Count(s.Connected), units.Count(s.Listening), units.Count(s.Wildcard)))
	}
	if v.Unread != "" {
		p.paragraph("Whether sockets of this machine use these addresses is not known: " + clean(v.Unread))
	}
}

func (p *printer) portNotes(notes []string) {
	for _, n := range notes {
		p.paragraph("note: " + clean(n))
	}
}

// paragraph writes text in lines of the report's width.
func (p *printer) paragraph(text string) {
	p.line(strings.Join(wrap(text, p.style.columns()), "\n"))
}
