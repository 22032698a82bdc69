package text

import (
	"bytes"
	"strconv"

	"github.com/natkit/natkit/internal/conntrack"
)

// statusNames are those of the kernel's IPS_ bits from the lowest one on (enum
// ip_conntrack_status, include/uapi/linux/netfilter/nf_conntrack_common.h).
var statusNames = [...]string{
	"EXPECTED", "SEEN_REPLY", "ASSURED", "CONFIRMED", "SRC_NAT", "DST_NAT", "SEQ_ADJUST",
	"SRC_NAT_DONE", "DST_NAT_DONE", "DYING", "FIXED_TIMEOUT", "TEMPLATE", "UNTRACKED",
	"HELPER", "OFFLOAD", "HW_OFFLOAD",
}

const namedStatus = 1<<len(statusNames) - 1

// addStatus joins the names of e's bits by |, with bits that have no name as one
// hexadecimal number at the end.
func addStatus(b []byte, e *conntrack.Entry) []byte {
	start := len(b)
	for bit, name := range statusNames {
		if e.Status&(1<<bit) != 0 {
			b = append(append(b, name...), '|')
		}
	}
	if rest := e.Status &^ namedStatus; rest != 0 {
		return strconv.AppendUint(append(b, "0x"...), uint64(rest), 16)
	}
	if len(b) > start {
		b = b[:len(b)-1]
	}
	return b
}

func setStatus(_ *parser, e *conntrack.Entry, v []byte) bool {
	for len(v) > 0 {
		var name []byte
		name, v, _ = bytes.Cut(v, []byte{'|'})
		bits, ok := statusBits(name)
		if !ok {
			return false
		}
		e.Status |= bits
	}
	return true
}

func statusBits(name []byte) (conntrack.Status, bool) {
	for bit, known := range statusNames {
		if string(name) == known {
			return 1 << bit, true
		}
	}
	if len(name) > 2 && string(name[:2]) == "0x" {
		n, ok := hexadecimal(name[2:], 1<<32-1)
		return conntrack.Status(n), ok
	}
	return 0, false
}
