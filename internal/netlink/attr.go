package netlink

import (
	"bytes"
	"encoding/binary"

	"github.com/natkit/natkit/internal/unix"
)

// typeMask removes NLA_F_NESTED and NLA_F_NET_BYTEORDER from a type (NLA_TYPE_MASK).
const typeMask = 0x3fff

// NextAttr takes the first attribute off b, which must not be empty. It does not allocate.
// Headers are in the host's byte order; numbers of netfilter are big-endian.
func NextAttr(b []byte) (kind uint16, value, rest []byte, err error) {
	if len(b) < unix.SizeofNlAttr {
		return 0, nil, nil, ErrTruncated
	}
	size := int(binary.NativeEndian.Uint16(b))
	if size < unix.SizeofNlAttr || size > len(b) {
		return 0, nil, nil, ErrTruncated
	}
	kind = binary.NativeEndian.Uint16(b[2:]) & typeMask
	return kind, b[unix.SizeofNlAttr:size], b[min(align(size), len(b)):], nil
}

// Attr is one attribute. Raw is all of it, header and padding included.
type Attr struct {
	Kind      uint16
	Data, Raw []byte
}

// Attrs are the attributes of a message or of a nested attribute, in their order.
type Attrs []Attr

// ParseAttrs splits b; what it returns points into b.
func ParseAttrs(b []byte) (Attrs, error) {
	var all Attrs
	for len(b) >= unix.SizeofNlAttr {
		kind, value, rest, err := NextAttr(b)
		if err != nil {
			return nil, err
		}
		raw := b[:len(b)-len(rest)]
		if missing := -len(raw) & (unix.NLA_ALIGNTO - 1); missing > 0 { // the last one may lack its padding
			raw = append(bytes.Clone(raw), make([]byte, missing)...)
		}
		all, b = append(all, Attr{kind, value, raw}), rest
	}
	return all, nil
}

// Get returns the value of the first attribute of a type; nil if there is none.
func (a Attrs) Get(kind uint16) []byte {
	for _, x := range a {
		if x.Kind == kind {
			return x.Data
		}
	}
	return nil
}

// Has reports whether there is an attribute of a type.
func (a Attrs) Has(kind uint16) bool { return a.Get(kind) != nil }

// Text returns a string without the NUL that ends it.
func (a Attrs) Text(kind uint16) string {
	s, _, _ := bytes.Cut(a.Get(kind), []byte{0})
	return string(s)
}

// U32 returns a number in network byte order; 0 if it is missing.
func (a Attrs) U32(kind uint16) uint32 {
	if b := a.Get(kind); len(b) >= 4 {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

// U64 returns a number in network byte order; 0 if it is missing.
func (a Attrs) U64(kind uint16) uint64 {
	if b := a.Get(kind); len(b) >= 8 {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// Nested returns the attributes within one; none if it is missing or malformed.
func (a Attrs) Nested(kind uint16) Attrs {
	inner, err := ParseAttrs(a.Get(kind))
	if err != nil {
		return nil
	}
	return inner
}

// AppendAttr appends an attribute with its padding.
func AppendAttr(b []byte, kind uint16, value []byte) []byte {
	return pad(append(AppendAttrHeader(b, kind, len(value)), value...))
}

// AppendAttrHeader appends the header of an attribute whose value has this size.
func AppendAttrHeader(b []byte, kind uint16, size int) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofNlAttr+size))
	return binary.NativeEndian.AppendUint16(b, kind)
}

func pad(b []byte) []byte {
	for len(b)%unix.NLA_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}

// AppendText appends a string with the NUL that ends it.
func AppendText[T string | []byte](b []byte, kind uint16, text T) []byte {
	b = append(AppendAttrHeader(b, kind, len(text)+1), text...)
	return pad(append(b, 0))
}

// AppendU8 appends a number of one byte.
func AppendU8(b []byte, kind uint16, v uint8) []byte {
	return append(AppendAttrHeader(b, kind, 1), v, 0, 0, 0)
}

// AppendU16 appends a number in network byte order, as do AppendU32 and AppendU64.
func AppendU16(b []byte, kind uint16, v uint16) []byte {
	return append(AppendAttrHeader(b, kind, 2), byte(v>>8), byte(v), 0, 0)
}

func AppendU32(b []byte, kind uint16, v uint32) []byte {
	return binary.BigEndian.AppendUint32(AppendAttrHeader(b, kind, 4), v)
}

func AppendU64(b []byte, kind uint16, v uint64) []byte {
	return binary.BigEndian.AppendUint64(AppendAttrHeader(b, kind, 8), v)
}

// BeginNest opens a nested attribute; EndNest with its second result closes it. Nothing
// is copied, however large it is; more than 64 kB need several attributes.
func BeginNest(b []byte, kind uint16) ([]byte, int) {
	return AppendAttrHeader(b, kind|unix.NLA_F_NESTED, 0), len(b)
}

func EndNest(b []byte, start int) []byte {
	binary.NativeEndian.PutUint16(b[start:], uint16(len(b)-start))
	return b
}
