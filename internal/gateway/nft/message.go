package nft

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"
)

// message is one of a transaction.
type message struct {
	kind  uint16 // NFT_MSG_*
	flags uint16
	body  attrs
	// about says what it is of the plan, exprs what it needs of the kernel, for errors;
	// of a rule that is in rule.
	about string
	exprs []string
	rule  *rule
	// elements are those of a set that are in it.
	elements []placed
}

// placed is where an element begins in a message's body, and what it is of the plan.
type placed struct {
	offset int
	about  string
}

// at is what of the plan stands at a place of the message, which the kernel counts from
// its header on; all that the message is about where it does not tell the place.
func (m *message) at(offset int) string {
	i := slices.IndexFunc(m.elements, func(e placed) bool { return headers+e.offset == offset && e.about != "" })
	if i < 0 {
		return m.about
	}
	return m.elements[i].about
}

// firstSequence is the number of a batch's first message; the one before it is the
// batch's own.
const firstSequence = 1

const familyInet = 1 // NFPROTO_INET

// headers are those before a message's body: nlmsghdr and nfgenmsg.
const headers = 16 + 4

// NFNL_MSG_BATCH_* of linux/netfilter/nfnetlink.h.
const batchBegin, batchEnd, batchGenID = 0x10, 0x11, 1

// batchOf is a whole transaction. Without its end the kernel checks all of it, says
// what it refuses, and does nothing: that is how natkit probes.
//
// A generation other than 0 is that of the rules that the transaction was made for; the
// kernel refuses it for others (NFNL_BATCH_GENID, Linux 4.10).
func batchOf(messages []message, generation uint32, end bool) []byte {
	var begin attrs
	if generation != 0 {
		begin.u32(batchGenID, generation)
	}
	b := appendMessage(nil, batchBegin, 0, firstSequence-1, subsystem, begin)
	for i, m := range messages {
		flags := m.flags
		if i == len(messages)-1 {
			flags |= unix.NLM_F_ACK
		}
		b = appendMessage(b, unix.NFNL_SUBSYS_NFTABLES<<8|m.kind, flags, i+firstSequence, [4]byte{familyInet}, m.body)
	}
	if end {
		b = appendMessage(b, batchEnd, 0, firstSequence+len(messages), subsystem, nil)
	}
	return b
}

// subsystem is the nfgenmsg of a batch's begin and end.
var subsystem = [4]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}

func appendMessage(b []byte, kind, flags uint16, sequence int, header [4]byte, body []byte) []byte {
	b = binary.NativeEndian.AppendUint32(b, uint32(headers+len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|flags)
	b = binary.NativeEndian.AppendUint32(b, uint32(sequence))
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = append(b, header[:]...)
	return append(b, body...)
}
