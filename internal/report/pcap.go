package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/pcap"
	"github.com/natkit/natkit/internal/units"
)

// PcapView specifies how captures are shown.
type PcapView struct {
	// Source names the capture; of two it is that of the inside, and Outside the other.
	Source, Outside string
	// Filter selected Chosen packets, where there was one.
	Filter string
	Chosen int64
	// Max is how many incidents of each kind are drawn, and how many rows tables of flows
	// have; 0 is all.
	Max int
	// Kinds are those shown; none is all.
	Kinds []pcap.Kind
	// Steps draws all packets of an incident that were kept, with all of their fields.
	Steps bool
	// Clock shows the time of day instead of the time since a ladder's first packet.
	Clock bool
	// Zone is that of times of day; nil is UTC.
	Zone *time.Location
	// Interrupted is set if the captures were not read to their ends.
	Interrupted bool
}

func (v *PcapView) shows(kind pcap.Kind) bool {
	return len(v.Kinds) == 0 || slices.Contains(v.Kinds, kind)
}

// moment is t in the view's zone.
func (v *PcapView) moment(t time.Time) time.Time {
	if v.Zone == nil {
		return t.UTC()
	}
	return t.In(v.Zone)
}

// timeOfDay is that of a packet.
const timeOfDay = "15:04:05.000000"

// PcapJSON writes a capture's report as one document, with causes and advice beside the
// counts of kinds.
func PcapJSON(w io.Writer, version string, v PcapView, r *pcap.Report) error {
	type kind struct {
		pcap.KindCount
		pcap.About
	}
	kinds := []kind{}
	for _, k := range r.Kinds {
		kinds = append(kinds, kind{k, k.Kind.About()})
	}
	return JSON(w, struct {
		Schema      string `json:"schema"`
		Version     string `json:"version"`
		Source      string `json:"source"`
		Filter      string `json:"filter,omitempty"`
		Chosen      int64  `json:"packets_chosen,omitempty"`
		Interrupted bool   `json:"interrupted,omitempty"`
		Kinds       []kind `json:"incident_kinds"` // in the place of the report's
		*pcap.Report
	}{pcap.Schema, version, v.Source, v.Filter, v.Chosen, v.Interrupted, kinds, r})
}

// Pcap writes what a capture shows: a summary, and a story for each kind of incident.
func Pcap(w io.Writer, style Style, v PcapView, r *pcap.Report) error {
	p := &pcapPrinter{printer{w: w, style: style}, v, r}
	p.summary()
	if r.Packets == 0 {
		return p.err
	}
	p.overview()
	for _, k := range r.Kinds {
		if v.shows(k.Kind) && k.Count > 0 {
			p.story(k)
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

// count returns the number of incidents of a kind, kept or not.
func count(r *pcap.Report, kind pcap.Kind) int64 {
	for _, k := range r.Kinds {
		if k.Kind == kind {
			return k.Count
		}
	}
	return 0
}

const (
	// pcapLabel is the width of labels.
	pcapLabel = 13
	// few is how many members of a list are shown where they are not asked for.
	few = 5
)

func (p *pcapPrinter) fact(label, text string) { p.labelled(2, label, pcapLabel, text) }

func (p *pcapPrinter) caution(text string) { p.mark(2, Cell{"! ", Warn}, text, Warn) }

// portion is a number with what it counts; counts leaves out those of nothing.
type portion struct {
	n    int64
	what string
}

func counts(list ...portion) string {
	var parts []string
	for _, c := range list {
		if c.n > 0 {
			parts = append(parts, units.Count(c.n)+" "+c.what)
		}
	}
	return strings.Join(parts, ", ")
}

// someOf writes the first few of a list, and how many more there are.
func someOf[T any](list []T, separator string, one func(*T) string) string {
	var parts []string
	for i := range list {
		if i == few {
			parts = append(parts, units.Count(len(list)-i)+" more")
			break
		}
		parts = append(parts, one(&list[i]))
	}
	return strings.Join(parts, separator)
}

// summary prints what the capture is, and how much of it could be used.
func (p *pcapPrinter) summary() {
	r := p.r
	text := fmt.Sprintf("%s: %s", p.v.Source, r.Format)
	if r.Compression != "" {
		text += " (" + r.Compression + ")"
	}
	text += ", " + units.Plural(r.Packets, "packet", "packets")
	if r.Packets > 0 {
		text += fmt.Sprintf(", %s on the wire, %s", units.Bytes(r.Bytes), units.Seconds(r.Duration().Seconds()))
	}
	p.line(p.style.Paint(Bold, clean(text)))
	if r.Packets > 0 {
		p.contents()
	}
	p.damage(r.Damage, r.DamageMore)
	p.interrupted()
	if l := r.Limits; l.Forgotten > 0 {
		p.caution(fmt.Sprintf("%s dropped for lack of memory (%s; --memory allows more): reuse after %s or longer may have been missed",
			units.Plural(l.Forgotten, "connection was", "connections were"), units.Bytes(l.Memory), units.Roughly(l.Youngest)))
	}
	for _, note := range r.Notes {
		p.fact("note", note)
	}
}

func (p *pcapPrinter) interrupted() {
	if p.v.Interrupted {
		p.caution("Interrupted: this is what was read until then.")
	}
}

func (p *pcapPrinter) contents() {
	r, c := p.r, &p.r.Connections
	if p.v.Filter != "" {
		p.fact("filter", fmt.Sprintf("%s: matches %s", p.v.Filter, units.Plural(p.v.Chosen, "packet", "packets")))
	}
	first, last := p.v.moment(r.First), p.v.moment(r.Last)
	zone, _ := first.Zone()
	p.fact("time", fmt.Sprintf("%s to %s (%s)", first.Format(time.DateOnly+" "+timeOfDay), last.Format(time.DateOnly+" "+timeOfDay), zone))
	p.fact("interfaces", someOf(r.Interfaces, "; ", func(i *pcap.Interface) string { return interfaceText(i, len(r.Interfaces) > 1) }))
	p.fact("protocols", someOf(r.Protocols, ", ", func(c *pcap.NamedCount) string { return c.Name + " " + units.Count(c.Packets) }))
	if c.Total == 0 {
		p.fact("connections", "no TCP")
	}
	p.fact("connections", counts(portion{c.Total, "in TCP"}, portion{c.Begun, "with their SYN"}, portion{c.Established, "of these answered"}, portion{c.Refused, "refused"},
		portion{c.Unanswered, "unanswered"}, portion{c.NotAccepted, "without SYN-ACK or RST"}, portion{c.Pending, "too young to classify"}, portion{c.ServerClosedFirst, "closed by the server first"},
		portion{c.ClientClosedFirst, "by the client first"}, portion{c.Reset, "reset"}, portion{c.Duplicates, "duplicate packets"}))
	p.fact("port reuse", reuse(&r.Reuse))
	again := &r.Retransmissions
	text := counts(portion{again.SYN, "SYN"}, portion{again.SYNACK, "SYN-ACK"}, portion{again.Data, "data"}, portion{again.OutOfOrder, "out of order"})
	if len(again.Backoffs) > 0 {
		text += "; SYNs after " + someOf(again.Backoffs, ", ", func(b *pcap.Backoff) string { return units.Roughly(b.Median) }) + " (median)"
	}
	p.fact("sent again", text)
	p.fact("not read", p.unread())
}

func interfaceText(i *pcap.Interface, several bool) string {
	text := i.LinkName
	if i.Name != "" {
		text = i.Name + ": " + text
	}
	if several {
		text += ", " + units.Plural(i.Packets, "packet", "packets")
	}
	if i.Dropped > 0 {
		text += fmt.Sprintf(", %s lost by the capture itself", units.Count(i.Dropped))
	}
	return text
}

// timeWaitLength is in seconds.
const timeWaitLength = float64(capacity.TimeWaitLength / time.Second)

// reuse counts ports that were reused, and after how long.
func reuse(r *pcap.Reuse) string {
	if r.Tuples == 0 {
		return ""
	}
	text := units.Plural(r.Tuples, "time", "times") + " to the same destination"
	switch d := r.After; {
	case d == nil || d.Count == 0:
	case d.Count == 1:
		text += ", after " + units.Seconds(d.Min)
	default:
		var early int64
		for _, b := range d.Buckets {
			if b.Below > 0 && b.Below <= timeWaitLength {
				early += b.Count
			}
		}
		text += fmt.Sprintf(", after %s (min), %s (p1), %s (median), %s (p90), %s (max), %s of them within %d s, the TIME_WAIT of Linux", units.Seconds(d.Min),
			units.Seconds(d.P1), units.Seconds(d.Median), units.Seconds(d.P90), units.Seconds(d.Max), units.Count(early), int(timeWaitLength))
	}
	if rest := counts(portion{r.TimestampsBack, "with an earlier timestamp"}, portion{r.SequenceBack, "with a sequence number that is not after the former one"},
		portion{r.Rejected, "rejected at first"}); rest != "" {
		text += "; " + rest
	}
	return text
}

// unread returns what was not decoded of the packets.
func (p *pcapPrinter) unread() string {
	var parts []string
	cut := " (headers suffice)"
	for _, u := range p.r.Undecoded {
		parts = append(parts, fmt.Sprintf("%s: %s (first: frame %s)", u.Reason, units.Plural(u.Packets, "packet", "packets"), units.Count(u.First)))
		if u.Reason == pcap.CutHeader {
			cut = ", also within headers: capture at least 128 bytes of each (tcpdump -s 128)"
		}
	}
	for _, t := range p.r.Tunnels {
		parts = append(parts, fmt.Sprintf("inside of %s: %s", t.Name, units.Plural(t.Packets, "packet", "packets")))
	}
	if n := p.r.LaterFragments; n > 0 {
		parts = append(parts, units.Plural(n, "fragment", "fragments")+" without ports")
	}
	if n := p.r.Cut; n > 0 {
		parts = append(parts, units.Plural(n, "packet is", "packets are")+" cut"+cut)
	}
	return strings.Join(parts, "; ")
}

// damage prints where a file is broken; more is the number of places not in the list.
func (p *pcapPrinter) damage(list []pcap.Damage, more int64) {
	for _, d := range list[:min(len(list), few)] {
		text := fmt.Sprintf("Damage at byte %s, after frame %s: %s", units.Count(d.Offset), units.Count(d.After), d.What)
		switch {
		case d.Ended:
			text += "; nothing after it could be read"
		case d.Skipped > 0:
			text += fmt.Sprintf("; %s skipped; other programs may end there, or count frames differently from there on", units.Plural(d.Skipped, "byte", "bytes"))
		}
		p.caution(text)
	}
	if more += int64(max(len(list)-few, 0)); more > 0 {
		p.caution(fmt.Sprintf("… and %s more", units.Plural(more, "damaged place", "damaged places")))
	}
}

// overview is a table of the kinds of incidents.
func (p *pcapPrinter) overview() {
	t := &Table{Title: "Incidents", Indent: 2, Columns: []Column{{Head: "count", Right: true, Min: 9}, {Head: "kind"}, {Head: "what", Wrap: true}}}
	for _, k := range p.r.Kinds {
		if k.Count > 0 && p.v.shows(k.Kind) {
			t.Cells(Cell{units.Count(k.Count), kindTone(k.Kind, Plain)}, Cell{Text: string(k.Kind)}, Cell{Text: k.Kind.About().What})
		}
	}
	p.blank()
	if len(t.rows) > 0 {
		p.table(t)
		return
	}
	what := "No incidents" + p.blind()
	if len(p.v.Kinds) > 0 {
		what += " of the requested kinds"
	}
	p.line(p.style.Paint(Good, what+"."))
}

// kindTone stands out for faults.
func kindTone(kind pcap.Kind, otherwise Tone) Tone {
	if kind.About().Fault {
		return Bad
	}
	return otherwise
}

// blind returns a note if there are no incidents because little could be read.
func (p *pcapPrinter) blind() string {
	if len(p.r.Undecoded) == 0 {
		return ""
	}
	switch u := p.r.Undecoded[0]; {
	case u.Packets == p.r.Packets:
		return ": no packet is IP, or none could be read"
	case u.Reason != pcap.NotIP && 2*u.Packets > p.r.Packets:
		return " in the packets that could be read, which are the minority"
	}
	return ""
}

// clocks shows how many machines seem to be behind an address: each has a clock.
func (p *pcapPrinter) clocks() {
	var several []*pcap.PairClocks
	harm := count(p.r, pcap.SYNRejectedPAWS) > 0
	for i := range p.r.Clocks {
		// A clock for each port is worth mentioning only where it did harm.
		if c := &p.r.Clocks[i]; c.Count > 1 && (harm || !c.PerConnection && !fewConnections(c)) {
			several = append(several, c)
		}
	}
	if len(several) == 0 {
		return
	}
	p.heading("Clocks behind an address")
	p.fact("", "TCP timestamps from one address to another lie on more than one line: each is a machine behind the address (Linux since 4.10), unless there is one for nearly each port, as with Linux of 2026, Windows and FreeBSD.")
	for _, pair := range several[:min(len(several), few)] {
		p.clocksOf(pair)
	}
	if more := int64(max(len(several)-few, 0)); more > 0 {
		p.printf("  … and %s more", units.Count(more+p.r.ClocksMore))
	}
}

// fewConnections reports whether clocks hardly ever have more than one connection: they
// can be machines' or ports' then.
func fewConnections(c *pcap.PairClocks) bool { return 2*c.Count > c.Connections }

// clocksOf lists the clocks of one pair of addresses.
func (p *pcapPrinter) clocksOf(pair *pcap.PairClocks) {
	n := units.Plural(pair.Count, "clock", "clocks")
	switch {
	case pair.PerConnection:
		n += ", nearly one for each port: they do not count machines"
	case fewConnections(pair):
		n += ", too few connections to distinguish machines from ports"
	case pair.More:
		n = "at least " + n
	}
	p.blank()
	p.mark(2, Cell{}, fmt.Sprintf("%s to %s, %s: %s", pair.Source, pair.Destination, units.Plural(pair.Connections, "connection", "connections"), n), Bold)
	if pair.PerConnection {
		return
	}
	for _, c := range pair.Clocks[:min(len(pair.Clocks), few)] {
		hz := units.Fixed(c.Hz, 0) + " Hz"
		if !c.Exact {
			hz += " (assumed)"
		}
		p.mark(4, Cell{}, fmt.Sprintf("%s, TSval %d at the capture's start, %s", hz, c.Offset, units.Plural(c.Connections, "connection", "connections")), Plain)
	}
	if len(pair.Clocks) > few {
		p.printf("    … and %s more", units.Count(pair.Count-few))
	}
}

// icmp is a table of the error messages.
func (p *pcapPrinter) icmp() {
	if len(p.r.ICMPErrors) == 0 || !p.v.shows(pcap.ICMPErrorKind) {
		return
	}
	p.heading("ICMP errors")
	t := &Table{Indent: 2, Columns: []Column{{Head: "messages", Right: true, Min: 9}, {Head: "connections", Right: true}, {Head: "from"}, {Head: "first frame", Right: true}, {Head: "message", Below: true}}}
	addRows(t, p.r.ICMPErrors, 2*few, 2, func(e *pcap.ICMPError) []Cell {
		return texts(units.Count(e.Count), units.Count(e.Flows), e.From.String(), units.Count(e.First), icmpMessage(e))
	})
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

// PcapList writes a line for each incident that was kept, in the order of their frames.
func PcapList(w io.Writer, style Style, v PcapView, r *pcap.Report) error {
	p := &printer{w: w, style: style}
	t := &Table{Columns: []Column{{Head: "frame", Right: true}, {Head: "time"}, {Head: "kind"}, {Head: "client"}, {Head: "server"},
		{Head: "back after", Right: true}, {Head: "outcome"}, {Head: "frames of SYNs, ACK and RST"}}}
	addRows(t, r.Incidents, 0, 0, func(in *pcap.Incident) []Cell {
		back, outcome := units.None, orNone(string(in.Outcome))
		if in.Former != nil {
			back = units.Fixed(in.Former.After, 3) + " s"
		}
		if in.Outcome != "" && in.ConnectSeconds > 0 {
			outcome += " " + units.Fixed(in.ConnectSeconds, 3) + " s"
		}
		return texts(fmt.Sprint(in.Frame), v.moment(in.Time).Format(timeOfDay), string(in.Kind), in.Client.String(), in.Server.String(), back, outcome, frames(in))
	})
	if len(r.Incidents) > 0 {
		p.table(t)
	}
	for _, k := range r.Kinds {
		if more := k.Count - k.Kept; more > 0 {
			p.printf("… and %s more of %s (--keep)", units.Count(more), string(k.Kind))
		}
	}
	return p.err
}

// frames are those of an attempt's SYNs, each with its answers'.
func frames(in *pcap.Incident) string {
	if len(in.SYNs) == 0 {
		return fmt.Sprint(in.Frame)
	}
	var parts []string
	for _, s := range in.SYNs {
		text := fmt.Sprint(s.Frame)
		for _, answer := range []int64{s.Answer, s.Reset} {
			if answer > 0 {
				text += fmt.Sprintf("/%d", answer)
			}
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, " ")
}
