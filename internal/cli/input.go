package cli

import (
	"context"
	"io"
)

// input is all of a file, or of standard input for "-", cut one byte beyond most. It
// ends with ctx, also where a pipe has no writer. usage says what to pipe into it, where
// standard input is a terminal.
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
