package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// archive is what an initramfs holds, by absolute path. Adding a path adds the
// directories above it.
type archive map[string]entry

// entry is one file: its content is that of the host's file from, or else text.
type entry struct {
	mode uint32 // with the bits of the file's kind (inode(7))
	from string
	text string // of a symbolic link its target
	// Of a device file.
	major, minor uint32
}

// The kinds of files, inode(7).
const (
	directory = 0o040000
	character = 0o020000
	regular   = 0o100000
	link      = 0o120000
)

func (a archive) add(name string, e entry) {
	name = path.Clean(name)
	for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
		if _, known := a[dir]; !known {
			a[dir] = entry{mode: directory | 0o755}
		}
	}
	a[name] = e
}

// addText adds a file of our own.
func (a archive) addText(name, text string) { a.add(name, entry{mode: regular | 0o644, text: text}) }

// addHost adds a file of the host where it lies there, with the symbolic links on
// the way to it.
func (a archive) addHost(name string) error {
	const mostLinks = 40 // as the kernel does, path_resolution(7)
	for range mostLinks {
		next, err := a.addHostStep(name)
		if err != nil || next == "" {
			return err
		}
		name = next
	}
	return fmt.Errorf("add %s to the VM: too many symbolic links", name)
}

// addHostStep follows name to its end or to the first symbolic link; then it gives
// the path on which to go on.
func (a archive) addHostStep(name string) (string, error) {
	name = path.Clean(name)
	words := strings.Split(strings.TrimPrefix(name, "/"), "/")
	for i := range words {
		at := "/" + strings.Join(words[:i+1], "/")
		info, err := os.Lstat(at)
		if err != nil {
			return "", fmt.Errorf("add %s to the VM: %w", name, err)
		}
		switch {
		case info.Mode().Type() == fs.ModeSymlink:
			target, err := os.Readlink(at)
			if err != nil {
				return "", fmt.Errorf("add %s to the VM: %w", name, err)
			}
			a.add(at, entry{mode: link | 0o777, text: target})
			if !path.IsAbs(target) {
				target = path.Join(path.Dir(at), target)
			}
			return path.Join(append([]string{target}, words[i+1:]...)...), nil
		case info.Mode().IsRegular():
			a.addFile(at, at, info)
		}
	}
	return "", nil
}

// addFile adds the host's file from under another name.
func (a archive) addFile(name, from string, info fs.FileInfo) {
	a.add(name, entry{mode: regular | uint32(info.Mode().Perm()), from: from})
}

// addTree adds the files below a directory of the host as they lie there, but for
// the directories that skip names. A link may lead nowhere, as those do that editors
// lock files with.
func (a archive) addTree(root string, skip func(dir string) bool) error {
	return fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		at := path.Join(root, name)
		switch {
		case err != nil:
			return fmt.Errorf("add %s to the VM: %w", at, err)
		case d.IsDir() && name != "." && skip != nil && skip(name):
			return fs.SkipDir
		case d.IsDir():
			a.add(at, entry{mode: directory | 0o755})
			return nil
		case d.Type() == fs.ModeSymlink:
			if err := a.addHost(at); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		case d.Type().IsRegular():
			return a.addHost(at)
		}
		return nil
	})
}

// write gives the archive in the format that the kernel unpacks, "newc"
// (Documentation/driver-api/early-userspace/buffer-format.rst). It is not
// compressed: an emulated processor copies faster than it unpacks.
func (a archive) write(w io.Writer) error {
	out := &newc{w: bufio.NewWriterSize(w, 1<<20)}
	names := make([]string, 0, len(a))
	for name := range a {
		names = append(names, name)
	}
	slices.Sort(names) // directories come before what is in them
	for _, name := range names {
		if err := out.entry(strings.TrimPrefix(name, "/"), a[name]); err != nil {
			return fmt.Errorf("write %s to the initramfs: %w", name, err)
		}
	}
	if err := out.entry("TRAILER!!!", entry{}); err != nil {
		return fmt.Errorf("write the initramfs: %w", err)
	}
	return out.w.Flush()
}

type newc struct {
	w     *bufio.Writer
	inode uint32
}

func (c *newc) entry(name string, e entry) error {
	content, size := io.Reader(strings.NewReader(e.text)), int64(len(e.text))
	if e.from != "" {
		f, err := os.Open(e.from)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		content, size = f, info.Size()
	}
	if size >= 1<<32 {
		return fmt.Errorf("%d bytes are more than the format holds", size)
	}
	c.inode++
	const links = 1
	// Owner, group and time are zero: everything is root's.
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		c.inode, e.mode, 0, 0, links, 0, size, 0, 0, e.major, e.minor, len(name)+1, 0, name)
	if _, err := c.w.WriteString(header); err != nil {
		return err
	}
	if err := c.pad(int64(len(header))); err != nil {
		return err
	}
	// A file that grows meanwhile must not shift what follows.
	if _, err := io.CopyN(c.w, content, size); err != nil {
		return err
	}
	return c.pad(size)
}

// pad fills up to a multiple of four bytes.
func (c *newc) pad(n int64) error {
	_, err := c.w.Write(make([]byte, (4-n%4)%4))
	return err
}
