package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// writePrivately writes a file of mode 0600 that is there whole or not at all: to
// a temporary file beside it, then renamed. What is no plain file (/dev/null, a
// pipe) is written to as it is, never replaced.
func writePrivately(name string, write func(io.Writer) error) error {
	target, special, err := writeTarget(name)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if special {
		return writeSpecial(target, write)
	}
	f, err := os.CreateTemp(filepath.Dir(target), ".natkit-*.tmp") // mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	err = write(f)
	if err == nil {
		if err = errors.Join(f.Sync(), f.Close()); err == nil {
			err = os.Rename(f.Name(), target)
		}
		if err != nil {
			err = fmt.Errorf("write %s: %w", name, err)
		}
	}
	if err != nil {
		f.Close()
		os.Remove(f.Name())
	}
	return err
}

// writeTarget follows symbolic links to what would be written.
func writeTarget(name string) (target string, special bool, err error) {
	target, err = filepath.EvalSymlinks(name)
	if errors.Is(err, fs.ErrNotExist) {
		return name, false, nil
	}
	if err != nil {
		return "", false, err
	}
	info, err := os.Stat(target)
	switch {
	case err != nil:
		return "", false, err
	case info.IsDir():
		return "", false, errors.New("is a directory")
	default:
		return target, !info.Mode().IsRegular(), nil
	}
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
