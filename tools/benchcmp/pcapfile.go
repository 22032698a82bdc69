package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/natkit/natkit/internal/frame"
)

// A capture of short connections behind one address, as a server sees them that closes
// first: ports come again and again, from three machines with clocks of their own. A
// connection in a hundred meets TIME_WAIT with a timestamp that is behind.
const (
	capturePorts    = 60_000
	captureInterval = 700 * time.Microsecond // between connections: a port comes back after 42 s
	captureMachines = 3
	captureRejected = 100
)

var (
	captureClient = netip.MustParseAddr("203.0.113.1")
	captureServer = netip.MustParseAddrPort("198.18.0.1:443")
	captureStart  = time.Unix(1_700_000_000, 0)
)

// captureFile is a capture that is being written.
type captureFile struct {
	w                        *bufio.Writer
	bytes, packets, rejected int64
	frame                    []byte
	at                       time.Time
	client                   uint16
	isn, serverISN, clock    uint32
}

// writeCapture writes at least size bytes of pcap.
func writeCapture(path string, size int64) (c *captureFile, err error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closeErr := f.Close(); err == nil {
			err = closeErr
		}
	}()
	c = &captureFile{w: bufio.NewWriterSize(f, 1<<20), frame: make([]byte, 0, 2048)}
	header := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	header = append(header, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0)
	c.write(header)
	for i := int64(0); c.bytes < size; i++ {
		c.connection(i)
	}
	if err := c.w.Flush(); err != nil {
		return nil, fmt.Errorf("write capture: %w", err)
	}
	return c, nil
}

// write leaves errors to Flush, which repeats them.
func (c *captureFile) write(b []byte) {
	n, _ := c.w.Write(b)
	c.bytes += int64(n)
}

// connection writes one connection, and one in a hundred times the rejected SYN before it.
func (c *captureFile) connection(i int64) {
	c.at = captureStart.Add(time.Duration(i) * captureInterval)
	c.client = uint16(2048 + i%capturePorts)
	round := uint32(i / capturePorts)
	c.isn, c.serverISN = 1_000_000*(round+1), 2_000_000*(round+1)
	c.clock = uint32(time.Duration(i)*captureInterval/time.Millisecond) + uint32(i%captureMachines+1)*50_000_000
	if round > 0 && i%captureRejected == 0 {
		c.reject()
	}
	c.exchange()
}

// reject is a SYN with another machine's timestamp, the former connection's ACK and an RST.
func (c *captureFile) reject() {
	clock, formerISN, formerServer := c.clock, c.isn-1_000_000, c.serverISN-2_000_000
	c.clock -= 10_000_000
	c.packet(true, frame.SYN, c.isn-5000, 0, 0)
	c.clock = clock - uint32(capturePorts*captureInterval/time.Millisecond)
	c.packet(false, frame.ACK, formerServer+242, formerISN+92, 0)
	c.packet(true, frame.RST, formerISN+92, 0, 0)
	c.clock = clock
	c.rejected++
}

func (c *captureFile) exchange() {
	isn, server := c.isn, c.serverISN
	c.packet(true, frame.SYN, isn, 0, 0)
	c.packet(false, frame.SYN|frame.ACK, server, isn+1, 0)
	c.packet(true, frame.ACK, isn+1, server+1, 0)
	c.packet(true, frame.ACK|frame.PSH, isn+1, server+1, 90)
	c.packet(false, frame.ACK, server+1, isn+91, 0)
	c.packet(false, frame.ACK|frame.PSH, server+1, isn+91, 240)
	c.packet(false, frame.ACK|frame.FIN, server+241, isn+91, 0)
	c.packet(true, frame.ACK, isn+91, server+242, 0)
	c.packet(true, frame.ACK|frame.FIN, isn+91, server+242, 0)
	c.packet(false, frame.ACK, server+242, isn+92, 0)
}

// packet writes one packet, 20 µs after the one before.
func (c *captureFile) packet(fromClient bool, flags frame.TCPFlags, seq, ack uint32, payload int) {
	const headers = frame.EthernetLen + frame.IPv4Len + frame.TCPLen + 12
	c.at = c.at.Add(20 * time.Microsecond)
	le, be := binary.LittleEndian, binary.BigEndian
	b := le.AppendUint32(c.frame[:0], uint32(c.at.Unix()))
	b = le.AppendUint32(b, uint32(c.at.Nanosecond()/1000))
	b = le.AppendUint32(b, uint32(headers+payload))
	b = le.AppendUint32(b, uint32(headers+payload))
	b = append(b, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0)
	b = append(b, 0x45, 0)
	b = be.AppendUint16(b, uint16(headers-frame.EthernetLen+payload))
	b = append(b, byte(c.packets>>8), byte(c.packets), 0x40, 0, 64, 6, 0, 0)
	source, destination := netip.AddrPortFrom(captureClient, c.client), captureServer
	clock, echo := c.clock, uint32(0)
	if !fromClient {
		source, destination = destination, source
		clock, echo = uint32(c.at.UnixMilli()), c.clock
	}
	b = append(append(b, source.Addr().AsSlice()...), destination.Addr().AsSlice()...)
	b = be.AppendUint16(be.AppendUint16(b, source.Port()), destination.Port())
	b = be.AppendUint32(be.AppendUint32(b, seq), ack)
	b = append(b, 8<<4, byte(flags), 0xff, 0xff, 0, 0, 0, 0, 1, 1, 8, 10)
	b = be.AppendUint32(be.AppendUint32(b, clock), echo)
	b = append(b, make([]byte, payload)...)
	c.write(b)
	c.packets++
	c.frame = b
}
