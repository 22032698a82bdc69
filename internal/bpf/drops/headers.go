package drops

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"

	"github.com/natkit/natkit/internal/bpf"
	"github.com/natkit/natkit/internal/snapshot"
)

// HeaderOptions bound how many headers of dropped packets are kept, on all CPUs together.
type HeaderOptions struct {
	// All is the most in a second, Each the most of one place and reason: of a flood of one kind there are not more than
	// of others. CPUs that drop at the same time may add one each.
	All, Each int
	// Room is how many there is room for between two calls of Tracer.Headers.
	Room int
}

// bytes is the size of the ring buffer: a power of two, of a page at least.
func (o HeaderOptions) bytes() uint32 {
	const most = 16 << 20
	wanted := min(max(o.Room*(headerBytes+ringHeader), os.Getpagesize()), most)
	return 1 << bits.Len(uint(wanted-1))
}

// ringHeader is what the kernel puts before each record of a ring buffer.
const ringHeader = 8

const headerBytes = int(unsafe.Sizeof(dropsHeader{}))

// Header is the beginning of one packet that was dropped.
type Header struct {
	At time.Time
	// Site is where and why; its Packets is 0.
	Site snapshot.DropSite
	// Interface is the index of its last device, in Site.Netns; 0 where it had none.
	Interface int
	// Data is from the IP header on, with the beginning of the payload, and holds until the next one. It may be of another
	// packet than IP, or of none, where the kernel dropped it before or after IP.
	Data []byte
}

type headerReader struct {
	reader *ringbuf.Reader
	record ringbuf.Record
	// boot is what CLOCK_MONOTONIC counts from.
	boot time.Time
	lost uint64
}

func (t *Tracer) openHeaders() error {
	reader, err := ringbuf.NewReader(t.maps[dropsMapHeaders])
	if err != nil {
		return fmt.Errorf("read headers of dropped packets: %w", err)
	}
	t.later(reader)
	reader.SetDeadline(time.Unix(1, 0)) // it never waits
	_, boot, err := bpf.Monotonic()
	t.headers = &headerReader{reader: reader, boot: boot}
	return err
}

// Headers hands over those kept since the last call, and returns for how many there was no room. It is for one goroutine.
func (t *Tracer) Headers(each func(*Header)) (lost uint64, err error) {
	h := t.headers
	if h == nil {
		return 0, nil
	}
	var one dropsHeader
	for {
		err := h.reader.ReadInto(&h.record)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			return 0, fmt.Errorf("read headers of dropped packets: %w", err)
		}
		if _, err := binary.Decode(h.record.RawSample, binary.NativeEndian, &one); err != nil {
			return 0, fmt.Errorf("read headers of dropped packets: a record of %d bytes: %w", len(h.record.RawSample), err)
		}
		each(t.header(&one))
	}
	cpu, err := t.cpuTotals()
	if err != nil {
		return 0, err
	}
	lost, h.lost = cpu.LostHeaders-h.lost, cpu.LostHeaders
	return lost, nil
}

func (t *Tracer) header(h *dropsHeader) *Header {
	return &Header{
		At:        t.headers.boot.Add(time.Duration(h.TimeNs)),
		Site:      t.names.site(h.Site),
		Interface: int(h.Ifindex),
		Data:      h.Bytes[:min(int(h.Length), len(h.Bytes))],
	}
}
