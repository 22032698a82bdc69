package report

import (
	"fmt"
	"io"
	"time"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/units"
)

// Fill is a fill of a connection table, and all that is needed to make it again: mix,
// seed, amount, and what the table held before.
type Fill struct {
	Schema  string `json:"schema"`
	Version string `json:"natkit_version"`
	Where   string `json:"where"`
	// Netns is the namespace's inode.
	Netns   uint64     `json:"netns"`
	Started time.Time  `json:"started_at"`
	Asked   lab.Amount `json:"asked"`
	Seed    uint64     `json:"seed"`
	// Mark is on the entries (CTA_MARK).
	Mark   uint32     `json:"mark"`
	Kept   bool       `json:"kept"`
	Max    int64      `json:"nf_conntrack_max"`
	Before int64      `json:"entries_before"`
	Made   int64      `json:"entries_made"`
	Table  int64      `json:"table_entries"`
	Took   float64    `json:"seconds"`
	Rate   float64    `json:"entries_per_second"`
	Parts  []FillPart `json:"parts"`
	Mix    *lab.Mix   `json:"mix"`
}

// FillPart are the entries of one part of the mix.
type FillPart struct {
	Name    string `json:"name"`
	Kind    string `json:"kind"`
	Entries int64  `json:"entries"`
}

// Text writes the numbers and a table of the parts.
func (d Fill) Text(w io.Writer, style Style) error {
	p := &printer{w: w, style: style}
	limit := "no limit"
	if d.Max > 0 {
		limit = units.Count(d.Max)
	}
	p.printf("%s: %s made in %s (%s/s)", d.Where, units.Plural(d.Made, "entry", "entries"), units.Seconds(d.Took), units.Rate(d.Rate))
	p.printf("mix %s, seed %d, mark %s; the table holds %s of %s", d.Mix.Name, d.Seed, fmt.Sprintf("%#x", d.Mark), units.Count(d.Table), limit)
	p.blank()
	t := &Table{Columns: []Column{{Head: "part"}, {Head: "entries", Right: true}, {Head: "kind"}}}
	for _, part := range d.Parts {
		t.Row(part.Name, units.Count(part.Entries), part.Kind)
	}
	p.table(t)
	return p.err
}

// Mixes are those that natkit has built in.
type Mixes struct {
	Schema string     `json:"schema"`
	Mixes  []*lab.Mix `json:"mixes"`
}

// Text writes a line for each.
func (d Mixes) Text(w io.Writer, style Style) error {
	t := &Table{Columns: []Column{{Head: "mix"}, {Head: "what it is", Wrap: true}}}
	for _, m := range d.Mixes {
		t.Row(m.Name, m.Title)
	}
	return t.Write(w, style)
}
