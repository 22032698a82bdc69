package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune/journal"
	"golang.org/x/term"
)

// style is how text on stdout may look.
func (e *Env) style() report.Style {
	return report.Style{Colour: report.WantsColour(e.StdoutTerminal, e.Getenv), Columns: e.columns()}
}

// say prints to stdout, in lines that fit the screen.
func (e *Env) say(format string, args ...any) error {
	_, err := io.WriteString(e.Stdout, e.style().Fit(fmt.Sprintf(format, args...)))
	return err
}

// print writes a document in the form that --output, --json or --csv names.
func (e *Env) print(doc report.Document) error {
	if e.asJSON {
		return report.JSON(e.Stdout, doc)
	}
	if rows, ok := doc.(report.CSVDocument); ok && e.asCSV {
		return rows.CSV(e.Stdout)
	}
	return doc.Text(e.Stdout, e.style())
}

// leastColumns is what text is laid out for on narrower screens.
const leastColumns = 40

// columns is the width of the terminal, or COLUMNS; 0 where neither is known.
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

// terminalSize is 0 where stdout is no terminal.
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

// progress is a line on stderr that shows the progress.
func (e *Env) progress() *report.Progress {
	if e.verbose && !e.StderrTerminal {
		return report.NewProgressLog(e.Stderr, time.Now)
	}
	return report.NewProgress(e.Stderr, e.StderrTerminal && !e.quiet, time.Now)
}

// notes is for what is neither an error nor a result: stderr, unless --quiet.
func (e *Env) notes() io.Writer {
	if e.quiet {
		return io.Discard
	}
	return e.Stderr
}

// note prints on stderr what the user should know about a result or a run.
func (e *Env) note(format string, args ...any) {
	fmt.Fprintln(e.notes(), "natkit: "+report.Clean(fmt.Sprintf(format, args...)))
}

// detail prints with --verbose what is done.
func (e *Env) detail(format string, args ...any) {
	if e.verbose {
		e.note(format, args...)
	}
}

// detailParts prints with --verbose what was read, and how long that took.
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

// agree shows a plan and asks whether to apply it; with yes it does not ask. A plan as JSON
// is printed where it is not applied only.
func (e *Env) agree(ctx context.Context, plan report.Document, yes bool) (bool, error) {
	return e.agreeTo(ctx, plan, yes, "apply?", "nothing was changed")
}

// agreeTo is agree with another question.
func (e *Env) agreeTo(ctx context.Context, plan report.Document, yes bool, question, otherwise string) (bool, error) {
	switch {
	case e.asJSON && yes:
		return true, nil
	case e.asJSON:
		return false, errors.Join(e.print(plan), errJSONAsks)
	}
	if err := e.print(plan); err != nil || yes {
		return err == nil, err
	}
	return e.ask(ctx, e.Stdout, question, otherwise)
}

// errNoTerminal is the error of a verb that cannot ask.
var errNoTerminal = usagef("stdin is not a terminal; use --yes to skip the confirmation")

// errJSONAsks is the same of a verb with --json: the plan is all of its output.
var errJSONAsks = usagef("nothing was changed; --json does not ask: use --yes to skip the confirmation")

// ask asks a question; unless the answer is yes it prints otherwise on out.
func (e *Env) ask(ctx context.Context, out io.Writer, question, otherwise string) (bool, error) {
	if !e.StdinTerminal {
		return false, errNoTerminal
	}
	fmt.Fprint(e.Stderr, question, " [y/N] ")
	answer, err := bufio.NewReader(newInterruptible(ctx, e.Stdin)).ReadString('\n')
	if err != nil { // no answer has ended the line of the question
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

// input is all of a file, or of standard input for "-", cut one byte beyond most. It
// ends with ctx, also where a pipe has no writer. usage is what to pipe into it.
func (e *Env) input(ctx context.Context, name string, most int64, usage string) ([]byte, error) {
	from := e.Stdin
	switch {
	case name != "-":
		file, err := openUntil(ctx, name)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		from = file
	case e.StdinTerminal:
		return nil, usagef("standard input is a terminal: pipe %s", usage)
	}
	return io.ReadAll(io.LimitReader(newInterruptible(ctx, from), most+1))
}

// writeWhole writes a file that is there whole or not at all. A link is followed
// unless another user planted it (disk.Destination); what is no plain file (/dev/null,
// a pipe) is written to as it is, never replaced.
func writeWhole(name string, mode fs.FileMode, write func(io.Writer) error) error {
	target, special, err := disk.Destination(name)
	switch {
	case err != nil:
	case special:
		err = writeSpecial(target, write)
	default:
		err = disk.Replace(target, mode, write)
	}
	return writing(name, err)
}

// writeNew is writeWhole for a name that natkit chose: what is there already stays.
func writeNew(name string, mode fs.FileMode, write func(io.Writer) error) error {
	err := disk.Create(name, mode, write)
	if errors.Is(err, fs.ErrExist) {
		err = errors.New("it exists already; use --output to choose a name")
	}
	return writing(name, err)
}

// mayWrite reports beforehand what would keep writeWhole from its work.
func mayWrite(name string) error {
	target, special, err := disk.Destination(name)
	if err == nil && !special {
		err = disk.MayReplace(target)
	}
	return writing(name, err)
}

func writing(name string, err error) error {
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func writeSpecial(name string, write func(io.Writer) error) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// interruptible reads another reader on a goroutine of its own, so that an interrupt
// need not wait for input. That goroutine then ends with the process.
type interruptible struct {
	ctx   context.Context
	full  <-chan chunk
	empty chan<- []byte
	chunk chunk
	at    int
}

// chunk is the outcome of one Read.
type chunk struct {
	buf []byte
	n   int
	err error
}

const (
	chunkSize = 256 << 10
	chunks    = 2
)

func newInterruptible(ctx context.Context, from io.Reader) *interruptible {
	full, empty := make(chan chunk, chunks), make(chan []byte, chunks)
	for range chunks {
		empty <- make([]byte, chunkSize)
	}
	go func() {
		for buf := range empty {
			n, err := from.Read(buf)
			full <- chunk{buf, n, err}
			if err != nil {
				return
			}
		}
	}()
	return &interruptible{ctx: ctx, full: full, empty: empty}
}

func (r *interruptible) Read(p []byte) (int, error) {
	for r.at == r.chunk.n {
		if err := r.chunk.err; err != nil {
			return 0, err
		}
		if r.chunk.buf != nil {
			r.empty <- r.chunk.buf
		}
		select {
		case r.chunk = <-r.full:
			r.at = 0
		case <-r.ctx.Done():
			r.chunk, r.at = chunk{err: r.ctx.Err()}, 0
		}
	}
	n := copy(p, r.chunk.buf[r.at:r.chunk.n])
	r.at += n
	return n, nil
}

// list is never null in a document.
func list[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}
