package host

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Files reads the files that a gateway file names.
type Files struct{}

// Read returns the text of a file, or one byte more than limit of it. What is no file, such as a device, is refused
// without being read.
func (Files) Read(path string, limit int) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, cause(err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(err, errors.New("not a regular file"))
	}
	// Files of procfs seem regular, and one may wait for what the kernel logs next.
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err == nil && st.Type == unix.PROC_SUPER_MAGIC {
		return nil, errors.New("not a regular file: it is of procfs")
	}
	text, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err != nil {
		return nil, fmt.Errorf("read: %w", cause(err))
	}
	return text, nil
}

// List returns the names of a directory's files, in order.
func (Files) List(dir string) (names []string, err error) {
	all, err := os.ReadDir(dir)
	if err != nil {
		return nil, cause(err)
	}
	for _, one := range all {
		if !one.IsDir() {
			names = append(names, one.Name())
		}
	}
	return names, nil
}

// cause is an error without the path, which its reader names.
func cause(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}
