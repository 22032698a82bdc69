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

// story tells of a kind of incident: what happened and why, to whom, the worst of them
// packet by packet, and what to do.
func (p *pcapPrinter) story(kind pcap.Kind) {
	w, n := words[kind], count(p.r, kind)
	kept := p.kept(kind)
	heading := w.many
	if n == 1 {
		heading = w.one
	}
	p.blank()
	tone := tones[kind]
	if tone == Plain {
		tone = Bold
	}
	p.mark(0, Cell{}, units.Count(n)+" "+heading, tone)
	p.fact("what", w.happened)
	p.fact("why", w.why)
	p.fact("how much", p.extent(kind, kept))
	if missing := n - int64(len(kept)); missing > 0 {
		p.fact("", fmt.Sprintf("(Of %s only the number is known: --keep asks for more.)", units.Plural(missing, "more", "more")))
	}
	p.ends(kept)
	for i, in := range worst(kept) {
		if p.v.Ladders > 0 && i == p.v.Ladders {
			break
		}
		p.incident(in)
	}
	p.advice(kind, append(w.advice[:len(w.advice):len(w.advice)], p.clockAdvice(kind, kept)...))
}

// kept are the incidents of a kind that the report has.
func (p *pcapPrinter) kept(kind pcap.Kind) (list []*pcap.Incident) {
	for i := range p.r.Incidents {
		if p.r.Incidents[i].Kind == kind {
			list = append(list, &p.r.Incidents[i])
		}
	}
	return list
}

// worst has the incidents that cost most first: attempts that failed, then those that
// took longest, then what was repeated most.
func worst(list []*pcap.Incident) []*pcap.Incident {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b *pcap.Incident) int {
		return cmp.Or(-cmp.Compare(failed(a), failed(b)), -cmp.Compare(a.ConnectSeconds, b.ConnectSeconds),
			-cmp.Compare(len(a.SYNs), len(b.SYNs)), -cmp.Compare(len(a.Intervals), len(b.Intervals)), cmp.Compare(a.Frame, b.Frame))
	})
	return list
}

func failed(in *pcap.Incident) int {
	if in.Outcome == pcap.Failed || in.Continued != nil && !in.Continued.Connected {
		return 1
	}
	return 0
}

// extent is how often, and how bad.
func (p *pcapPrinter) extent(kind pcap.Kind, list []*pcap.Incident) string {
	var parts []string
	add := func(text string) {
		if text != "" {
			parts = append(parts, text)
		}
	}
	switch kind {
	case pcap.SYNRejectedPAWS:
		add(rejected(p.r.RejectedByPAWS))
		add(after(list))
		add(behind(list))
	case pcap.SYNRejectedSeq:
		add(rejected(p.r.RejectedBySequence))
		add(after(list))
	case pcap.TimestampBack, pcap.SYNOnOpen:
		add(after(list))
	}
	if slices.Contains(attempts, kind) {
		add(outcomes(kind, list))
	}
	return strings.Join(parts, " ")
}

// attempts are the kinds of which there is to say how they ended.
var attempts = []pcap.Kind{pcap.SYNRejectedPAWS, pcap.SYNRejectedSeq, pcap.SYNOnOpen, pcap.SYNUnanswered}

func rejected(syns int64) string {
	return units.Plural(syns, "SYN in all was", "SYNs in all were") + " rejected, repeated ones included."
}

// after is how soon the ports came back.
func after(list []*pcap.Incident) string {
	var times []float64
	for _, in := range list {
		if in.Former != nil {
			times = append(times, in.Former.After)
		}
	}
	if len(times) == 0 {
		return ""
	}
	return "The ports came back after " + spread(times, units.Seconds) + "."
}

// behind is how far the timestamps went back, as the servers saw it.
func behind(list []*pcap.Incident) string {
	var ticks []float64
	for _, in := range list {
		for i := range in.SYNs {
			if n, ok := wentBack(&in.SYNs[i]); ok {
				ticks = append(ticks, float64(n))
			}
		}
	}
	if len(ticks) == 0 {
		return ""
	}
	return "The timestamps went back by " + spread(ticks, func(v float64) string { return units.Fixed(v, 0) }) + " (usually milliseconds)."
}

// wentBack is how far a SYN's timestamp is behind what the server knows. Timestamps
// count modulo 2^32 (RFC 7323, section 5.2).
func wentBack(s *pcap.SYN) (ticks int32, ok bool) {
	if s.TSVal == nil || s.TSRecent == nil {
		return 0, false
	}
	ticks = int32(*s.TSRecent - *s.TSVal)
	return ticks, ticks > 0
}

// outcomes is what became of attempts to connect.
func outcomes(kind pcap.Kind, list []*pcap.Incident) string {
	var lost, open int64
	var took []float64
	for _, in := range list {
		switch {
		case in.Outcome == pcap.OutcomeOpen:
			open++
		case failed(in) == 1:
			lost++
		case in.Outcome == pcap.Connected || in.Continued != nil:
			took = append(took, in.ConnectSeconds)
		}
	}
	var parts []string
	if n := len(took); n > 0 {
		parts = append(parts, fmt.Sprintf("%s in the end, after %s", units.Plural(n, "connected", "connected"), spread(took, brief)))
	}
	if lost > 0 {
		parts = append(parts, units.Count(lost)+" "+failure(kind))
	}
	if open > 0 {
		parts = append(parts, fmt.Sprintf("of %s the capture does not show the end", units.Count(open)))
	}
	if len(parts) == 0 {
		return ""
	}
	text := strings.Join(parts, "; ") + "."
	return strings.ToUpper(text[:1]) + text[1:]
}

// failure is what it means that an attempt failed. Where the server drops a SYN and the
// client goes on trying, a NAT may by then give the connection another port.
func failure(kind pcap.Kind) string {
	switch kind {
	case pcap.SYNRejectedPAWS, pcap.SYNRejectedSeq, pcap.SYNOnOpen:
		return "did not connect with this port (behind a NAT the next try may come from another)"
	}
	return "failed"
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

// ends is a table of who is concerned, where it is more than one pair.
func (p *pcapPrinter) ends(list []*pcap.Incident) {
	pairs := pairsOf(list)
	if len(pairs) < 2 {
		return
	}
	t := &Table{Indent: 2, Columns: []Column{{Head: "incidents", Right: true, Min: 9}, {Head: "failed", Right: true}, {Head: "from"}, {Head: "to", Below: true}}}
	for i, pair := range pairs {
		if i == few {
			t.Row("", "", fmt.Sprintf("… and %s more", units.Count(len(pairs)-i)))
			break
		}
		t.Row(units.Count(pair.incidents), units.Count(pair.failures), pair.client, pair.server)
	}
	p.blank()
	p.table(t)
}

func pairsOf(list []*pcap.Incident) []*pairEnds {
	var pairs []*pairEnds
	index := map[[2]string]*pairEnds{}
	for _, in := range list {
		key := [2]string{in.Client.Addr().String(), in.Server.String()}
		pair := index[key]
		if pair == nil {
			pair = &pairEnds{client: key[0], server: key[1]}
			index[key], pairs = pair, append(pairs, pair)
		}
		pair.incidents++
		pair.failures += int64(failed(in))
	}
	slices.SortStableFunc(pairs, func(a, b *pairEnds) int { return cmp.Compare(b.incidents, a.incidents) })
	return pairs
}

// clockAdvice is for clients whose timestamps go back even where it is the same machine.
func (p *pcapPrinter) clockAdvice(kind pcap.Kind, list []*pcap.Incident) []string {
	if kind != pcap.SYNRejectedPAWS {
		return nil
	}
	for _, in := range list {
		for i := range p.r.Clocks {
			if c := &p.r.Clocks[i]; c.PerConnection && c.Source == in.Client.Addr() {
				return []string{fmt.Sprintf("%s shows a clock for nearly each port. On such Linux clients net.ipv4.tcp_timestamps=2 gives each machine one clock, so that its own ports do no harm when they come back; it then tells for how long the machine runs.", c.Source)}
			}
		}
	}
	return nil
}

// advice is what to do. Both ways in which TIME_WAIT rejects have nearly the same.
func (p *pcapPrinter) advice(kind pcap.Kind, list []string) {
	if len(list) == 0 {
		return
	}
	if kind == pcap.SYNRejectedSeq && p.v.shows(pcap.SYNRejectedPAWS) && count(p.r, pcap.SYNRejectedPAWS) > 0 {
		list = append([]string{"The same as of rejections by PAWS, above."}, list[len(portReuseAdvice):]...)
	}
	p.blank()
	for i, text := range list {
		label := "what to do"
		if i > 0 {
			label = ""
		}
		p.fact(label, "- "+text)
	}
}

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
	flag frame.TCPFlags
	name string
}{{frame.SYN, "SYN"}, {frame.FIN, "FIN"}, {frame.RST, "RST"}, {frame.PSH, "PSH"}, {frame.ACK, "ACK"}, {frame.URG, "URG"}}

func flagsText(flags frame.TCPFlags) string {
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
	if s.Flags&frame.ACK != 0 {
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
		if s.Flags&(frame.SYN|frame.ACK) == frame.SYN {
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

// ladder shows packets between two ends as arrows, one below the other.
type ladder struct {
	// left and right name the ends: the left one is where the first packet came from.
	left, right string
	rungs       []rung
}

// rung is one packet of a ladder, or, without a direction, text in its place.
type rung struct {
	// frame and at are the first two columns: the packet's number and its time.
	frame, at string
	towards   direction
	text      string
	// note is what there is to say of it, below.
	note string
	tone Tone
}

type direction uint8

const (
	nowhere direction = iota
	toRight
	toLeft
)

// leastArrow is how long an arrow is drawn at least, with its head.
const leastArrow = 6

// ladder writes l within width columns.
func (p *printer) ladder(indent int, l ladder, width int) {
	frames, times := len("frame"), len("time")
	for _, r := range l.rungs {
		frames, times = max(frames, textWidth(r.frame)), max(times, textWidth(r.at))
	}
	start := indent + frames + columnGap + times + columnGap
	lane := l.lane(width - start)
	margin := strings.Repeat(" ", indent)
	columns := func(frame, at string) string {
		return margin + padLeft(frame, frames) + padRight("", columnGap) + padRight(at, times+columnGap)
	}
	ends := l.ends(lane)
	p.line(p.style.Paint(Bold, columns("frame", "time")+ends[0]))
	for _, end := range ends[1:] {
		p.line(p.style.Paint(Bold, columns("", "")+end))
	}
	for _, r := range l.rungs {
		p.line(columns(clean(r.frame), clean(r.at)) + p.style.Paint(r.tone, r.draw(lane)))
		if r.note == "" {
			continue
		}
		for _, part := range wrap(clean(r.note), max(width-start, lane)-2) {
			p.line(padRight("", start+2) + p.style.Paint(Dim, part))
		}
	}
}

// lane is the width between the ends: what the longest packet needs, if there is room.
func (l ladder) lane(room int) int {
	need := textWidth(l.left) + 2*columnGap + textWidth(l.right)
	for _, r := range l.rungs {
		need = max(need, textWidth(r.text)+1+leastArrow)
	}
	return max(min(need, room), 3*leastArrow)
}

// ends names them in one line, or in two where one is too short.
func (l ladder) ends(lane int) []string {
	left, right := truncate(clean(l.left), lane), truncate(clean(l.right), lane)
	if textWidth(left)+columnGap+textWidth(right) > lane {
		return []string{left, padLeft(right, lane)}
	}
	return []string{left + padLeft(right, lane-textWidth(left))}
}

// draw puts the text where the packet comes from, and the head of the arrow where it
// goes to.
func (r rung) draw(lane int) string {
	if r.towards == nowhere {
		return truncate(clean(r.text), lane)
	}
	text := truncate(clean(r.text), lane-1-leastArrow)
	line := strings.Repeat("─", max(lane-textWidth(text)-2, 1))
	if r.towards == toRight {
		return text + " " + line + "►"
	}
	return "◄" + line + " " + text
}

func padLeft(text string, width int) string {
	return strings.Repeat(" ", max(width-textWidth(text), 0)) + text
}
