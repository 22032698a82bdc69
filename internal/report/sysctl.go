package report

import (
	"io"
	"strings"

	"github.com/natkit/natkit/internal/tune"
)

// Sysctls are the kernel's settings of connection tracking and NAT.
type Sysctls struct {
	Schema  string            `json:"schema"`
	Kernel  string            `json:"kernel"`
	Sysctls []Sysctl          `json:"sysctls"`
	Unread  map[string]string `json:"unread"`
	// Changed: only those that differ from their default.
	Changed bool `json:"-"`
}

// Sysctl is one of them.
type Sysctl struct {
	tune.Known
	Now string `json:"now"`
	// Usual is the kernel's own value here; nil where it is not known.
	Usual   *string  `json:"default"`
	Changed bool     `json:"changed"`
	SetBy   []string `json:"set_by"`
}

// CSV writes a line for each.
func (d Sysctls) CSV(w io.Writer) error { return CSV(w, d.Sysctls) }

// Text writes a table.
func (d Sysctls) Text(w io.Writer, style Style) error {
	p := &printer{w: w, style: style}
	t := &Table{Columns: []Column{{Head: "name"}, {Head: "now", Right: true}, {Head: "default", Right: true}, {Head: "what it means", Below: true}}}
	for _, r := range d.Sysctls {
		usual, means, tone := "–", r.Means, Plain
		if r.Usual != nil {
			usual = *r.Usual
		}
		if r.Unit != "" {
			means += " (" + r.Unit + ")"
		}
		if r.Changed {
			tone = Warn
		}
		switch {
		case len(r.SetBy) > 0:
			means = "set by " + strings.Join(r.SetBy, ", ") + "; " + means
		case r.Changed:
			means = "not set by a file; " + means
		}
		t.Cells(Cell{r.Name, tone}, Cell{r.Now, tone}, Cell{Text: usual}, Cell{means, Dim})
	}
	if len(d.Sysctls) > 0 {
		p.table(t)
	} else if d.Changed {
		p.line("none differs from its default")
	}
	return p.err
}
