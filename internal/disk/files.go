package disk

import (
	"os"
)

// Files reads the files that a gateway file names.
type Files struct{}

// Read returns the text of a file, or one byte more than limit of it, as ReadPlain does.
func (Files) Read(path string, limit int) ([]byte, error) {
	text, err := ReadPlain(path, limit)
	return text, Cause(err)
}

// List returns the names of a directory's files, in order.
func (Files) List(dir string) (names []string, err error) {
	all, err := os.ReadDir(dir)
	if err != nil {
		return nil, Cause(err)
	}
	for _, one := range all {
		if !one.IsDir() {
			names = append(names, one.Name())
		}
	}
	return names, nil
}
