package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/natkit/natkit/internal/pcap"
	"github.com/natkit/natkit/internal/units"
)

// PcapList writes a line for each incident that was kept, in the order of their frames.
func PcapList(w io.Writer, style Style, v PcapView, r *pcap.Report) error {
	p := &printer{w: w, style: style}
	t := &Table{Columns: []Column{{Head: "frame", Right: true}, {Head: "time"}, {Head: "kind"}, {Head: "client"}, {Head: "server"},
		{Head: "back after", Right: true}, {Head: "outcome"}, {Head: "frames of SYNs, ACK and RST"}}}
	for i := range r.Incidents {
		in := &r.Incidents[i]
		back := units.None
		if in.Former != nil {
			back = units.Fixed(in.Former.After, 3) + " s"
		}
		t.Row(fmt.Sprint(in.Frame), v.moment(in.Time, false), string(in.Kind), in.Client.String(), in.Server.String(), back, outcome(in), frames(in))
	}
	if len(r.Incidents) > 0 {
		p.table(t)
	}
	for _, k := range r.Kinds {
		if more := k.Count - k.Kept; more > 0 {
			p.line(fmt.Sprintf("… and %s more of %s (--keep)", units.Count(more), k.Kind))
		}
	}
	return p.err
}

func outcome(in *pcap.Incident) string {
	switch {
	case in.Outcome == "":
		return units.None
	case in.ConnectSeconds > 0:
		return string(in.Outcome) + " " + units.Fixed(in.ConnectSeconds, 3) + " s"
	}
	return string(in.Outcome)
}

// frames are those of an attempt's SYNs, each with what it brought.
func frames(in *pcap.Incident) string {
	if len(in.SYNs) == 0 {
		return fmt.Sprint(in.Frame)
	}
	var parts []string
	for _, s := range in.SYNs {
		text := fmt.Sprint(s.Frame)
		if s.Answer > 0 {
			text += fmt.Sprintf("/%d", s.Answer)
		}
		if s.Reset > 0 {
			text += fmt.Sprintf("/%d", s.Reset)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, " ")
}
