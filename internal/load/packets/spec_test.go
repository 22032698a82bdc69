package packets

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/unix"
)

func TestParseFlagCycle(t *testing.T) {
	for text, want := range map[string][]frame.TCPFlags{
		"syn":               {frame.SYN},
		"SYN":               {frame.SYN},
		"syn+ack":           {frame.SYN | frame.ACK},
		"ack+syn":           {frame.SYN | frame.ACK},
		"syn+syn":           {frame.SYN},
		"syn,ack:3,fin+ack": {frame.SYN, frame.ACK, frame.ACK, frame.ACK, frame.FIN | frame.ACK},
		" syn , ack ":       {frame.SYN, frame.ACK},
		"syn+ece+cwr":       {frame.SYN | frame.ECE | frame.CWR},
		"rst:64":            slices.Repeat([]frame.TCPFlags{frame.RST}, 64),
		"psh+urg:1":         {frame.PSH | frame.URG},
	} {
		got, err := ParseFlagCycle(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		} else if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%q (-want +got):\n%s", text, d)
		}
	}
}

func TestParseTCPFlagsRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                         `"" is none of fin, syn`,
		"syn,":                     `"" is none of`,
		"syn+":                     `"" is none of`,
		"syn-ack":                  `"syn-ack" is none of`,
		"xmas":                     `"xmas" is none of`,
		":3":                       `"" is none of`,
		"syn:0":                    `"0" must be a number from 1 to 64`,
		"syn:-1":                   `"-1" must be`,
		"syn:65":                   `"65" must be`,
		"syn:x":                    `"x" must be`,
		"syn:":                     `"" must be`,
		"syn:2:2":                  `"2:2" must be`,
		"syn:99999999999999999999": "must be a number",
		"syn:64,ack":               "more than 64 segments",
	} {
		if got, err := ParseFlagCycle(text); err == nil || !strings.Contains(err.Error(), want) || got != nil {
			t.Errorf("%q: %v, %v; want an error with %q", text, got, err, want)
		}
	}
}

// FuzzParseTCPFlags: what is read can be written and read again.
func FuzzParseFlagCycle(f *testing.F) {
	for _, seed := range []string{"syn", "syn,ack:10,fin+ack", "syn+ece+cwr", ":", "syn:64"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		defer testutil.Bounded(t, len(text))()
		cycle, err := ParseFlagCycle(text)
		if (err == nil) != (len(cycle) > 0) || len(cycle) > MaxCycle {
			t.Fatalf("%q: %v, %v", text, cycle, err)
		}
		var again []string
		for _, flags := range cycle {
			again = append(again, flags.String())
		}
		if err == nil {
			if got, err := ParseFlagCycle(strings.Join(again, ",")); err != nil || !slices.Equal(got, cycle) {
				t.Fatalf("%q is %v, and read again %v, %v", text, cycle, got, err)
			}
		}
	})
}

// TestSpecAsJSON: a report is for people and programs, and can be read back.
func TestSpecAsJSON(t *testing.T) {
	want := Spec{Protocol: unix.IPPROTO_TCP, TCPFlags: []frame.TCPFlags{frame.SYN, frame.FIN | frame.ACK, 0}, Sizes: []int{64}, HopLimit: 64}
	text, err := json.Marshal(want)
	if err != nil || !strings.Contains(string(text), `"tcp_flags":["syn","fin+ack",""]`) {
		t.Errorf("%s, %v", text, err)
	}
	var got Spec
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if err := json.Unmarshal([]byte(`{"tcp_flags":["sin"]}`), &got); err == nil {
		t.Error("a flag that does not exist is read")
	}
}

func TestHeaderLen(t *testing.T) {
	for _, tt := range []struct {
		spec         Spec
		headers, min int
	}{
		{Spec{Protocol: unix.IPPROTO_UDP}, 54, 64},
		{Spec{Protocol: unix.IPPROTO_UDP, VLAN: 1}, 58, 64},
		{Spec{Protocol: unix.IPPROTO_TCP}, 66, 70},
		{Spec{Protocol: unix.IPPROTO_UDP, IPv6: true}, 74, 78},
		{Spec{Protocol: unix.IPPROTO_TCP, IPv6: true, VLAN: 1}, 90, 94},
	} {
		if got, least := tt.spec.HeaderLen(), tt.spec.MinSize(); got != tt.headers || least != tt.min {
			t.Errorf("%s: %d and %d, want %d and %d", tt.spec.stack(), got, least, tt.headers, tt.min)
		}
	}
}

func TestSpecCheck(t *testing.T) {
	good := Spec{Protocol: unix.IPPROTO_TCP, TCPFlags: []frame.TCPFlags{frame.SYN}, Sizes: []int{74, 1518, maxFrame}, VLAN: 4094, DSCP: 63, HopLimit: 1}
	for _, tt := range []struct {
		name   string
		change func(*Spec)
		want   string // empty: no error
	}{
		{"good", func(*Spec) {}, ""},
		{"UDP needs no flags", func(s *Spec) { s.Protocol, s.TCPFlags = unix.IPPROTO_UDP, nil }, ""},
		{"64 is enough for UDP", func(s *Spec) { s.Protocol, s.VLAN, s.Sizes = unix.IPPROTO_UDP, 0, []int{64} }, ""},
		{"as many flags as are taken", func(s *Spec) { s.TCPFlags = make([]frame.TCPFlags, 64) }, ""},
		{"as many sizes as are taken", func(s *Spec) { s.Sizes = slices.Repeat([]int{128}, 64) }, ""},
		{"protocol", func(s *Spec) { s.Protocol = unix.IPPROTO_ICMP }, "protocol 1: only UDP and TCP"},
		{"no flags", func(s *Spec) { s.TCPFlags = nil }, "TCP without flags"},
		{"many flags", func(s *Spec) { s.TCPFlags = make([]frame.TCPFlags, 65) }, "65 flag sets and 3 sizes: at most 64"},
		{"many sizes", func(s *Spec) { s.Sizes = slices.Repeat([]int{128}, 65) }, "1 flag sets and 65 sizes"},
		{"no size", func(s *Spec) { s.Sizes = nil }, "no frame size"},
		{"VLAN", func(s *Spec) { s.VLAN = 4095 }, "VLAN 4095: must be 1 to 4094"},
		{"DSCP", func(s *Spec) { s.DSCP = 64 }, "DSCP 64: must be 0 to 63"},
		{"hop limit", func(s *Spec) { s.HopLimit = 0 }, "hop limit 0"},
		{"small", func(s *Spec) { s.Sizes = []int{128, 73} }, "frame size 73: TCP over IPv4 in a VLAN with a token needs 74 to"},
		{"small for IPv6", func(s *Spec) { s.IPv6 = true }, "frame size 74: TCP over IPv6 in a VLAN with a token needs 94 to"},
		{"small for Ethernet", func(s *Spec) { s.Protocol, s.VLAN, s.Sizes = unix.IPPROTO_UDP, 0, []int{63} }, "frame size 63: UDP over IPv4 with a token needs 64 to"},
		{"great", func(s *Spec) { s.Sizes = []int{maxFrame + 1} }, "frame size"},
		{"negative", func(s *Spec) { s.Sizes = []int{-64} }, "frame size -64"},
	} {
		spec := good
		tt.change(&spec)
		err := spec.Check()
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	if good.MaxSize() != maxFrame {
		t.Errorf("the greatest size is %d", good.MaxSize())
	}
}

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

func TestParseSizes(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want []int
	}{
		{"64", []int{64}},
		{"64,594,1518", []int{64, 594, 1518}},
		{" 64, 128 ", []int{64, 128}},
		{"imix", []int{64, 594, 64, 64, 594, 64, 1518, 64, 594, 64, 594, 64}},
		{"IMIX", mixed()},
	} {
		got, err := ParseSizes(tt.in)
		if err != nil {
			t.Errorf("%q: %v", tt.in, err)
		} else if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%q (-want +got):\n%s", tt.in, d)
		}
	}
}

func TestParseSizesRefuses(t *testing.T) {
	for in, want := range map[string]string{
		"":                               "want a number of bytes",
		"64,":                            "want a number of bytes",
		"imix,64":                        "want a number of bytes",
		"0":                              "want 1 to",
		"-5":                             "want 1 to",
		"70000":                          "want 1 to",
		"99999999999999999999":           "want a number of bytes",
		strings.Repeat("64,", 64) + "64": "at most 64",
	} {
		if got, err := ParseSizes(in); err == nil || !strings.Contains(err.Error(), want) || got != nil {
			t.Errorf("%q: %v, %v; want an error with %q", in, got, err, want)
		}
	}
}

// TestMixedIsEven checks what an IMIX is: 7 of 64, 4 of 594, 1 of 1518 in twelve,
// and nowhere more than two small ones one after the other, also from one cycle to
// the next.
func TestMixedIsEven(t *testing.T) {
	sizes := mixed()
	count := map[int]int{}
	for _, size := range sizes {
		count[size]++
	}
	if d := cmp.Diff(map[int]int{64: 7, 594: 4, 1518: 1}, count); d != "" {
		t.Errorf("parts (-want +got):\n%s", d)
	}
	twice := slices.Concat(sizes, sizes)
	for i := range len(twice) - 2 {
		if twice[i] == twice[i+1] && twice[i+1] == twice[i+2] {
			t.Errorf("three of %d in a row at %d: %v", twice[i], i, sizes)
		}
	}
}

func FuzzParseSizes(f *testing.F) {
	for _, seed := range []string{"64", "imix", "64,594,1518", ",", "1e3", "0x40"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		defer testutil.Bounded(t, len(s))()
		sizes, err := ParseSizes(s)
		if (err == nil) != (len(sizes) > 0) || len(sizes) > MaxCycle {
			t.Fatalf("%q: %v, %v", s, sizes, err)
		}
		for _, size := range sizes {
			if size < 1 || size > maxSize {
				t.Fatalf("%q: size %d", s, size)
			}
		}
	})
}

// specs are all combinations of headers.
func specs() []Spec {
	var all []Spec
	for _, v6 := range []bool{false, true} {
		for _, protocol := range []uint8{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			for _, vlan := range []uint16{0, 1, 4094} {
				all = append(all, Spec{
					IPv6: v6, Protocol: protocol, VLAN: vlan, DSCP: 46, HopLimit: 64,
					TCPFlags: []frame.TCPFlags{frame.SYN}, Sizes: []int{128},
				})
			}
		}
	}
	return all
}

func tupleOf(s Spec) frame.Tuple {
	if s.IPv6 {
		return tuple6
	}
	return tuple4
}

// TestBuildAgainstGopacket builds what gopacket makes of the same description.
func TestBuildAgainstGopacket(t *testing.T) {
	token := Token{Run: 0x01020304, Flow: 5, Sequence: 0xfffffffe}
	for _, s := range specs() {
		for _, flags := range []frame.TCPFlags{frame.SYN, frame.SYN | frame.ACK, frame.ACK, frame.FIN | frame.ACK, frame.RST, frame.PSH | frame.ACK | frame.URG | frame.ECE | frame.CWR} {
			for _, length := range []int{s.HeaderLen(), s.HeaderLen() + 1, 128, 129, 1514} {
				got := Build(nil, link, &s, tupleOf(s), token, length, flags)
				want := buildWithGopacket(t, s, token, length, flags)
				if d := cmp.Diff(hex.Dump(want), hex.Dump(got)); d != "" {
					t.Fatalf("%v, %d bytes, %v (-gopacket +natkit):\n%s", s.stack(), length, flags, d)
				}
			}
		}
	}
}

func buildWithGopacket(t *testing.T, s Spec, token Token, length int, flags frame.TCPFlags) []byte {
	etherType := layers.EthernetTypeIPv4
	var ip gopacket.SerializableLayer
	network := gopacket.NetworkLayer(nil)
	if s.IPv6 {
		etherType = layers.EthernetTypeIPv6
		header := ipv6(layers.IPProtocol(s.Protocol))
		header.TrafficClass, header.FlowLabel, header.HopLimit = s.DSCP<<2, 0, s.HopLimit
		ip, network = header, header
	} else {
		header := ipv4(layers.IPProtocol(s.Protocol))
		header.TOS, header.Id, header.Flags, header.TTL = s.DSCP<<2, 0, layers.IPv4DontFragment, s.HopLimit
		ip, network = header, header
	}
	parts := []gopacket.SerializableLayer{ethernet(etherType), ip}
	if s.VLAN != 0 {
		parts = []gopacket.SerializableLayer{ethernet(layers.EthernetTypeDot1Q), &layers.Dot1Q{VLANIdentifier: s.VLAN, Type: etherType}, ip}
	}
	if s.Protocol == unix.IPPROTO_TCP {
		parts = append(parts, tcpOfFlow(network, token.Flow, flags))
	} else {
		parts = append(parts, udp(network))
	}
	data := make([]byte, TokenLen+length-s.HeaderLen())
	token.Put(data)
	return serialize(t, append(parts, gopacket.Payload(data))...)[:length]
}

func tcpOfFlow(ip gopacket.NetworkLayer, flow uint32, flags frame.TCPFlags) *layers.TCP {
	segment := tcp(ip)
	segment.FIN, segment.SYN, segment.RST, segment.PSH = flags&frame.FIN != 0, flags&frame.SYN != 0, flags&frame.RST != 0, flags&frame.PSH != 0
	segment.ACK, segment.URG, segment.ECE, segment.CWR = flags&frame.ACK != 0, flags&frame.URG != 0, flags&frame.ECE != 0, flags&frame.CWR != 0
	segment.Options, segment.Urgent, segment.Window = nil, 0, 0xffff
	segment.Seq, segment.Ack = flow*0x9e3779b1, 0
	if !segment.SYN {
		segment.Seq++
	}
	if segment.ACK {
		segment.Ack = 1
	}
	return segment
}

// TestBuildLeast: the least size of a Spec has room for everything, and a length
// that has not is made longer.
func TestBuildLeast(t *testing.T) {
	for _, s := range specs() {
		built := Build(nil, link, &s, tupleOf(s), Token{Run: 1, Flow: 2, Sequence: 3}, s.MinSize()-frame.FCSLen, frame.SYN)
		if len(built) != s.MinSize()-frame.FCSLen || len(built) < 60 {
			t.Errorf("%s: %d bytes, want %d and at least 60", s.stack(), len(built), s.MinSize()-frame.FCSLen)
		}
		if short := Build(nil, link, &s, tupleOf(s), Token{}, 1, frame.SYN); len(short) != s.HeaderLen() {
			t.Errorf("%s, too short: %d bytes, want %d", s.stack(), len(short), s.HeaderLen())
		}
		f, err := frame.Parse(built)
		if err != nil {
			t.Fatalf("%s: %v", s.stack(), err)
		}
		if token, ok := ParseToken(f.Payload); !ok || token != (Token{1, 2, 3}) {
			t.Errorf("%s: token %+v, %v", s.stack(), token, ok)
		}
	}
}

func TestBuildAppends(t *testing.T) {
	s := specs()[0]
	one := Build(nil, link, &s, tuple4, Token{Flow: 1}, 60, 0)
	got := Build([]byte("before"), link, &s, tuple4, Token{Flow: 1}, 60, 0)
	if !bytes.Equal(got, append([]byte("before"), one...)) {
		t.Errorf("%x does not end with %x", got, one)
	}
}

// TestBuildNeverWritesZeroUDPChecksum searches a packet whose checksum comes out as
// 0, which is written as 0xffff (RFC 768).
func TestBuildNeverWritesZeroUDPChecksum(t *testing.T) {
	for _, tuple := range []frame.Tuple{tuple4, tuple6} {
		s := Spec{IPv6: tuple == tuple6, Protocol: unix.IPPROTO_UDP, HopLimit: 64}
		found := false
		for sequence := uint32(0); sequence < 1<<16 && !found; sequence++ {
			f, err := frame.Parse(Build(nil, link, &s, tuple, Token{Sequence: sequence}, 86, 0))
			if err != nil {
				t.Fatal(err)
			}
			if found = f.UDP.Checksum == 0xffff; f.UDP.Checksum == 0 || f.TransportChecksum() != frame.ChecksumOK {
				t.Fatalf("%s: checksum %#04x is %v", s.stack(), f.UDP.Checksum, f.TransportChecksum())
			}
		}
		if !found {
			t.Errorf("%s: no packet has the checksum 0xffff", s.stack())
		}
	}
}

// A tuple of the wrong family is a mistake of the caller, and no reason to panic.
func TestBuildWithWrongFamily(t *testing.T) {
	for _, s := range specs() {
		for _, tuple := range []frame.Tuple{tuple4, tuple6, {}, {Src: tuple4.Src, Dst: tuple6.Dst}, {Src: tuple6.Src, Dst: tuple4.Dst}} {
			Build(nil, link, &s, tuple, Token{}, 60, frame.SYN)
		}
	}
}

// FuzzBuild parses what is built, and finds all of it again.
func FuzzBuild(f *testing.F) {
	f.Add(false, false, uint16(0), uint8(0), uint8(64), uint8(frame.SYN), uint32(1), uint32(2), uint32(3), uint16(60), tuple4.Src.Addr().AsSlice(), uint16(1024))
	f.Add(true, true, uint16(4094), uint8(63), uint8(1), uint8(frame.ACK|frame.FIN), uint32(1), uint32(2), uint32(3), uint16(1514), tuple6.Src.Addr().AsSlice(), uint16(0))
	f.Fuzz(func(t *testing.T, v6, tcp bool, vlan uint16, dscp, hops, flags uint8, run, flow, sequence uint32, length uint16, address []byte, port uint16) {
		defer testutil.Bounded(t, len(address)+88)()
		s := Spec{IPv6: v6, Protocol: unix.IPPROTO_UDP, VLAN: vlan & 0xfff, DSCP: dscp & 63, HopLimit: max(hops, 1)}
		if tcp {
			s.Protocol = unix.IPPROTO_TCP
		}
		tuple := fuzzedTuple(tupleOf(s), address, port)
		token := Token{run, flow, sequence}
		size := max(s.HeaderLen(), int(length)%maxFrame)
		built := Build(nil, link, &s, tuple, token, size, frame.TCPFlags(flags))
		if problem := checkBuilt(built, s, tuple, token, size, frame.TCPFlags(flags)); problem != "" {
			t.Errorf("%s, %d bytes: %s", s.stack(), size, problem)
		}
	})
}

// fuzzedTuple has another source where the address is of the same family.
func fuzzedTuple(tuple frame.Tuple, address []byte, port uint16) frame.Tuple {
	if a, ok := netip.AddrFromSlice(address); ok && a.BitLen() == tuple.Src.Addr().BitLen() {
		tuple.Src = netip.AddrPortFrom(a, port)
	}
	return tuple
}

func checkBuilt(built []byte, s Spec, tuple frame.Tuple, token Token, size int, flags frame.TCPFlags) string {
	f, err := frame.Parse(built)
	gotToken, _ := ParseToken(f.Payload)
	var tags []byte
	if s.VLAN != 0 {
		tags = []byte{0x81, 0, byte(s.VLAN >> 8), byte(s.VLAN)}
	}
	dscp, hops := f.IPv4.DSCP, f.IPv4.TTL
	if s.IPv6 {
		dscp, hops = f.IPv6.DSCP, f.IPv6.HopLimit
	}
	switch {
	case err != nil:
		return err.Error()
	case len(built) != size || f.Missing != 0 || len(f.Trailer) != 0:
		return fmt.Sprintf("%d bytes, %d missing, trailer %x", len(built), f.Missing, f.Trailer)
	case f.Ethernet.Link != link || !bytes.Equal(f.Ethernet.Tags, tags):
		return fmt.Sprintf("Ethernet %+v", f.Ethernet)
	case f.Tuple() != tuple || f.Protocol != s.Protocol || f.Transport != s.Protocol:
		return fmt.Sprintf("tuple %v, protocol %d", f.Tuple(), f.Protocol)
	case dscp != s.DSCP || hops != s.HopLimit || f.Fragment.Is():
		return fmt.Sprintf("DSCP %d, hop limit %d, fragment %+v", dscp, hops, f.Fragment)
	case s.Protocol == unix.IPPROTO_TCP && f.TCP.Flags != flags:
		return fmt.Sprintf("flags %v", f.TCP.Flags)
	case gotToken != token || len(bytes.TrimRight(f.Payload[TokenLen:], "\x00")) != 0:
		return fmt.Sprintf("token %+v, payload %x", gotToken, f.Payload)
	case !f.IPChecksumOK() || f.TransportChecksum() != frame.ChecksumOK:
		return fmt.Sprintf("IP checksum %v, transport checksum %v", f.IPChecksumOK(), f.TransportChecksum())
	}
	return ""
}

var (
	link = frame.Link{
		Source:      frame.MAC{0x02, 0, 0x5e, 0, 0x53, 1},
		Destination: frame.MAC{0x02, 0, 0x5e, 0, 0x53, 2},
	}
	tuple4 = frame.Tuple{Src: netip.MustParseAddrPort("198.18.0.1:1024"), Dst: netip.MustParseAddrPort("203.0.113.7:80")}
	tuple6 = frame.Tuple{Src: netip.MustParseAddrPort("[2001:db8::1]:1024"), Dst: netip.MustParseAddrPort("[2001:db8:1::7]:80")}
)

// Headers as gopacket has them, to be put together to frames.
func ethernet(etherType layers.EthernetType) *layers.Ethernet {
	return &layers.Ethernet{
		SrcMAC:       net.HardwareAddr(link.Source[:]),
		DstMAC:       net.HardwareAddr(link.Destination[:]),
		EthernetType: etherType,
	}
}

func ipv4(protocol layers.IPProtocol) *layers.IPv4 {
	return &layers.IPv4{
		Version: 4, TOS: 46<<2 | 1, Id: 7, TTL: 63, Protocol: protocol,
		SrcIP: tuple4.Src.Addr().AsSlice(), DstIP: tuple4.Dst.Addr().AsSlice(),
	}
}

func ipv6(next layers.IPProtocol) *layers.IPv6 {
	return &layers.IPv6{
		Version: 6, TrafficClass: 46<<2 | 1, FlowLabel: 0xabcdf, HopLimit: 63, NextHeader: next,
		SrcIP: tuple6.Src.Addr().AsSlice(), DstIP: tuple6.Dst.Addr().AsSlice(),
	}
}

func tcp(ip gopacket.NetworkLayer) *layers.TCP {
	t := &layers.TCP{
		SrcPort: 1024, DstPort: 80, Seq: 0x01020304, Ack: 0x05060708,
		SYN: true, ACK: true, ECE: true, Window: 29200, Urgent: 3,
		Options: []layers.TCPOption{
			{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{5, 0xb4}},
			{OptionType: layers.TCPOptionKindNop},
			{OptionType: layers.TCPOptionKindWindowScale, OptionLength: 3, OptionData: []byte{7}},
			{OptionType: layers.TCPOptionKindTimestamps, OptionLength: 10, OptionData: []byte{0, 0, 1, 0, 0, 0, 2, 0}},
		},
	}
	_ = t.SetNetworkLayerForChecksum(ip) // fails for other layers than IP only
	return t
}

func udp(ip gopacket.NetworkLayer) *layers.UDP {
	u := &layers.UDP{SrcPort: 1024, DstPort: 80}
	_ = u.SetNetworkLayerForChecksum(ip)
	return u
}

// serialize puts a frame together, padded to 60 bytes.
func serialize(t testing.TB, parts ...gopacket.SerializableLayer) []byte {
	t.Helper()
	buffer := gopacket.NewSerializeBuffer()
	options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buffer, options, parts...); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}
