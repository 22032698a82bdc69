package report

import (
	"io"

	"github.com/natkit/natkit/internal/tune"
)

// Planned is what somebody should know before changes are made.
type Planned struct {
	Changes []tune.Change
	// Already are values that need no change, as sentences.
	Already []string
	// Files are the lines in files that make the changes hold after a boot; with
	// FilesWait they are written at the confirmation only.
	Files     []tune.Change
	FilesWait bool
	// Warnings say what may keep the changes from their effect.
	Warnings []string
}

// Plan writes what would be changed, with the cost and the risk of each change.
func Plan(w io.Writer, style Style, plan Planned) error {
	p := &printer{w: w, style: style}
	p.line(style.Paint(Bold, "Plan"))
	for _, already := range plan.Already {
		p.labelled(2, "", 0, already)
	}
	if len(plan.Changes) == 0 {
		p.line("  nothing to change")
	}
	p.changes(2, plan.Changes, func(c tune.Change) {
		p.labelled(4, "why", 6, c.Why)
		p.labelled(4, "cost", 6, c.Cost)
		p.labelled(4, "risk", 6, c.Risk)
	})
	p.files(plan)
	for _, warning := range plan.Warnings {
		p.mark(2, Cell{"warning: ", Warn}, warning, Plain)
	}
	return p.err
}

func (p *printer) files(plan Planned) {
	if len(plan.Files) == 0 {
		return
	}
	when := "  to hold after a boot:"
	if plan.FilesWait {
		when = "  to hold after a boot, written when you confirm:"
	}
	p.line(when)
	t := &Table{Indent: 4, Columns: []Column{{}, {}, {}}}
	for _, c := range plan.Files {
		t.Cells(Cell{"/" + tune.ConfPath(c.Kind), Dim}, Cell{fileLine(c), Bold}, Cell{Text: fileNote(c)})
	}
	t.each(p, func(i int) { p.labelled(6, "risk", 6, plan.Files[i].Risk) })
}

func fileLine(c tune.Change) string {
	if c.Kind == tune.ModulesLoad {
		return c.Target
	}
	return c.Target + " = " + c.Shown(c.After)
}

func fileNote(c tune.Change) string {
	switch {
	case tune.SameValue(c.Before, c.After):
		return "(is there)"
	case c.Before != "":
		return "(was " + c.Shown(c.Before) + ")"
	}
	return ""
}

// changes writes "target  before → after" in columns, each followed by what
// after writes.
func (p *printer) changes(indent int, changes []tune.Change, after func(tune.Change)) {
	t := &Table{Indent: indent, Columns: []Column{{}, {Right: true}, {}, {}}}
	for _, c := range changes {
		t.Cells(Cell{Text: c.Target}, Cell{Text: ChangeValue(c, c.Before)}, Cell{"→", Dim}, Cell{ChangeValue(c, c.After), Bold})
	}
	t.each(p, func(i int) {
		if after != nil {
			after(changes[i])
		}
	})
}

// ChangeValue is a value of a change, for people.
func ChangeValue(c tune.Change, value string) string {
	if c.Kind == tune.NATRule && value == "" {
		return "(no options)"
	}
	return orUnset(c.Shown(value))
}

// orUnset makes an empty value visible.
func orUnset(value string) string {
	if value == "" {
		return "(unset)"
	}
	return value
}
