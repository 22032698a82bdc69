package behaviour

import (
	"encoding/binary"
	"fmt"

	"github.com/natkit/natkit/internal/frame"
)

func (w *netnsWorld) Send(from Host, packets ...[]byte) (Arrivals, error) {
	at, known := deviceOf(from)
	if !known {
		return nil, fmt.Errorf("send from %s: no such host", from)
	}
	frames := make([][]byte, 0, len(packets))
	for _, p := range packets {
		frames = append(frames, ethernet(frame.Link{Source: at.mac, Destination: gatewayMAC[at.dev]}, p))
	}
	out, err := w.wires.exchange(at.dev, frames)
	if err != nil {
		return nil, fmt.Errorf("send from %s: %w", from, err)
	}
	return arrivalsOf(out), nil
}

func arrivalsOf(out map[string][][]byte) Arrivals {
	var all Arrivals
	for _, dev := range devices {
		all = appendArrivals(all, dev, out[dev])
	}
	return all
}

func ethernet(l frame.Link, p []byte) []byte {
	b := append(append([]byte{}, l.Destination[:]...), l.Source[:]...)
	etherType := uint16(frame.EtherTypeIPv4)
	if len(p) > 0 && p[0]>>4 == 6 {
		etherType = frame.EtherTypeIPv6
	}
	return append(binary.BigEndian.AppendUint16(b, etherType), p...)
}

// appendArrivals takes the IP packets that are for hosts; there is what a gateway says
// to all, such as multicast listener reports.
func appendArrivals(all Arrivals, dev string, frames [][]byte) Arrivals {
	for _, b := range frames {
		a := Arrival{}
		err := a.Frame.Decode(b)
		host, ours := hostOf(dev, a.Frame.Ethernet.Destination)
		if !ours || err == nil && a.Frame.Version == 0 {
			continue
		}
		a.At = host
		a.Packet = b[frame.EthernetLen : len(b)-len(a.Frame.Trailer)]
		all = append(all, a)
	}
	return all
}
