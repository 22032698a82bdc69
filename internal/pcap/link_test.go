package pcap

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// be builds headers.
func be(parts ...any) (b []byte) {
	for _, part := range parts {
		switch v := part.(type) {
		case int:
			b = append(b, byte(v))
		case uint16:
			b = binary.BigEndian.AppendUint16(b, v)
		case uint32:
			b = binary.BigEndian.AppendUint32(b, v)
		case []byte:
			b = append(b, v...)
		}
	}
	return b
}

var (
	mac  = []byte{2, 0, 0, 0, 0, 1}
	snap = []byte{0xaa, 0xaa, 3, 0, 0, 0}
)

// linkCase is a frame with a link layer in front of the datagram of udpFrame, or of
// its like over IPv6.
type linkCase struct {
	name   string
	link   int
	header []byte
	v6     bool
	reason Reason
	// ours says that gopacket does not read this.
	ours bool
}

func linkCases() []linkCase {
	qos := be(0x88, 0x01, uint16(0), mac, mac, mac, uint16(0), uint16(0))
	data := be(0x08, 0x02, uint16(0), mac, mac, mac, uint16(0))
	radio := []byte{0, 0, 8, 0, 0, 0, 0, 0}
	return []linkCase{
		{"Ethernet", linkEthernet, be(mac, mac, uint16(0x800)), false, Decoded, false},
		{"Ethernet, IPv6", linkEthernet, be(mac, mac, uint16(0x86dd)), true, Decoded, false},
		{"VLAN", linkEthernet, be(mac, mac, uint16(0x8100), uint16(7), uint16(0x800)), false, Decoded, false},
		{"QinQ", linkEthernet, be(mac, mac, uint16(0x88a8), uint16(7), uint16(0x8100), uint16(8), uint16(0x86dd)), true, Decoded, false},
		{"QinQ of old switches", linkEthernet, be(mac, mac, uint16(0x9100), uint16(7), uint16(0x8100), uint16(8), uint16(0x800)), false, Decoded, true},
		{"LLC/SNAP", linkEthernet, be(mac, mac, uint16(100), snap, uint16(0x800)), false, Decoded, true},
		{"PPPoE", linkEthernet, be(mac, mac, uint16(0x8864), 0x11, 0, uint16(1), uint16(42), uint16(0x21)), false, Decoded, false},
		{"MPLS", linkEthernet, be(mac, mac, uint16(0x8847), uint32(16<<12), uint32(17<<12|1<<8)), true, Decoded, false},
		{"ARP", linkEthernet, be(mac, mac, uint16(0x806)), false, NotIP, false},
		{"cut", linkEthernet, nil, false, CutHeader, false},
		{"raw", linkRaw, nil, false, Decoded, false},
		{"raw, IPv6", linkRaw, nil, true, Decoded, false},
		{"raw of BSD", linkRawBSD, nil, false, Decoded, false},
		{"IPv4", linkIPv4, nil, false, Decoded, true},
		{"IPv6", linkIPv6, nil, true, Decoded, true},
		{"NULL", linkNull, []byte{2, 0, 0, 0}, false, Decoded, false},
		{"NULL of the other byte order, IPv6", linkNull, []byte{0, 0, 0, 30}, true, Decoded, false},
		{"LOOP", linkLoop, []byte{0, 0, 0, 2}, false, Decoded, false},
		{"Linux SLL", linkSLL, be(uint16(0), uint16(1), uint16(6), mac, uint16(0), uint16(0x800)), false, Decoded, false},
		{"Linux SLL2", linkSLL2, be(uint16(0x86dd), uint16(0), uint32(3), uint16(1), 0, 6, mac, uint16(0)), true, Decoded, false},
		{"PPP", linkPPP, be(0xff, 3, uint16(0x21)), false, Decoded, false},
		{"PPP, compressed", linkPPP, be(0x57), true, Decoded, false},
		{"PPP_HDLC", linkPPPHDLC, be(0xff, 3, uint16(0x21)), false, Decoded, true},
		{"Cisco HDLC", linkCiscoHDLC, be(0x0f, 0, uint16(0x800)), false, Decoded, true},
		{"FDDI", linkFDDI, be(0x50, mac, mac, snap, uint16(0x800)), false, Decoded, false},
		{"PFLOG", linkPFLog, append([]byte{61, 2}, make([]byte, 62)...), false, Decoded, false},
		{"NFLOG", linkNFLog, []byte{2, 0, 0, 0, 8, 0, 1, 0, 0, 0, 0, 0, 58, 0, 9, 0}, false, Decoded, true},
		{"802.11", linkWLAN, be(data, snap, uint16(0x800)), false, Decoded, false},
		{"802.11 QoS, radiotap", linkRadiotap, be(radio, qos, snap, uint16(0x86dd)), true, Decoded, false},
		{"802.11, encrypted", linkWLAN, be(0x08, 0x42, uint16(0), mac, mac, mac, uint16(0), uint32(1), uint32(2)), false, Encrypted, true},
		{"802.11, beacon", linkWLAN, be(0x80, 0, uint16(0), mac, mac, mac, uint16(0)), false, NotIP, true},
		{"Prism", linkPrism, be([]byte{0x44, 0, 0, 0, 24, 0, 0, 0}, make([]byte, 16), data, snap, uint16(0x800)), false, Decoded, true},
		{"USB", 220, make([]byte, 64), false, UnknownLinkType, true},
	}
}

// packetOf is what is behind the header of a case.
func (c *linkCase) packetOf(t testing.TB) []byte {
	if c.reason == CutHeader {
		return []byte{1, 2, 3}
	}
	if !c.v6 {
		return udpFrame(12)[14:]
	}
	udp := &layers.UDP{SrcPort: 40000, DstPort: 80, Length: 8}
	ip := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP, Length: 8,
		SrcIP: netip.MustParseAddr("2001:db8::1").AsSlice(), DstIP: netip.MustParseAddr("2001:db8::2").AsSlice()}
	_ = udp.SetNetworkLayerForChecksum(ip)
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{ComputeChecksums: true}, ip, udp); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func (c *linkCase) frame(t testing.TB) []byte { return append(bytes.Clone(c.header), c.packetOf(t)...) }

// TestLinks compares with gopacket.
func TestLinks(t *testing.T) {
	for _, tt := range linkCases() {
		t.Run(tt.name, func(t *testing.T) {
			frame := tt.frame(t)
			var got Packet
			stats, err := Each(bytes.NewReader(ngFile(t, layers.LinkType(tt.link), frame)), func(p *Packet) error { got = *p; return nil })
			if err != nil || got.Reason != tt.reason {
				t.Fatalf("%v, %v; want %v", err, got.Reason, tt.reason)
			}
			if tt.reason != Decoded {
				if len(stats.Undecoded) != 1 || stats.Undecoded[0].Reason != tt.reason {
					t.Errorf("undecoded %+v", stats.Undecoded)
				}
				return
			}
			want := netip.AddrPortFrom(netip.MustParseAddr("198.18.1.1"), 80)
			if tt.v6 {
				want = netip.MustParseAddrPort("[2001:db8::2]:80")
			}
			if got.Frame.Tuple().Dst != want {
				t.Errorf("to %v, want %v", got.Frame.Tuple().Dst, want)
			}
			if !tt.ours && !gopacketHas(layers.LinkType(tt.link), frame, want.Addr()) {
				t.Errorf("gopacket reads something else")
			}
		})
	}
}

func gopacketHas(link layers.LinkType, frame []byte, to netip.Addr) bool {
	p := gopacket.NewPacket(frame, link, gopacket.Default)
	if p.NetworkLayer() == nil {
		return false
	}
	return bytes.Equal(p.NetworkLayer().NetworkFlow().Dst().Raw(), to.AsSlice())
}

// TestGopacketsLinks holds that all link layers are read that gopacket knows and that
// can carry IP.
func TestGopacketsLinks(t *testing.T) {
	without := map[layers.LinkType]string{layers.LinkTypeLinuxUSB: "USB"}
	for link, known := range layers.LinkTypeMetadata {
		if known.DecodeWith == nil || known.Name == "" || known.Name == "UnknownLinkType" || without[layers.LinkType(link)] != "" {
			continue
		}
		if links[link].network == nil {
			t.Errorf("gopacket reads link type %d (%s)", link, known.Name)
		}
	}
}

// TestLinksCut cuts each frame everywhere: nothing may panic, and nothing is found
// that is not there.
func TestLinksCut(t *testing.T) {
	for _, tt := range linkCases() {
		frame := tt.frame(t)
		for n := range frame {
			for link := range links {
				var h header
				if _, reason := h.networkOf(link, frame[:n:n]); reason == Decoded && len(h.b) > n {
					t.Fatalf("%s cut to %d has %d bytes", tt.name, n, len(h.b))
				}
			}
		}
	}
}
