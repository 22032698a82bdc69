package host

import (
	"os"

	"github.com/natkit/natkit/internal/disk"
)

// Files reads the files that a gateway file names.
type Files struct{}

// Read returns the text of a file, or one byte more than limit of it, as disk.ReadPlain does.
func (Files) Read(path string, limit int) ([]byte, error) {
	text, err := disk.ReadPlain(path, limit)
	return text, disk.Cause(err)
}

// List returns the names of a directory's files, in order.
func (Files) List(dir string) (names []string, err error) {
	all, err := os.ReadDir(dir)
	if err != nil {
		return nil, disk.Cause(err)
	}
	for _, one := range all {
		if !one.IsDir() {
			names = append(names, one.Name())
		}
	}
	return names, nil
}
