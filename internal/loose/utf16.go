package loose

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"unicode/utf16"
	"unicode/utf8"
)

// UTF8 reads text in UTF-16, which begins with a byte order mark, as UTF-8: '>' of PowerShell before 7.4 writes it. All
// else is as it was; nothing else that natkit reads begins so.
func UTF8(from io.Reader) io.Reader { return &markedText{from: from} }

// markedText decides at the first byte that is asked for.
type markedText struct {
	from  io.Reader
	known bool
}

func (m *markedText) Read(p []byte) (int, error) {
	if m.known || len(p) == 0 {
		return m.from.Read(p)
	}
	if m.known = true; len(p) == 1 {
		m.from = bufio.NewReader(&markedText{from: m.from}) // which reads more at once
		return m.from.Read(p)
	}
	n, err := io.ReadAtLeast(m.from, p, 2)
	if err == io.ErrUnexpectedEOF {
		err = io.EOF
	}
	var order binary.ByteOrder
	switch {
	case bytes.HasPrefix(p[:n], []byte{0xff, 0xfe}):
		order = binary.LittleEndian
	case bytes.HasPrefix(p[:n], []byte{0xfe, 0xff}):
		order = binary.BigEndian
	default:
		return n, err
	}
	m.from = &utf16Reader{from: bufio.NewReader(io.MultiReader(bytes.NewReader(bytes.Clone(p[2:n])), m.from)), order: order}
	return m.from.Read(p)
}

// utf16Reader decodes UTF-16 (RFC 2781); what is none becomes U+FFFD.
type utf16Reader struct {
	from    *bufio.Reader
	order   binary.ByteOrder
	decoded []byte
	// pending is a unit behind half of a pair that is not its other half.
	pending []rune
}

func (u *utf16Reader) Read(p []byte) (int, error) {
	var err error
	for len(u.decoded) < len(p) && err == nil {
		var r rune
		if r, err = u.rune(); err == nil {
			u.decoded = utf8.AppendRune(u.decoded, r)
		}
	}
	n := copy(p, u.decoded)
	u.decoded = u.decoded[:copy(u.decoded, u.decoded[n:])]
	if n > 0 && err == io.EOF {
		err = nil
	}
	return n, err
}

// rune is the next character.
func (u *utf16Reader) rune() (rune, error) {
	first, err := u.unit()
	if err != nil || !utf16.IsSurrogate(first) {
		return first, err
	}
	second, err := u.unit()
	if err != nil && err != io.EOF {
		return 0, err
	}
	r := utf16.DecodeRune(first, second)
	if r == utf8.RuneError && err == nil {
		u.pending = append(u.pending, second)
	}
	return r, nil
}

func (u *utf16Reader) unit() (rune, error) {
	if len(u.pending) > 0 {
		r := u.pending[0]
		u.pending = u.pending[:0]
		return r, nil
	}
	var b [2]byte
	if _, err := io.ReadFull(u.from, b[:]); err != nil {
		return 0, err
	}
	return rune(u.order.Uint16(b[:])), nil
}
