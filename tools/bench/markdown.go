package bench

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/units"
)

// Write puts the result between its marks in the document NAME.md, and as JSON
// into NAME/SUITE.json.
func (r *Result) Write(doc string) error {
	old, err := os.ReadFile(doc)
	if err != nil {
		return err
	}
	updated, err := r.replaceSection(old)
	if err != nil {
		return fmt.Errorf("rewrite %s: %w", doc, err)
	}
	var data bytes.Buffer
	if err := report.JSON(&data, r); err != nil {
		return err
	}
	dir := strings.TrimSuffix(doc, filepath.Ext(doc))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := disk.Replace(filepath.Join(dir, r.Suite+".json"), 0o644, disk.Text(data.Bytes())); err != nil {
		return err
	}
	return disk.Replace(doc, 0o644, disk.Text(updated))
}

// replaceSection puts the result between its marks, at the document's end and
// with a title where it has none.
func (r *Result) replaceSection(doc []byte) ([]byte, error) {
	begin, end := []byte("<!-- "+r.Suite+": begin -->\n"), []byte("<!-- "+r.Suite+": end -->\n")
	if !bytes.Contains(doc, begin) {
		if bytes.Contains(doc, end) {
			return nil, fmt.Errorf("the document has a line %q and no beginning", end)
		}
		doc = slices.Concat(bytes.TrimRight(doc, "\n"), []byte("\n\n## "+r.Title+"\n\n"+r.suite.About+"\n\n"), begin, end)
	}
	from := bytes.Index(doc, begin) + len(begin)
	length := bytes.Index(doc[from:], end)
	if length < 0 {
		return nil, fmt.Errorf("the document has no line %q after the beginning", end)
	}
	return slices.Concat(doc[:from], []byte(r.Markdown()), doc[from+length:]), nil
}

// Markdown is the section between the marks.
func (r *Result) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Taken on %s by `make bench`: %s; %s:\n%s.\n",
		r.Date.Format(time.DateOnly), r.Machine, strings.Join(r.Programs, ", "), r.rounds())
	for _, note := range r.notes() {
		fmt.Fprintf(&b, "%s.\n", note)
	}
	r.table(&b)
	if len(r.Verdicts) > 0 {
		b.WriteString("\n| required | seen | |\n|---|---|---|\n")
	}
	for _, v := range r.Verdicts {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", v.Text, v.Seen, v.Outcome.emphasized())
	}
	return b.String()
}

func (o Outcome) emphasized() string {
	if o == Met {
		return string(o)
	}
	return "**" + string(o) + "**"
}

func (r *Result) rounds() string {
	text := units.Plural(r.Rounds, "round", "rounds")
	if len(r.Subjects) > 1 {
		text += " of all in turn"
	}
	if r.WarmUp > 0 {
		text += fmt.Sprintf(" after %d to warm up", r.WarmUp)
	}
	return text + ", " + r.suite.Method
}

// notes returns the remarks on the figures.
func (r *Result) notes() []string {
	var notes []string
	for _, busy := range r.Machine.Busy {
		notes = append(notes, "The machine was not quiet: "+busy)
	}
	for i := range r.Subjects {
		m := &r.Subjects[i]
		if n := m.limited(); n > 0 {
			notes = append(notes, fmt.Sprintf("The generator was the limit in %d of the %d runs of %s", n, r.Rounds, m.Name))
		}
	}
	return notes
}

func (r *Result) table(b *strings.Builder) {
	var heads []string
	for _, m := range r.Subjects {
		heads = append(heads, m.Name)
	}
	fmt.Fprintf(b, "\n| | %s |\n|---|%s\n", strings.Join(heads, " | "), strings.Repeat("---:|", len(heads)))
	for i, q := range r.Quantities {
		label := q.Label
		if !q.Counted {
			label += ", median"
		}
		r.row(b, label, func(m Measured) string { return m.cell(q) })
		if i == 0 && r.suite.Baseline != "" {
			r.row(b, "… × "+r.suite.Baseline, r.againstBaseline)
		}
	}
}

func (r *Result) row(b *strings.Builder, label string, cell func(Measured) string) {
	fmt.Fprintf(b, "| %s |", label)
	for _, m := range r.Subjects {
		fmt.Fprintf(b, " %s |", cell(m))
	}
	b.WriteByte('\n')
}

// cell is the median, or what was counted.
func (m Measured) cell(q Quantity) string {
	values := m.Median
	if q.Counted {
		values = m.Counted
	}
	if v, ok := values[q.Name]; ok {
		return q.Text(v)
	}
	return units.None
}

func (r *Result) againstBaseline(m Measured) string {
	if m.Name == r.suite.Baseline {
		return "1"
	}
	return r.ratio(r.Quantities[0].Name, m.Name, r.suite.Baseline).String()
}
