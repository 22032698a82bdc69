package report

import (
	"fmt"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/packet"
	"github.com/natkit/natkit/internal/pcap"
	"github.com/natkit/natkit/internal/units"
)

// formerSteps of the former connection are drawn: how it ended. Others say nothing of the
// incident.
const formerSteps = 3

// incident draws one of them.
func (p *pcapPrinter) incident(in *pcap.Incident) {
	p.blank()
	p.mark(2, Cell{}, p.incidentHead(in), Plain)
	if len(in.Ladder) == 0 {
		return
	}
	steps, left := in.Ladder, 0
	if !p.v.Steps {
		steps, left = withoutBeginning(in.Ladder)
	}
	l := ladder{left: in.Client.String(), right: in.Server.String()}
	if left > 0 {
		l.rungs = append(l.rungs, rung{text: fmt.Sprintf("… %s before (--all draws them)", units.Plural(left, "packet", "packets")), tone: Dim})
	}
	began := steps[0].Time
	for i := range steps {
		l.rungs = append(l.rungs, p.rung(in, &steps[i], began))
	}
	if in.ICMP != nil {
		l.rungs = append(l.rungs, rung{frame: units.Count(in.Frame), at: p.at(in.Time, began), text: "ICMP from " + in.ICMP.From.String() + ": " + icmpMessage(in.ICMP), tone: Bad})
	}
	if in.LadderMore > 0 {
		l.rungs = append(l.rungs, rung{text: "… " + units.Plural(in.LadderMore, "more packet", "more packets"), tone: Dim})
	}
	p.ladder(2, l, p.style.columns())
}

// continued is where an attempt went on from another port.
func continued(in *pcap.Incident) string {
	text := fmt.Sprintf("; its SYN came again from port %d (frame %s)", in.Continued.Client.Port(), units.Count(in.Continued.Frame))
	if in.Continued.Connected {
		return text + ", and connected after " + brief(in.ConnectSeconds)
	}
	return text + ", and was not accepted there either"
}

func (p *pcapPrinter) incidentHead(in *pcap.Incident) string {
	text := fmt.Sprintf("Frame %s, %s: %s to %s", units.Count(in.Frame), p.v.moment(in.Time, false), in.Client, in.Server)
	if f := in.Former; f != nil {
		text += fmt.Sprintf(", %s after frame %s, the former connection's last (%s)", units.Seconds(f.After), units.Count(f.LastFrame), closed[f.Closed])
	}
	switch {
	case in.Outcome == pcap.Failed:
		failed, _, _ := strings.Cut(failure(in.Kind), " (")
		text += "; it " + failed
	case in.Continued != nil:
		text += continued(in)
	case in.Outcome == pcap.Connected && in.ConnectSeconds > 0:
		text += "; it connected after " + brief(in.ConnectSeconds)
	}
	if w := in.Window; w != nil {
		text += fmt.Sprintf("; its receiver takes sequence numbers from %d to %d", w[0], w[1]-1)
	}
	if e := in.ICMP; e != nil {
		text += "; " + icmpText(e)
	}
	if len(in.Intervals) > 0 {
		text += "; sent again after " + intervals(in.Intervals)
	}
	return text
}

var closed = map[pcap.Closed]string{pcap.ClosedByServer: "the server closed it first", pcap.ClosedByClient: "the client closed it first",
	pcap.ClosedByReset: "it was reset", pcap.HalfClosed: "one side had closed it", pcap.NotClosed: "it was open"}

func intervals(list []float64) string {
	var parts []string
	for i, seconds := range list {
		if i == few {
			parts = append(parts, "…")
			break
		}
		parts = append(parts, units.Roughly(seconds))
	}
	return strings.Join(parts, ", ")
}

// withoutBeginning leaves out how the former connection went, but for its end.
func withoutBeginning(steps []pcap.Step) (rest []pcap.Step, left int) {
	former := 0
	for former < len(steps) && steps[former].Role == pcap.RoleFormer {
		former++
	}
	left = max(former-formerSteps, 0)
	return steps[left:], left
}

func (p *pcapPrinter) rung(in *pcap.Incident, s *pcap.Step, began time.Time) rung {
	r := rung{frame: units.Count(s.Frame), towards: toLeft, text: segmentText(s, p.v.Steps), note: note(in, s), tone: roleTones[s.Role]}
	if s.FromClient {
		r.towards = toRight
	}
	r.at = p.at(s.Time, began)
	return r
}

// at is the time column of a ladder.
func (p *pcapPrinter) at(t, began time.Time) string {
	if p.v.Clock {
		return p.v.moment(t, false)
	}
	return fmt.Sprintf("%+.6f", t.Sub(began).Seconds())
}

var roleTones = map[pcap.Role]Tone{pcap.RoleFormer: Dim, pcap.RoleSYN: Bold, pcap.RoleOldACK: Bad, pcap.RoleReset: Bad, pcap.RoleSYNACK: Good}

// flagNames are those of a ladder, in the order that people write them.
var flagNames = []struct {
	flag packet.TCPFlags
	name string
}{{packet.SYN, "SYN"}, {packet.FIN, "FIN"}, {packet.RST, "RST"}, {packet.PSH, "PSH"}, {packet.ACK, "ACK"}, {packet.URG, "URG"}}

func flagsText(flags packet.TCPFlags) string {
	var names []string
	for _, f := range flagNames {
		if flags&f.flag != 0 {
			names = append(names, f.name)
		}
	}
	if len(names) == 0 {
		return "no flags"
	}
	return strings.Join(names, ",")
}

// segmentText is a segment in the words of Wireshark, with absolute numbers: those are
// what two connections are compared by. Of the timestamps it has the one that matters,
// unless all is asked for.
func segmentText(s *pcap.Step, all bool) string {
	text := fmt.Sprintf("%s seq %d", flagsText(s.Flags), s.Seq)
	if s.Flags&packet.ACK != 0 {
		text += fmt.Sprintf(" ack %d", s.Ack)
	}
	if s.Length > 0 {
		text += fmt.Sprintf(" len %d", s.Length)
	}
	if all {
		text += fmt.Sprintf(" win %d", s.Window)
	}
	echoes := s.Role == pcap.RoleOldACK && s.TSEcr != nil
	if s.TSVal != nil && (all || !echoes) {
		text += fmt.Sprintf(" TSval %d", *s.TSVal)
	}
	if s.TSEcr != nil && (all || echoes) {
		text += fmt.Sprintf(" TSecr %d", *s.TSEcr)
	}
	return text
}

// note says what a packet is to the incident.
func note(in *pcap.Incident, s *pcap.Step) string {
	switch s.Role {
	case pcap.RoleSYN, pcap.RoleRetransmit:
		if s.Flags&(packet.SYN|packet.ACK) == packet.SYN {
			return synNote(in, s)
		}
	case pcap.RoleOldACK:
		if in.Kind == pcap.SYNOnOpen {
			return "of the connection that is still open"
		}
		return "the last ACK of the former connection"
	case pcap.RoleReset:
		if in.Kind == pcap.RSTOutOfWindow && in.Frame == s.Frame {
			return "outside of its receiver's window"
		}
		if s.FromClient {
			return "the client knows no such connection"
		}
	case pcap.RoleSYNACK:
		return "accepted"
	}
	return ""
}

// synNote says what became of a SYN, and why.
func synNote(in *pcap.Incident, s *pcap.Step) string {
	for i := range in.SYNs {
		if in.SYNs[i].Frame == s.Frame {
			return verdictNote(&in.SYNs[i])
		}
	}
	return ""
}

func verdictNote(s *pcap.SYN) string {
	text := ""
	switch s.Verdict {
	case pcap.RejectedPAWS:
		text = "rejected by PAWS"
		if n, ok := wentBack(s); ok {
			text += fmt.Sprintf(": its TSval is %s behind the former connection's %d", units.Count(int64(n)), *s.TSRecent)
		}
	case pcap.RejectedSequence:
		text = "rejected by TIME_WAIT"
		if s.RcvNxt != nil {
			text += fmt.Sprintf(": seq is not past %d, where the former connection ended", *s.RcvNxt)
		}
	case pcap.Unanswered:
		return "no answer"
	case pcap.Challenged:
		return "the server has this connection open"
	case pcap.Refused:
		return "refused"
	default:
		return ""
	}
	if s.Inferred {
		text += " (no answer was captured; a kernel sends one in 0.5 s at most)"
	}
	return text
}
