package natrules

import (
	"bytes"
	"encoding/binary"
	"errors"
)

// attr is one netlink attribute; raw is the whole of it, header and padding included.
type attr struct {
	kind      uint16
	data, raw []byte
}

// attrs are the attributes of a message or of a nested attribute, in their order.
type attrs []attr

// typeMask takes NLA_F_NESTED and NLA_F_NET_BYTEORDER off a type (NLA_TYPE_MASK).
const typeMask = 0x3fff

var errGarbled = errors.New("the kernel's answer is garbled: an attribute is longer than what holds it")

// parseAttrs takes b apart; what it returns lies in b.
func parseAttrs(b []byte) (attrs, error) {
	var all attrs
	for len(b) >= 4 {
		n := int(binary.NativeEndian.Uint16(b))
		if n < 4 || n > len(b) {
			return nil, errGarbled
		}
		a := attr{kind: binary.NativeEndian.Uint16(b[2:]) & typeMask, data: b[4:n]}
		if whole := (n + 3) &^ 3; whole <= len(b) {
			a.raw, b = b[:whole], b[whole:]
		} else { // the last one may come without padding
			a.raw, b = append(bytes.Clone(b), make([]byte, whole-len(b))...), nil
		}
		all = append(all, a)
	}
	return all, nil
}

func (a attrs) get(kind uint16) []byte {
	for _, x := range a {
		if x.kind == kind {
			return x.data
		}
	}
	return nil
}

func (a attrs) has(kind uint16) bool { return a.get(kind) != nil }

// text is a string without the NUL that ends it.
func (a attrs) text(kind uint16) string {
	s, _, _ := bytes.Cut(a.get(kind), []byte{0})
	return string(s)
}

// u32 is a number in network byte order, as nf_tables keeps all of its own; 0
// where it is not there.
func (a attrs) u32(kind uint16) uint32 {
	if b := a.get(kind); len(b) >= 4 {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (a attrs) u64(kind uint16) uint64 {
	if b := a.get(kind); len(b) >= 8 {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// nested are the attributes within one; none where it is not there or garbled.
func (a attrs) nested(kind uint16) attrs {
	inner, err := parseAttrs(a.get(kind))
	if err != nil {
		return nil
	}
	return inner
}

// nlaNested is NLA_F_NESTED.
const nlaNested = 0x8000

func appendAttr(b []byte, kind uint16, data []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(data)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, data...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func appendText(b []byte, kind uint16, s string) []byte {
	return appendAttr(b, kind, append([]byte(s), 0))
}

func appendU32(b []byte, kind uint16, v uint32) []byte {
	return appendAttr(b, kind, binary.BigEndian.AppendUint32(nil, v))
}
