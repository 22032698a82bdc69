package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
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

// PcapList writes a line for each incident that was kept, in the order of their frames.
func PcapList(w io.Writer, style Style, v PcapView, r *pcap.Report) error {
	p := &printer{w: w, style: style}
	t := &Table{Columns: []Column{{Head: "frame", Right: true}, {Head: "time"}, {Head: "kind"}, {Head: "client"}, {Head: "server"},
		{Head: "back after", Right: true}, {Head: "outcome"}, {Head: "frames of SYNs, ACK and RST"}}}
	for i := range r.Incidents {
		in := &r.Incidents[i]
		back := units.None
		if in.Former != nil {
			back = units.Fixed(in.Former.After, 3) + " s"
		}
		t.Row(fmt.Sprint(in.Frame), v.moment(in.Time, false), string(in.Kind), in.Client.String(), in.Server.String(), back, outcome(in), frames(in))
	}
	if len(r.Incidents) > 0 {
		p.table(t)
	}
	for _, k := range r.Kinds {
		if more := k.Count - k.Kept; more > 0 {
			p.line(fmt.Sprintf("… and %s more of %s (--keep)", units.Count(more), k.Kind))
		}
	}
	return p.err
}

func outcome(in *pcap.Incident) string {
	switch {
	case in.Outcome == "":
		return units.None
	case in.ConnectSeconds > 0:
		return string(in.Outcome) + " " + units.Fixed(in.ConnectSeconds, 3) + " s"
	}
	return string(in.Outcome)
}

// frames are those of an attempt's SYNs, each with what it brought.
func frames(in *pcap.Incident) string {
	if len(in.SYNs) == 0 {
		return fmt.Sprint(in.Frame)
	}
	var parts []string
	for _, s := range in.SYNs {
		text := fmt.Sprint(s.Frame)
		if s.Answer > 0 {
			text += fmt.Sprintf("/%d", s.Answer)
		}
		if s.Reset > 0 {
			text += fmt.Sprintf("/%d", s.Reset)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, " ")
}

// kindWords is what there is to say of a kind of incident.
type kindWords struct {
	// what says in a few words what it is.
	what string
	// one and many are the heading's, behind the number.
	one, many string
	// happened and why are whole sentences.
	happened, why string
	// advice is what to do, the best first.
	advice []string
}

// portReuseAdvice helps wherever TIME_WAIT rejects. Its effects are measured by the lab's
// scenario; the hold-down is that of RFC 6888, REQ-8.
var portReuseAdvice = []string{
	"More addresses, at the NAT or at the servers: a port then comes back later.",
	"A NAT that holds a port back for longer than the servers' TIME_WAIT after it was closed (RFC 6888 asks for 120 s).",
	"Fewer connections (keep-alive), or ones that the client closes first: TIME_WAIT is then on its side, and counts only one machine's ports.",
	"Fewer TIME_WAIT sockets on the servers (net.ipv4.tcp_max_tw_buckets): rarer, at the cost of what TIME_WAIT protects from.",
}

// words are the kinds'.
var words = map[pcap.Kind]kindWords{
	pcap.SYNRejectedPAWS: {
		what: "a port came back into the server's TIME_WAIT, and its timestamp went back",
		one:  "attempt to connect was rejected by TIME_WAIT: its timestamp went back (PAWS)", many: "attempts to connect were rejected by TIME_WAIT: their timestamps went back (PAWS)",
		happened: "The port came back while the server still remembered the former connection (TIME_WAIT). The timestamp of the SYN is behind the last one of that connection, so the server takes the SYN for an old duplicate, drops it, and repeats its last ACK. The client has no such connection and answers with RST; it has to try again, or gives up.",
		why:      "Within one connection timestamps never go back (PAWS, RFC 7323 section 5), and a SYN with a later one ends TIME_WAIT at once (RFC 6191). Behind a NAT they do: the port was given to another machine with a clock of its own, or to the same one, whose clock differs from port to port (Linux of 2026 and others), before the server had forgotten the former connection.",
		advice: append(portReuseAdvice[:len(portReuseAdvice):len(portReuseAdvice)],
			"Not this: net.ipv4.tcp_timestamps=0 hides the counter, not the fault; TIME_WAIT then rejects by sequence number.",
			"'sudo natkit lab run port-reuse-paws' shows the fault and each of these with its effect; on a server 'sudo natkit doctor' finds it live (tw-paws-reject)."),
	},
	pcap.SYNRejectedSeq: {
		what: "a port came back into the server's TIME_WAIT, and its sequence number is not past the former one",
		one:  "attempt to connect was rejected by TIME_WAIT: its sequence number went back", many: "attempts to connect were rejected by TIME_WAIT: their sequence numbers went back",
		happened: "The port came back while the server still remembered the former connection (TIME_WAIT). No timestamp says that the SYN is newer, and its sequence number is not past the former connection's, so the server takes it for an old duplicate, drops it, and repeats its last ACK. The client has no such connection and answers with RST; it has to try again, or gives up.",
		why:      "TIME_WAIT lets a SYN in only if its sequence number is past the former connection's last, or its timestamp is later (RFC 1122 section 4.2.2.13, RFC 6191). One machine's sequence numbers grow; behind a NAT the next connection is another machine's, and about half of them are behind. No counter of the server tells of this.",
		advice: append(portReuseAdvice[:len(portReuseAdvice):len(portReuseAdvice)],
			"'sudo natkit lab run port-reuse-paws' shows the fault and each of these with its effect; on a server 'sudo natkit doctor' looks for it live (tw-seq-reject)."),
	},
	pcap.SYNOnOpen: {
		what: "a SYN met a connection that is still open at the server",
		one:  "SYN met a connection that is still open at the server", many: "SYNs met connections that are still open at the server",
		happened: "The server has a connection of these addresses and ports that nobody closed. It answers a SYN on it with an ACK of that connection (a challenge ACK, RFC 5961 section 4); the client answers with RST, which ends the old connection, and its next SYN is let in.",
		why:      "The NAT forgot the connection and gave its port away, or the client went away without closing.",
		advice: []string{"NAT timeouts of open connections that are longer than their silence (RFC 5382 asks for 2 h 4 min), or keepalives that are more frequent.",
			"'sudo natkit doctor' on the NAT tells of entries that leave too early."},
	},
	pcap.SYNUnanswered: {
		what: "a SYN that nobody answered",
		one:  "attempt to connect got no answer", many: "attempts to connect got no answer",
		happened: "The SYN was sent, mostly several times with growing pauses, and no packet came back.",
		why:      "It was dropped on its way (a full connection table, a NAT without a free port, a rule), by the server (a full queue of its listener), or its answer was.",
		advice: []string{"Capture on both sides of the NAT and compare: 'natkit pcap inside.pcap outside.pcap' tells what never came out.",
			"'sudo natkit doctor' and 'sudo natkit drops tcp' on each machine of the way."},
	},
	pcap.RSTOutOfWindow: {
		what: "an RST that its receiver ignores",
		one:  "RST is outside of its receiver's window", many: "RSTs are outside of their receiver's window",
		happened: "The RST's sequence number is none that the receiver waits for: it ignores the RST, and the connection stays on one side.",
		why:      "It belongs to an earlier connection of these addresses and ports, or is from a machine that does not know the connection: often a packet that conntrack found INVALID passed a NAT without translation.",
		advice: []string{"Drop what conntrack finds INVALID before it leaves ('ct state invalid drop'); where that hits good packets, net.netfilter.nf_conntrack_tcp_be_liberal=1.",
			"'sudo natkit doctor' on the NAT shows whether the counter invalid grows."},
	},
	pcap.RetransmissionBackoff: {
		what: "a segment that was sent three times or more",
		one:  "segment was sent three times or more", many: "segments were sent three times or more",
		happened: "The sender got no acknowledgement and repeated the segment with growing pauses.",
		why:      "The segment or its acknowledgement is lost on the way. If only long segments are, the path takes smaller ones than the sender was told (MTU); if all are, after a silence, the NAT forgot the connection.",
		advice: []string{"Compare captures of both sides of the NAT: 'natkit pcap inside.pcap outside.pcap'.",
			"'sudo natkit drops' where they get lost; 'sudo natkit doctor' on the NAT."},
	},
	pcap.ICMPErrorKind: {
		what: "an ICMP error message about a connection",
		one:  "ICMP error message is about a connection of this capture", many: "ICMP error messages are about connections of this capture",
		happened: "A machine on the way, or the server, could not deliver a packet and said so.",
		why:      "The message tells; see the table of ICMP errors below.",
	},
	pcap.SYNRefused: {
		what: "a SYN that was answered by RST",
		one:  "attempt to connect was refused", many: "attempts to connect were refused",
		happened: "The SYN was answered by RST: nobody listens on the port, or a rule rejects.",
	},
	pcap.TimestampBack: {
		what: "a port came back with an earlier timestamp, and was let in",
		one:  "port came back with an earlier timestamp and was let in", many: "ports came back with an earlier timestamp and were let in",
		happened: "The port came back with another machine's clock, when the server had already forgotten the former connection, or did not hold TIME_WAIT (an RST ends that, too). It did no harm, and the same a little earlier would have.",
	},
}
