package report

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/units"
)

// The schemas of connections that eBPF programs make and answer.
const (
	ConnectPacketSchema = "natkit.bench-connect-packet/1"
	RespondedSchema     = "natkit.bench-serve-packet/1"
)

// ConnectResult is the result of a run of connections, with what follows from it.
type ConnectResult struct {
	*packets.ConnectResult
	// MaxLoss is the share of incomplete connections that was allowed.
	MaxLoss         *float64 `json:"max_loss_share,omitempty"`
	MaxLossExceeded bool     `json:"max_loss_exceeded,omitempty"`
}

// Judge compares with an allowed share; a segment that came through a wrong mapping is one too
// many.
func (r *ConnectResult) Judge(maxLoss float64) {
	r.MaxLoss, r.MaxLossExceeded = &maxLoss, r.BadShare() > maxLoss || r.Misdelivered > 0
}

// Text writes what was begun, what became of it, and the rate.
func (r ConnectResult) Text(w io.Writer, style Style) error {
	t, c := newLoadText(w, style), r.Config
	t.grouped = true
	t.line("Connections", "%s", closeText(c.Close))
	t.line("Flows", "%s, seed %d", units.Count(c.Flows.Count), c.Flows.Seed)
	t.line("From", "%s%s, ports %v", r.From, strings.Replace(fromText(c.Flows.Sources), "from ", "", 1), c.Flows.SourcePorts)
	t.line("To", "%v", c.Target())
	t.line("Load", "%s", connectLoad(c))
	t.table.Row()
	t.line("Time taken", "%.3f seconds", r.Seconds)
	t.line("Connections started", "%s", units.Count(r.Started))
	t.line("Complete", "%s (%s)", units.Count(r.Complete), units.Percent(1-r.BadShare()))
	t.connectSteps("Incomplete", r.Incomplete)
	t.connectSteps("Reset", r.Reset)
	t.segments(r)
	if r.MaxLoss != nil {
		verdict, tone := "kept", Good
		if r.MaxLossExceeded {
			verdict, tone = "EXCEEDED", Bad
		}
		t.toned(tone, "Allowed loss", "%s: --max-loss %g allows %s incomplete, and no misdelivered segment", verdict, *r.MaxLoss, units.Count(int64(*r.MaxLoss*float64(r.Started))))
	}
	if r.CompletePerSecond > 0 {
		t.line("Connections per second", "%s complete (mean)", units.Rate(r.CompletePerSecond))
	}
	if h := r.Handshake; h.Max > 0 {
		t.line("SYN to SYN-ACK", "%.3f ms median, %.3f ms at 99 %%, %.3f ms at most (of one flow in 16)", h.Median, h.P99, h.Max)
	}
	if r.WindowFull {
		t.line("Note", "the rate was not kept: %s connections were under way, the most that -c allows", units.Count(c.Window))
	}
	t.remarks(r.GeneratorLimit, r.Notes...)
	return t.write()
}

func closeText(mode load.CloseMode) string {
	how := map[load.CloseMode]string{
		load.CloseClient: "the client closes", load.CloseServer: "the server closes",
		load.CloseReset: "the client closes with a reset", packets.CloseNone: "they stay open",
	}[mode]
	return "one request and its reply each, then " + how
}

func connectLoad(c packets.ConnectConfig) string {
	window := units.Count(c.Window) + " at a time"
	if c.Rate == 0 {
		return window + " (closed loop)"
	}
	text := units.Rate(c.Rate) + " connections/s on schedule (open loop)"
	if c.Window < c.Flows.Count {
		text += ", at most " + window
	}
	return text
}

// stepParts lists the steps that have any.
func stepParts(s packets.Steps) (parts []portion) {
	for _, p := range []portion{{s.SYNACK, "before SYN-ACK"}, {s.Reply, "before reply"}, {s.Close, "before close"}} {
		if p.n > 0 {
			parts = append(parts, p)
		}
	}
	return parts
}

func (t *loadText) connectSteps(name string, s packets.Steps) {
	tone := Bad
	if s.Total() == 0 {
		tone = Plain
	}
	t.toned(tone, name, "%s", units.Count(s.Total()))
	for _, p := range stepParts(s) {
		t.toned(Bad, "  "+p.what, "%s", units.Count(p.n))
	}
}

// segments are those that did not come as they should.
func (t *loadText) segments(r ConnectResult) {
	text, tone := units.Count(r.Misdelivered), Plain
	if r.Misdelivered > 0 {
		tone = Bad
	}
	if len(r.MisdeliveredAs) > 0 {
		text += fmt.Sprintf(": the first from %v to %v", r.MisdeliveredAs[0].Source, r.MisdeliveredAs[0].Destination)
	}
	t.toned(tone, "Misdelivered segments", "%s", text)
	if r.BadChecksum > 0 {
		t.toned(Bad, "Checksum wrong", "%s segments", units.Count(r.BadChecksum))
	}
	t.some("No room", r.NoRoom, "%s segments, which could not be answered: something on the way copies frames into full buffers")
	t.some("Duplicated", r.Duplicated, "%s segments")
	t.some("Late", r.Late, "%s segments, whose connections had ended")
	t.some("Unexpected", r.Unexpected, "%s segments, which no responder of natkit sends")
}

// ConnectFaults is why none of the connections became complete.
func ConnectFaults(r *packets.ConnectResult) string {
	parts := stepParts(r.Incomplete)
	for _, p := range []portion{{r.Reset.Total(), "reset"}, {r.Misdelivered, "segments misdelivered"}, {r.BadChecksum, "segments with a wrong checksum"}} {
		if p.n > 0 {
			parts = append(parts, p)
		}
	}
	return cmp.Or(counts(parts...), "none was answered")
}

// Responded writes what a responder answered.
func Responded(w io.Writer, style Style, r *packets.Responded) error {
	t := newLoadText(w, style)
	t.grouped = true
	t.line("Answered at", "%s, %.1f seconds", r.Interface, r.Seconds)
	t.line("Connections opened", "%s", units.Count(r.Opened))
	t.line("Requests answered", "%s", units.Count(r.Answered))
	t.line("Closed", "%s", units.Count(r.Closed))
	t.line("Reset", "%s", units.Count(r.Reset))
	t.line("Passed on", "%s segments that belonged to none of its connections", units.Count(r.Passed))
	if r.BadChecksum > 0 {
		t.toned(Bad, "Checksum wrong", "%s segments", units.Count(r.BadChecksum))
	}
	t.some("No room", r.NoRoom, "%s segments, which could not be answered: something on the way copies frames into full buffers")
	t.remarks("", r.Notes...)
	return t.write()
}
