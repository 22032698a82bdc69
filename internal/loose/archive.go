package loose

import (
	"archive/tar"
	"bufio"
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

// limited fails where io.LimitedReader would feign an end.
type limited struct {
	r    io.Reader
	left *int64
}

func (l limited) Read(p []byte) (int, error) {
	if *l.left <= 0 {
		return 0, fmt.Errorf("it unpacks to more than %d bytes", int64(unpackedMax))
	}
	n, err := l.r.Read(p[:min(int64(len(p)), *l.left)])
	*l.left -= int64(n)
	return n, err
}

// Archive calls fn for the plain files of a tar archive, which may be compressed, and of archives in it. Links and
// devices are passed over, and names that lead out of it are names only. What is no archive is one file.
func Archive(f *File, fn func(*File) error) error {
	left := int64(unpackedMax)
	return archive(f, &left, 0, fn)
}

func archive(f *File, left *int64, depth int, fn func(*File) error) error {
	plain, err := decompressed(f.Reader)
	switch {
	case err != nil && depth > 0: // the others are of use
		return fn(&File{f.Name, f.Modified, broken{err}})
	case err != nil:
		return err
	}
	b := bufio.NewReaderSize(limited{plain, left}, 4096)
	if head, _ := b.Peek(512); depth >= nestedMost || !isTar(head) {
		return fn(&File{f.Name, f.Modified, b})
	}
	for t := tar.NewReader(b); ; {
		h, err := t.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return truncated(err)
		case h.Typeflag != tar.TypeReg:
			continue
		}
		if err := archive(&File{path.Clean("/" + h.Name)[1:], h.ModTime, t}, left, depth+1, fn); err != nil {
			return err
		}
	}
}

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

func truncated(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the archive is truncated")
	}
	return fmt.Errorf("read the archive: %w", err)
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
