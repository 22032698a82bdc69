package filter

import (
	"net/netip"
	"testing"

	"github.com/natkit/natkit/internal/packet"
	"github.com/natkit/natkit/internal/testutil"
)

// frame is a SYN or a datagram as a load generator sends it.
func frame(proto uint8, from, to string) []byte {
	source, destination := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)
	spec := &packet.Spec{IPv6: source.Addr().Is6(), Protocol: proto, HopLimit: 64}
	tuple := packet.Tuple{Src: source, Dst: destination}
	return packet.Build(nil, packet.Link{}, spec, tuple, packet.Token{}, 0, packet.SYN)
}

// TestMatch has a few packets; package match compares many, with tcpdump.
func TestMatch(t *testing.T) {
	syn := ParseFrame(frame(ProtoTCP, "198.18.0.1:1024", "198.19.0.1:80"))
	datagram := ParseFrame(frame(ProtoUDP, "[2001:db8::1]:5353", "[2001:db8:1::1]:53"))
	for words, want := range map[string][2]bool{
		"":                                  {true, true},
		"tcp":                               {true, false},
		"udp":                               {false, true},
		"ip6":                               {false, true},
		"not ip6":                           {true, false},
		"icmp or net 0.0.0.0/0":             {true, false},
		"port 80 or 53":                     {true, true},
		"src port 80 or 53":                 {false, false},
		"dst portrange 50-79":               {false, true},
		"tcp port 1024 and not host ::":     {true, false},
		"src and dst net 198.18.0.0/15":     {true, false},
		"src and dst net 198.18":            {false, false},
		"net 2001:db8::/32":                 {false, true},
		"dst 2001:db8::1 or 198.19.0.1":     {true, false},
		"ip host 198.18.0.1 and (tcp)":      {true, false},
		"not (port 80 or port 53)":          {false, false},
		"tcp or udp and port 53":            {false, true},
		"tcp or (udp and port 53)":          {true, true},
		"udp src portrange 6000-5000":       {false, true},
		"not tcp and not dst port 5353":     {false, true},
		"host 198.18.0.1 and dst port 1024": {false, false},
	} {
		e, err := Parse([]string{words})
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]bool{e.Match(syn), e.Match(datagram)}; got != want {
			t.Errorf("%q matches SYN, datagram: %v, want %v", words, got, want)
		}
	}
}

func TestParseFrame(t *testing.T) {
	got := ParseFrame(frame(ProtoTCP, "198.18.0.1:1024", "198.19.0.1:80"))
	want := Packet{
		Source: [16]byte{198, 18, 0, 1}, Destination: [16]byte{198, 19, 0, 1}, SourcePort: 1024, DestinationPort: 80,
		L3: EtherTypeIPv4, Length: got.Length, Proto: ProtoTCP, TCPFlags: 2, Flags: HasAddresses | HasPorts, TTL: 64,
	}
	if got != want || got.Length < 40 {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := ParseFrame(make([]byte, 13)); got != (Packet{}) {
		t.Errorf("of a frame without EtherType: %+v", got)
	}
}

// FuzzParseFrame: no frame panics, and none has what it is too short for.
func FuzzParseFrame(f *testing.F) {
	f.Add(frame(ProtoTCP, "198.18.0.1:1024", "198.19.0.1:80"))
	f.Add(frame(ProtoUDP, "[2001:db8::1]:5353", "[2001:db8:1::1]:53"))
	f.Fuzz(func(t *testing.T, frame []byte) {
		defer testutil.Bounded(t, len(frame))()
		p := ParseFrame(frame)
		if p.Flags&HasPorts != 0 && (len(frame) < ethernetLen+ipv4Len+4 || p.Flags&HasAddresses == 0) {
			t.Errorf("%x has ports: %+v", frame, p)
		}
	})
}
