package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

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
