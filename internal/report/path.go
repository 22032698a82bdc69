package report

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// Path writes the way of a packet: a line for each function that got it, indented
// by what called it, with the time since the line before; in between what changed,
// and at the end what became of it.
func Path(w io.Writer, style Style, p *snapshot.PacketPath) error {
	out := pathWriter{printer: printer{w: w, style: style}, seen: map[int]snapshot.PathStep{}}
	out.head(p)
	for i := range p.Steps {
		out.step(&p.Steps[i])
	}
	out.verdict(p)
	return out.err
}

// pathMargin is the width of time and CPU.
var pathMargin = strings.Repeat(" ", 15)

// pathWriter remembers what lines before have said.
type pathWriter struct {
	printer
	// place is where the last line was, seen the last state of each buffer.
	place string
	seen  map[int]snapshot.PathStep
	last  uint64
}

func (o *pathWriter) head(p *snapshot.PacketPath) {
	o.line(o.style.Paint(Bold, fmt.Sprintf("packet %d at %s", p.Number, p.Time.Format("15:04:05.000000"))) + "  " + flowText(p))
	o.line(o.style.Paint(Dim, "    Δ µs  CPU  function"))
}

// flowText is the packet as it was first seen.
func flowText(p *snapshot.PacketPath) string {
	if len(p.Steps) == 0 {
		return ""
	}
	s := p.Steps[0]
	words := []string{cmp.Or(s.Protocol, "unknown protocol")}
	if s.Source != "" {
		words = append(words, s.Source, "→", s.Destination)
	}
	if s.TCPFlags != "" {
		words = append(words, s.TCPFlags)
	}
	return strings.Join(append(words, units.Bytes(float64(s.Length))), " ")
}

func (o *pathWriter) step(s *snapshot.PathStep) {
	if s.Event == snapshot.StepCall || s.Event == snapshot.StepClone {
		o.where(s)
		o.changes(s)
	}
	delta := s.Nanoseconds - o.last
	o.last = s.Nanoseconds
	o.line(fmt.Sprintf("%8.1f  %3d  ", float64(delta)/1e3, s.CPU) + strings.Repeat("  ", s.Depth) + o.what(s) + o.note(s))
}

// where tells the namespace and the interface when they are others. A packet in a
// socket has neither.
func (o *pathWriter) where(s *snapshot.PathStep) {
	place := netnsText(s.Netns, s.NetnsName)
	if s.Interface != "" {
		place += ", " + s.Interface
	}
	if s.Netns == 0 || place == o.place {
		return
	}
	o.place = place
	o.line(pathMargin + o.style.Paint(Dim, "── "+clean(place)))
}

func netnsText(inode uint64, name string) string {
	if name != "" {
		return "netns " + name
	}
	return fmt.Sprint("netns ", inode)
}

// changes tells what was rewritten since the buffer was seen last.
func (o *pathWriter) changes(s *snapshot.PathStep) {
	before, known := o.seen[s.Buffer]
	o.seen[s.Buffer] = *s
	if !known || s.Source == "" || before.Source == "" {
		return
	}
	o.change(Warn, "source", before.Source, s.Source)
	o.change(Warn, "destination", before.Destination, s.Destination)
	o.change(Warn, "protocol", before.Protocol, s.Protocol)
	o.change(Dim, "ttl", fmt.Sprint(before.TTL), fmt.Sprint(s.TTL))
	o.change(Warn, "mark", fmt.Sprintf("%#x", before.Mark), fmt.Sprintf("%#x", s.Mark))
}

func (o *pathWriter) change(tone Tone, what, before, after string) {
	if before != after {
		o.line(pathMargin + o.style.Paint(tone, fmt.Sprintf("** %s %s → %s", what, before, after)))
	}
}

// what is the function, or what happened.
func (o *pathWriter) what(s *snapshot.PathStep) string {
	name := s.Function
	if s.Module != "" {
		name += o.style.Paint(Dim, " ["+s.Module+"]")
	}
	switch s.Event {
	case snapshot.StepClone:
		name = fmt.Sprintf("copied to sk_buff %d", s.Buffer)
	case snapshot.StepDropped:
		name = o.style.Paint(Bad, strings.TrimRight(fmt.Sprintf("dropped in %s+%#x  %s", s.Function, s.Offset, s.Reason), " "))
	case snapshot.StepConsumed, snapshot.StepFreed:
		name = o.style.Paint(Dim, "freed")
	case snapshot.StepReturn:
		name += o.style.Paint(Dim, " (return)")
	}
	if s.Buffer > 1 && s.Event != snapshot.StepClone {
		name += o.style.Paint(Dim, fmt.Sprintf("  (sk_buff %d)", s.Buffer))
	}
	return name
}

// note is what a function decided.
func (o *pathWriter) note(s *snapshot.PathStep) string {
	if s.Returned == "" {
		return ""
	}
	text := "= " + s.Returned
	if s.Hook != "" {
		text = s.Hook + " " + text
	}
	return "  " + o.style.Paint(verdictTone(s.Returned), text)
}

func verdictTone(returned string) Tone {
	switch returned {
	case "ACCEPT":
		return Good
	case "DROP":
		return Bad
	}
	return Warn
}

func (o *pathWriter) verdict(p *snapshot.PacketPath) {
	v := p.Verdict
	where := netnsText(v.Netns, v.NetnsName)
	var tone Tone
	var text string
	switch v.Result {
	case snapshot.PathDropped:
		tone, text = Bad, fmt.Sprintf("dropped in %s, %s", v.Function, where)
		if v.Reason != "" {
			text += ": " + v.Reason
		}
	case snapshot.PathDelivered:
		tone, text = Good, fmt.Sprintf("delivered to %s, %s", v.Function, where)
	case snapshot.PathSent:
		tone, text = Good, fmt.Sprintf("sent by %s, %s", v.Interface, where)
	case snapshot.PathOpen:
		tone, text = Warn, fmt.Sprintf("not freed yet; last seen in %s: it lies in a queue or a socket", v.Function)
	default:
		tone, text = Warn, fmt.Sprintf("freed without a drop; last seen in %s", v.Function)
	}
	if n := len(p.Steps); n > 0 {
		text += fmt.Sprintf("  (%.1f µs)", float64(p.Steps[n-1].Nanoseconds)/1e3)
	}
	o.line(o.style.Paint(tone, clean(text)))
	if p.Incomplete {
		o.line(o.style.Paint(Warn, "incomplete: events were lost"))
	}
}
