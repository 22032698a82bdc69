package store

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/permit"
)

// Files have addresses of connections: others than the group that the operator gives them to do not read them.
const (
	fileMode = 0o640
	dirMode  = 0o750
)

// directory is the root of partitions.
type directory struct {
	root string
	// made are those that were not there before, the innermost last.
	made []string
}

func openDirectory(root string) (*directory, error) {
	if err := permit.Output(root); err != nil {
		return nil, err
	}
	if info, err := os.Stat(root); err == nil && !info.IsDir() {
		return nil, errors.New("it is a file and not a directory; the name of a file ends in .parquet")
	}
	d := &directory{root: filepath.Clean(root)}
	if err := d.make(d.root); err != nil {
		return nil, err
	}
	if err := disk.MayReplace(filepath.Join(d.root, "part")); err != nil {
		d.end()
		return nil, err
	}
	return d, nil
}

// make makes a directory with those above it.
func (d *directory) make(dir string) error {
	if err := permit.File(dir); err != nil {
		return err
	}
	err := os.Mkdir(dir, dirMode)
	if errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir {
		if err = d.make(filepath.Dir(dir)); err == nil {
			err = os.Mkdir(dir, dirMode)
		}
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		d.made = append(d.made, dir)
	}
	return err
}

func (d *directory) begin(path string) (file, error) {
	path = filepath.Join(d.root, filepath.FromSlash(path))
	if err := permit.File(path); err != nil {
		return nil, err
	}
	if err := d.make(filepath.Dir(path)); err != nil {
		return nil, err
	}
	p, err := disk.Begin(path, fileMode)
	if err != nil {
		return nil, err
	}
	return pending{p}, nil
}

func (d *directory) single() bool { return false }

// end removes the directories that it made and that are empty.
func (d *directory) end() {
	for i := len(d.made) - 1; i >= 0; i-- {
		os.Remove(d.made[i]) // fails where a file is in it
	}
	d.made = nil
}

// pending is a file with a name on the disk.
type pending struct{ *disk.Pending }

func (p pending) finish() error { return p.Sync() }
func (p pending) commit() error { return p.Commit() }
func (p pending) abort()        { p.Abort() }

// oneFile is a file that the user names, which is replaced, or a pipe or device that is written to.
type oneFile struct {
	name    string
	special io.Writer
}

func openFile(name string, stdout io.Writer) (*oneFile, error) {
	if name == "-" {
		return &oneFile{special: stdout}, nil
	}
	target, special, err := disk.Destination(name)
	if err == nil {
		err = permit.Output(target)
	}
	switch {
	case err != nil:
		return nil, err
	case special:
		f, err := os.OpenFile(target, os.O_WRONLY, 0)
		return &oneFile{special: f}, err
	}
	return &oneFile{name: target}, disk.MayReplace(target)
}

func (o *oneFile) begin(string) (file, error) {
	if o.special != nil {
		return &stream{o.special}, nil
	}
	p, err := disk.Begin(o.name, fileMode)
	if err != nil {
		return nil, err
	}
	return pending{p}, nil
}

func (o *oneFile) single() bool { return true }

func (o *oneFile) end() {
	if c, ok := o.special.(*os.File); ok && c != os.Stdout {
		c.Close()
	}
}

// stream is what is written to as it comes; its reader finds out by the end of the file whether it is whole.
type stream struct{ io.Writer }

func (*stream) finish() error { return nil }
func (*stream) commit() error { return nil }
func (*stream) abort()        {}
