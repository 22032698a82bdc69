package ring

import (
	"bufio"
	"encoding/binary"
	"io"
	"io/fs"
	"math"
	"slices"
)

// Damage is what is lost inside a segment. What stands behind it is read.
type Damage struct {
	// Places are how many there are, of so many Bytes in all, the first at the offset First. A place is a frame, or several in
	// succession. Of a frame that cannot be read though its checksum is right, Contents alone knows.
	Places int   `json:"places"`
	Bytes  int64 `json:"bytes"`
	First  int64 `json:"first_at_byte"`
	// Snapshots are whole, and left out: the key snapshot that they need is lost.
	Snapshots int `json:"snapshots_left_out"`
}

func (d *Damage) add(offset, bytes int64) {
	if d.Places == 0 || offset < d.First {
		d.First = offset
	}
	d.Places++
	d.Bytes += bytes
}

const (
	// mostSearched is how far the next frame is looked for behind what is damaged: further than a frame reaches.
	mostSearched = 2 * mostPayload
	// step is how much of a file is read at a time.
	step = 1 << 16
	// What is read in vain is bounded: so many times the file, and so many bytes. Without that, a file made of what seems to begin
	// a frame would be read as often as it has bytes.
	vainTimes = 16
	vainBytes = 1 << 20
)

// scanner reads frames of a file that may be damaged anywhere.
type scanner struct {
	file fs.File
	in   *bufio.Reader
	// size is that of the file, at the offset that in reads next.
	size, at int64
	// vain is how many more bytes may be read in vain.
	vain    int64
	payload []byte
	// err is that of the file itself.
	err error
}

func newScanner(file fs.File, in *bufio.Reader, size int64) *scanner {
	return &scanner{file: file, in: in, size: size, at: -1, vain: vainTimes*size + vainBytes}
}

// read fills b from an offset on.
func (s *scanner) read(b []byte, offset int64) bool {
	if s.at != offset {
		if s.err = seek(s.file, offset); s.err != nil {
			return false
		}
		s.in.Reset(s.file)
	}
	n, err := io.ReadFull(s.in, b)
	s.at = offset + int64(n)
	return err == nil
}

// frame reads the one at an offset, if it is whole. head is what stands where its header would be, nil at the end of the file.
func (s *scanner) frame(offset int64) (f Frame, head []byte, whole bool) {
	if offset+headerBytes > s.size {
		return f, nil, false
	}
	head = make([]byte, headerBytes)
	if !s.read(head, offset) {
		return f, nil, false
	}
	f, length, crc := parseFrame(head)
	f.Bytes, f.offset = int64(headerBytes+length), offset
	whole = s.fits(offset, length) && s.sum(head, length) == crc
	if !whole {
		s.vain -= max(s.at-offset, min(step, s.size-offset))
	}
	return f, head, whole
}

// fits reports whether a frame at an offset ends within the file.
func (s *scanner) fits(offset int64, length int) bool {
	return length <= mostPayload && offset+headerBytes+int64(length) <= s.size
}

// sum is the checksum of a header and so many bytes, which are read from behind it.
func (s *scanner) sum(head []byte, length int) uint32 {
	if cap(s.payload) < length {
		s.payload = make([]byte, length)
	}
	s.payload = s.payload[:length]
	if !s.read(s.payload, s.at) {
		s.payload = s.payload[:0]
	}
	return checksum(head, s.payload)
}

// next finds the whole frame that follows what is damaged at an offset: where the damaged one ends by its length, unless that is
// what is wrong, or else the nearest.
func (s *scanner) next(offset int64, head []byte) (f Frame, found bool) {
	nearest, found := s.nearest(offset)
	if _, length, _ := parseFrame(head); s.fits(offset, length) {
		behind := offset + headerBytes + int64(length)
		if found && nearest.offset == behind || found && s.kindOf(offset, slices.Clone(head), nearest.offset) != 0 {
			return nearest, true
		}
		if f, _, whole := s.frame(behind); whole {
			return f, true
		}
	}
	return nearest, found
}

// nearest finds the first whole frame behind an offset.
func (s *scanner) nearest(offset int64) (f Frame, found bool) {
	block := make([]byte, step+headerBytes)
	for from := offset + 1; from+headerBytes <= min(s.size, offset+mostSearched) && s.vain > 0 && s.err == nil; from += step {
		part := block[:min(int64(len(block)), s.size-from)]
		s.vain -= int64(len(part))
		if !s.read(part, from) {
			return f, false
		}
		for i := 0; i < step && i+headerBytes <= len(part) && s.vain > 0; i++ {
			if !s.mayBegin(part[i:], from+int64(i)) {
				continue
			}
			if f, _, found = s.frame(from + int64(i)); found {
				return f, true
			}
		}
	}
	return f, false
}

// mayBegin reports whether a header of a frame that this natkit writes may stand there.
func (s *scanner) mayBegin(b []byte, offset int64) bool {
	return plausible(b) && binary.LittleEndian.Uint64(b[20:]) <= math.MaxInt64 && s.fits(offset, int(binary.LittleEndian.Uint32(b)))
}

// plausible reports whether a header has a known kind and flags, and zeros behind.
func plausible(b []byte) bool {
	kind := Kind(b[8])
	return kind >= KindKey && kind <= KindPoint && b[9]&^flagTraced == 0 && b[10] == 0 && b[11] == 0
}

// mayBeKey reports whether a key snapshot may have been lost between an offset, where head stands, and the next whole frame: a
// snapshot that is unpacked with another one than its own is wrong, and nothing shows that.
func (s *scanner) mayBeKey(offset int64, head []byte, next int64) bool {
	f, length, _ := parseFrame(head)
	one := next == offset+headerBytes+int64(length) && plausible(head)
	if kind := s.kindOf(offset, slices.Clone(head), next); kind != 0 {
		return kind == KindKey
	}
	return !one || f.Kind == KindKey
}

// kindOf is that of a frame from an offset, where head stands, to the next one, of which the length is wrong, or what says the
// kind: with the right one it has its checksum. 0 is for any other damage. It changes head.
func (s *scanner) kindOf(offset int64, head []byte, next int64) Kind {
	bytes := int(next - offset - headerBytes)
	if bytes < 0 || bytes > mostPayload || s.vain < 0 || !s.read(head, offset) {
		return 0
	}
	_, _, crc := parseFrame(head)
	s.sum(head, bytes)
	s.vain -= int64(bytes)
	head[10], head[11] = 0, 0
	for kind := KindKey; kind <= KindPoint; kind++ {
		for head[9] = range byte(flagTraced + 1) {
			head[8] = byte(kind)
			if checksum(head, s.payload) == crc {
				return kind
			}
		}
	}
	return 0
}
