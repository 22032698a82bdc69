package behaviour

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
)

// line says in one line what a packet is.
func line(f *frame.Frame) string {
	t := f.Tuple()
	switch {
	case f.Version == 0:
		return fmt.Sprintf("no IP packet (%d bytes)", len(f.Payload))
	case f.Fragment.Offset != 0:
		return fmt.Sprintf("fragment of protocol %d at %d, %v > %v, %d bytes", f.Protocol, f.Fragment.Offset, f.Source, f.Destination, len(f.Payload))
	case f.Transport == unix.IPPROTO_TCP:
		return fmt.Sprintf("tcp %s %v > %v seq %d ack %d, %d bytes", strings.ToUpper(f.TCP.Flags.String()), t.Src, t.Dst, f.TCP.SequenceNumber, f.TCP.AcknowledgmentNumber, len(f.Payload))
	case f.Transport == unix.IPPROTO_UDP:
		return fmt.Sprintf("udp %v > %v, %d bytes", t.Src, t.Dst, len(f.Payload))
	case f.Transport == unix.IPPROTO_ICMP, f.Transport == unix.IPPROTO_ICMPV6:
		return fmt.Sprintf("icmp type %d code %d %v > %v id %d%s", f.ICMP.Type, f.ICMP.Code, f.Source, f.Destination, f.ICMP.Identifier(), quotation(f))
	}
	return fmt.Sprintf("protocol %d %v > %v, %d bytes", f.Protocol, f.Source, f.Destination, len(f.Payload))
}

func quotation(f *frame.Frame) string {
	var inner frame.Frame
	if f.Quoted(&inner) != nil {
		return ""
	}
	return " about " + line(&inner)
}
