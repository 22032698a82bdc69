package behaviour

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
)

// tcp is a segment; its Window of 0 stands for 65535.
func tcp(from, to netip.AddrPort, h frame.TCP, payload []byte) datagram {
	if h.Window == 0 {
		h.Window = 0xffff
	}
	b := frame.AppendTCP(nil, frame.Tuple{Src: from, Dst: to}, h, payload)
	return datagramOf(from.Addr(), to.Addr(), unix.IPPROTO_TCP, b)
}

// tcpOptions are written as on the wire, filled with NOPs to a multiple of four.
func tcpOptions(options ...[]byte) []byte {
	var b []byte
	for _, o := range options {
		b = append(b, o...)
	}
	for len(b)%4 != 0 {
		b = append(b, 1)
	}
	return b
}

func mssOption(bytes uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{frame.OptionMaximumSegmentSize, 4}, bytes)
}

func windowScale(shift uint8) []byte { return []byte{frame.OptionWindowScale, 3, shift} }

func sackPermitted() []byte { return []byte{frame.OptionSACKPermitted, 2} }

// timestamps is the option of RFC 7323, section 3.2.
func timestamps(value, echo uint32) []byte {
	b := binary.BigEndian.AppendUint32([]byte{frame.OptionTimestamps, 10}, value)
	return binary.BigEndian.AppendUint32(b, echo)
}

// sack is the option of RFC 2018, section 3, with one block.
func sack(left, right uint32) []byte {
	b := binary.BigEndian.AppendUint32([]byte{frame.OptionSACK, 10}, left)
	return binary.BigEndian.AppendUint32(b, right)
}
