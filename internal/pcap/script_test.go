package pcap

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// A script has a line for each packet: milliseconds, direction (> is the client's),
// flags as letters, sequence and acknowledgement number, payload bytes, both
// timestamps where it has them, and id=N where its IPv4 identification is not 0.
type line1 struct {
	ms                 float64
	fromClient         bool
	flags              string
	seq, ack           uint32
	length             int
	ts                 bool
	tsval, tsecr       uint32
	client, server     netip.AddrPort
	window             uint16
	icmp               bool // the server's host says that the port is unreachable
	icmpType, icmpCode uint8
	id                 uint16
}

func parseScript(t testing.TB, client, server netip.AddrPort, script string) []line1 {
	t.Helper()
	var list []line1
	for text := range strings.SplitSeq(script, "\n") {
		text, _, _ = strings.Cut(text, "#")
		fields := strings.Fields(text)
		if len(fields) == 0 {
			continue
		}
		l := line1{client: client, server: server, window: 1000}
		if id, ok := strings.CutPrefix(fields[len(fields)-1], "id="); ok {
			scan(t, id, "%d", &l.id)
			fields = fields[:len(fields)-1]
			text = strings.Join(fields, " ")
		}
		var dir string
		if fields[2] == "icmp" {
			l.icmp = true
			scan(t, text, "%f %s icmp %d %d %d", &l.ms, &dir, &l.icmpType, &l.icmpCode, &l.seq)
		} else if len(fields) == 8 {
			l.ts = true
			scan(t, text, "%f %s %s %d %d %d %d %d", &l.ms, &dir, &l.flags, &l.seq, &l.ack, &l.length, &l.tsval, &l.tsecr)
		} else {
			scan(t, text, "%f %s %s %d %d %d", &l.ms, &dir, &l.flags, &l.seq, &l.ack, &l.length)
		}
		l.fromClient = dir == ">"
		list = append(list, l)
	}
	return list
}

func scan(t testing.TB, text, format string, into ...any) {
	t.Helper()
	if _, err := fmt.Sscanf(strings.Join(strings.Fields(text), " "), format, into...); err != nil {
		t.Fatalf("line %q: %v", text, err)
	}
}

// frame is the packet of a line, on Ethernet.
func (l *line1) frame(t testing.TB) []byte {
	t.Helper()
	src, dst := l.client, l.server
	if !l.fromClient {
		src, dst = dst, src
	}
	tcp := &layers.TCP{SrcPort: layers.TCPPort(src.Port()), DstPort: layers.TCPPort(dst.Port()), Seq: l.seq, Ack: l.ack, Window: l.window,
		SYN: strings.Contains(l.flags, "S"), ACK: strings.Contains(l.flags, "A"), FIN: strings.Contains(l.flags, "F"), RST: strings.Contains(l.flags, "R")}
	if l.ts {
		value := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, l.tsval), l.tsecr)
		tcp.Options = append(tcp.Options, layers.TCPOption{OptionType: 1, OptionLength: 1}, layers.TCPOption{OptionType: 1, OptionLength: 1},
			layers.TCPOption{OptionType: layers.TCPOptionKindTimestamps, OptionLength: 10, OptionData: value})
	}
	if l.icmp {
		inner := &layers.TCP{SrcPort: layers.TCPPort(dst.Port()), DstPort: layers.TCPPort(src.Port()), Seq: l.seq}
		quoted := serialize(t, dst, src, inner, nil, false)
		return serialize(t, src, dst, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(l.icmpType, l.icmpCode)}, quoted[:28], true)
	}
	frame := serialize(t, src, dst, tcp, make([]byte, l.length), true)
	if src.Addr().Is4() { // the checksum, which nothing here reads, stays
		binary.BigEndian.PutUint16(frame[14+4:], l.id)
	}
	return frame
}

func serialize(t testing.TB, src, dst netip.AddrPort, transport gopacket.SerializableLayer, payload []byte, link bool) []byte {
	t.Helper()
	var list []gopacket.SerializableLayer
	protocol, etherType := layers.IPProtocolTCP, layers.EthernetTypeIPv4
	if _, ok := transport.(*layers.ICMPv4); ok {
		protocol = layers.IPProtocolICMPv4
	}
	var network gopacket.SerializableLayer
	if src.Addr().Is4() {
		ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: protocol, SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice()}
		network = ip
		if tcp, ok := transport.(*layers.TCP); ok {
			_ = tcp.SetNetworkLayerForChecksum(ip)
		}
	} else {
		ip := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: protocol, SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice()}
		network, etherType = ip, layers.EthernetTypeIPv6
		_ = transport.(*layers.TCP).SetNetworkLayerForChecksum(ip)
	}
	if link {
		list = append(list, &layers.Ethernet{SrcMAC: make([]byte, 6), DstMAC: make([]byte, 6), EthernetType: etherType})
	}
	list = append(list, network, transport, gopacket.Payload(payload))
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, list...); err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(b.Bytes())
}

// scripted is the capture of a script.
func scripted(t testing.TB, lines []line1) []byte {
	t.Helper()
	var b bytes.Buffer
	w := pcapgo.NewWriterNanos(&b)
	if err := w.WriteFileHeader(65535, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	for i := range lines {
		frame := lines[i].frame(t)
		at := start.Add(time.Duration(lines[i].ms * float64(time.Millisecond)))
		if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: at, CaptureLength: len(frame), Length: len(frame)}, frame); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func reportOf(t testing.TB, file []byte, o Options) *Report {
	t.Helper()
	r, err := Read(bytes.NewReader(file), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Beginnings of scripts: a connection that the server, or the client, closes first.
const (
	serverFirst = `
		0   > S   100  0    0   5000 0
		1   < SA  900  101  0   7000 5000
		2   > A   101  901  10  5001 7000
		3   < FA  901  111  20  7001 5001
		4   > FA  111  922  0   5002 7001
		5   < A   922  112  0   7002 5002
	`
	clientFirst = `
		0   > S   100  0    0   5000 0
		1   < SA  900  101  0   7000 5000
		3   > FA  101  901  10  5001 7001
		4   < FA  901  112  20  7002 5001
		5   > A   112  922  0   5002 7002
	`
	noTimestamps = `
		0   > S   100  0    0
		1   < SA  900  101  0
		2   > A   101  901  10
		3   < FA  901  111  20
		4   > FA  111  922  0
		5   < A   922  112  0
	`
)
