package ring

import (
	"cmp"
	"encoding/binary"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/snapshot"
)

// Packets are headers of packets, as many as were kept.
type Packets struct {
	// Sample: of TCP one in so many connections was kept, SampleICMP: of ICMP one in so many packets. NotKept packets were seen beyond what is kept in a second, Lost ones
	// were not seen: there was no room for them.
	Sample     uint64
	SampleICMP uint64
	NotKept    uint64
	Lost       uint64
	List       []Packet
}

// Packet is the headers of one packet, from the IP header on.
type Packet struct {
	At time.Time
	// Interface is its name.
	Interface string
	Sent      bool
	// Length is that of the whole packet by its IP header.
	Length uint32
	Data   []byte
}

// Dropped are headers of packets that the kernel dropped, as many as were kept.
type Dropped struct {
	// Lost were to be kept, and there was no room for them.
	Lost uint64
	List []DroppedPacket
}

// DroppedPacket is the headers of one packet that the kernel dropped. Sent is not known of it.
type DroppedPacket struct {
	Packet
	// Site is where and why; its Packets is 0.
	Site snapshot.DropSite
}

var errPackets = errors.New("the headers of packets are damaged")

func (p *Packets) encode(to []byte) []byte {
	for _, n := range []uint64{p.Sample, p.SampleICMP, p.NotKept, p.Lost, uint64(len(p.List))} {
		to = binary.AppendUvarint(to, n)
	}
	for i := range p.List {
		to = p.List[i].encode(to)
	}
	return to
}

func (p *Packet) encode(to []byte) []byte {
	flags := byte(0)
	if p.Sent {
		flags = 1
	}
	to = binary.LittleEndian.AppendUint64(append(to, flags), uint64(p.At.UnixNano()))
	to = appendText(to, p.Interface)
	to = binary.AppendUvarint(to, uint64(p.Length))
	return appendText(to, p.Data)
}

func appendText[T string | []byte](to []byte, text T) []byte {
	return append(binary.AppendUvarint(to, uint64(len(text))), text...)
}

func (d *Dropped) encode(to []byte) []byte {
	to = binary.AppendUvarint(binary.AppendUvarint(to, d.Lost), uint64(len(d.List)))
	for i := range d.List {
		one := &d.List[i]
		to = one.Packet.encode(to)
		for _, text := range []string{one.Site.Function, one.Site.Module, one.Site.Reason, one.Site.Protocol} {
			to = appendText(to, text)
		}
		to = binary.AppendUvarint(binary.AppendUvarint(to, one.Site.Offset), one.Site.Netns)
	}
	return to
}

// headerReader reads what encode wrote; err is set from the first damage on.
type headerReader struct {
	b   []byte
	err error
}

func (r *headerReader) fail() { r.b, r.err = nil, errPackets }

func (r *headerReader) number() uint64 {
	n, size := binary.Uvarint(r.b)
	if size <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[size:]
	return n
}

func (r *headerReader) bytes(size uint64) []byte {
	if size > uint64(len(r.b)) {
		r.fail()
		return nil
	}
	data := r.b[:size:size]
	r.b = r.b[size:]
	return data
}

func (r *headerReader) text() string { return string(r.bytes(r.number())) }

func (r *headerReader) packet() (p Packet) {
	head := r.bytes(9)
	if r.err != nil {
		return p
	}
	p.Sent, p.At = head[0]&1 > 0, time.Unix(0, int64(binary.LittleEndian.Uint64(head[1:]))).UTC()
	p.Interface = r.text()
	p.Length = uint32(r.number())
	p.Data = r.bytes(r.number())
	return p
}

// list calls one for each of as many as are announced.
func (r *headerReader) list(one func()) {
	for n, read := r.number(), 0; n > 0 && r.err == nil; n, read = n-1, read+1 {
		if read >= mostPackets {
			r.fail()
			return
		}
		one()
	}
}

func (r *headerReader) end() error {
	if len(r.b) > 0 {
		r.fail()
	}
	return r.err
}

func parsePackets(b []byte) (*Packets, error) {
	r := &headerReader{b: b}
	p := &Packets{Sample: r.number(), SampleICMP: r.number(), NotKept: r.number(), Lost: r.number()}
	r.list(func() { p.List = append(p.List, r.packet()) })
	if err := r.end(); err != nil {
		return nil, err
	}
	return p, nil
}

func parseDropped(b []byte) (*Dropped, error) {
	r := &headerReader{b: b}
	d := &Dropped{Lost: r.number()}
	r.list(func() {
		d.List = append(d.List, DroppedPacket{Packet: r.packet(), Site: snapshot.DropSite{
			Function: r.text(), Module: r.text(), Reason: r.text(), Protocol: r.text(), Offset: r.number(), Netns: r.number(),
		}})
	})
	if err := r.end(); err != nil {
		return nil, err
	}
	return d, nil
}

// Flows are whose packets these are, those with most first; Packets counts headers.
func (d *Dropped) Flows() []snapshot.DropFlow {
	count := map[snapshot.DropFlow]uint64{}
	for i := range d.List {
		count[d.List[i].flow()]++
	}
	flows := slices.Collect(maps.Keys(count))
	for i := range flows {
		flows[i].Packets = count[flows[i]]
	}
	slices.SortFunc(flows, func(a, b snapshot.DropFlow) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Source, b.Source), cmp.Compare(a.Destination, b.Destination),
			cmp.Compare(a.Function, b.Function), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Interface, b.Interface))
	})
	return flows
}

func (p *Packet) isIPv6() bool { return len(p.Data) > 0 && p.Data[0]>>4 == 6 }

func (p *DroppedPacket) flow() snapshot.DropFlow {
	f := snapshot.DropFlow{Function: p.Site.Function, Reason: p.Site.Reason, Protocol: p.Site.Protocol, Interface: p.Interface, Netns: p.Site.Netns}
	etherType := uint16(frame.EtherTypeIPv4)
	if p.isIPv6() {
		etherType = frame.EtherTypeIPv6
	}
	var header frame.Frame
	_ = header.DecodeNetwork(etherType, p.Data) // what is cut has its addresses
	tuple := header.Tuple()
	f.Source, f.Destination = end(tuple.Src), end(tuple.Dst)
	return f
}

// end is an address, and the port where there is one.
func end(a netip.AddrPort) string {
	switch {
	case !a.Addr().IsValid():
		return ""
	case a.Port() == 0:
		return a.Addr().String()
	}
	return a.String()
}

// Lengths of headers.
const (
	ipv6Header = 40
	icmpHeader = 8
	udpHeader  = 8
	sctpHeader = 12
	portsBytes = 8 // ports and sequence number of the packet that an ICMP error is about
	protoTCP   = 6
	protoUDP   = 17
	protoSCTP  = 132
	protoICMP  = 1
	protoICMP6 = 58
)

// HeaderBytes is how much of a packet that begins with its IP header is headers: those of IP and TCP with their options, of
// UDP, of SCTP without its chunks, of ICMP and, in its errors, of the packet that they are about. A fragment but the first has no more than
// that of IP. What is behind is payload, which no ring has.
func HeaderBytes(data []byte) int {
	size, protocol := ipHeader(data)
	rest := data[size:]
	switch {
	case protocol == protoTCP && len(rest) > 12:
		size += int(rest[12]>>4) * 4
	case protocol == protoUDP:
		size += udpHeader
	case protocol == protoSCTP:
		size += sctpHeader
	case protocol == protoICMP && len(rest) > 0, protocol == protoICMP6 && len(rest) > 0:
		size += min(icmpHeader, len(rest))
		if isError := protocol == protoICMP && (rest[0] == 3 || rest[0] == 11 || rest[0] == 12) || protocol == protoICMP6 && rest[0] < 128; isError && len(rest) > icmpHeader {
			inner, _ := ipHeader(rest[icmpHeader:])
			size += inner + portsBytes
		}
	}
	return min(size, len(data))
}

// IsTCP reports whether a packet that begins with its IP header is of TCP.
func IsTCP(data []byte) bool {
	_, protocol := ipHeader(data)
	return protocol == protoTCP
}

// IsIP reports whether bytes begin with a whole IP header.
func IsIP(data []byte) bool {
	size, _ := ipHeader(data)
	return len(data) >= 20 && data[0]>>4 == 4 && data[0]&0xf >= 5 && size == int(data[0]&0xf)*4 || len(data) >= ipv6Header && data[0]>>4 == 6
}

// ipHeader is the length of the IP header, as far as it is there, and the protocol of the header behind it; 0 where there is
// none.
func ipHeader(data []byte) (size int, protocol byte) {
	switch {
	case len(data) >= 20 && data[0]>>4 == 4 && binary.BigEndian.Uint16(data[6:])&0x1fff > 0: // a fragment but the first
		return min(int(data[0]&0xf)*4, len(data)), 0
	case len(data) >= 20 && data[0]>>4 == 4:
		return min(int(data[0]&0xf)*4, len(data)), data[9]
	case len(data) >= ipv6Header && data[0]>>4 == 6:
		return ipv6Header, data[6]
	}
	return len(data), 0
}

// TotalBytes is the length of a packet by its IP header.
func TotalBytes(data []byte) int {
	switch {
	case len(data) >= 20 && data[0]>>4 == 4:
		return int(binary.BigEndian.Uint16(data[2:]))
	case len(data) >= ipv6Header && data[0]>>4 == 6:
		return ipv6Header + int(binary.BigEndian.Uint16(data[4:]))
	}
	return len(data)
}
