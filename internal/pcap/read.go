package pcap

import (
	"fmt"
	"io"

	"github.com/natkit/natkit/internal/units"
)

// Read reads a whole capture and reports what it tells. A broken file is no error (see
// Each). The error says that r is no capture, that it could not be read to its end, or
// which of the options is impossible; there is a report in the second case, of what
// was read.
func Read(r io.Reader, o Options) (*Report, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	t := newTracker(o)
	stats, err := Each(r, func(p *Packet) error {
		t.packet(p)
		return nil
	})
	if err != nil && stats.Format == "" {
		return nil, err
	}
	return t.finished(stats), err
}

// finished ends all connections and gives the report.
func (t *tracker) finished(stats Stats) *Report {
	t.order.flush(t.take)
	t.ended, t.now = true, t.latest
	t.table.each(t.finish)
	r := &t.report
	r.Stats = stats
	t.oneWay()
	t.unordered(&stats)
	t.incomplete(&stats)
	t.kept.fill(r)
	followMoves(r.Incidents)
	t.clocks.fill(r, stats.First.UnixNano())
	r.Reuse.After = t.reuse.distribution()
	r.ICMPErrors = t.icmp.list()
	t.fillBackoff()
	r.Limits = Limits{Memory: t.o.Memory, Peak: t.table.memory() + t.kept.peak + t.clocks.used + t.peakTroubled + t.order.memory(), Forgotten: t.table.forgotten}
	if t.table.forgotten > 0 {
		r.Limits.Youngest = seconds(t.table.shortest)
	}
	return r
}

// oneWay tells captures apart that have the packets of one direction only: there, no
// answer was to be expected. Where clients go on as if there had been answers it is
// certain, and then nothing is told of SYNs without.
func (t *tracker) oneWay() {
	c := &t.report.Connections
	if c.Begun < 2 || t.fromServers > 0 || c.Refused > 0 {
		return
	}
	if c.Established == 0 {
		t.remark("no packet from any server: either none answers, or the capture has one direction only; then SYNs without answer mean nothing")
		return
	}
	t.kept.drop(SYNUnanswered)
	t.remark("no packet from any server, but clients go on as if there were: the capture has one direction only, and tells neither of SYNs without answer nor of rejected ones")
}

// unordered warns of files whose packets are in another order than they came, and were
// so far away from their places that they were not put there.
func (t *tracker) unordered(s *Stats) {
	const some = 1000 // one of so many: the clock was set, or files were joined
	if late := t.order.late; late > s.Packets/some {
		t.remark(fmt.Sprintf("%s earlier than others far before in the file, and taken in the file's order: 'reordercap FILE SORTED' (of Wireshark) sorts packets by time", units.Plural(late, "packet is", "packets are")))
	}
}

// incomplete warns of captures that lost packets themselves.
func (t *tracker) incomplete(s *Stats) {
	var lost int64
	for i := range s.Interfaces {
		lost += s.Interfaces[i].Dropped
	}
	if lost > 0 {
		t.remark(fmt.Sprintf("the capture itself lost %s: what seems to be without answer, or sent for nothing, may be among them", units.Plural(lost, "packet", "packets")))
	}
}

// remark adds to the report what its reader has to know.
func (t *tracker) remark(text string) { t.report.Notes = append(t.report.Notes, text) }

func (t *tracker) fillBackoff() {
	r := &t.report.Retransmissions
	r.Backoffs = []Backoff{}
	for i := range t.backoff {
		if s := &t.backoff[i]; s.count() > 0 {
			r.Backoffs = append(r.Backoffs, Backoff{Nth: i + 1, Count: s.count(), Min: seconds(s.min), Median: s.at(50), Max: seconds(s.max)})
		}
	}
}
