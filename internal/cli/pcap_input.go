package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/units"
)

// captureInput is a capture that is being read: a file, or what comes down a pipe.
// It shows how far it is, and ends, as if it had no more, when the context does.
type captureInput struct {
	name string
	// size is that of a plain file, 0 where nobody knows how much comes.
	size, read  int64
	interrupted bool
	// quiet shows nothing.
	quiet bool

	ctx      context.Context
	from     io.Reader
	file     *os.File // nil for standard input
	progress *report.Progress
}

// openCapture opens a file, or standard input where name is "-".
func openCapture(ctx context.Context, env *Env, name string) (*captureInput, error) {
	in := &captureInput{name: name, ctx: ctx, progress: env.progress()}
	if name == "-" {
		if env.StdinTerminal {
			return nil, usagef("standard input is a terminal: pipe a capture into it, such as 'tcpdump -w - | natkit pcap -'")
		}
		in.name, in.from = "standard input", newInterruptible(ctx, env.Stdin)
		return in, nil
	}
	file, err := openUntil(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("read the capture: %w%s", err, hintOf(err))
	}
	info, err := file.Stat()
	switch {
	case err != nil:
	case info.IsDir():
		err = fmt.Errorf("%s is a directory: name a file in it", name)
	case info.Mode().IsRegular():
		in.size = info.Size()
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("read the capture: %w", err)
	}
	in.file, in.from = file, newInterruptible(ctx, file)
	return in, nil
}

// hintOf says what to do about a file that cannot be opened.
func hintOf(err error) string {
	if errors.Is(err, fs.ErrPermission) {
		return ": natkit needs no more than to read it ('chmod a+r' by its owner)"
	}
	return ""
}

func (in *captureInput) Read(p []byte) (int, error) {
	n, err := in.from.Read(p)
	in.read += int64(n)
	in.show()
	if err != nil && in.ctx.Err() != nil && errors.Is(err, in.ctx.Err()) {
		in.interrupted = true
		return n, io.EOF
	}
	return n, err
}

func (in *captureInput) show() {
	if in.quiet {
		return
	}
	if in.size > 0 {
		in.progress.Update("%s: %s of %s read (%s)", in.name, units.Bytes(in.read), units.Bytes(in.size), units.Percent(float64(in.read)/float64(in.size)))
		return
	}
	in.progress.Update("%s: %s read", in.name, units.Bytes(in.read))
}

// Close ends the reading and removes the line that showed it.
func (in *captureInput) Close() error {
	in.progress.Clear()
	if in.file == nil {
		return nil
	}
	return in.file.Close()
}
