package pair

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/natkit/natkit/internal/frame"
)

// began is the time of a test's first packet.
var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// pkt is a packet of a test, TCP where it has flags.
type pkt struct {
	at       time.Duration
	src, dst string
	flags    frame.TCPFlags
	seq, ack uint32
	ts       uint32 // TSval; 0 for no timestamps
	payload  string
	ttl      uint8 // 64 where 0
	id       uint16
	echo     bool // a reply where src has no port
	quotes   *pkt // makes it an ICMP error
}

func (p pkt) delayed(d time.Duration) pkt { p.at += d; return p }

// routed is the packet behind a router.
func (p pkt) routed(d time.Duration) pkt {
	p = p.delayed(d)
	p.ttl = 63
	return p
}

func (p pkt) from(src string) pkt { p.src = src; return p }
func (p pkt) to(dst string) pkt   { p.dst = dst; return p }

// frame builds it.
func (p pkt) frame(t testing.TB) []byte {
	t.Helper()
	eth := &layers.Ethernet{SrcMAC: []byte{2, 0, 0, 0, 0, 1}, DstMAC: []byte{2, 0, 0, 0, 0, 2}, EthernetType: layers.EthernetTypeIPv4}
	if netip.MustParseAddrPort(p.src).Addr().Is6() {
		eth.EthernetType = layers.EthernetTypeIPv6
	}
	return serialize(t, append([]gopacket.SerializableLayer{eth}, p.layers(t)...))
}

func serialize(t testing.TB, all []gopacket.SerializableLayer) []byte {
	t.Helper()
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, all...); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// layers are those from IP on.
func (p pkt) layers(t testing.TB) []gopacket.SerializableLayer {
	src, dst := netip.MustParseAddrPort(p.src), netip.MustParseAddrPort(p.dst)
	above := layers.IPProtocolUDP
	switch {
	case p.flags != 0:
		above = layers.IPProtocolTCP
	case p.echo || p.quotes != nil:
		above = layers.IPProtocolICMPv4
	}
	ttl := usualTTL(p.ttl)
	var ip interface {
		gopacket.SerializableLayer
		gopacket.NetworkLayer
	}
	if src.Addr().Is4() {
		ip = &layers.IPv4{Version: 4, TTL: ttl, Id: p.id, Protocol: above, SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice()}
	} else {
		ip = &layers.IPv6{Version: 6, HopLimit: ttl, NextHeader: above, SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice()}
	}
	all := []gopacket.SerializableLayer{ip}
	payload := []byte(p.payload)
	switch {
	case p.flags != 0:
		all = append(all, p.tcp(src, dst, ip))
	case p.echo:
		kind, id := uint8(layers.ICMPv4TypeEchoRequest), src.Port()
		if id == 0 {
			kind, id = layers.ICMPv4TypeEchoReply, dst.Port()
		}
		all = append(all, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(kind, 0), Id: id, Seq: uint16(p.seq)})
	case p.quotes != nil:
		all = append(all, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeDestinationUnreachable, 1)})
		payload = serialize(t, p.quotes.layers(t))[:28]
	default:
		udp := &layers.UDP{SrcPort: layers.UDPPort(src.Port()), DstPort: layers.UDPPort(dst.Port())}
		_ = udp.SetNetworkLayerForChecksum(ip)
		all = append(all, udp)
	}
	return append(all, gopacket.Payload(payload))
}

func usualTTL(ttl uint8) uint8 {
	if ttl == 0 {
		return 64
	}
	return ttl
}

func (p pkt) tcp(src, dst netip.AddrPort, ip gopacket.NetworkLayer) *layers.TCP {
	tcp := &layers.TCP{
		SrcPort: layers.TCPPort(src.Port()), DstPort: layers.TCPPort(dst.Port()), Seq: p.seq, Ack: p.ack, Window: 1000,
		SYN: p.flags&frame.SYN != 0, ACK: p.flags&frame.ACK != 0, FIN: p.flags&frame.FIN != 0, RST: p.flags&frame.RST != 0, PSH: p.flags&frame.PSH != 0,
	}
	if p.ts != 0 {
		tcp.Options = []layers.TCPOption{
			{OptionType: layers.TCPOptionKindNop}, {OptionType: layers.TCPOptionKindNop},
			{OptionType: layers.TCPOptionKindTimestamps, OptionLength: 10, OptionData: []byte{byte(p.ts >> 24), byte(p.ts >> 16), byte(p.ts >> 8), byte(p.ts), 0, 0, 0, 0}},
		}
	}
	_ = tcp.SetNetworkLayerForChecksum(ip)
	return tcp
}

// file makes a capture with at most snap bytes of each packet.
func file(t testing.TB, snap int, packets ...pkt) []byte {
	t.Helper()
	var b bytes.Buffer
	w := pcapgo.NewWriterNanos(&b)
	if err := w.WriteFileHeader(uint32(snap), layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	for _, p := range packets {
		frame := p.frame(t)
		kept := frame[:min(len(frame), snap)]
		err := w.WritePacket(gopacket.CaptureInfo{Timestamp: began.Add(p.at), CaptureLength: len(kept), Length: len(frame)}, kept)
		if err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}
