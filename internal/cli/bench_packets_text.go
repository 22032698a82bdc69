package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/packet"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/units"
)

// packetsText lays out a result as bench http does: what was done, what came of it.
type packetsText struct {
	*packetsDocument
	table report.Table
}

func (d *packetsDocument) writeText(w io.Writer, style report.Style) error {
	t := packetsText{packetsDocument: d, table: report.Table{Columns: []report.Column{{Min: 22}, {Wrap: true}}}}
	t.about()
	t.table.Row()
	t.delivery()
	t.rates()
	t.notes()
	var b bytes.Buffer
	if err := t.table.Write(&b, style); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}

func (t *packetsText) line(name, format string, args ...any) {
	t.toned(report.Plain, name, format, args...)
}

func (t *packetsText) toned(tone report.Tone, name, format string, args ...any) {
	t.table.Cells(report.Cell{Text: name + ":"}, report.Cell{Text: fmt.Sprintf(format, args...), Tone: tone})
}

func (t *packetsText) about() {
	c := t.Config
	t.line("Packets", "%s", packetsAre(c))
	t.line("Frames", "%s bytes with FCS", sizesText(c.Spec.Sizes))
	if !c.Bare {
		t.line("Flows", "%s, seed %d", flowCount(c.Flows.Count), c.Flows.Seed)
		t.line("From", "%s, %s", t.From, sourcesText(c.Flows))
		t.line("To", "%v", c.Flows.Destinations[0])
	} else {
		t.line("From", "%s", t.From)
	}
	t.line("Counted at", "%s", cmp.Or(t.To, "nowhere: without --sink nobody counts what arrives"))
	t.line("Load", "%s", packetsLoad(c))
	if c.Verify {
		t.line("Expected on arrival", "%s", expectText(c.Expect))
	}
}

func (t *packetsText) delivery() {
	r := t.Result
	t.line("Time taken", "%.3f seconds", r.Seconds)
	t.line("Packets sent", "%s", units.Count(r.Sent))
	if r.To == "" {
		return
	}
	t.line("Packets received", "%s", units.Count(r.Received))
	if r.Config.Bare { // nobody can tell them from others
		return
	}
	t.count("Lost", r.Lost, report.Bad)
	bad := badArrivals(r)
	for _, b := range bad {
		t.toned(report.Bad, "  "+b.name, "%s", strings.TrimSuffix(units.Count(b.count)+": "+b.hint, ": "))
	}
	if never := neverArrived(r); len(bad) > 0 && never > 0 {
		t.line("  never arrived", "%s", units.Count(never))
	}
	t.count("Duplicated", r.Duplicated, report.Bad)
	t.count("Reordered", r.Reordered, report.Warn)
	if r.Late > 0 {
		t.line("Late", "%s: more than %d behind the newest of their flow, so reordered or duplicated", units.Count(r.Late), packet.Window)
	}
	if r.OtherPackets > 0 {
		t.line("Other packets", "%s came to the sink and were let through", units.Count(r.OtherPackets))
	}
	t.verdict()
}

// count writes a number of packets with its share, in a tone unless it is 0.
func (t *packetsText) count(name string, n int64, tone report.Tone) {
	if n == 0 {
		t.line(name, "0")
		return
	}
	t.toned(tone, name, "%s (%s)", units.Count(n), units.Percent(float64(n)/float64(t.Sent)))
}

func (t *packetsText) verdict() {
	switch {
	case t.MaxLoss == nil:
	case t.MaxLossExceeded:
		t.toned(report.Bad, "Allowed loss", "EXCEEDED: %s lost or duplicated, --max-loss %g allows %s",
			units.Count(t.Lost+t.Duplicated), *t.MaxLoss, units.Count(int64(*t.MaxLoss*float64(t.Sent))))
	default:
		t.toned(report.Good, "Allowed loss", "kept: --max-loss %g allows %s", *t.MaxLoss, units.Count(int64(*t.MaxLoss*float64(t.Sent))))
	}
}

// badArrival is a kind of packets that came as they should not.
type badArrival struct {
	name  string
	count int64
	hint  string
}

// badArrivals are the kinds that there were. All count as lost.
func badArrivals(r *packet.Result) []badArrival {
	kinds := []badArrival{
		{"misdelivered", r.Misdelivered, strayHint(r.MisdeliveredAs)},
		{"IP checksum wrong", r.Corrupted.IPChecksum, ""},
		{"checksum wrong", r.Corrupted.Checksum, ""},
		{"checksum partial", r.Corrupted.Partial,
			"left for a network card to complete; on the way of an XDP program nobody does: ethtool -K IF tx off where they are made"},
	}
	return slices.DeleteFunc(kinds, func(k badArrival) bool { return k.count == 0 })
}

// strayHint shows one of the packets.
func strayHint(strays []packet.Stray) string {
	hint := "with other addresses or ports than expected"
	if len(strays) > 0 {
		hint += fmt.Sprintf(", the first from %v to %v", strays[0].Source, strays[0].Destination)
	}
	return hint
}

func neverArrived(r *packet.Result) int64 { return r.Lost - r.Misdelivered - r.Corrupted.Total() }

func (t *packetsText) rates() {
	r := t.Result
	if r.SentPerSecond == 0 { // all of it went ahead to find the receiver
		return
	}
	t.rate("Send rate", r.SentPerSecond, t.SentRates)
	if t.ReceivedRates != nil {
		t.rate("Receive rate", r.ReceivedPerSecond, *t.ReceivedRates)
	}
	if r.Config.Rate == 0 {
		t.line("Time per packet", "%s ns (mean, across all CPUs that send)", units.Fixed(1e9/r.SentPerSecond, 1))
	}
	if r.GeneratorNanoseconds > 0 {
		t.line("  in the generator", "%s ns", units.Fixed(r.GeneratorNanoseconds, 1))
	}
	if r.SinkNanoseconds > 0 {
		t.line("  in the sink", "%s ns", units.Fixed(r.SinkNanoseconds, 1))
	}
}

func (t *packetsText) rate(name string, perSecond float64, bits packet.BitRates) {
	t.line(name, "%s packets/s, %s Gbit/s (%s with preambles and gaps)",
		units.Rate(perSecond), units.Fixed(bits.Frames/1e9, 3), units.Fixed(bits.Line/1e9, 3))
}

func (t *packetsText) notes() {
	if t.GeneratorLimit != "" {
		t.toned(report.Warn, "Generator", "THE LIMIT: %s", t.GeneratorLimit)
	}
	for _, note := range t.Notes {
		t.line("Note", "%s", note)
	}
}
