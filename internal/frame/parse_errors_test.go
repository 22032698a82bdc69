package frame

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// TestParseCut cuts every sample at every byte. In a header, that is an error with
// the number of bytes that are there; behind all headers it is not.
func TestParseCut(t *testing.T) {
	for name, frame := range samples(t) {
		whole := mustParse(t, frame)
		packet := len(frame) - len(whole.Trailer)
		headers := packet - len(whole.Payload)
		for n := range frame {
			f, err := Parse(frame[:n])
			var cut *CutError
			switch {
			case n < headers && (!errors.As(err, &cut) || cut.Have >= cut.Need || cut.Have > n || f.Transport != 0):
				t.Fatalf("%s, %d bytes: %v", name, n, err)
			case n >= headers && err != nil:
				t.Fatalf("%s, %d bytes: %v", name, n, err)
			case n >= headers && whole.Version != 0 && f.Missing != max(0, packet-n):
				t.Fatalf("%s, %d bytes: %d are missing, want %d", name, n, f.Missing, max(0, packet-n))
			}
		}
	}
}

func TestParseSaysWhatIsCut(t *testing.T) {
	all := samples(t)
	for _, tt := range []struct {
		name   string
		length int
		want   string
	}{
		{"TCP", 0, "the Ethernet header is cut: 0 of 14 bytes"},
		{"TCP", 13, "the Ethernet header is cut: 13 of 14 bytes"},
		{"TCP", 14, "the IPv4 header is cut: 0 of 20 bytes"},
		{"VLAN", 17, "the VLAN header is cut: 5 of 6 bytes"},
		{"QinQ", 20, "the VLAN header is cut: 4 of 6 bytes"},
		{"IPv4 options", 14 + 22, "the IPv4 header is cut: 22 of 24 bytes"},
		{"TCP6", 14 + 39, "the IPv6 header is cut: 39 of 40 bytes"},
		{"hop-by-hop", 14 + 47, "the Hop-by-Hop Options header is cut: 7 of 8 bytes"},
		{"many extensions", 14 + 40 + 15, "the Destination Options header is cut: 7 of 8 bytes"},
		{"routed", 14 + 40, "the Routing header is cut: 0 of 8 bytes"},
		{"authenticated", 14 + 40 + 20, "the Authentication header is cut: 20 of 24 bytes"},
		{"later fragment 6", 14 + 40 + 4, "the Fragment header is cut: 4 of 8 bytes"},
		{"TCP", 14 + 20 + 19, "the TCP header is cut: 19 of 20 bytes"},
		{"TCP", 14 + 20 + 39, "the TCP header is cut: 39 of 40 bytes"},
		{"UDP", 14 + 20 + 7, "the UDP header is cut: 7 of 8 bytes"},
		{"ICMP echo", 14 + 20 + 7, "the ICMP header is cut: 7 of 8 bytes"},
		{"ICMPv6 echo", 14 + 40 + 7, "the ICMPv6 header is cut: 7 of 8 bytes"},
	} {
		f, err := Parse(all[tt.name][:tt.length])
		if want := "parse frame: " + tt.want; err == nil || err.Error() != want {
			t.Errorf("%s, %d bytes: %v, want %s", tt.name, tt.length, err, want)
		}
		if tt.length > 14+40 && !f.Source.IsValid() {
			t.Errorf("%s, %d bytes: the IP header is not filled in", tt.name, tt.length)
		}
	}
}

// change is a frame with other bytes at a place.
func change(frame []byte, at int, to ...byte) []byte {
	changed := bytes.Clone(frame)
	copy(changed[at:], to)
	return changed
}

func TestParseContradictions(t *testing.T) {
	const ip, l4 = EthernetLen, EthernetLen + IPv4Len
	all := samples(t)
	for _, tt := range []struct {
		name  string
		frame []byte
		want  string
	}{
		{"version 6 in IPv4", change(all["TCP"], ip, 0x65), "version 6 in an IPv4 header"},
		{"version 4 in IPv6", change(all["TCP6"], ip, 0x45), "version 4 in an IPv6 header"},
		{"short IHL", change(all["TCP"], ip, 0x44), "IPv4 header length (IHL) of 16 bytes"},
		{"IHL behind the end", change(all["UDP"][:l4+8], ip, 0x4f), "the IPv4 header is cut: 28 of 60 bytes"},
		{"total length", change(all["TCP"], ip+2, 0, 19), "IPv4 total length 19 is less than the header's 20"},
		{"total length 0", change(all["UDP"], ip+2, 0, 0), "IPv4 total length 0 is less"},
		{"no room for TCP", change(all["TCP"], ip+2, 0, 39), "the TCP header is cut: 19 of 20 bytes"},
		{"short data offset", change(all["TCP"], l4+12, 0x40), "TCP header length (data offset) of 16 bytes"},
		{"data offset behind the end", change(all["TCP"], l4+12, 0xf0), "the TCP header is cut: 51 of 60 bytes"},
		{"short UDP", change(all["UDP"], l4+4, 0, 7), "UDP length 7 is less than the header's 8"},
		{"UDP length 0", change(all["UDP"], l4+4, 0, 0), "UDP length 0 is less"},
		{"long UDP", change(all["UDP"], l4+4, 0, 20), "UDP length 20 is more than the 19 bytes that IP carries"},
		{"IPv6 payload length 0", change(all["UDP6"], ip+4, 0, 0), "the UDP header is cut: 0 of 8 bytes"},
		{"long extension", change(all["hop-by-hop"], ip+IPv6Len+1, 255), "the Hop-by-Hop Options header is cut: 59 of 2048 bytes"},
		{"only tags", bytes.Repeat([]byte{0x81, 0}, 30), "the VLAN header is cut: 4 of 6 bytes"},
	} {
		_, err := Parse(tt.frame)
		if err == nil || !strings.HasPrefix(err.Error(), "parse frame: ") || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
}
