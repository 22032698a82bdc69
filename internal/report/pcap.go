package report

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/pcap"
	"github.com/natkit/natkit/internal/units"
)

// PcapView says how what a capture tells is shown.
type PcapView struct {
	// Source says in words where the capture came from.
	Source string
	// Filter chose so many packets to be looked at, where there was one.
	Filter string
	Chosen int64
	// Ladders is how many incidents of each kind are drawn; 0 is all.
	Ladders int
	// Kinds are those shown; none is all.
	Kinds []pcap.Kind
	// Steps draws all packets of an incident that were kept, with all that is known
	// of them.
	Steps bool
	// Clock shows the time of day instead of the time since a ladder's first packet.
	Clock bool
	// Zone is that of times of day.
	Zone *time.Location
	// Interrupted says that the capture was not read to its end.
	Interrupted bool
}

// Pcap writes what a capture tells: a summary, and a story for each kind of incident.
func Pcap(w io.Writer, style Style, v PcapView, r *pcap.Report) error {
	p := &pcapPrinter{printer{w: w, style: style}, v, r}
	p.summary()
	if r.Packets == 0 {
		return p.err
	}
	p.overview()
	for _, kind := range pcap.Kinds {
		if v.shows(kind) && count(r, kind) > 0 {
			p.story(kind)
		}
	}
	p.clocks()
	p.icmp()
	return p.err
}

// pcapPrinter writes one report.
type pcapPrinter struct {
	printer
	v PcapView
	r *pcap.Report
}

func (v *PcapView) shows(kind pcap.Kind) bool {
	return len(v.Kinds) == 0 || slices.Contains(v.Kinds, kind)
}

// count is how many incidents of a kind there were, kept or not.
func count(r *pcap.Report, kind pcap.Kind) int64 {
	for _, k := range r.Kinds {
		if k.Kind == kind {
			return k.Count
		}
	}
	return 0
}

// moment is a time of day, with the day where it is asked for.
func (v *PcapView) moment(t time.Time, withDay bool) string {
	zone := v.Zone
	if zone == nil {
		zone = time.UTC
	}
	form := "15:04:05.000000"
	if withDay {
		form = "2006-01-02 " + form
	}
	return t.In(zone).Format(form)
}

// overview is a table of the kinds of incidents.
func (p *pcapPrinter) overview() {
	t := &Table{Title: "Incidents", Indent: 2, Columns: []Column{{Head: "count", Right: true, Min: 9}, {Head: "kind"}, {Head: "what", Wrap: true}}}
	any := false
	for _, kind := range pcap.Kinds {
		if n := count(p.r, kind); n > 0 && p.v.shows(kind) {
			t.Cells(Cell{Text: units.Count(n), Tone: tones[kind]}, Cell{Text: string(kind)}, Cell{Text: words[kind].what})
			any = true
		}
	}
	p.blank()
	if any {
		p.table(t)
		return
	}
	what := "No incidents"
	what += p.blind()
	if len(p.v.Kinds) > 0 {
		what += " of the kinds asked for"
	}
	p.line(p.style.Paint(Good, what+"."))
}

// blind says where there are no incidents because there was little to be seen.
func (p *pcapPrinter) blind() string {
	if len(p.r.Undecoded) == 0 {
		return ""
	}
	switch u := p.r.Undecoded[0]; {
	case u.Packets == p.r.Packets:
		return ", as no packet is of IP or could be read"
	case u.Reason != pcap.NotIP && 2*u.Packets > p.r.Packets:
		return " in what could be read, which is the lesser part"
	}
	return ""
}

// tones are of the kinds that lose connections.
var tones = map[pcap.Kind]Tone{pcap.SYNRejectedPAWS: Bad, pcap.SYNRejectedSeq: Bad, pcap.SYNOnOpen: Bad, pcap.SYNUnanswered: Bad,
	pcap.RSTOutOfWindow: Warn, pcap.RetransmissionBackoff: Warn}

// spread writes the smallest, the middle and the largest of some values.
func spread(values []float64, one func(float64) string) string {
	slices.Sort(values)
	least, most := one(values[0]), one(values[len(values)-1])
	if least == most {
		return least
	}
	return fmt.Sprintf("%s to %s, half of them up to %s", least, most, one(values[(len(values)-1)/2]))
}
