package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/loose"
	"github.com/natkit/natkit/internal/snapshot"
)

// recorded is a recording of another host that a verb reads: a bundle of 'natkit snapshot', or what other programs
// printed there, in a directory, an archive or a file.
type recorded struct {
	name string
	// host is whose texts are read, where there are several: node/netns.
	host string
	// memory is what it may take, in bytes.
	memory int64
}

// readRecorded reads it; - is standard input.
func (e *Env) readRecorded(ctx context.Context, r recorded) (*snapshot.Recording, error) {
	if info, err := os.Stat(r.name); err == nil && info.IsDir() && r.name != "-" {
		return r.texts(directory(ctx, r.name), nil)
	}
	in, err := e.open(ctx, r.name, "a bundle of 'natkit snapshot' into it")
	if err != nil {
		return nil, fmt.Errorf("read bundle: %w", err)
	}
	defer in.Close()
	buffered := bufio.NewReaderSize(in, headSize)
	head, err := buffered.Peek(headSize)
	switch {
	case len(head) == 0 && errors.Is(err, io.EOF):
		return nil, malformed(fmt.Errorf("read bundle %s: the file is empty; 'natkit snapshot' writes one", r.name))
	case snapshot.IsBundle(head) || len(head) == 0: // the reader meets another error again
		rec, err := collect.ReadBundle(buffered, snapshot.NewBudget(r.memory))
		if err != nil {
			return nil, malformed(fmt.Errorf("read bundle %s: %w", r.name, err))
		}
		if r.host != "" {
			return nil, usagef("--of %s: %s is a bundle, which is of one host", r.host, r.name)
		}
		return rec, nil
	case r.name == "-":
		walk, remove, err := spooled(buffered)
		if err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		defer remove()
		return r.texts(walk, head)
	}
	return r.texts(archive(ctx, r.name), head)
}

// texts reads what other programs printed. head is how a single file begins.
func (r recorded) texts(walk loose.Walk, head []byte) (*snapshot.Recording, error) {
	rec, err := collect.ReadLoose(walk, r.host, snapshot.NewBudget(r.memory))
	if err == nil {
		return rec, nil
	}
	if what, verb := otherInput(head); what != "" && errors.Is(err, loose.ErrNothing) {
		err = fmt.Errorf("this is %s: natkit %s %s reads it", what, verb, r.name)
	}
	return nil, malformed(fmt.Errorf("read %s: %w", r.name, err))
}

// directory walks through the plain files below a directory; it follows no links, and opens nothing outside.
func directory(ctx context.Context, name string) loose.Walk {
	return func(fn func(*loose.File) error) error {
		root, err := os.OpenRoot(name)
		if err != nil {
			return err
		}
		defer root.Close()
		return fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
			if err == nil {
				err = ctx.Err()
			}
			if err != nil && !errors.Is(err, fs.ErrPermission) || err == nil && !d.Type().IsRegular() {
				return err
			}
			f := &loose.File{Name: filepath.ToSlash(path), Reader: unreadable{err}}
			if err != nil {
				return fn(f)
			}
			file, err := root.Open(path)
			if err != nil {
				f.Reader = unreadable{err}
				return fn(f)
			}
			defer file.Close()
			if info, err := file.Stat(); err == nil {
				f.Modified = info.ModTime()
			}
			f.Reader = file
			return loose.Archive(f, fn)
		})
	}
}

// unreadable is the content of a file that cannot be opened.
type unreadable struct{ err error }

func (u unreadable) Read([]byte) (int, error) { return 0, u.err }

// archive walks through the files of an archive, or a single file.
func archive(ctx context.Context, name string) loose.Walk {
	return func(fn func(*loose.File) error) error {
		file, err := openUntil(ctx, name)
		if err != nil {
			return err
		}
		defer file.Close()
		return walkArchive(file, fn)
	}
}

func walkArchive(file *os.File, fn func(*loose.File) error) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	return loose.Archive(&loose.File{Name: filepath.Base(file.Name()), Modified: info.ModTime(), Reader: file}, fn)
}

// spoolMax bounds what is taken from standard input, which has to be read twice.
const spoolMax = 8 << 30

// spooled keeps standard input in a file without a name.
func spooled(in io.Reader) (walk loose.Walk, remove func(), err error) {
	file, err := os.CreateTemp("", "natkit-")
	if err != nil {
		return nil, nil, err
	}
	remove = func() { file.Close(); os.Remove(file.Name()) }
	n, err := io.Copy(file, io.LimitReader(in, spoolMax+1))
	if err == nil && n > spoolMax {
		err = fmt.Errorf("it has more than %d bytes", int64(spoolMax))
	}
	if err != nil {
		remove()
		return nil, nil, err
	}
	return func(fn func(*loose.File) error) error {
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return err
		}
		return walkArchive(file, fn)
	}, remove, nil
}

// severalTexts is the walk through a directory or an archive; nil for a single file.
func severalTexts(ctx context.Context, name string) (loose.Walk, error) {
	file, err := openUntil(ctx, name)
	if err != nil {
		return nil, nil // who opens it as a file says why it cannot be read
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil || !info.IsDir() && !info.Mode().IsRegular():
		return nil, err
	case info.IsDir():
		return directory(ctx, name), nil
	case loose.IsArchive(file):
		return archive(ctx, name), nil
	}
	return nil, nil
}
