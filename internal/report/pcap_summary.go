package report

import (
	"fmt"
	"strings"

	"github.com/natkit/natkit/internal/pcap"
	"github.com/natkit/natkit/internal/units"
)

// pcapLabel is the width of the summary's labels.
const pcapLabel = 13

// few is how many of a list's members are told where they are not asked for.
const few = 5

// summary says what the capture is, and how much of it could be used.
func (p *pcapPrinter) summary() {
	p.line(p.style.Paint(Bold, clean(p.head())))
	r := p.r
	if r.Packets > 0 {
		if p.v.Filter != "" {
			p.fact("filter", fmt.Sprintf("%s: %s looked at", p.v.Filter, units.Plural(p.v.Chosen, "packet is", "packets are")))
		}
		p.fact("time", fmt.Sprintf("%s to %s (%s)", p.v.moment(r.First, true), p.v.moment(r.Last, true), p.zone()))
		p.fact("interfaces", interfaces(r.Interfaces))
		p.fact("protocols", namedCounts(r.Protocols))
		p.fact("connections", connections(&r.Connections))
		p.fact("port reuse", reuse(&r.Reuse))
		p.fact("sent again", retransmissions(&r.Retransmissions))
		p.fact("not read", p.unread())
	}
	p.damage()
	if p.v.Interrupted {
		p.caution("Interrupted: this is what was read until then.")
	}
	p.limits()
	for _, note := range r.Notes {
		p.fact("note", note)
	}
}

func (p *pcapPrinter) fact(label, text string) { p.labelled(2, label, pcapLabel, text) }

func (p *pcapPrinter) caution(text string) {
	p.mark(2, Cell{"! ", Warn}, text, Warn)
}

func (p *pcapPrinter) head() string {
	r := p.r
	text := fmt.Sprintf("%s: %s", p.v.Source, r.Format)
	if r.Compression != "" {
		text += " (" + r.Compression + ")"
	}
	text += ", " + units.Plural(r.Packets, "packet", "packets")
	if r.Packets > 0 {
		text += fmt.Sprintf(", %s on the wire, %s", units.Bytes(r.Bytes), units.Seconds(r.Duration().Seconds()))
	}
	return text
}

func (p *pcapPrinter) zone() string {
	if p.v.Zone == nil {
		return "UTC"
	}
	name, _ := p.r.First.In(p.v.Zone).Zone()
	return name
}

func interfaces(list []pcap.Interface) string {
	var parts []string
	for i, in := range list {
		if i == few {
			parts = append(parts, fmt.Sprintf("%s more", units.Count(len(list)-i)))
			break
		}
		text := in.LinkName
		if in.Name != "" {
			text = in.Name + ": " + text
		}
		if len(list) > 1 {
			text += ", " + units.Plural(in.Packets, "packet", "packets")
		}
		if in.Dropped > 0 {
			text += fmt.Sprintf(", %s lost by the capture itself", units.Count(in.Dropped))
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

func namedCounts(list []pcap.NamedCount) string {
	var parts []string
	for i, c := range list {
		if i == few {
			parts = append(parts, fmt.Sprintf("%d more", len(list)-i))
			break
		}
		parts = append(parts, c.Name+" "+units.Count(c.Packets))
	}
	return strings.Join(parts, ", ")
}

// portion is a number with what it counts; parts leave out those of nothing.
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

func connections(c *pcap.Connections) string {
	if c.Total == 0 {
		return "no TCP"
	}
	return counts(portion{c.Total, "in TCP"}, portion{c.Begun, "begun here"}, portion{c.Established, "of these answered"}, portion{c.Refused, "refused"},
		portion{c.Unanswered, "unanswered"}, portion{c.Pending, "too young to tell"}, portion{c.ServerClosedFirst, "closed by the server first"},
		portion{c.ClientClosedFirst, "by the client first"}, portion{c.Reset, "reset"}, portion{c.Duplicates, "packets that are in it twice"})
}

// reuse tells of ports that came back. TIME_WAIT rejects what is behind.
func reuse(r *pcap.Reuse) string {
	if r.Tuples == 0 {
		return ""
	}
	text := units.Plural(r.Tuples, "time", "times") + " a port came back to the same destination" + comeback(r.After)
	if rest := counts(portion{r.TimestampsBack, "with a timestamp that goes back"}, portion{r.SequenceBack, "with a sequence number that is not past the former one"},
		portion{r.Rejected, "rejected at first"}); rest != "" {
		text += "; " + rest
	}
	return text
}

// comeback is after how long ports came back.
func comeback(d *pcap.Distribution) string {
	switch {
	case d == nil || d.Count == 0:
		return ""
	case d.Count == 1:
		return ", after " + units.Seconds(d.Min)
	}
	text := fmt.Sprintf(", after %s at the least, 1 %% within %s, half within %s, 90 %% within %s, %s at the most", units.Seconds(d.Min),
		units.Seconds(d.P1), units.Seconds(d.Median), units.Seconds(d.P90), units.Seconds(d.Max))
	var early int64
	for _, b := range d.Buckets {
		if b.Below > 0 && b.Below <= timeWaitLength {
			early += b.Count
		}
	}
	return text + fmt.Sprintf("; %s of them within %d s, the TIME_WAIT of Linux", units.Count(early), timeWaitLength)
}

// timeWaitLength is TCP_TIMEWAIT_LEN of include/net/tcp.h, in seconds.
const timeWaitLength = 60

func retransmissions(r *pcap.Retransmissions) string {
	text := counts(portion{r.SYN, "SYN"}, portion{r.SYNACK, "SYN-ACK"}, portion{r.Data, "data"}, portion{r.OutOfOrder, "out of order"})
	var parts []string
	for _, b := range r.Backoffs {
		if b.Count > 0 && len(parts) < few {
			parts = append(parts, units.Roughly(b.Median))
		}
	}
	if len(parts) > 0 {
		text += "; SYNs (median) after " + strings.Join(parts, ", ")
	}
	return text
}

// unread is what of the packets was not understood, or not looked into.
func (p *pcapPrinter) unread() string {
	var parts []string
	for _, u := range p.r.Undecoded {
		parts = append(parts, fmt.Sprintf("%s: %s (first: frame %s)", u.Reason, units.Plural(u.Packets, "packet", "packets"), units.Count(u.First)))
	}
	for _, t := range p.r.Tunnels {
		parts = append(parts, fmt.Sprintf("inside of %s: %s", t.Name, units.Plural(t.Packets, "packet", "packets")))
	}
	if n := p.r.LaterFragments; n > 0 {
		parts = append(parts, units.Plural(n, "fragment", "fragments")+" without ports")
	}
	if n := p.r.Cut; n > 0 {
		parts = append(parts, units.Plural(n, "packet is", "packets are")+" cut"+p.cutEnough())
	}
	return strings.Join(parts, "; ")
}

// cutEnough is for captures of headers only, which is what natkit needs, and for those that
// have not even these.
func (p *pcapPrinter) cutEnough() string {
	for _, u := range p.r.Undecoded {
		if u.Reason == pcap.CutHeader {
			return ", also within headers: capture 128 bytes of each or more (tcpdump -s 128)"
		}
	}
	return " (headers suffice)"
}

// damage says where the file is broken.
func (p *pcapPrinter) damage() {
	for i, d := range p.r.Damage {
		if i == few {
			break
		}
		text := fmt.Sprintf("Damage at byte %s, behind frame %s: %s", units.Count(d.Offset), units.Count(d.After), d.What)
		switch {
		case d.Ended:
			text += "; nothing behind it could be read"
		case d.Skipped > 0:
			text += fmt.Sprintf("; %s passed over, from where other programs may count frames otherwise or end", units.Plural(d.Skipped, "byte", "bytes"))
		}
		p.caution(text)
	}
	if more := int64(max(len(p.r.Damage)-few, 0)) + p.r.DamageMore; more > 0 {
		p.caution(fmt.Sprintf("… and %s more", units.Plural(more, "damaged place", "damaged places")))
	}
}

// limits says what memory did not suffice for.
func (p *pcapPrinter) limits() {
	l := p.r.Limits
	if l.Forgotten == 0 {
		return
	}
	p.caution(fmt.Sprintf("%s had to be forgotten for want of memory (%s; --memory allows more): what came back after %s or longer may be missing",
		units.Plural(l.Forgotten, "connection", "connections"), units.Bytes(l.Memory), units.Roughly(l.Youngest)))
}
