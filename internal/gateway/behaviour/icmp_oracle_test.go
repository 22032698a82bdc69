package behaviour

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/natkit/natkit/internal/frame"
)

func addresses(v6 bool) (a, b netip.AddrPort) {
	if v6 {
		return netip.MustParseAddrPort("[2001:db8::1]:4000"), netip.MustParseAddrPort("[2001:db8::2]:443")
	}
	return netip.MustParseAddrPort("198.18.0.1:4000"), netip.MustParseAddrPort("198.18.0.2:443")
}

// samples are packets of each kind that is built here.
func samples(v6 bool) map[string]datagram {
	a, b := addresses(v6)
	data := []byte("seventeen bytes..")
	all := map[string]datagram{
		"tcp":   tcp(a, b, frame.TCP{SequenceNumber: 1, Flags: frame.SYN, Options: tcpOptions(mssOption(1460), sackPermitted(), timestamps(7, 8), windowScale(7))}, nil),
		"data":  tcp(a, b, frame.TCP{SequenceNumber: 1, AcknowledgmentNumber: 2, Flags: frame.ACK}, data),
		"udp":   udp(a, b, data),
		"echo":  ping(a.Addr(), b.Addr(), 7, 8),
		"reply": pong(b.Addr(), a.Addr(), 7, 8),
	}
	kind := uint8(unreachable)
	if v6 {
		kind = unreachable6
	}
	for _, name := range []string{"tcp", "data", "udp", "echo"} {
		quote := all[name].bytes()
		all["error about "+name] = icmp(b.Addr(), a.Addr(), frame.ICMP{Type: kind}, quote)
		cut := quote[:len(quote)-len(all[name].Payload)+8]
		all["error about cut "+name] = icmp(b.Addr(), a.Addr(), frame.ICMP{Type: kind}, cut)
	}
	if !v6 {
		withOptions := all["udp"]
		withOptions.Options = []byte{7, 7, 4, 0, 0, 0, 0, 0}
		all["options"] = withOptions
	}
	return all
}

// TestOracle holds what is built against gopacket's view of it, and lets gopacket see
// that any bit is wrong that a checksum covers.
func TestOracle(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for name, d := range samples(v6) {
			b := d.bytes()
			if err := wrongChecksums(b); err != nil {
				t.Errorf("%s, v6 %v: %v", name, v6, err)
			}
			for i := headerLength(b) + 1; i < len(b); i++ {
				wrong := slices.Clone(b)
				wrong[i] ^= 0x10
				if wrongChecksums(wrong) == nil {
					t.Fatalf("%s, v6 %v: no error with a wrong byte %d", name, v6, i)
				}
			}
		}
	}
}

// TestOracleLooksInside lets the outer checksum be right and the quoted ones wrong.
func TestOracleLooksInside(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		a, b := addresses(v6)
		kind := uint8(timeExceeded)
		if v6 {
			kind = timeExceeded6
		}
		quote := udp(a, b, []byte("data")).bytes()
		for _, at := range []int{8, 15, 24, len(quote) - 1} {
			wrong := slices.Clone(quote)
			wrong[at] ^= 1
			m := icmp(b.Addr(), a.Addr(), frame.ICMP{Type: kind}, wrong).bytes()
			err := wrongChecksums(m)
			if err == nil && (!v6 || at >= 24) {
				t.Errorf("v6 %v: no error with a wrong quoted byte %d", v6, at)
			}
		}
	}
}

func TestFragmentsOfADatagram(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		whole := samples(v6)["data"]
		var together []byte
		for i, part := range whole.fragments(77, 8, 24) {
			if f := part.Fragment; f.Offset != len(together) || f.More != (i < 2) || f.Identification != 77 {
				t.Errorf("v6 %v: fragment %d is %+v", v6, i, part)
			}
			if err := wrongChecksums(part.bytes()); err != nil {
				t.Errorf("v6 %v: fragment %d: %v", v6, i, err)
			}
			together = append(together, part.Payload...)
		}
		if !slices.Equal(together, whole.Payload) {
			t.Errorf("v6 %v: the fragments do not make the packet", v6)
		}
	}
}
