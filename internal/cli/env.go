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
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune/journal"
)

// style is how text on stdout may look.
func (e *Env) style() report.Style {
	return report.Style{Colour: report.WantsColour(e.StdoutTerminal, e.Getenv), Columns: e.columns()}
}

// say writes to stdout, in lines that fit the screen.
func (e *Env) say(format string, args ...any) error {
	_, err := io.WriteString(e.Stdout, e.style().Fit(fmt.Sprintf(format, args...)))
	return err
}

// fitted is stdout for texts that are written whole; their lines fit the screen.
type fitted struct{ env *Env }

func (f fitted) Write(text []byte) (int, error) { return len(text), f.env.say("%s", text) }

// leastColumns is what text is laid out for on narrower screens.
const leastColumns = 40

// columns is the width of the terminal, or what COLUMNS says; 0 where neither is known.
func (e *Env) columns() int {
	if e.wide {
		return report.Unlimited
	}
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
	if e.verbose && !e.StderrTerminal {
		return report.NewProgressLog(e.Stderr, time.Now)
	}
	return report.NewProgress(e.Stderr, e.StderrTerminal && !e.quiet, time.Now)
}

// notes is where goes what is no error and no result: stderr, unless --quiet.
func (e *Env) notes() io.Writer {
	if e.quiet {
		return io.Discard
	}
	return e.Stderr
}

// note says on stderr what the user should know of a result or a run.
func (e *Env) note(format string, args ...any) {
	fmt.Fprintln(e.notes(), "natkit: "+report.Clean(fmt.Sprintf(format, args...)))
}

// detail says with --verbose what is done.
func (e *Env) detail(format string, args ...any) {
	if e.verbose {
		e.note(format, args...)
	}
}

// detailParts says with --verbose what was read, and how long that took.
func (e *Env) detailParts(rec *snapshot.Recording) {
	if rec == nil || len(rec.Snapshots) == 0 {
		return
	}
	for _, p := range rec.Last().Parts {
		took := time.Duration(p.DurationSeconds * float64(time.Second)).Round(10 * time.Microsecond)
		if p.Error != "" {
			e.detail("read %s: failed after %s", p.Name, took)
		} else {
			e.detail("read %s in %s", p.Name, took)
		}
	}
}

// journal is where changes to the host are remembered.
func (e *Env) journal() (*journal.Journal, error) {
	dir := journal.Dir(e.Getenv)
	e.detail("journal: %s", dir)
	return journal.At(dir)
}

// askToApply asks the person at the terminal whether a plan is to be applied;
// anything but yes is no, and said so on out.
func (e *Env) askToApply(ctx context.Context, out io.Writer) (bool, error) {
	return e.ask(ctx, out, "apply?", "nothing was changed")
}

// errNoTerminal is what a verb that asks ends with where it cannot.
var errNoTerminal = usagef("stdin is not a terminal; use --yes to skip the confirmation")

// errJSONAsks is the same of a verb with --json: the plan is all of its output.
var errJSONAsks = usagef("nothing was changed; --json does not ask: use --yes to skip the confirmation")

// ask asks a question; without yes it says on out that nothing was done.
func (e *Env) ask(ctx context.Context, out io.Writer, question, otherwise string) (bool, error) {
	if !e.StdinTerminal {
		return false, errNoTerminal
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
