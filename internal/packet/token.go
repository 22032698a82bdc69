// Package packet builds and parses the frames of load generators: flows, sizes,
// headers with their checksums, and the token by which a receiver tells what
// became of each packet.
package packet

import "encoding/binary"

// Token is the first part of every test packet's payload. All fields are in
// network byte order on the wire.
type Token struct {
	// Run tells the packets of one run from all others on the wire.
	Run uint32
	// Flow counts from 0.
	Flow uint32
	// Sequence counts the packets of the flow from 0; it wraps after 2^32.
	Sequence uint32
}

// TokenLen is the length of a Token on the wire, in bytes.
const TokenLen = 12

// Put writes the token to the start of b, which has room for TokenLen bytes.
func (t Token) Put(b []byte) {
	binary.BigEndian.PutUint32(b, t.Run)
	binary.BigEndian.PutUint32(b[4:], t.Flow)
	binary.BigEndian.PutUint32(b[8:], t.Sequence)
}

// ParseToken reads the token at the start of a payload; ok is false where the
// payload is too short for one.
func ParseToken(b []byte) (t Token, ok bool) {
	if len(b) < TokenLen {
		return Token{}, false
	}
	return Token{
		Run:      binary.BigEndian.Uint32(b),
		Flow:     binary.BigEndian.Uint32(b[4:]),
		Sequence: binary.BigEndian.Uint32(b[8:]),
	}, true
}
