package report

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// PathSchema names the JSON form of a packet's path.
const PathSchema = "natkit.path/1"

// PathJSON writes the path of a packet as one line.
func PathJSON(w io.Writer, p *snapshot.PacketPath) error {
	return JSONLine(w, struct {
		Schema string `json:"schema"`
		*snapshot.PacketPath
	}{PathSchema, p})
}

// Path writes the path of a packet: a line for each function that got it, indented by
// its caller, with the time since the line before; in between what changed, and at the
// end the verdict.
func Path(w io.Writer, style Style, p *snapshot.PacketPath) error {
	out := pathWriter{printer: printer{w: w, style: style}, seen: map[int]snapshot.PathStep{}}
	out.line(style.Paint(Bold, fmt.Sprintf("packet %d at %s", p.Number, p.Time.Format("15:04:05.000000"))) + "  " + flowText(p))
	out.line(style.Paint(Dim, "    Δ µs  CPU  function"))
	for i := range p.Steps {
		out.step(&p.Steps[i])
	}
	out.verdict(p)
	return out.err
}

// pathMargin is the width of time and CPU.
const pathMargin = "               "

// pathWriter keeps the state of the lines before.
type pathWriter struct {
	printer
	// place is where the last line was, seen the last state of each buffer.
	place string
	seen  map[int]snapshot.PathStep
	last  uint64
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
	o.line(fmt.Sprintf("%8.1f  %3d  ", float64(delta)/1e3, s.CPU) + strings.Repeat("  ", s.Depth) + o.what(s) + o.returned(s))
}

// where shows the namespace and the interface when they changed. A packet in a socket
// has neither.
func (o *pathWriter) where(s *snapshot.PathStep) {
	place := netnsText(s.Netns, s.NetnsName)
	if s.Interface != "" {
		place += ", " + s.Interface
	}
	if s.Netns != 0 && place != o.place {
		o.place = place
		o.line(pathMargin + o.style.Paint(Dim, "── "+clean(place)))
	}
}

func netnsText(inode uint64, name string) string { return "netns " + cmp.Or(name, fmt.Sprint(inode)) }

// changes shows what was rewritten since the buffer was seen last.
func (o *pathWriter) changes(s *snapshot.PathStep) {
	before, known := o.seen[s.Buffer]
	o.seen[s.Buffer] = *s
	if !known || s.Source == "" || before.Source == "" {
		return
	}
	for _, c := range []struct {
		tone                Tone
		what, before, after string
	}{
		{Warn, "source", before.Source, s.Source},
		{Warn, "destination", before.Destination, s.Destination},
		{Warn, "protocol", before.Protocol, s.Protocol},
		{Dim, "ttl", fmt.Sprint(before.TTL), fmt.Sprint(s.TTL)},
		{Warn, "mark", fmt.Sprintf("%#x", before.Mark), fmt.Sprintf("%#x", s.Mark)},
	} {
		if c.before != c.after {
			o.line(pathMargin + o.style.Paint(c.tone, fmt.Sprintf("** %s %s → %s", c.what, c.before, c.after)))
		}
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

// returned is the verdict of a netfilter function.
func (o *pathWriter) returned(s *snapshot.PathStep) string {
	if s.Returned == "" {
		return ""
	}
	tone := Warn
	switch s.Returned {
	case "ACCEPT":
		tone = Good
	case "DROP":
		tone = Bad
	}
	return "  " + o.style.Paint(tone, strings.TrimLeft(s.Hook+" = "+s.Returned, " "))
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
