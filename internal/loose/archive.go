package loose

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

// unpackedMax bounds what an archive unpacks to, nestedMost archives in archives.
const (
	unpackedMax = 8 << 30
	nestedMost  = 2
)

// errUnpacked ends an archive that unpacks to more.
var errUnpacked = fmt.Errorf("it unpacks to more than %d bytes", int64(unpackedMax))

// limited fails where io.LimitedReader would feign an end.
type limited struct {
	r    io.Reader
	left *int64
}

func (l limited) Read(p []byte) (int, error) {
	if *l.left <= 0 {
		return 0, errUnpacked
	}
	n, err := l.r.Read(p[:min(int64(len(p)), *l.left)])
	*l.left -= int64(n)
	return n, err
}

// Archive calls fn for the plain files of a tar archive, which may be compressed, and of archives in it. Links and
// devices are passed over, and names that lead out of it are names only. What is no archive is one file. Of an archive
// that is truncated or damaged fn gets the files before that, and then one whose content is a DamageError.
func Archive(f *File, fn func(*File) error) error {
	left := int64(unpackedMax)
	return archive(f, &left, 0, fn)
}

func archive(f *File, left *int64, depth int, fn func(*File) error) error {
	plain, err := decompressed(f.Reader)
	if err != nil { // the others are of use
		return fn(&File{f.Name, f.Modified, broken{err}})
	}
	b := bufio.NewReaderSize(limited{plain, left}, 4096)
	if head, _ := b.Peek(512); depth >= nestedMost || !isTar(head) {
		return fn(&File{f.Name, f.Modified, b})
	}
	read := &zeroTail{Reader: b}
	t, last := tar.NewReader(read), ""
	for {
		h, err := t.Next()
		switch {
		case errors.Is(err, io.EOF) && read.zeros < blockBytes: // between two files
			err = io.ErrUnexpectedEOF
		case errors.Is(err, io.EOF):
			// To the checksum; what stands behind that, such as the zeros of a tape, is none of the archive's.
			if _, err = io.Copy(io.Discard, b); err == nil || errors.Is(err, gzip.ErrHeader) {
				return nil
			}
			last = ""
		}
		switch {
		case errors.Is(err, context.Canceled):
			return err
		case err != nil:
			return fn(&File{f.Name, f.Modified, broken{&DamageError{f.Name, last, err}}})
		case h.Typeflag != tar.TypeReg:
			continue
		}
		last = path.Clean("/" + h.Name)[1:]
		if err := archive(&File{last, h.ModTime, t}, left, depth+1, fn); err != nil {
			return err
		}
	}
}

// blockBytes is the size of a block of a tar archive, which ends with two of zeros.
const blockBytes = 512

// zeroTail counts the zeros at the end of what was read.
type zeroTail struct {
	io.Reader
	zeros int
}

func (z *zeroTail) Read(p []byte) (n int, err error) {
	n, err = z.Reader.Read(p)
	kept := len(bytes.TrimRight(p[:n], "\x00"))
	if kept > 0 {
		z.zeros = 0
	}
	z.zeros += n - kept
	return n, err
}

// DamageError is why not all of an archive can be read.
type DamageError struct {
	// Archive is its name, Last that of the last file in it that was met; empty where all of them could be read.
	Archive, Last string
	Err           error
}

func (d *DamageError) Error() string {
	switch short := errors.Is(d.Err, io.ErrUnexpectedEOF); {
	case short && d.Last == "":
		return fmt.Sprintf("%s is truncated behind its last file: its checksum cannot be verified", d.Archive)
	case short:
		return fmt.Sprintf("%s is truncated at %s: what followed is lost", d.Archive, d.Last)
	case errors.Is(d.Err, errUnpacked):
		return fmt.Sprintf("%s is read up to %s: %v", d.Archive, cmp.Or(d.Last, "its last file"), d.Err)
	case d.Last == "":
		return fmt.Sprintf("%s is damaged (%v): any of its numbers may be wrong", d.Archive, d.Err)
	}
	return fmt.Sprintf("%s is damaged at %s (%v): what followed is lost, and numbers before it may be wrong", d.Archive, d.Last, d.Err)
}

func (d *DamageError) Unwrap() error { return d.Err }

// IsArchive reports whether a file begins as a tar archive, compressed or not.
func IsArchive(r io.Reader) bool {
	plain, err := decompressed(r)
	if err != nil {
		return false
	}
	head := make([]byte, 512)
	n, _ := io.ReadFull(plain, head)
	return isTar(head[:n])
}

// isTar reports whether a block is the header of a member: it has its mark (POSIX ustar, GNU), or its checksum.
func isTar(head []byte) bool {
	if len(head) < 512 {
		return false
	}
	if strings.HasPrefix(string(head[257:]), "ustar") {
		return true
	}
	var sum, want int64
	for i, c := range head[:512] {
		if i >= 148 && i < 156 {
			c = ' '
		}
		sum += int64(c)
	}
	for _, c := range strings.Trim(string(head[148:156]), " \x00") {
		if c < '0' || c > '7' {
			return false
		}
		want = want*8 + int64(c-'0')
	}
	return head[0] != 0 && sum == want
}

// broken is the content of a member that cannot be read.
type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }
