// Package ring is the form of a flight recording on disk, and how it is written and read: segments of frames with
// checksums, of which the oldest make room for new ones.
//
// A segment is a file: a line of JSON (Header), then frames. A frame is 28 bytes, in little-endian order, and its
// payload:
//
//	0  length of the payload
//	4  CRC-32C of all that follows
//	8  kind, flags, and two bytes of 0
//	12 wall clock in nanoseconds since 1970
//	20 CLOCK_MONOTONIC in nanoseconds
//
// Frames are only ever appended. What a crash leaves of the last one does not have its checksum, and ends the segment:
// a recorder that starts begins another segment. What is damaged elsewhere is passed over, up to the next whole frame. A snapshot is the members of a bundle, compressed by zstd; most have the
// members that differ from those of the last key snapshot of their segment, compressed with that as the dictionary.
package ring

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/natkit/natkit/internal/snapshot"
)

// Schema names the form of the segments that this natkit writes and reads.
const Schema = "natkit.ring/1"

// Suffix is what names of segments end with; before it they have a number that grows.
const Suffix = ".natring"

// Kind is what a frame holds.
type Kind uint8

// Kinds of frames. A reader passes over those that it does not know.
const (
	// KindKey is a snapshot by itself, KindDelta one that needs the key snapshot before it.
	KindKey Kind = iota + 1
	KindDelta
	// KindEvent is an Event, in JSON.
	KindEvent
	// KindPackets are headers of packets.
	KindPackets
	// KindDrops is a snapshot.Drops of the time since the snapshot before, in JSON.
	KindDrops
	// KindDropped are headers of packets that the kernel dropped, of that time.
	KindDropped
	// KindPoint is a Point of the snapshot before it, in JSON.
	KindPoint
)

// flagTraced is set of a snapshot with which something was traced.
const flagTraced = 1

// traceMember is what such a snapshot has.
const traceMember = "trace.json"

const (
	headerBytes = 28
	// mostPayload bounds a frame, mostBody what it unpacks to.
	mostPayload = 32 << 20
	mostBody    = 64 << 20
	mostLine    = 4096
	// mostMembers and mostPackets bound what a small payload becomes in memory.
	mostMembers = 1 << 16
	mostPackets = 1 << 18
)

// Header is the first line of a segment.
type Header struct {
	Schema string `json:"schema"`
	// WrittenBy is the version of natkit.
	WrittenBy string `json:"written_by,omitempty"`
	Host      string `json:"host,omitempty"`
	// Netns is the namespace's name; empty for the one natkit ran in.
	Netns string `json:"netns,omitempty"`
	// Run is the same in all segments of one run of the recorder.
	Run       string    `json:"run"`
	StartedAt time.Time `json:"started_at"`
	// EverySeconds is the time from one snapshot to the next that was asked for.
	EverySeconds float64 `json:"every_seconds"`
}

// Stamp is a moment on two clocks.
type Stamp struct {
	Wall   time.Time
	Uptime time.Duration
}

// Event is what happened beside the snapshots.
type Event struct {
	// Event is a name below.
	Event string `json:"event"`
	// Text is that of a mark, or what a trigger was.
	Text string `json:"text,omitempty"`
	// ID is the finding of a trigger, or empty.
	ID string `json:"id,omitempty"`
	// Severity is that of the finding.
	Severity string `json:"severity,omitempty"`
	// Snapshots were not recorded since the last event of this kind, and why.
	Snapshots uint64 `json:"snapshots,omitempty"`
	Why       string `json:"why,omitempty"`
	// Kept is the directory that a trigger's minutes were copied to, Of the time of the snapshot that triggered, also of a
	// trigger and a mark.
	Kept string    `json:"kept,omitempty"`
	Of   time.Time `json:"of,omitzero"`
}

// Point is a few numbers of a snapshot, for those who want the course of hours and not the snapshots themselves.
type Point struct {
	// NetnsInode is that of the namespace.
	NetnsInode uint64             `json:"netns_inode"`
	Values     map[string]float64 `json:"values"`
}

// Names of Event.Event.
const (
	EventMark    = "mark"
	EventTrigger = "trigger"
	EventKept    = "kept"
	EventLost    = "lost"
	EventEnded   = "ended"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendFrame appends the header and the payload.
func appendFrame(to []byte, kind Kind, flags byte, at Stamp, payload []byte) []byte {
	begin := len(to)
	to = binary.LittleEndian.AppendUint32(to, uint32(len(payload)))
	to = binary.LittleEndian.AppendUint32(to, 0)
	to = append(to, byte(kind), flags, 0, 0)
	to = binary.LittleEndian.AppendUint64(to, uint64(at.Wall.UnixNano()))
	to = binary.LittleEndian.AppendUint64(to, uint64(at.Uptime))
	to = append(to, payload...)
	binary.LittleEndian.PutUint32(to[begin+4:], checksum(to[begin:begin+headerBytes], payload))
	return to
}

func checksum(header, payload []byte) uint32 {
	return crc32.Update(crc32.Checksum(header[8:], castagnoli), castagnoli, payload)
}

// parseFrame reads a header.
func parseFrame(b []byte) (f Frame, length int, crc uint32) {
	f.Kind, f.flags = Kind(b[8]), b[9]
	f.Wall = time.Unix(0, int64(binary.LittleEndian.Uint64(b[12:]))).UTC()
	f.Uptime = time.Duration(binary.LittleEndian.Uint64(b[20:]))
	return f, int(binary.LittleEndian.Uint32(b)), binary.LittleEndian.Uint32(b[4:])
}

// same stands for the length of a member that is as in the key snapshot.
const same = 0

// appendMembers appends the members, those that are the same in key without their content.
func appendMembers(to []byte, members []snapshot.BundleMember, key map[string][]byte) []byte {
	for _, m := range members {
		to = binary.AppendUvarint(to, uint64(len(m.Name)))
		to = append(to, m.Name...)
		if was, known := key[m.Name]; known && string(was) == string(m.Data) {
			to = binary.AppendUvarint(to, same)
			continue
		}
		to = binary.AppendUvarint(to, uint64(len(m.Data))+1)
		to = append(to, m.Data...)
	}
	return to
}

var errMembers = errors.New("its members are damaged")

// parseMembers reads what appendMembers wrote. Their content is part of body and key.
func parseMembers(body []byte, key map[string][]byte) (members []snapshot.BundleMember, err error) {
	next := func(size uint64) []byte {
		if size > uint64(len(body)) {
			err = errMembers
			return nil
		}
		data := body[:size:size]
		body = body[size:]
		return data
	}
	length := func() uint64 {
		n, size := binary.Uvarint(body)
		if size <= 0 {
			err = errMembers
			return 0
		}
		body = body[size:]
		return n
	}
	for len(body) > 0 && err == nil {
		m := snapshot.BundleMember{Name: string(next(length()))}
		if n := length(); n != same && err == nil {
			m.Data = next(n - 1)
		} else if err == nil {
			was, known := key[m.Name]
			if !known {
				return nil, errMembers
			}
			m.Data = was
		}
		if members = append(members, m); len(members) > mostMembers {
			return nil, errMembers
		}
	}
	if err != nil {
		return nil, err
	}
	return members, nil
}

// byName finds members; the key of what is the same in another snapshot.
func byName(members []snapshot.BundleMember) map[string][]byte {
	all := make(map[string][]byte, len(members))
	for _, m := range members {
		all[m.Name] = m.Data
	}
	return all
}

// dictionary numbers the dictionary of a delta in its zstd frame; it has no meaning but there.
const dictionary = 1

// windowBytes is how far back matches reach: beyond a snapshot and its dictionary of usual size.
const windowBytes = 8 << 20

// least is the size from which zstd takes a dictionary.
const least = 8

func newEncoder(dict []byte) (*zstd.Encoder, error) {
	o := []zstd.EOption{zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithWindowSize(windowBytes), zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false)}
	if len(dict) >= least {
		o = append(o, zstd.WithEncoderDictRaw(dictionary, dict))
	}
	return zstd.NewWriter(nil, o...)
}

// unpacker decompresses payloads that have the same dictionary. It is for one goroutine; its zero value has none.
type unpacker struct {
	dict    []byte
	decoder *zstd.Decoder
}

func (u *unpacker) unpack(payload []byte) (body []byte, err error) {
	if u.decoder == nil {
		if u.decoder, err = newDecoder(u.dict); err != nil {
			return nil, err
		}
	}
	if err := believable(payload); err != nil {
		return nil, fmt.Errorf("unpack: %w", err)
	}
	body, err = u.decoder.DecodeAll(payload, nil)
	if err != nil {
		return nil, fmt.Errorf("unpack: %w", err)
	}
	return body, nil
}

func newDecoder(dict []byte) (*zstd.Decoder, error) {
	o := []zstd.DOption{zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(mostBody), zstd.WithDecoderMaxWindow(windowBytes)}
	if len(dict) >= least {
		o = append(o, zstd.WithDecoderDictRaw(dictionary, dict))
	}
	return zstd.NewReader(nil, o...)
}

// Blocks of a zstd frame (RFC 8878, 3.1.1.2).
const (
	zstdBlockHeader = 3
	zstdMostBlock   = 128 << 10
	zstdRepeated    = 1 // type of a block that is one byte, repeated
)

var errUnpacked = errors.New("its length does not fit its content")

// believable refuses a payload that announces more than its blocks can hold: a decoder makes room for what is announced.
func believable(payload []byte) error {
	var header zstd.Header
	if len(payload) == 0 {
		return nil
	}
	if err := header.Decode(payload); err != nil {
		return err
	}
	if header.Skippable { // natkit writes none
		return errUnpacked
	}
	most := uint64(0)
	for rest, last := payload[header.HeaderSize:], false; !last; {
		if len(rest) < zstdBlockHeader {
			return errUnpacked
		}
		head := uint32(rest[0]) | uint32(rest[1])<<8 | uint32(rest[2])<<16
		last = head&1 > 0
		size := int(head >> 3)
		if head>>1&3 == zstdRepeated {
			size = 1
		}
		if rest = rest[zstdBlockHeader:]; size > len(rest) {
			return errUnpacked
		}
		rest = rest[size:]
		most += zstdMostBlock
		if last && len(rest) > 0 {
			return errUnpacked
		}
	}
	if header.FrameContentSize > most {
		return errUnpacked
	}
	return nil
}

func segmentName(number uint64) string { return fmt.Sprintf("%08d%s", number, Suffix) }

// segmentNumber is that of a name, false for files that are no segments.
func segmentNumber(name string) (number uint64, is bool) {
	var rest string
	if n, _ := fmt.Sscanf(name, "%d%s", &number, &rest); n != 2 || rest != Suffix || segmentName(number) != name {
		return 0, false
	}
	return number, true
}

// inOrder compares names of segments by when they were written.
func inOrder(a, b string) int {
	na, _ := segmentNumber(a)
	nb, _ := segmentNumber(b)
	return cmp.Compare(na, nb)
}
