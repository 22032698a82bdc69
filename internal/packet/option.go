package packet

import "encoding/binary"

// Kinds of TCP options (RFC 9293, section 3.1; RFC 7323; RFC 2018).
const (
	OptionMaximumSegmentSize = 2
	OptionWindowScale        = 3
	OptionSACKPermitted      = 4
	OptionSACK               = 5
	OptionTimestamps         = 8
)

const (
	optionEndOfList   = 0
	optionNoOperation = 1
)

// Option finds the first option of a kind, and gives what follows its length byte.
// Options behind a malformed one are not found.
func (t *TCP) Option(kind uint8) (value []byte, ok bool) {
	for b := t.Options; len(b) > 0 && b[0] != optionEndOfList; {
		if b[0] == optionNoOperation {
			b = b[1:]
			continue
		}
		if len(b) < 2 || b[1] < 2 || int(b[1]) > len(b) {
			return nil, false
		}
		if b[0] == kind {
			return b[2:b[1]], true
		}
		b = b[b[1]:]
	}
	return nil, false
}

// Timestamps are TSval and TSecr (RFC 7323, section 3.2).
func (t *TCP) Timestamps() (value, echoReply uint32, ok bool) {
	b, ok := t.Option(OptionTimestamps)
	if !ok || len(b) != 8 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:]), true
}
