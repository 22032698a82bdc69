package cli

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// writeCaptureMain writes one of the captures below to stdout, for scripts.
func writeCaptureMain() {
	write := map[string]func(*captureWriter){"paws": sourceCase, "healthy": healthyCase, "empty": func(*captureWriter) {}, "seq": sequenceCase,
		"inside": insideCase, "outside": outsideCase}
	if len(os.Args) != 2 || write[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: write-capture paws|seq|healthy|empty|inside|outside")
		os.Exit(2)
	}
	c := newCaptureWriter(os.Stdout)
	write[os.Args[1]](c)
	if c.err != nil {
		fmt.Fprintln(os.Stderr, c.err)
		os.Exit(1)
	}
}

// captureWriter makes a capture of TCP segments between one client and one server.
type captureWriter struct {
	out    *pcapgo.Writer
	err    error
	began  time.Time
	client netip.AddrPort
	server netip.AddrPort
	// beyond is how much later the client's segments are here than at the client, and how
	// much earlier the answers.
	beyond time.Duration
}

func newCaptureWriter(w io.Writer) *captureWriter {
	c := &captureWriter{out: pcapgo.NewWriter(w), began: time.Date(2021, 3, 1, 10, 0, 0, 0, time.UTC),
		client: netip.MustParseAddrPort("198.18.0.1:33735"), server: netip.MustParseAddrPort("203.0.113.1:443")}
	c.err = c.out.WriteFileHeader(262144, layers.LinkTypeEthernet)
	return c
}

// segment is what is said of one; answers go from the server to the client.
type segment struct {
	answer         bool
	flags          string
	seq, ack       uint32
	tsval, tsecr   uint32
	withTimestamps bool
	payload        string
}

// at writes a segment so much after the capture began.
func (c *captureWriter) at(after time.Duration, s segment) {
	from, to := c.client, c.server
	after += c.beyond
	if s.answer {
		from, to = to, from
		after -= 2 * c.beyond
	}
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: from.Addr().AsSlice(), DstIP: to.Addr().AsSlice()}
	tcp := &layers.TCP{SrcPort: layers.TCPPort(from.Port()), DstPort: layers.TCPPort(to.Port()), Seq: s.seq, Ack: s.ack, Window: 65535}
	for _, f := range s.flags {
		switch f {
		case 'S':
			tcp.SYN = true
		case 'A':
			tcp.ACK = true
		case 'F':
			tcp.FIN = true
		case 'R':
			tcp.RST = true
		case 'P':
			tcp.PSH = true
		}
	}
	if s.withTimestamps {
		data := []byte{byte(s.tsval >> 24), byte(s.tsval >> 16), byte(s.tsval >> 8), byte(s.tsval),
			byte(s.tsecr >> 24), byte(s.tsecr >> 16), byte(s.tsecr >> 8), byte(s.tsecr)}
		tcp.Options = []layers.TCPOption{{OptionType: layers.TCPOptionKindTimestamps, OptionLength: 10, OptionData: data}}
	}
	c.frame(after, ip, tcp, []byte(s.payload))
}

func (c *captureWriter) frame(after time.Duration, ip *layers.IPv4, tcp *layers.TCP, payload []byte) {
	if c.err != nil {
		return
	}
	ethernet := &layers.Ethernet{SrcMAC: []byte{2, 0, 0, 0, 0, 1}, DstMAC: []byte{2, 0, 0, 0, 0, 2}, EthernetType: layers.EthernetTypeIPv4}
	if c.err = tcp.SetNetworkLayerForChecksum(ip); c.err != nil {
		return
	}
	buf := gopacket.NewSerializeBuffer()
	c.err = gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ethernet, ip, tcp, gopacket.Payload(payload))
	if c.err == nil {
		info := gopacket.CaptureInfo{Timestamp: c.began.Add(after), CaptureLength: len(buf.Bytes()), Length: len(buf.Bytes())}
		c.err = c.out.WritePacket(info, buf.Bytes())
	}
}

// connection is one that the server closes first; its clock reads clock at its end.
func (c *captureWriter) connection(from time.Duration, isn, serverISN, clock, serverClock uint32) {
	const ms = time.Millisecond
	stamped := func(s segment, own, other uint32) segment {
		s.withTimestamps, s.tsval, s.tsecr = true, own, other
		return s
	}
	end, serverEnd := isn+11, serverISN+21
	for i, s := range []segment{
		{flags: "S", seq: isn},
		{answer: true, flags: "SA", seq: serverISN, ack: isn + 1},
		{flags: "A", seq: isn + 1, ack: serverISN + 1},
		{flags: "PA", seq: isn + 1, ack: serverISN + 1, payload: "GET / HTTP"},
		{answer: true, flags: "PA", seq: serverISN + 1, ack: end, payload: "HTTP/1.0 200 OK\r\n\r\nx"},
		{answer: true, flags: "FA", seq: serverEnd, ack: end},
		{flags: "FA", seq: end, ack: serverEnd + 1},
		{answer: true, flags: "A", seq: serverEnd + 1, ack: end + 1},
	} {
		own, other := clock-7+uint32(i), serverClock+uint32(i)
		if s.answer {
			own, other = other, own
		}
		if i == 0 {
			other = 0
		}
		c.at(from+time.Duration(i)*ms, stamped(s, own, other))
	}
}

// sourceCase is the capture that the whole matter began with: a port that comes back
// after 111.5 s with another machine's clock behind it.
func sourceCase(c *captureWriter) {
	const reuse = 111500 * time.Millisecond
	c.connection(0, 1000, 500000, 2149756058, 77000)
	c.at(reuse, segment{flags: "S", seq: 900000, withTimestamps: true, tsval: 2149514922})
	c.at(reuse+time.Millisecond, segment{answer: true, flags: "A", seq: 500022, ack: 1012, withTimestamps: true, tsval: 188500, tsecr: 2149756058})
	c.at(reuse+2*time.Millisecond, segment{flags: "R", seq: 1012})
}

// sequenceCase is the same without timestamps: the sequence number of the SYN is behind.
func sequenceCase(c *captureWriter) {
	for i, s := range []segment{
		{flags: "S", seq: 900000},
		{answer: true, flags: "SA", seq: 500000, ack: 900001},
		{flags: "A", seq: 900001, ack: 500001},
		{answer: true, flags: "FA", seq: 500001, ack: 900001},
		{flags: "FA", seq: 900001, ack: 500002},
		{answer: true, flags: "A", seq: 500002, ack: 900002},
	} {
		c.at(time.Duration(i)*time.Millisecond, s)
	}
	const reuse = 30 * time.Second
	c.at(reuse, segment{flags: "S", seq: 1000})
	c.at(reuse+time.Millisecond, segment{answer: true, flags: "A", seq: 500002, ack: 900002})
	c.at(reuse+2*time.Millisecond, segment{flags: "R", seq: 900002})
}

// healthyCase has a port that comes back, with the clock where it should be.
func healthyCase(c *captureWriter) {
	c.connection(0, 1000, 500000, 1000, 77000)
	c.connection(10*time.Second, 900000, 7500000, 11000, 87000)
}

// insideCase and outsideCase are a connection on both sides of a NAT, and a SYN sent twice
// that never came out.
func insideCase(c *captureWriter) {
	c.client = netip.MustParseAddrPort("198.18.5.2:40000")
	c.connection(0, 1000, 500000, 1000, 77000)
	c.client = netip.MustParseAddrPort("198.18.5.3:40001")
	c.at(time.Second, segment{flags: "S", seq: 7000, withTimestamps: true, tsval: 2000})
	c.at(2*time.Second, segment{flags: "S", seq: 7000, withTimestamps: true, tsval: 3000})
	c.client = netip.MustParseAddrPort("198.18.5.2:40002")
	c.connection(6*time.Second, 40000, 900000, 7000, 83000)
}

func outsideCase(c *captureWriter) {
	c.beyond = 100 * time.Microsecond
	c.client = netip.MustParseAddrPort("198.19.0.1:33735")
	c.connection(0, 1000, 500000, 1000, 77000)
	c.client = netip.MustParseAddrPort("198.19.0.1:33736")
	c.connection(6*time.Second, 40000, 900000, 7000, 83000)
}
