package frame

import (
	"bytes"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/natkit/natkit/internal/unix"
)

// quoting is an ICMP error message about the first n bytes of a sample's IP packet.
func quoting(t *testing.T, sample string, n int) *Frame {
	t.Helper()
	inner := samples(t)[sample]
	about := gopacket.Payload(inner[EthernetLen : EthernetLen+n])
	if mustParse(t, inner).Version == 6 {
		ip := ipv6(unix.IPPROTO_ICMPV6)
		return mustParse(t, serialize(t, ethernet(EtherTypeIPv6), ip, icmpv6(ip, 1), make(gopacket.Payload, 4), about))
	}
	message := &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 4)}
	return mustParse(t, serialize(t, ethernet(EtherTypeIPv4), ipv4(unix.IPPROTO_ICMP), message, about))
}

func TestQuoted(t *testing.T) {
	for _, tt := range []struct {
		sample string
		bytes  int
		tuple  Tuple
	}{
		{"TCP", IPv4Len + 8, tuple4}, // what RFC 792 asks for
		{"TCP", IPv4Len + 28, tuple4},
		{"UDP", IPv4Len + 8, tuple4},
		{"TCP6", IPv6Len + 8, tuple6},
		{"UDP6", IPv6Len + 19, tuple6},
		{"hop-by-hop", IPv6Len + 8 + 8, tuple6},
	} {
		f := quoting(t, tt.sample, tt.bytes)
		var inner Frame
		if err := f.Quoted(&inner); err != nil || !f.ICMPError() {
			t.Errorf("%s, %d bytes: %v", tt.sample, tt.bytes, err)
			continue
		}
		whole := mustParse(t, samples(t)[tt.sample])
		if inner.Tuple() != tt.tuple || inner.Transport != whole.Transport || inner.TCP.SequenceNumber != whole.TCP.SequenceNumber {
			t.Errorf("%s, %d bytes: %v, transport %d", tt.sample, tt.bytes, inner.Tuple(), inner.Transport)
		}
		want := ChecksumUnknown
		if inner.Missing == 0 {
			want = ChecksumOK
		}
		if got := inner.TransportChecksum(); got != want {
			t.Errorf("%s, %d bytes: checksum %v, want %v", tt.sample, tt.bytes, got, want)
		}
	}
}

func TestQuotedTooLittle(t *testing.T) {
	for _, tt := range []struct {
		sample string
		bytes  int
		want   string
	}{
		{"TCP", 0, "the IPv4 header is cut: 0 of 20 bytes"},
		{"TCP", IPv4Len + 7, "the TCP header is cut: 7 of 20 bytes"},
		{"TCP6", IPv6Len + 7, "the TCP header is cut: 7 of 20 bytes"},
		{"UDP", IPv4Len + 7, "the UDP header is cut: 7 of 8 bytes"},
		{"ICMP echo", IPv4Len + 7, "the ICMP header is cut: 7 of 8 bytes"},
	} {
		var inner Frame
		err := quoting(t, tt.sample, tt.bytes).Quoted(&inner)
		if err == nil || !strings.Contains(err.Error(), tt.want) || inner.Transport != 0 {
			t.Errorf("%s, %d bytes: %v, want %s", tt.sample, tt.bytes, err, tt.want)
		}
	}
}

// Only errors quote, and only they answer nothing (RFC 1122, section 3.2.2).
func TestICMPError(t *testing.T) {
	errors4 := map[uint8]bool{3: true, 4: true, 5: true, 11: true, 12: true}
	all := samples(t)
	for i := range 256 {
		kind := uint8(i)
		f4 := mustParse(t, change(all["ICMP error"], EthernetLen+IPv4Len, kind))
		if got := f4.ICMPError(); got != errors4[kind] {
			t.Errorf("ICMP type %d: %v", kind, got)
		}
		f6 := mustParse(t, change(all["ICMPv6 error"], EthernetLen+IPv6Len, kind))
		if got := f6.ICMPError(); got != (kind < 128) {
			t.Errorf("ICMPv6 type %d: %v", kind, got)
		}
	}
	for _, name := range []string{"ICMP echo", "ICMPv6 echo", "TCP", "ARP", "later fragment"} {
		inner := Frame{Version: 4}
		if err := mustParse(t, all[name]).Quoted(&inner); err == nil || inner.Version != 0 {
			t.Errorf("%s quotes: %v, %+v", name, err, inner)
		}
	}
}

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
