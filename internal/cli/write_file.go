package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/natkit/natkit/internal/disk"
)

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
