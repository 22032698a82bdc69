package nft

import "encoding/binary"

// nlaNested is NLA_F_NESTED.
const nlaNested = 0x8000

// attrs are netlink attributes in the making. A nested one is begun and ended, so
// that a set of ten thousand elements is written once and copied never.
type attrs []byte

func (a *attrs) bytes(kind uint16, data []byte) {
	b := binary.NativeEndian.AppendUint16(*a, uint16(4+len(data)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	*a = append(b, data...)
	a.pad()
}

func (a *attrs) pad() {
	for len(*a)%4 != 0 {
		*a = append(*a, 0)
	}
}

// text is a string with the NUL that ends it.
func (a *attrs) text(kind uint16, s string) { a.bytes(kind, append([]byte(s), 0)) }

// u32 is a number as nf_tables keeps all of its own, in network byte order.
func (a *attrs) u32(kind uint16, v uint32) { a.bytes(kind, binary.BigEndian.AppendUint32(nil, v)) }

// begin opens a nested attribute; end, with what begin returned, closes it.
func (a *attrs) begin(kind uint16) int {
	at := len(*a)
	b := binary.NativeEndian.AppendUint16(*a, 0)
	*a = binary.NativeEndian.AppendUint16(b, kind|nlaNested)
	return at
}

func (a *attrs) end(at int) {
	binary.NativeEndian.PutUint16((*a)[at:], uint16(len(*a)-at))
}
