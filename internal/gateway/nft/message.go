package nft

import (
	"encoding/binary"

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
}

// firstSequence is the number of a batch's first message; the one before it is the
// batch's own.
const firstSequence = 1

const familyInet = 1 // NFPROTO_INET

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
	b = binary.NativeEndian.AppendUint32(b, uint32(20+len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|flags)
	b = binary.NativeEndian.AppendUint32(b, uint32(sequence))
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = append(b, header[:]...)
	return append(b, body...)
}
