package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/disk"
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
	// at is the time in a recording of 'natkit record'.
	at moment
}

// readRecorded reads it, of a bundle with several network namespaces the first one; - is standard input.
func (e *Env) readRecorded(ctx context.Context, r recorded) (first *snapshot.Recording, err error) {
	n := 0
	err = e.eachRecorded(ctx, r, func(rec *snapshot.Recording) error {
		if n++; n == 1 {
			first = rec
		}
		return nil
	})
	if damage := (*snapshot.DamageError)(nil); errors.As(err, &damage) && n > 0 {
		e.note("%s: %v", r.name, damage)
		err = nil
	}
	if err != nil {
		return nil, err
	}
	e.noteCompared(first.Compared)
	for _, lost := range first.Lost {
		e.note("%s", lost)
	}
	if n > 1 {
		e.note("%s has %d network namespaces: this is the first one", r.name, n)
	}
	return first, nil
}

// eachRecorded calls each with each recording of a bundle, or with the one that texts of other programs make.
func (e *Env) eachRecorded(ctx context.Context, r recorded, each func(*snapshot.Recording) error) error {
	fn := func(rec *snapshot.Recording) error {
		rec.Elsewhere = true
		return each(rec)
	}
	if r.name != "-" && isRecording(r.name) {
		if r.host != "" {
			return usagef("--of %s: %s is a recording of 'natkit record', which is of one host", r.host, r.name)
		}
		return e.recordedAt(ctx, r, fn)
	}
	if r.at.given {
		return usagef("--at: %s is not a directory of 'natkit record'; a bundle has one time alone", r.name)
	}
	if info, err := os.Stat(r.name); err == nil && info.IsDir() && r.name != "-" {
		return r.texts(directory(ctx, r.name), nil, fn)
	}
	in, head, err := e.openRecorded(ctx, r.name)
	if err != nil {
		return err
	}
	defer in.Close()
	switch {
	case snapshot.IsBundle(head) && r.host != "":
		return usagef("--of %s: %s is a bundle, which is of one host", r.host, r.name)
	case snapshot.IsBundle(head) || len(head) == 0: // the reader meets another error again
		if err := collect.EachRecording(in, snapshot.NewBudget(r.memory), fn); err != nil {
			return malformed(fmt.Errorf("read bundle %s: %w", r.name, err))
		}
		return nil
	case r.name == "-":
		walk, remove, err := spooled(in)
		if err != nil {
			return fmt.Errorf("read standard input: %w", err)
		}
		defer remove()
		return r.texts(walk, head, fn)
	}
	return r.texts(archive(ctx, r.name), head, fn)
}

// withBundle opens a bundle for read, whose error it explains.
func (e *Env) withBundle(ctx context.Context, name string, read func(io.Reader) error) error {
	in, head, err := e.openRecorded(ctx, name)
	if err != nil {
		return err
	}
	defer in.Close()
	if err = read(in); err == nil {
		return nil
	}
	if what, verb := otherInput(head); verb != "" {
		err = fmt.Errorf("this is %s, not a bundle of 'natkit snapshot': natkit %s %s reads it", what, verb, name)
	}
	return malformed(fmt.Errorf("read bundle %s: %w", name, err))
}

// openRecorded opens a file, and shows how it begins.
func (e *Env) openRecorded(ctx context.Context, name string) (in *input, head []byte, err error) {
	if in, err = e.open(ctx, name, "a bundle of 'natkit snapshot' into it"); err != nil {
		return nil, nil, fmt.Errorf("read bundle: %w", err)
	}
	buffered := bufio.NewReaderSize(in.Reader, headSize)
	in.Reader = buffered
	if head, err = buffered.Peek(headSize); len(head) == 0 && errors.Is(err, io.EOF) {
		in.Close()
		return nil, nil, malformed(fmt.Errorf("read bundle %s: the file is empty; 'natkit snapshot' writes one", name))
	}
	return in, head, nil // the reader meets another error again
}

// texts reads what other programs printed. head is how a single file begins.
func (r recorded) texts(walk loose.Walk, head []byte, fn func(*snapshot.Recording) error) error {
	rec, err := collect.ReadLoose(walk, r.host, snapshot.NewBudget(r.memory))
	if err == nil {
		return fn(rec)
	}
	if how := howToRead(head, r.name); how != "" && errors.Is(err, loose.ErrNothing) {
		err = errors.New(how)
	}
	return malformed(fmt.Errorf("read %s: %w", r.name, err))
}

// directory walks through the plain files below a directory; it follows no links, and opens nothing outside. What the
// running kernel shows in place of files is no recording, and would not end.
func directory(ctx context.Context, name string) loose.Walk {
	return func(fn func(*loose.File) error) error {
		root, err := os.OpenRoot(name)
		if err != nil {
			return err
		}
		defer root.Close()
		if err := mayWalk(root); err != nil {
			return err
		}
		w := &walker{ctx, root, fn, directoryMax}
		return fs.WalkDir(root.FS(), ".", w.visit)
	}
}

// mayWalk refuses directories of the running system: 'natkit doctor' reads that itself.
func mayWalk(root *os.Root) error {
	kind, err := kernelFS(root, ".")
	if err != nil {
		return err
	}
	top, topErr := os.Stat("/")
	switch here, err := root.Stat("."); {
	case kind != "":
		return fmt.Errorf("it is the running kernel's (%s), not a recording: 'natkit doctor' without --from diagnoses this host", kind)
	case err == nil && topErr == nil && os.SameFile(here, top):
		return errors.New("it is the root of the running system, not a recording: 'natkit doctor' without --from diagnoses this host; to read texts give their directory")
	}
	return nil
}

// kernelFS is disk.KernelFS of a directory.
func kernelFS(root *os.Root, dir string) (string, error) {
	f, err := root.Open(dir)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return disk.KernelFS(f), nil
}

// walker hands on the files of a directory.
type walker struct {
	ctx  context.Context
	root *os.Root
	fn   func(*loose.File) error
	// left is how many bytes may be read yet.
	left int64
}

// directoryMax bounds what is read of a directory, as of an archive.
const directoryMax = 8 << 30

// bounded is a file that takes from what is left.
type bounded struct {
	io.Reader
	left *int64
}

func (b bounded) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	*b.left -= int64(n)
	return n, err
}

// visit is a fs.WalkDirFunc. What cannot be read, or has gone meanwhile, is a file that cannot be read: the others are of use.
func (w *walker) visit(path string, d fs.DirEntry, err error) error {
	if ended := w.ctx.Err(); ended != nil {
		return ended
	}
	switch {
	case err != nil && path == ".":
		return err
	case err != nil:
		return w.unread(path, err)
	case d.IsDir():
		kind, _ := kernelFS(w.root, path)
		if kind == "" { // why it cannot be opened, the next visit says
			return nil
		}
		return cmp.Or(w.unread(path, fmt.Errorf("passed over: it is the running kernel's (%s)", kind)), fs.SkipDir)
	case !d.Type().IsRegular():
		return nil
	}
	return w.file(path)
}

func (w *walker) file(path string) error {
	if w.left < 0 {
		return fmt.Errorf("it has more than %d GiB: give the directory with the texts alone", directoryMax>>30)
	}
	file, err := disk.OpenIn(w.root, path)
	if err != nil {
		return w.unread(path, err)
	}
	defer file.Close()
	f := &loose.File{Name: filepath.ToSlash(path), Reader: bounded{file, &w.left}}
	if info, err := file.Stat(); err == nil {
		f.Modified = info.ModTime()
	}
	return loose.Archive(f, w.fn)
}

// unread hands on a file with why it cannot be read, which is noted beside its name.
func (w *walker) unread(path string, err error) error {
	return w.fn(&loose.File{Name: filepath.ToSlash(path), Reader: unreadable{disk.Cause(err)}})
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

// spooled keeps standard input in a file, whose name is gone at once where the system allows that: nothing is left behind,
// also when natkit is killed.
func spooled(in io.Reader) (walk loose.Walk, remove func(), err error) {
	file, err := os.CreateTemp("", "natkit-")
	if err != nil {
		return nil, nil, err
	}
	gone := os.Remove(file.Name()) == nil // not on Windows
	remove = func() {
		file.Close()
		if !gone {
			os.Remove(file.Name())
		}
	}
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
