package report

import (
	"fmt"
	"io"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// FlowsSchema names the JSON form of followed connections.
const FlowsSchema = "natkit.flows/1"

// FlowsDocument is the connections that were followed in a time.
type FlowsDocument struct {
	Schema   string             `json:"schema"`
	Version  string             `json:"version"`
	Followed *snapshot.Followed `json:"followed"`
}

// Text writes the document for people.
func (d FlowsDocument) Text(w io.Writer, style Style) error { return Flows(w, style, d.Followed) }

// FlowsSoFar writes services with how far their connections came so far, and an empty line.
func FlowsSoFar(w io.Writer, style Style, f *snapshot.Followed) error {
	if err := Flows(w, style, f); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w)
	return err
}

// Flows writes services with how far their connections came.
func Flows(w io.Writer, style Style, f *snapshot.Followed) error {
	p := &printer{w: w, style: style}
	p.flows(f)
	return p.err
}

func (p *printer) flows(f *snapshot.Followed) {
	var connections, answered uint64
	for i := range f.Services {
		s := &f.Services[i]
		answered += s.Steps[snapshot.StepAnswered]
		connections += s.Count()
	}
	connections, answered = max(connections, f.Connections), max(answered, f.Answered) // not all are listed
	p.line(p.style.Paint(Bold, fmt.Sprintf("%s followed in %s s, %s answered", units.Plural(connections, "connection", "connections"), units.Fixed(f.Seconds, 1), units.Count(answered))))
	if f.PausedSeconds > 0 {
		p.line(p.style.Paint(Warn, fmt.Sprintf("too many packets to watch them all the time: %s s were", units.Fixed(f.Seconds-f.PausedSeconds, 1))))
	}
	if f.Sample > 1 {
		p.line(p.style.Paint(Warn, fmt.Sprintf("too many to follow all: in the end one in %d of TCP", f.Sample)))
	}
	if f.TCPOnly {
		p.line(p.style.Paint(Warn, "too many datagrams: UDP and ICMP were followed in the beginning only"))
	}
	if f.Lost > 0 {
		p.line(p.style.Paint(Warn, units.Plural(f.Lost, "packet was", "packets were")+" lost, or found no room: some connections seem to have failed that did not"))
	}
	if len(f.Services) == 0 {
		return
	}
	p.blank()
	p.table(p.style.flowsTable(f))
	if f.MoreServices > 0 {
		p.line(fmt.Sprintf("and %s more", units.Count(f.MoreServices)))
	}
}

func (style Style) flowsTable(f *snapshot.Followed) *Table {
	t := &Table{Columns: []Column{{Head: "service"}, {Head: "becomes"}, {Head: "in"}, {Head: "out"}, {Head: "conns", Right: true, Min: 5}, {Head: "answered", Right: true, Min: 8},
		{Head: "again", Right: true, Min: 5}, {Head: "here, ms", Right: true, Min: 8}, {Head: "server, ms", Right: true, Min: 8}, {Head: "back, ms", Right: true, Min: 8}, {Head: "fails"}}}
	for i := range f.Services {
		s := &f.Services[i]
		n := s.Count()
		row := texts(s.Protocol+" "+style.named(servedBy(s), endText(s.Service)), style.becomes(s), orNone(s.In), orNone(s.Out), units.Count(n), units.Count(s.Steps[snapshot.StepAnswered]), units.Count(s.Repeated),
			milliseconds(s.HereSeconds), milliseconds(s.BeyondSeconds), milliseconds(s.BackSeconds), "")
		if s.Failed != nil {
			row[len(row)-1] = Cell{fmt.Sprintf("%s %s", units.Count(s.Steps[s.Failed.Step]), s.Failed.Step), Alarm}
		} else if n := s.Steps[snapshot.StepOneWay]; n > 0 {
			row[len(row)-1] = Cell{Text: fmt.Sprintf("%s %s", units.Count(n), snapshot.StepOneWay)}
		}
		t.Cells(row...)
	}
	return t
}

// servedBy is the protocol of a service that is not led elsewhere: a socket of this host may be behind it.
func servedBy(s *snapshot.FollowedService) string {
	if s.Target.IsValid() {
		return ""
	}
	return s.Protocol
}

// becomes is what the destination becomes, and the source.
func (style Style) becomes(s *snapshot.FollowedService) string {
	text := ""
	if s.Target.IsValid() {
		text = style.named(s.Protocol, endText(s.Target))
	}
	if s.Given.IsValid() {
		if text != "" {
			text += " "
		}
		text += "from " + style.named("", s.Given.String())
	}
	return orNone(text)
}

func milliseconds(seconds float64) string {
	if seconds <= 0 {
		return orNone("")
	}
	return units.Millis(seconds * 1000)
}
