package pcap

import (
	"encoding/binary"
	"fmt"
)

// Blocks (draft-ietf-opsawg-pcapng, section 4 and appendix).
const (
	blockInterface  = 1
	blockPacket     = 2 // obsolete
	blockSimple     = 3
	blockStatistics = 5
	blockEnhanced   = 6
	blockJournal    = 9 // of systemd

	byteOrderMagic = 0x1a2b3c4d
	// leastBlock is a block without a body, leastSection one of a section.
	leastBlock   = 12
	leastSection = 28
)

// blocksSysdig are the events of sysdig and Falco. They are no packets, but Wireshark
// numbers them, as it does the journal's (wiretap/pcapng.c, pcapng_sysdig.c).
var blocksSysdig = [...]uint32{0x204, 0x208, 0x216, 0x217, 0x221, 0x222}

// maxInterfaces bounds how many interfaces are remembered.
const maxInterfaces = 4096

// pcapng is a pcapng file.
type pcapng struct {
	order binary.ByteOrder
	// ifaces are the interfaces of this section.
	ifaces []ngInterface
}

// ngInterface is what packets need of an interface.
type ngInterface struct {
	index   int // in Stats.Interfaces; -1 where there are too many
	snapLen uint32
	clock   resolution
}

// block is one block; its body is as much as is looked at.
type block struct {
	kind  uint32
	total int64
	body  []byte
}

// next reads blocks up to the next packet.
func (n *pcapng) next(s *stream, p *Packet) (bool, error) {
	for {
		s.consume()
		b, ok := n.block(s)
		if !ok {
			return false, nil
		}
		s.pending = b.total
		if n.packet(s, &b, p) {
			return true, nil
		}
	}
}

// block peeks at the next block. Where the file is broken it looks for the next that
// is not.
func (n *pcapng) block(s *stream) (block, bool) {
	for {
		head := s.peek(leastBlock)
		if len(head) < leastBlock {
			s.endWithin("block", len(head), leastBlock)
			return block{}, false
		}
		b, problem := n.header(head)
		if problem == "" {
			problem = n.body(s, &b)
		}
		if problem == "" {
			return b, true
		}
		if problem == endsWithin || !n.resume(s, problem) {
			return block{}, false
		}
	}
}

// header reads a block's type and length. A section sets the byte order.
func (n *pcapng) header(b []byte) (block, string) {
	kind := binary.LittleEndian.Uint32(b)
	if kind == blockSection {
		order := orderOf(b[8:])
		if order == nil {
			return block{}, fmt.Sprintf("byte-order magic %#x of a section", b[8:12])
		}
		n.order = order
	}
	blk := block{kind: n.order.Uint32(b), total: int64(n.order.Uint32(b[4:]))}
	if least := leastLength(blk.kind); blk.total < least || blk.total%4 != 0 {
		return block{}, fmt.Sprintf("length %d of a block of type %#x", blk.total, blk.kind)
	}
	return blk, ""
}

func orderOf(magic []byte) binary.ByteOrder {
	switch uint32(byteOrderMagic) {
	case binary.LittleEndian.Uint32(magic):
		return binary.LittleEndian
	case binary.BigEndian.Uint32(magic):
		return binary.BigEndian
	}
	return nil
}

// leastLength is how long a block is at least.
func leastLength(kind uint32) int64 {
	switch kind {
	case blockSection:
		return leastSection
	case blockInterface:
		return leastBlock + 8
	case blockPacket, blockEnhanced:
		return leastBlock + 20
	case blockSimple:
		return leastBlock + 4
	case blockStatistics:
		return leastBlock + 12
	}
	return leastBlock
}

// endsWithin is no problem to go on behind.
const endsWithin = "the file ends"

// body peeks at as much of a block as is looked at, and compares the length behind it.
func (n *pcapng) body(s *stream, b *block) string {
	want := min(b.total, bufferSize)
	whole := s.peek(int(want))
	if int64(len(whole)) < want {
		return n.short(s, b, len(whole))
	}
	b.body = whole[8:]
	if b.total > want {
		return ""
	}
	b.body = whole[8 : b.total-4]
	if again := n.order.Uint32(whole[b.total-4:]); int64(again) != b.total {
		return fmt.Sprintf("a block of type %#x has length %d before and %d behind it", b.kind, b.total, again)
	}
	return ""
}

// short tells a file that ends from a length that is wrong: behind the latter there
// are more blocks.
func (n *pcapng) short(s *stream, b *block, have int) string {
	rest := s.peek(have)
	if n.findIn(rest[min(4, have):], true) >= 0 {
		return fmt.Sprintf("length %d of a block of type %#x is more than the file has", b.total, b.kind)
	}
	s.endWithin("block", have, int(b.total))
	return endsWithin
}

// resume looks for the next block that is whole.
func (n *pcapng) resume(s *stream, what string) bool {
	return s.search(4, what, n.findIn)
}

// findIn gives where in b a block begins that ends in b with the same length, or -1.
// Blocks are not always aligned in a broken file.
func (n *pcapng) findIn(b []byte, _ bool) int {
	for i := 0; i < min(len(b), window) && i+leastBlock <= len(b); i++ {
		if n.wholeAt(b[i:]) {
			return i
		}
	}
	return -1
}

// wholeAt reports whether b begins with a block that is whole and of a kind that matters.
func (n *pcapng) wholeAt(b []byte) bool {
	order := n.order
	if binary.LittleEndian.Uint32(b) == blockSection {
		if order = orderOf(b[8:]); order == nil {
			return false
		}
	}
	kind, total := order.Uint32(b), int64(order.Uint32(b[4:]))
	if !known(kind) || total%4 != 0 || total < leastLength(kind) || total > int64(len(b)) {
		return false
	}
	return int64(order.Uint32(b[total-4:])) == total
}

func known(kind uint32) bool {
	switch kind {
	case blockSection, blockInterface, blockPacket, blockSimple, blockStatistics, blockEnhanced:
		return true
	}
	return false
}
