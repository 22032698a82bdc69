package pair

import (
	"cmp"
	"fmt"
	"slices"
)

// report tells what was found, now that it is known which capture is the inside one.
func (m *matcher) report() *Report {
	t := &m.tally
	in := 0
	r := &Report{Schema: Schema, SidesBy: AsGiven, Ambiguous: t.ambiguous, Translation: t.changed}
	if t.inside[0] != t.inside[1] {
		r.SidesBy = ByTranslation
		if t.inside[1] > t.inside[0] {
			in, r.Swapped = 1, true
		}
	}
	r.Inside, r.Outside = m.side(in), m.side(1-in)
	r.Clock = m.clock.report(r.Swapped)
	r.Out, r.In = m.direct(in), m.direct(1-in)
	r.Translation.Hops = commonHops(&t.hops)
	f := &t.flows
	r.Flows = Flows{
		Through: f.through, Incomplete: f.incomplete, NeverOut: f.never[in], NeverIn: f.never[1-in],
		Translated: f.translated, PortKept: f.kept, PortChanged: f.translated - f.kept,
	}
	m.sortLosers()
	r.Incomplete, r.Mappings = []FlowReport{}, []Mapping{}
	for _, l := range t.losers {
		r.Incomplete = append(r.Incomplete, l.report(in))
	}
	for _, one := range t.mappings {
		r.Mappings = append(r.Mappings, Mapping{
			Protocol: one.protocol, Inside: one.ends[in], Outside: one.ends[1-in],
			OutsideFirst: int(one.direction) != in, InsideFrame: one.frames[in], OutsideFrame: one.frames[1-in],
		})
	}
	r.Limits = Limits{Memory: m.Memory, Early: t.early, ForgottenFlows: t.forgotten}
	r.Notes = notes(r)
	return r
}

func (m *matcher) side(i int) Side {
	s, t := m.sources[i], m.tally.side[i]
	return Side{
		File: s.stats, Compared: t.compared, Unreadable: s.unreadable, Unforwardable: s.unforwardable,
		Local: t.local, Uncovered: Uncovered{t.before, t.after},
	}
}

// direct reports the way of packets that went in where file i was taken.
func (m *matcher) direct(i int) Direction {
	w := m.tally.way[i]
	d := Direction{Matched: w.matched, Twice: w.twice, Appeared: w.appeared, Delay: m.clock.delays[i].times(), LostBy: []KindCount{}}
	for k, n := range w.lost {
		if n > 0 {
			d.Lost += n
			d.LostBy = append(d.LostBy, KindCount{kinds[k], n})
		}
	}
	slices.SortStableFunc(d.LostBy, func(a, b KindCount) int { return cmp.Compare(b.Packets, a.Packets) })
	return d
}

// commonHops is the most frequent difference of times to live; one that grew counts as 0.
func commonHops(hops *[256]int64) (most int) {
	for i, n := range hops[:128] {
		if n > hops[most] {
			most = i
		}
	}
	return most
}

func (l *loser) report(in int) FlowReport {
	return FlowReport{
		Protocol: l.protocol, Inside: l.ends[in], Outside: l.ends[1-in],
		LostOut: l.lost[in], LostIn: l.lost[1-in], Matched: l.matched,
		FirstLost: LostPacket{
			Outside: int(l.first.side) != in, Frame: l.first.frame,
			Time: wallTime(l.first.raw), Kind: kinds[l.first.kind],
		},
	}
}

// notes say what makes the numbers less than sure.
func notes(r *Report) (all []string) {
	note := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if r.Out.Matched+r.In.Matched == 0 {
		note("no packet is in both captures: were they taken at the same time, on both sides of one NAT?")
	}
	if r.Clock.By == OneWay {
		note("packets were matched in one direction only: the clocks cannot be told from the delay")
	}
	for _, d := range []*Direction{&r.Out, &r.In} {
		if n := d.lostOf(Data); n > 0 && d.Appeared > 0 {
			note("%d segments with data look lost and %d packets came from nowhere in the same direction: segments may have been joined or split between the captures (GRO, TSO), where these are of two machines", n, d.Appeared)
		}
	}
	for _, side := range []struct {
		name, other string
		s           *Side
	}{{"inside", "outside", &r.Inside}, {"outside", "inside", &r.Outside}} {
		if n := side.s.Uncovered.After; n > 0 {
			note("%d packets of the %s capture came after the last one of the %s capture: they are lost if that one ran on, and else nobody knows", n, side.name, side.other)
		}
		if n := dropped(side.s); n > 0 {
			note("the %s capture itself lost %d packets: as many may look lost, or as if they had come from nowhere", side.name, n)
		}
	}
	return all
}

func (d *Direction) lostOf(kind Kind) int64 {
	for _, k := range d.LostBy {
		if k.Kind == kind {
			return k.Packets
		}
	}
	return 0
}

func dropped(s *Side) (n int64) {
	for _, i := range s.File.Interfaces {
		n += i.Dropped
	}
	return n
}
