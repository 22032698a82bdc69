package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/permit"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
	"golang.org/x/term"
)

// style returns the style of text on stdout.
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

// isUTF8 reports whether the locale is (setlocale(3): the first of these that is set).
func isUTF8(getenv func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if locale := strings.ToLower(getenv(name)); locale != "" {
			return strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")
		}
	}
	return false
}

// progress is a line on stderr that shows the progress.
func (e *Env) progress() *report.Progress {
	erases := e.StderrTerminal && e.Getenv("TERM") != "dumb"
	if e.verbose && !erases {
		return report.NewProgressLog(e.Stderr, time.Now)
	}
	return report.NewProgress(e.Stderr, erases && !e.quiet, time.Now)
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

// fail prints on stderr an error that does not end the command.
func (e *Env) fail(err error) { fmt.Fprintln(e.Stderr, "natkit: "+said(err)) }

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

// redraw replaces what a terminal shows by a frame, in one write, so that nothing flickers.
// Elsewhere frames follow each other, with an empty line after each.
func (e *Env) redraw(draw func(io.Writer, report.Style) error) error {
	var frame bytes.Buffer
	if e.StdoutTerminal {
		frame.WriteString("\x1b[H\x1b[J")
	}
	if err := draw(&frame, e.style()); err != nil {
		return err
	}
	if !e.StdoutTerminal {
		fmt.Fprintln(&frame)
	}
	_, rows := e.terminalSize()
	_, err := e.Stdout.Write(clipped(frame.Bytes(), rows))
	return err
}

// clipped is as much of a frame as a screen has room for, with its last row for the
// cursor: more would move the head out of sight. 0 rows are no screen.
func clipped(frame []byte, rows int) []byte {
	lines := bytes.SplitAfter(frame, []byte("\n"))
	if more := len(lines) - rows; rows > 1 && more > 0 {
		return fmt.Appendf(bytes.Join(lines[:rows-2], nil), "… %d more lines in a larger window\n", more+1)
	}
	return frame
}

// within ends ctx when the time expires (0: never).
func within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if limit == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, limit)
}

// during calls fn at each interval (0: never), until the time expires (0: never) or ctx ends.
func during(ctx context.Context, limit, every time.Duration, fn func() error) error {
	ctx, stop := within(ctx, limit)
	defer stop()
	var ticks <-chan time.Time
	if every > 0 {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		ticks = ticker.C
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticks:
			if ctx.Err() != nil { // select takes any of those that are ready
				return nil
			}
			if err := fn(); err != nil {
				return err
			}
		}
	}
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
	answer, err := bufio.NewReader(until(ctx, e.Stdin)).ReadString('\n')
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

// line reads a line from stdin and no byte more: a program that natkit starts may read on. It ends with ctx.
func (e *Env) line(ctx context.Context) (string, error) {
	type read struct {
		text string
		err  error
	}
	done := make(chan read, 1)
	go func() {
		var text []byte
		for b := make([]byte, 1); ; {
			n, err := e.Stdin.Read(b)
			if text = append(text, b[:n]...); err != nil || n > 0 && b[0] == '\n' {
				done <- read{string(text), err}
				return
			}
		}
	}()
	select {
	case r := <-done:
		return strings.TrimSpace(r.text), r.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// writeWhole writes a file that is there whole or not at all. A link is followed
// unless another user planted it (disk.Destination); what is no plain file (/dev/null,
// a pipe) is written to as it is, never replaced.
func writeWhole(name string, mode fs.FileMode, write func(io.Writer) error) error {
	target, special, err := destination(name)
	switch {
	case err != nil:
	case special:
		err = writeSpecial(target, write)
	default:
		err = disk.Replace(target, mode, write)
	}
	return writing(name, err)
}

// destination is disk.Destination of a file that the user named for output.
func destination(name string) (target string, special bool, err error) {
	if target, special, err = disk.Destination(name); err == nil {
		err = permit.Output(target)
	}
	return target, special, err
}

// writeNew is writeWhole for a name that natkit chose: what is there already stays.
func writeNew(name string, mode fs.FileMode, write func(io.Writer) error) error {
	err := permit.Output(name)
	if err == nil {
		err = disk.Create(name, mode, write)
	}
	if errors.Is(err, fs.ErrExist) {
		err = errors.New("it exists already; use --output to choose a name")
	}
	return writing(name, err)
}

// mayWrite reports beforehand what would keep writeWhole from its work.
func mayWrite(name string) error {
	target, special, err := destination(name)
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

// howCalled returns the command that calls natkit again: by its path if it is not in PATH, and
// with sudo where that was used now.
func howCalled(getenv func(string) string) string {
	natkit := "natkit"
	if _, err := exec.LookPath(natkit); err != nil {
		if path, err := os.Executable(); err == nil {
			natkit = path
		}
	}
	if getenv("SUDO_USER") != "" {
		natkit = "sudo " + natkit
	}
	return natkit
}

// list is never null in a document.
func list[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}

// collectSeldom has garbage collected when there is four times of what is in use, up to a heap of 512 MiB: a command that
// reads much and ends would spend an eighth to a quarter of its CPU time on it, which a busy gateway needs for packets.
func collectSeldom() {
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(512 << 20)
}
