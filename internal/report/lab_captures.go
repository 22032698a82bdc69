package report

import (
	"path/filepath"
	"strings"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/units"
)

// labCaptures lists the files of packets, with what is not in them.
func (p *printer) labCaptures(r *lab.Report) {
	if len(r.Captures) == 0 {
		return
	}
	p.heading("Captures in " + filepath.Dir(r.Captures[0].File))
	t := &Table{Indent: 2, Columns: []Column{{Head: "file"}, {Head: "packets", Right: true}, {Head: "size", Right: true}, {Head: "dropped", Right: true}, {Head: "interfaces", Wrap: true}}}
	for _, c := range r.Captures {
		dropped := Cell{units.Count(c.Dropped), Dim}
		if c.Dropped > 0 {
			dropped.Tone = Bad
		}
		t.Cells(Cell{Text: filepath.Base(c.File)}, Cell{Text: units.Count(c.Packets)}, Cell{Text: units.Bytes(c.Bytes)}, dropped,
			Cell{strings.Join(c.Interfaces, ", "), Dim})
		if missing := captureMissing(&c); missing.Text != "" {
			t.Cells(Cell{}, Cell{}, Cell{}, Cell{}, missing)
		}
	}
	p.table(t)
	p.blank()
	p.line("  " + p.style.Paint(Dim, "Capturing took time of the CPUs: rates and times are not those without it."))
	if inside, outside, ok := capturePair(r); ok {
		p.line(clean("  try: natkit pcap " + inside + " " + outside))
	}
}

// captureMissing says why a file lacks packets besides those dropped.
func captureMissing(c *lab.Capture) Cell {
	switch {
	case c.Error != "":
		return Cell{c.Error, Bad}
	case c.Cut > 0:
		return Cell{"full: " + units.Plural(c.Cut, "later packet is", "later packets are") + " not in it; --pcap-size lets it grow", Warn}
	}
	return Cell{}
}

// capturePair are the first files from both sides of one NAT, those of the stage named
// fault where there is one.
func capturePair(r *lab.Report) (inside, outside string, ok bool) {
	for _, in := range r.Captures {
		for _, out := range r.Captures {
			same := in.Stage == out.Stage && in.Round == out.Round && in.Node == out.Node
			if !same || in.Side != lab.Inside || out.Side != lab.Outside {
				continue
			}
			if fault := in.Stage == "fault"; fault || !ok {
				inside, outside, ok = in.File, out.File, true
				if fault {
					return inside, outside, true
				}
			}
		}
	}
	return inside, outside, ok
}
