package cli

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/filter"
	"github.com/natkit/natkit/internal/packet"
	"github.com/natkit/natkit/internal/pcap"
)

// chosenBy reports whether a filter lets a packet pass; what is in a tunnel is not looked
// at. It counts those that pass.
func (v *pcapVerb) chosenBy(n *int64) func(*pcap.Packet) bool {
	if v.filter == nil {
		return nil
	}
	return func(p *pcap.Packet) bool {
		if !v.filter.Match(forFilter(&p.Frame)) {
			return false
		}
		*n++
		return true
	}
}

// forFilter is what a filter asks of an IP packet.
func forFilter(f *packet.Frame) filter.Packet {
	p := filter.Packet{L3: filter.EtherTypeIPv4, Proto: f.Protocol, Flags: filter.HasAddresses}
	if f.Version == 6 {
		p.L3 = filter.EtherTypeIPv6
	}
	fillAddress(&p.Source, f.Source)
	fillAddress(&p.Destination, f.Destination)
	if f.Fragment.Is() && (f.Version == 6 || f.Fragment.Offset != 0) {
		p.Flags |= filter.Fragment
		return p
	}
	switch f.Transport {
	case unix.IPPROTO_TCP:
		p.SourcePort, p.DestinationPort = f.TCP.SourcePort, f.TCP.DestinationPort
	case unix.IPPROTO_UDP:
		p.SourcePort, p.DestinationPort = f.UDP.SourcePort, f.UDP.DestinationPort
	default:
		return p
	}
	p.Flags |= filter.HasPorts
	return p
}

func fillAddress(to *[16]byte, a netip.Addr) {
	if a.Is4() {
		four := a.As4()
		copy(to[:], four[:])
		return
	}
	*to = a.As16()
}
