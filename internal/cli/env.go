package cli

import (
	"time"

	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/tune/journal"
)

// style is how text on stdout may look.
func (e *Env) style() report.Style {
	return report.Style{Colour: report.WantsColour(e.StdoutTerminal, e.Getenv)}
}

// progress is the line on stderr that shows what is going on.
func (e *Env) progress() *report.Progress {
	return report.NewProgress(e.Stderr, e.StderrTerminal, time.Now)
}

// journal is where changes to the host are remembered.
func (e *Env) journal() (*journal.Journal, error) { return journal.At(journal.Dir(e.Getenv)) }
