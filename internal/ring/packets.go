package ring

import (
	"encoding/binary"
	"errors"
	"time"
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

var errPackets = errors.New("the headers of packets are damaged")

func (p *Packets) encode(to []byte) []byte {
	for _, n := range []uint64{p.Sample, p.SampleICMP, p.NotKept, p.Lost, uint64(len(p.List))} {
		to = binary.AppendUvarint(to, n)
	}
	for _, one := range p.List {
		flags := byte(0)
		if one.Sent {
			flags = 1
		}
		to = binary.LittleEndian.AppendUint64(append(to, flags), uint64(one.At.UnixNano()))
		to = append(binary.AppendUvarint(to, uint64(len(one.Interface))), one.Interface...)
		to = binary.AppendUvarint(to, uint64(one.Length))
		to = binary.AppendUvarint(to, uint64(len(one.Data)))
		to = append(to, one.Data...)
	}
	return to
}

func parsePackets(b []byte) (*Packets, error) {
	p := &Packets{}
	damaged := false
	number := func() uint64 {
		n, size := binary.Uvarint(b)
		if size <= 0 {
			damaged = true
			return 0
		}
		b = b[size:]
		return n
	}
	text := func() []byte {
		size := number()
		if size > uint64(len(b)) {
			damaged = true
			return nil
		}
		data := b[:size:size]
		b = b[size:]
		return data
	}
	p.Sample, p.SampleICMP, p.NotKept, p.Lost = number(), number(), number(), number()
	for n := number(); n > 0 && !damaged; n-- {
		if len(b) < 9 {
			return nil, errPackets
		}
		one := Packet{Sent: b[0]&1 > 0, At: time.Unix(0, int64(binary.LittleEndian.Uint64(b[1:]))).UTC()}
		b = b[9:]
		one.Interface = string(text())
		one.Length = uint32(number())
		if one.Data = text(); damaged {
			return nil, errPackets
		}
		if p.List = append(p.List, one); len(p.List) > mostPackets {
			return nil, errPackets
		}
	}
	if damaged || len(b) > 0 {
		return nil, errPackets
	}
	return p, nil
}

// Lengths of headers.
const (
	ipv6Header = 40
	icmpHeader = 8
	portsBytes = 8 // ports and sequence number of the packet that an ICMP error is about
	protoTCP   = 6
	protoICMP  = 1
	protoICMP6 = 58
)

// HeaderBytes is how much of a packet that begins with its IP header is headers: those of IP and TCP with their options, of
// ICMP and, in its errors, of the packet that they are about. What is behind is payload, which no ring has.
func HeaderBytes(data []byte) int {
	size, protocol := ipHeader(data)
	rest := data[size:]
	switch {
	case protocol == protoTCP && len(rest) > 12:
		size += int(rest[12]>>4) * 4
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

// ipHeader is the length of the IP header, as far as it is there, and the protocol behind it.
func ipHeader(data []byte) (size int, protocol byte) {
	switch {
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
