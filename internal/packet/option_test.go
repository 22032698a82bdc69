package packet

import (
	"bytes"
	"testing"
)

func TestOption(t *testing.T) {
	linux := []byte{2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 1, 0, 0, 0, 2, 0, 1, 3, 3, 7} // a SYN's
	for _, tt := range []struct {
		name    string
		options []byte
		kind    uint8
		want    []byte // nil: not found
	}{
		{"maximum segment size", linux, OptionMaximumSegmentSize, []byte{5, 0xb4}},
		{"no value", linux, OptionSACKPermitted, []byte{}},
		{"behind no-operation", linux, OptionWindowScale, []byte{7}},
		{"no value, at the end", []byte{1, 1, 4, 2}, OptionSACKPermitted, []byte{}},
		{"selective acknowledgment", []byte{1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2}, OptionSACK, []byte{0, 0, 0, 1, 0, 0, 0, 2}},
		{"absent", linux, OptionSACK, nil},
		{"none at all", nil, OptionTimestamps, nil},
		{"behind the end", append([]byte{0}, linux...), OptionMaximumSegmentSize, nil},
		{"the first of two", []byte{3, 3, 1, 3, 3, 2}, OptionWindowScale, []byte{1}},
		{"no length", []byte{1, 1, 1, 3}, OptionWindowScale, nil},
		{"length 0", []byte{3, 0, 7, 0}, OptionWindowScale, nil},
		{"length 1", []byte{3, 1, 7, 0}, OptionWindowScale, nil},
		{"longer than the header", []byte{8, 10, 0, 0}, OptionTimestamps, nil},
		{"behind a malformed one", []byte{5, 0, 3, 3, 7, 0}, OptionWindowScale, nil},
	} {
		header := TCP{Options: tt.options}
		got, ok := header.Option(tt.kind)
		if ok != (tt.want != nil) || !bytes.Equal(got, tt.want) {
			t.Errorf("%s: %x, %v; want %x", tt.name, got, ok, tt.want)
		}
	}
}

func TestTimestamps(t *testing.T) {
	for _, tt := range []struct {
		options    []byte
		value, ack uint32
		ok         bool
	}{
		{[]byte{1, 1, 8, 10, 0, 0, 1, 0, 0xff, 0, 2, 0}, 0x100, 0xff000200, true},
		{[]byte{8, 6, 0, 0, 1, 0}, 0, 0, false},
		{[]byte{2, 4, 5, 0xb4}, 0, 0, false},
	} {
		header := TCP{Options: tt.options}
		if value, ack, ok := header.Timestamps(); value != tt.value || ack != tt.ack || ok != tt.ok {
			t.Errorf("%x: %#x, %#x, %v", tt.options, value, ack, ok)
		}
	}
}
