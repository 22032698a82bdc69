package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/pcap"
	"github.com/natkit/natkit/internal/units"
)

// story shows a kind of incident: what happened and why, to whom, the worst of them
// packet by packet, and what to do.
func (p *pcapPrinter) story(k pcap.KindCount) {
	about := k.Kind.About()
	var kept []*pcap.Incident
	for i := range p.r.Incidents {
		if in := &p.r.Incidents[i]; in.Kind == k.Kind {
			kept = append(kept, in)
		}
	}
	p.blank()
	p.mark(0, Cell{}, fmt.Sprintf("%s (%s): %s", k.Kind, units.Count(k.Count), about.What), kindTone(k.Kind, Bold))
	p.fact("what", about.Happened)
	p.fact("why", about.Cause)
	p.fact("how much", p.extent(k.Kind, kept))
	if missing := k.Count - int64(len(kept)); missing > 0 {
		p.fact("", fmt.Sprintf("(%s counted but not kept; see --keep)", units.Plural(missing, "more is", "more are")))
	}
	p.ends(kept)
	slices.SortStableFunc(kept, worseFirst)
	for i, in := range kept {
		if p.v.Max > 0 && i == p.v.Max {
			break
		}
		p.incident(in)
	}
	p.advice(k.Kind, append(slices.Clone(about.Advice), p.clockAdvice(kept)...))
}

// worseFirst has attempts that failed first, then those that took longest, then what was
// repeated most.
func worseFirst(a, b *pcap.Incident) int {
	return cmp.Or(cmp.Compare(failed(b), failed(a)), cmp.Compare(b.ConnectSeconds, a.ConnectSeconds),
		cmp.Compare(len(b.SYNs), len(a.SYNs)), cmp.Compare(len(b.Intervals), len(a.Intervals)), cmp.Compare(a.Frame, b.Frame))
}

// failed is 1 for an attempt that did not connect.
func failed(in *pcap.Incident) int64 {
	if in.Outcome == pcap.Failed || in.Continued != nil && !in.Continued.Connected {
		return 1
	}
	return 0
}

// notConnected is what it means that an attempt failed: a client goes on trying, and a NAT
// may by then give the connection another port.
const notConnected = "did not connect from this port"

// extent returns how often, how bad, and how attempts to connect ended.
func (p *pcapPrinter) extent(kind pcap.Kind, list []*pcap.Incident) string {
	var after, behind, took []float64
	var failures, open int64
	for _, in := range list {
		if in.Former != nil {
			after = append(after, in.Former.After)
		}
		for i := range in.SYNs {
			if n, ok := wentBack(&in.SYNs[i]); ok {
				behind = append(behind, float64(n))
			}
		}
		switch {
		case in.Outcome == pcap.OutcomeOpen:
			open++
		case failed(in) == 1:
			failures++
		case in.Outcome == pcap.Connected || in.Continued != nil:
			took = append(took, in.ConnectSeconds)
		}
	}
	var parts []string
	if n := map[pcap.Kind]int64{pcap.SYNRejectedPAWS: p.r.RejectedByPAWS, pcap.SYNRejectedSeq: p.r.RejectedBySequence}[kind]; n > 0 {
		parts = append(parts, units.Plural(n, "SYN was", "SYNs were")+" rejected, retransmissions included.")
	}
	if len(after) > 0 {
		parts = append(parts, "The port was reused after "+spread(after, units.Seconds)+".")
	}
	if len(behind) > 0 {
		parts = append(parts, "The timestamp went back by "+spread(behind, func(v float64) string { return units.Fixed(v, 0) })+" (usually milliseconds).")
	}
	connected := ""
	if len(took) > 0 {
		connected = "connected, after " + spread(took, brief)
	}
	if ended := counts(portion{int64(len(took)), connected}, portion{failures, notConnected + " (behind a NAT the next try may come from another)"},
		portion{open, "not decided when the capture ended"}); ended != "" {
		parts = append(parts, ended+".")
	}
	return strings.Join(parts, " ")
}

// spread is the smallest, the middle and the largest of some values.
func spread(values []float64, one func(float64) string) string {
	slices.Sort(values)
	least, most := one(values[0]), one(values[len(values)-1])
	if least == most {
		return least
	}
	return fmt.Sprintf("%s to %s (median %s)", least, most, one(values[(len(values)-1)/2]))
}

// wentBack returns how far a SYN's timestamp is behind what the server has. Timestamps
// count modulo 2^32 (RFC 7323, section 5.2).
func wentBack(s *pcap.SYN) (ticks int32, ok bool) {
	if s.TSVal == nil || s.TSRecent == nil {
		return 0, false
	}
	ticks = int32(*s.TSRecent - *s.TSVal)
	return ticks, ticks > 0
}

// brief is a time that is often below a millisecond.
func brief(seconds float64) string {
	if seconds < 0.1 {
		return units.Millis(seconds*1e3) + " ms"
	}
	return units.Seconds(seconds)
}

// pairEnds are incidents between a client's address and a server.
type pairEnds struct {
	client, server      string
	incidents, failures int64
}

// ends is a table of who is affected, where it is more than one pair.
func (p *pcapPrinter) ends(list []*pcap.Incident) {
	var pairs []pairEnds
	index := map[[2]string]int{}
	for _, in := range list {
		key := [2]string{in.Client.Addr().String(), in.Server.String()}
		i, known := index[key]
		if !known {
			i, index[key] = len(pairs), len(pairs)
			pairs = append(pairs, pairEnds{client: key[0], server: key[1]})
		}
		pairs[i].incidents++
		pairs[i].failures += failed(in)
	}
	if len(pairs) < 2 {
		return
	}
	slices.SortStableFunc(pairs, func(a, b pairEnds) int { return cmp.Compare(b.incidents, a.incidents) })
	t := &Table{Indent: 2, Columns: []Column{{Head: "incidents", Right: true, Min: 9}, {Head: "failed", Right: true}, {Head: "from"}, {Head: "to", Below: true}}}
	addRows(t, pairs, few, 2, func(e *pairEnds) []Cell {
		return texts(units.Count(e.incidents), units.Count(e.failures), e.client, e.server)
	})
	p.blank()
	p.table(t)
}

// clockAdvice is for clients whose timestamps go back even where it is the same machine.
func (p *pcapPrinter) clockAdvice(list []*pcap.Incident) []string {
	for _, in := range list {
		if i := slices.IndexFunc(p.r.Clocks, func(c pcap.PairClocks) bool { return c.PerConnection && c.Source == in.Client.Addr() }); in.Kind == pcap.SYNRejectedPAWS && i >= 0 {
			return []string{fmt.Sprintf("%s shows a clock for nearly each port. On such Linux clients net.ipv4.tcp_timestamps=2 gives each machine one clock, so that reuse of its own ports does no harm; it then reveals the machine's uptime.", in.Client.Addr())}
		}
	}
	return nil
}

// advice prints the advice. Both ways in which TIME_WAIT rejects have nearly the same.
func (p *pcapPrinter) advice(kind pcap.Kind, list []string) {
	if kind == pcap.SYNRejectedSeq && p.v.shows(pcap.SYNRejectedPAWS) && count(p.r, pcap.SYNRejectedPAWS) > 0 {
		list = append([]string{"The same as for syn-rejected-paws, above."}, list[len(list)-1])
	}
	for i, text := range list {
		label := ""
		if i == 0 {
			label = "what to do"
			p.blank()
		}
		p.fact(label, "- "+text)
	}
}

// formerSteps of the former connection are drawn: how it ended.
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
		former := slices.IndexFunc(steps, func(s pcap.Step) bool { return s.Role != pcap.RoleFormer })
		if former < 0 {
			former = len(steps)
		}
		left = max(former-formerSteps, 0)
		steps = steps[left:]
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

var closed = map[pcap.Closed]string{pcap.ClosedByServer: "closed by the server first", pcap.ClosedByClient: "closed by the client first",
	pcap.ClosedByReset: "reset", pcap.HalfClosed: "half-closed", pcap.NotClosed: "open"}

// incidentHead returns the head line of an incident.
func (p *pcapPrinter) incidentHead(in *pcap.Incident) string {
	text := fmt.Sprintf("Frame %s, %s: %s to %s", units.Count(in.Frame), p.v.moment(in.Time).Format(timeOfDay), in.Client, in.Server)
	if f := in.Former; f != nil {
		text += fmt.Sprintf(", %s after frame %s, the former connection's last (%s)", units.Seconds(f.After), units.Count(f.LastFrame), closed[f.Closed])
	}
	switch c := in.Continued; {
	case in.Outcome == pcap.Failed:
		text += "; " + notConnected
	case c != nil:
		text += fmt.Sprintf("; its SYN was sent again from port %d (frame %s)", c.Client.Port(), units.Count(c.Frame))
		if c.Connected {
			text += ", and connected after " + brief(in.ConnectSeconds)
		} else {
			text += ", and was not accepted there either"
		}
	case in.Outcome == pcap.Connected && in.ConnectSeconds > 0:
		text += "; connected after " + brief(in.ConnectSeconds)
	}
	if w := in.Window; w != nil {
		text += fmt.Sprintf("; its receiver accepts sequence numbers from %d to %d", w[0], w[1]-1)
	}
	if e := in.ICMP; e != nil {
		text += "; " + e.From.String() + ": " + icmpMessage(e)
	}
	if len(in.Intervals) > 0 {
		text += "; sent again after " + someOf(in.Intervals, ", ", func(s *float64) string { return units.Roughly(*s) })
	}
	return text
}

var roleTones = map[pcap.Role]Tone{pcap.RoleFormer: Dim, pcap.RoleSYN: Bold, pcap.RoleOldACK: Bad, pcap.RoleReset: Bad, pcap.RoleSYNACK: Good}

func (p *pcapPrinter) rung(in *pcap.Incident, s *pcap.Step, began time.Time) rung {
	r := rung{frame: units.Count(s.Frame), at: p.at(s.Time, began), towards: toLeft, text: segmentText(s, p.v.Steps), note: note(in, s), tone: roleTones[s.Role]}
	if s.FromClient {
		r.towards = toRight
	}
	return r
}

// at is the time column of a ladder.
func (p *pcapPrinter) at(t, began time.Time) string {
	if p.v.Clock {
		return p.v.moment(t).Format(timeOfDay)
	}
	return fmt.Sprintf("%+.6f", t.Sub(began).Seconds())
}

// flagNames are those of a ladder, in the order that people write them.
var flagNames = []struct {
	flag frame.TCPFlags
	name string
}{{frame.SYN, "SYN"}, {frame.FIN, "FIN"}, {frame.RST, "RST"}, {frame.PSH, "PSH"}, {frame.ACK, "ACK"}, {frame.URG, "URG"}}

// segmentText is a segment in the words of Wireshark, with absolute numbers: those are
// what two connections are compared by. Of the timestamps it has the one that matters,
// unless all is asked for.
func segmentText(s *pcap.Step, all bool) string {
	var flags []string
	for _, f := range flagNames {
		if s.Flags&f.flag != 0 {
			flags = append(flags, f.name)
		}
	}
	text := fmt.Sprintf("%s seq %d", cmp.Or(strings.Join(flags, ","), "no flags"), s.Seq)
	echoes := s.Role == pcap.RoleOldACK && s.TSEcr != nil
	if s.Flags&frame.ACK != 0 {
		text += fmt.Sprintf(" ack %d", s.Ack)
	}
	if s.Length > 0 {
		text += fmt.Sprintf(" len %d", s.Length)
	}
	if all {
		text += fmt.Sprintf(" win %d", s.Window)
	}
	if s.TSVal != nil && (all || !echoes) {
		text += fmt.Sprintf(" TSval %d", *s.TSVal)
	}
	if s.TSEcr != nil && (all || echoes) {
		text += fmt.Sprintf(" TSecr %d", *s.TSEcr)
	}
	return text
}

// note returns the role of a packet in the incident.
func note(in *pcap.Incident, s *pcap.Step) string {
	switch {
	case s.Role == pcap.RoleSYN || s.Role == pcap.RoleRetransmit:
		if i := slices.IndexFunc(in.SYNs, func(syn pcap.SYN) bool { return syn.Frame == s.Frame }); i >= 0 {
			return verdictNote(&in.SYNs[i])
		}
	case s.Role == pcap.RoleOldACK:
		i := slices.IndexFunc(in.SYNs, func(syn pcap.SYN) bool { return syn.Answer == s.Frame })
		if i >= 0 {
			return answerNote(&in.SYNs[i])
		}
	case s.Role == pcap.RoleReset && in.Kind == pcap.RSTOutOfWindow && in.Frame == s.Frame:
		return "outside its receiver's window"
	case s.Role == pcap.RoleReset && s.FromClient:
		return "the client has no such connection"
	case s.Role == pcap.RoleSYNACK:
		return "accepted"
	}
	return ""
}

// answerNote is what the former connection's ACK is, and where its IPv4 ID shows that, the ID.
func answerNote(s *pcap.SYN) string {
	id := ""
	if s.AnswerID != nil && (*s.AnswerID != 0) == (s.Verdict == pcap.Challenged) {
		id = fmt.Sprintf(" (IPv4 ID %d; Linux sends 0 from TIME_WAIT)", *s.AnswerID)
	}
	switch s.Verdict {
	case pcap.Challenged:
		return "of the connection that is still open" + id
	case pcap.Undecided:
		return "of the former connection"
	}
	return "the last ACK of the former connection" + id
}

// verdictNote returns the outcome of a SYN, and the reason.
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
			text += fmt.Sprintf(": seq is not after %d, where the former connection ended", *s.RcvNxt)
		}
	case pcap.Unanswered:
		return "no answer"
	case pcap.NotAccepted:
		return "no SYN-ACK nor RST in the file"
	case pcap.Challenged:
		return "the server has this connection open"
	case pcap.Undecided:
		return "the server has the former connection in TIME_WAIT, or open"
	case pcap.Refused:
		return "refused"
	}
	if s.Inferred && text != "" {
		text += " (inferred: no answer was captured; a kernel sends at most one in 0.5 s)"
	}
	return text
}
