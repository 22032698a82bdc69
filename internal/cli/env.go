package cli

import (
	"time"

	"github.com/natkit/natkit/internal/report"
)

// style is how text on stdout may look.
func (e *Env) style() report.Style {
	return report.Style{Colour: report.WantsColour(e.StdoutTerminal, e.Getenv)}
}

// progress is the line on stderr that shows what is going on.
func (e *Env) progress() *report.Progress {
	return report.NewProgress(e.Stderr, e.StderrTerminal, time.Now)
}
