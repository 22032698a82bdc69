package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/natkit/natkit/internal/disk"
)

// writeWhole writes a file that is there whole or not at all. A link is followed;
// what is no plain file (/dev/null, a pipe) is written to as it is, never replaced.
func writeWhole(name string, mode fs.FileMode, write func(io.Writer) error) error {
	target, special, err := writeTarget(name)
	switch {
	case err != nil:
	case special:
		err = writeSpecial(target, write)
	default:
		err = disk.Replace(target, mode, write)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// mayWrite tells beforehand what would keep writeWhole from its work.
func mayWrite(name string) error {
	target, special, err := writeTarget(name)
	if err == nil && !special {
		err = disk.MayReplace(target)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
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
