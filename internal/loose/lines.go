package loose

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// errBinary is the error of a file that is no text.
var errBinary = errors.New("it is no text")

// lines reads the lines of a text.
type lines struct {
	r *bufio.Reader
	// offset is behind the last line, start where it begins, in bytes.
	offset, start int64
}

// linesBytes is more than lineMax.
const linesBytes = 128 << 10

// next returns a line without its end, of \n or \r\n, valid until the next call; of a very long one the beginning.
func (l *lines) next() ([]byte, error) {
	l.start = l.offset
	line, err := l.r.ReadSlice('\n')
	l.offset += int64(len(line))
	if errors.Is(err, bufio.ErrBufferFull) {
		line = bytes.Clone(line[:lineMax])
		for errors.Is(err, bufio.ErrBufferFull) {
			var rest []byte
			rest, err = l.r.ReadSlice('\n')
			l.offset += int64(len(rest))
		}
	}
	if err != nil && (!errors.Is(err, io.EOF) || len(line) == 0) { // the beginning of a line may be half a number
		return nil, err
	}
	if bytes.IndexByte(line, 0) >= 0 {
		return nil, errBinary
	}
	if l.start == 0 {
		line = bytes.TrimPrefix(line, []byte("\ufeff"))
	}
	return bytes.TrimRight(line[:min(len(line), lineMax)], "\r\n"), nil
}

// decompressors are told by the first bytes (RFC 1952, bzip2's and xz' formats, RFC 8878).
var decompressors = []struct {
	magic string
	open  func(*bufio.Reader) (io.Reader, error)
}{
	{"\x1f\x8b", func(r *bufio.Reader) (io.Reader, error) { return gzip.NewReader(r) }},
	{"BZh", func(r *bufio.Reader) (io.Reader, error) { return bzip2.NewReader(r), nil }},
	{"\xfd7zXZ\x00", openXZ},
	{"\x28\xb5\x2f\xfd", func(r *bufio.Reader) (io.Reader, error) {
		d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(windowMax), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	}},
}

// windowMax bounds the memory of a decompressor: the window of xz -9, and of zstd without --long.
const windowMax = 64 << 20

// openXZ refuses a window that is too large, which the reader would allocate as the header says.
func openXZ(r *bufio.Reader) (io.Reader, error) {
	head, _ := r.Peek(64)
	if n := xzWindow(head); n > windowMax {
		return nil, fmt.Errorf("it needs a window of %d MiB, more than %d", n>>20, windowMax>>20)
	}
	return xz.ReaderConfig{DictCap: 1 << 16}.NewReader(r)
}

// xzWindow is the size of LZMA2's dictionary in the header of the first block (The .xz File Format 3.1 and 5.3.1); 0 where
// there is none.
func xzWindow(head []byte) uint64 {
	const block, lzma2 = 12, 0x21
	if len(head) < block+2 {
		return 0
	}
	at := block + 2
	for _, there := range []byte{0x40, 0x80} { // the sizes of the block
		for head[block+1]&there != 0 && at < len(head) {
			if at++; head[at-1] < 0x80 {
				break
			}
		}
	}
	if at+2 >= len(head) || head[at] != lzma2 {
		return 0
	}
	bits := uint64(head[at+2])
	return (2 | bits&1) << (min(bits, 40)/2 + 11)
}

// decompressed takes off a compression that it knows, and UTF-16 as Windows' shells write it.
func decompressed(r io.Reader) (io.Reader, error) {
	b := bufio.NewReaderSize(r, 4096)
	head, err := b.Peek(6)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	for _, d := range decompressors {
		if bytes.HasPrefix(head, []byte(d.magic)) {
			plain, err := d.open(b)
			if err != nil {
				return nil, fmt.Errorf("decompress: %w", err)
			}
			return plain, nil
		}
	}
	return UTF8(b), nil
}
