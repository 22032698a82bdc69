package packet

import (
	"bytes"
	"testing"
)

func TestToken(t *testing.T) {
	token := Token{Run: 0x01020304, Flow: 0x05060708, Sequence: 0x090a0b0c}
	b := make([]byte, TokenLen+1)
	token.Put(b)
	if want := []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0}; !bytes.Equal(b, want) {
		t.Errorf("%x, want %x", b, want)
	}
	if got, ok := ParseToken(b); got != token || !ok {
		t.Errorf("%+v, %v", got, ok)
	}
	for n := range TokenLen {
		if got, ok := ParseToken(b[:n]); got != (Token{}) || ok {
			t.Errorf("of %d bytes: %+v, %v", n, got, ok)
		}
	}
}
