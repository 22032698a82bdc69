package report

import (
	"bytes"
	"fmt"
	"io"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/names"
	"github.com/natkit/natkit/internal/snapshot"
)

// Named is a document with what the host calls the addresses and network namespaces in it: behind them in text, a
// member of its own in JSON, which leaves all others as they are.
type Named struct {
	Document
	Names *snapshot.Names
}

// namesOf is the member of a JSON document that has its names.
type namesOf struct {
	Names *snapshot.Names `json:"names,omitempty"`
}

// Text writes the document with names.
func (d Named) Text(w io.Writer, style Style) error {
	style.Names = d.Names
	return d.Document.Text(w, style)
}

// CSV is that of the document: a line has no room for what is not one value.
func (d Named) CSV(w io.Writer) error {
	rows, ok := d.Document.(CSVDocument)
	if !ok {
		return fmt.Errorf("write %T as CSV: it has no rows", d.Document)
	}
	return rows.CSV(w)
}

// MarshalJSON adds the member to those of the document.
func (d Named) MarshalJSON() ([]byte, error) {
	var text bytes.Buffer
	if err := JSONLine(&text, d.Document); err != nil {
		return nil, err
	}
	mentioned, _ := names.Mentioned(text.String(), d.Names)
	if mentioned == nil {
		return text.Bytes(), nil
	}
	text.Reset()
	err := JSONLine(&text, d.Document, namesOf{mentioned})
	return text.Bytes(), err
}

// named is an end of a connection with its name behind it, where it has one. protocol is that of the socket at an own
// address; empty for an end that leads on.
func (s Style) named(protocol, end string) string { return names.Beside(s.Names, protocol, end) }

// names lists what the host calls the addresses of a finding. They are not written into its sentences, some of which
// are commands.
func (p *printer) names(f diagnose.Finding) {
	text := ""
	for i, m := range f.Names {
		if i > 0 {
			text += ", "
		}
		text += m.What + " (" + m.Name + ")"
	}
	p.labelled(2, "names", labelWidth, text)
}
