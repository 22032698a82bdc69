package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/tune/journal"
)

// style is how text on stdout may look.
func (e *Env) style() report.Style {
	return report.Style{Colour: report.WantsColour(e.StdoutTerminal, e.Getenv), Columns: e.columns()}
}

// leastColumns is what text is laid out for on narrower screens.
const leastColumns = 40

// columns is the width of the terminal, or what COLUMNS says; 0 where neither is known.
func (e *Env) columns() int {
	columns, _ := e.terminalSize()
	if columns <= 0 {
		columns, _ = strconv.Atoi(e.Getenv("COLUMNS"))
	}
	if columns <= 0 {
		return 0
	}
	return min(max(columns, leastColumns), report.Unlimited)
}

// terminalSize is 0 where stdout is none.
func (e *Env) terminalSize() (columns, rows int) {
	file, ok := e.Stdout.(*os.File)
	if !ok || !e.StdoutTerminal {
		return 0, 0
	}
	columns, rows, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0, 0
	}
	return columns, rows
}

// progress is the line on stderr that shows what is going on.
func (e *Env) progress() *report.Progress {
	return report.NewProgress(e.Stderr, e.StderrTerminal, time.Now)
}

// journal is where changes to the host are remembered.
func (e *Env) journal() (*journal.Journal, error) { return journal.At(journal.Dir(e.Getenv)) }

// askToApply asks the person at the terminal whether a plan is to be applied;
// anything but yes is no, and said so on out.
func (e *Env) askToApply(ctx context.Context, out io.Writer) (bool, error) {
	return e.ask(ctx, out, "apply?", "nothing was changed")
}

// ask asks a question; without yes it says on out that nothing was done.
func (e *Env) ask(ctx context.Context, out io.Writer, question, otherwise string) (bool, error) {
	if !e.StdinTerminal {
		return false, errors.New("there is no terminal to ask on: add --yes to do it without asking")
	}
	fmt.Fprint(e.Stderr, question, " [y/N] ")
	answer, err := readLine(ctx, e.Stdin)
	if err != nil { // nobody has ended the line of the question
		fmt.Fprintln(e.Stderr)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("read the answer: %w; %s", err, otherwise)
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return true, nil
	}
	_, err = fmt.Fprintln(out, otherwise)
	return false, err
}

// readLine reads a line, or gives up when ctx ends: an interrupt must not wait for
// a key. The reading goroutine then ends with the process.
func readLine(ctx context.Context, r io.Reader) (string, error) {
	type result struct {
		line string
		err  error
	}
	read := make(chan result, 1)
	go func() {
		line, err := bufio.NewReader(r).ReadString('\n')
		read <- result{line, err}
	}()
	select {
	case got := <-read:
		return got.line, got.err
	case <-ctx.Done():
		return "", errors.New("interrupted")
	}
}
