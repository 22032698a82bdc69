package loose

import (
	"bytes"
	"encoding/binary"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf16"
)

func inUTF16(order binary.AppendByteOrder, text string) (b []byte) {
	for _, unit := range utf16.Encode([]rune("\ufeff" + text)) {
		b = order.AppendUint16(b, unit)
	}
	return b
}

func TestUTF8(t *testing.T) {
	long := strings.Repeat("tcp 6 src=198.18.0.2 → 𝄞\r\n", 500)
	for _, tt := range []struct{ name, in, want string }{
		{"empty", "", ""},
		{"one byte", "a", "a"},
		{"ASCII", "abc", "abc"},
		{"UTF-8 with a mark", "\ufeffabc", "\ufeffabc"},
		{"a capture", "\xd4\xc3\xb2\xa1\x02\x00", "\xd4\xc3\xb2\xa1\x02\x00"},
		{"gzip", "\x1f\x8b\x08\x00", "\x1f\x8b\x08\x00"},
		{"little endian", string(inUTF16(binary.LittleEndian, long)), long},
		{"big endian", string(inUTF16(binary.BigEndian, long)), long},
		{"half of a pair, and a letter", "\xff\xfe\x34\xd8a\x00", "\ufffda"},
		{"half of a pair at the end", "\xff\xfe\x34\xd8", "\ufffd"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, from := range []io.Reader{strings.NewReader(tt.in), iotest.OneByteReader(strings.NewReader(tt.in)), iotest.DataErrReader(strings.NewReader(tt.in))} {
				if got, err := io.ReadAll(UTF8(from)); err != nil || string(got) != tt.want {
					t.Errorf("%.80q, %v, want %.80q", got, err, tt.want)
				}
			}
		})
	}
	if _, err := io.ReadAll(UTF8(strings.NewReader("\xff\xfea"))); err != io.ErrUnexpectedEOF {
		t.Errorf("half of a unit: %v", err)
	}
}

// FuzzUTF8: what does not begin with a mark of UTF-16 is as it was; what does becomes no more than half as much again.
func FuzzUTF8(f *testing.F) {
	f.Add([]byte("\xff\xfea\x00\x34\xd8"))
	f.Add([]byte("\xfe\xff\x00a"))
	f.Add([]byte("tcp 6"))
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := io.ReadAll(UTF8(bytes.NewReader(in)))
		marked := bytes.HasPrefix(in, []byte("\xff\xfe")) || bytes.HasPrefix(in, []byte("\xfe\xff"))
		switch {
		case !marked && (err != nil || !bytes.Equal(got, in)):
			t.Errorf("%q, %v", got, err)
		case marked && (err != nil) != (len(in)%2 != 0):
			t.Errorf("%d bytes: %v", len(in), err)
		case marked && len(got) > len(in)*3/2:
			t.Errorf("%d bytes of %d", len(got), len(in))
		}
	})
}
