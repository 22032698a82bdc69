package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
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

// askToApply asks the person at the terminal whether a plan is to be applied;
// anything but yes is no, and said so on out.
func (e *Env) askToApply(out io.Writer) (bool, error) {
	if !e.StdinTerminal {
		return false, errors.New("there is no terminal to ask on: add --yes to apply without asking")
	}
	fmt.Fprint(e.Stderr, "apply? [y/N] ")
	answer, err := bufio.NewReader(e.Stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("read the answer: %w", err)
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return true, nil
	}
	_, err = fmt.Fprintln(out, "nothing was changed")
	return false, err
}
