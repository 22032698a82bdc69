package pktgen

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/testutil"
)

const xdpTX = 3

// A dialogue is the programs of both ends, called on one frame at a time.
type dialogue struct {
	t      *testing.T
	cfg    packets.ConnectConfig
	client *client
	server *Responder
}

func newDialogue(t *testing.T, cfg packets.ConnectConfig) *dialogue {
	t.Helper()
	testutil.NeedRoot(t)
	from := Egress{Index: 1, MAC: net.HardwareAddr(testLink.Source[:]), NextMAC: net.HardwareAddr(testLink.Destination[:])}
	d := &dialogue{t: t, cfg: cfg, client: &client{cfg: cfg, from: from, runID: 0x12345678}, server: &Responder{}}
	t.Cleanup(func() { d.client.close(); d.server.Close() })
	for _, err := range []error{d.client.load(), d.client.mapRecords(), d.server.load([]nat.Ports{{First: 80, Last: 80}, {First: 8000, Last: 8063}})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	d.client.sender.objects = generatorObjects{Program: d.client.objects.Initiate, Generator: d.client.objects.Generator}
	if err := d.client.sender.allow(1 << 40); err != nil {
		t.Fatal(err)
	}
	return d
}

// syn is the generator's next frame, out of a page full of rubbish.
func (d *dialogue) syn() []byte {
	d.t.Helper()
	page := make([]byte, 60)
	if d.cfg.Flows.IPv6() {
		page = make([]byte, 78)
	}
	for i := range page {
		page[i] = byte(rand.Uint32())
	}
	verdict, out := runProgram(d.t, d.client.objects.Initiate, page)
	if verdict != xdpRedirect {
		d.t.Fatalf("verdict %d", verdict)
	}
	return out
}

func (d *dialogue) toClient(frame []byte) (verdict uint32, answer []byte) {
	return runProgram(d.t, d.client.objects.Client, frame)
}

func (d *dialogue) toServer(frame []byte) (verdict uint32, answer []byte) {
	return runProgram(d.t, d.server.objects.Respond, frame)
}

func (d *dialogue) counts() pktgenClientCounters {
	d.t.Helper()
	n, err := d.client.counts()
	if err != nil {
		d.t.Fatal(err)
	}
	return n.arrived
}

// parsed is a frame that must be right in every way that a slow parser can see.
func parsed(t *testing.T, b []byte) frame.Frame {
	t.Helper()
	f, err := frame.Parse(b)
	if err != nil {
		t.Fatalf("%x: %v", b, err)
	}
	if !f.IPChecksumOK() || f.TransportChecksum() != frame.ChecksumOK {
		t.Fatalf("%x: IP checksum %t, transport checksum %v", b, f.IPChecksumOK(), f.TransportChecksum())
	}
	return f
}

func tupleOf(f frame.Frame) frame.Tuple {
	return frame.Tuple{Src: netip.AddrPortFrom(f.Source, f.TCP.SourcePort), Dst: netip.AddrPortFrom(f.Destination, f.TCP.DestinationPort)}
}

func back(t frame.Tuple) frame.Tuple { return frame.Tuple{Src: t.Dst, Dst: t.Src} }

// segmentFrame builds a frame as the programs are to: the slow truth.
func segmentFrame(link frame.Link, t frame.Tuple, h frame.TCP, payload []byte) []byte {
	etherType, ip := uint16(frame.EtherTypeIPv4), frame.IP{Source: t.Src.Addr(), Destination: t.Dst.Addr(), Protocol: unix.IPPROTO_TCP, DontFragment: true}
	mss := []byte{2, 4, 1460 >> 8, 1460 & 0xff}
	if t.Src.Addr().Is6() {
		etherType, mss = frame.EtherTypeIPv6, []byte{2, 4, 1440 >> 8, 1440 & 0xff}
	}
	h.Window = 65535
	if h.Flags&frame.SYN != 0 {
		h.Options = mss
	}
	b := ip.Append(link.Append(nil, 0, etherType), frame.AppendTCP(nil, t, h, payload))
	return append(b, make([]byte, max(0, 60-len(b)))...)
}

// A turn is one segment of a connection, relative to where both ends began.
type turn struct {
	client   bool // sends it
	flags    frame.TCPFlags
	seq, ack uint32
	data     bool
}

const dataLen = packets.TokenLen

// turns are the segments of a whole connection, as RFC 9293 has them.
func turns(mode load.CloseMode) []turn {
	const n = 1 + dataLen
	all := []turn{
		{true, frame.SYN, 0, 0, false}, {false, frame.SYN | frame.ACK, 0, 1, false},
		{true, frame.ACK | frame.PSH, 1, 1, true}, {false, frame.ACK | frame.PSH, 1, n, true},
	}
	switch mode {
	case load.CloseClient:
		return append(all, turn{true, frame.FIN | frame.ACK, n, n, false}, turn{false, frame.FIN | frame.ACK, n, n + 1, false}, turn{true, frame.ACK, n + 1, n + 1, false})
	case load.CloseServer:
		all[3].flags |= frame.FIN
		return append(all, turn{true, frame.FIN | frame.ACK, n, n + 1, false}, turn{false, frame.ACK, n + 1, n + 1, false})
	case load.CloseReset:
		return append(all, turn{true, frame.RST | frame.ACK, n, n, false})
	}
	return all
}

// TestWholeConnection compares every byte of every segment with what Go builds.
func TestWholeConnection(t *testing.T) {
	for _, to := range []string{"198.18.0.1:80", "[2001:db8:18::1]:8063"} {
		for _, mode := range closeModes {
			t.Run(fmt.Sprint(to, mode), func(t *testing.T) {
				cfg := connections(to)
				cfg.Close = mode
				d := newDialogue(t, cfg)
				for range 50 {
					d.play(turns(mode))
				}
				want := pktgenClientCounters{Established: 50, Answered: 50, Complete: 50}
				if got := d.counts(); got != want {
					t.Errorf("%+v, want %+v", got, want)
				}
			})
		}
	}
}

// play has both programs exchange the segments of one connection.
func (d *dialogue) play(turns []turn) {
	d.t.Helper()
	next := d.syn()
	first := parsed(d.t, next)
	tuple, isn := tupleOf(first), [2]uint32{first.TCP.SequenceNumber}
	link, verdict := [2]frame.Link{testLink, {Source: testLink.Destination, Destination: testLink.Source}}, uint32(xdpTX)
	for i, turn := range turns {
		if verdict != xdpTX {
			d.t.Fatalf("segment %d: verdict %d", i, verdict)
		}
		f := parsed(d.t, next)
		if i == 1 {
			isn[1] = f.TCP.SequenceNumber
		}
		from, to, way := 1, 0, back(tuple)
		if turn.client {
			from, to, way = 0, 1, tuple
		}
		h := frame.TCP{Flags: turn.flags, SequenceNumber: isn[from] + turn.seq, AcknowledgmentNumber: isn[to] + turn.ack}
		if i == 0 {
			h.AcknowledgmentNumber = 0
		}
		var payload []byte
		if turn.data {
			payload = d.token(tuple)
		}
		if want := segmentFrame(link[from], way, h, payload); !bytes.Equal(next, want) {
			d.t.Fatalf("segment %d:\n got %x\nwant %x", i, next, want)
		}
		if turn.client {
			verdict, next = d.toServer(next)
		} else {
			verdict, next = d.toClient(next)
		}
	}
	if verdict != xdpDrop {
		d.t.Fatalf("verdict %d on the last segment", verdict)
	}
}

// token is the request of a flow, and its reply.
func (d *dialogue) token(tuple frame.Tuple) []byte {
	number := d.number(tuple)
	b := make([]byte, dataLen)
	binary.NativeEndian.PutUint32(b, d.client.runID)
	binary.BigEndian.PutUint32(b[4:], number)
	if d.cfg.Close == load.CloseServer {
		b[11] = 1
	}
	return b
}

func (d *dialogue) number(tuple frame.Tuple) uint32 {
	flows := d.cfg.Flows
	for i, s := range flows.Sources {
		if s == tuple.Src.Addr() {
			return uint32(tuple.Src.Port()-flows.SourcePorts.First)*uint32(len(flows.Sources)) + uint32(i)
		}
	}
	d.t.Fatalf("%v is no flow", tuple)
	return 0
}

// TestFlowsInOrder has every flow once in each round, in the order of package packets, and with
// another sequence number in the next.
func TestFlowsInOrder(t *testing.T) {
	for _, to := range []string{"198.18.0.1:80", "[2001:db8:18::1]:80"} {
		cfg := connections(to)
		cfg.Flows.SourcePorts, cfg.Flows.Count, cfg.Window = nat.Ports{First: 65533, Last: 65535}, 6, 6
		d := newDialogue(t, cfg)
		var first []frame.Frame
		for _, tuple := range cfg.Flows.All {
			f := parsed(t, d.syn())
			if tupleOf(f) != tuple {
				t.Errorf("%v, want %v", tupleOf(f), tuple)
			}
			first = append(first, f)
		}
		for i, before := range first {
			f := parsed(t, d.syn())
			if tupleOf(f) != tupleOf(before) || f.TCP.SequenceNumber != before.TCP.SequenceNumber+1<<16 {
				t.Errorf("flow %d: %v seq %d, before %v seq %d", i, tupleOf(f), f.TCP.SequenceNumber, tupleOf(before), before.TCP.SequenceNumber)
			}
		}
		if n, err := d.client.counts(); err != nil || n.Started != 12 || n.pending != 6 {
			t.Errorf("%+v, %v; want 12 begun and 6 of them overtaken", n, err)
		}
	}
}

// A segmentIn is a SYN-ACK, or what came of it.
type segmentIn struct {
	tuple   frame.Tuple
	header  frame.TCP
	payload []byte
	change  func([]byte) []byte // of the frame
}

// TestClientJudges gives the client segments that differ from the one it waits for.
func TestClientJudges(t *testing.T) {
	same := func(*segmentIn) {}
	for _, tt := range []struct {
		name    string
		change  func(*segmentIn)
		verdict uint32
		want    pktgenClientCounters
	}{
		{"as it should be", same, xdpTX, pktgenClientCounters{Established: 1}},
		{"another acknowledgement", func(r *segmentIn) { r.header.AcknowledgmentNumber++ }, xdpDrop, pktgenClientCounters{Misdelivered: 1}},
		{"none", func(r *segmentIn) { r.header.Flags = frame.SYN }, xdpDrop, pktgenClientCounters{Misdelivered: 1}},
		{"of a later round", func(r *segmentIn) { r.header.AcknowledgmentNumber += 1 << 16 }, xdpDrop, pktgenClientCounters{Misdelivered: 1}},
		{"for the next flow", func(r *segmentIn) { r.tuple.Dst = netip.AddrPortFrom(r.tuple.Dst.Addr(), r.tuple.Dst.Port()^1) }, xdpDrop, pktgenClientCounters{Misdelivered: 1}},
		{"from another port", func(r *segmentIn) { r.tuple.Src = netip.AddrPortFrom(r.tuple.Src.Addr(), 81) }, xdpDrop, pktgenClientCounters{Misdelivered: 1}},
		{"from another address", func(r *segmentIn) { r.tuple.Src = netip.AddrPortFrom(r.tuple.Src.Addr().Next(), 80) }, xdpDrop, pktgenClientCounters{Misdelivered: 1}},
		{"for another port than any flow's", func(r *segmentIn) { r.tuple.Dst = netip.AddrPortFrom(r.tuple.Dst.Addr(), 9999) }, xdpPass, pktgenClientCounters{}},
		{"for the port behind the last", func(r *segmentIn) { r.tuple.Dst = netip.AddrPortFrom(r.tuple.Dst.Addr(), 11000) }, xdpPass, pktgenClientCounters{}},
		{"for another address", func(r *segmentIn) { r.tuple.Dst = netip.AddrPortFrom(r.tuple.Dst.Addr().Next().Next(), 10000) }, xdpPass, pktgenClientCounters{}},
		{"of others' connection", func(r *segmentIn) {
			r.tuple.Src = netip.AddrPortFrom(r.tuple.Src.Addr().Next(), 443)
			r.header.AcknowledgmentNumber = 7
		}, xdpPass, pktgenClientCounters{}},
		{"reset", func(r *segmentIn) { r.header.Flags = frame.RST | frame.ACK }, xdpDrop, pktgenClientCounters{Resets: [4]uint64{1: 1}}},
		{"reset without a proof", func(r *segmentIn) { r.header.Flags, r.header.AcknowledgmentNumber = frame.RST, 0 }, xdpDrop, pktgenClientCounters{Resets: [4]uint64{1: 1}}},
		{"reset of another flow", func(r *segmentIn) { r.header.Flags, r.header.AcknowledgmentNumber = frame.RST|frame.ACK, 5 }, xdpDrop, pktgenClientCounters{Misdelivered: 1}},
		{"an acknowledgement alone", func(r *segmentIn) { r.header.Flags = frame.ACK }, xdpDrop, pktgenClientCounters{Unexpected: 1}},
		{"the reply before the request", func(r *segmentIn) {
			r.header.AcknowledgmentNumber += dataLen
			r.header.Flags, r.payload = frame.ACK|frame.PSH, make([]byte, dataLen)
		}, xdpDrop, pktgenClientCounters{Misdelivered: 1}},
		{"another length of data", func(r *segmentIn) { r.header.Flags, r.payload = frame.ACK|frame.PSH, make([]byte, dataLen+1) }, xdpPass, pktgenClientCounters{}},
		{"a wrong TCP checksum", func(r *segmentIn) { r.change = func(b []byte) []byte { b[len(b)-8] ^= 1; return b } }, xdpDrop, pktgenClientCounters{BadChecksum: 1}},
		{"in a VLAN", func(r *segmentIn) {
			r.change = func(b []byte) []byte {
				return append(append(append([]byte{}, b[:12]...), 0x81, 0, 0, 7), b[12:]...)
			}
		}, xdpPass, pktgenClientCounters{}},
	} {
		for _, to := range []string{"198.18.0.1:80", "[2001:db8:18::1]:80"} {
			t.Run(tt.name+" "+to, func(t *testing.T) {
				d := newDialogue(t, connections(to))
				r := d.synAck()
				tt.change(&r)
				in := r.frame()
				verdict, out := d.toClient(in)
				if got := d.counts(); verdict != tt.verdict || got != tt.want {
					t.Errorf("verdict %d, %+v; want %d, %+v", verdict, got, tt.verdict, tt.want)
				}
				if verdict == xdpPass && !bytes.Equal(out, in) {
					t.Errorf("it changed a frame that it passes on:\n%x\n%x", out, in)
				}
			})
		}
	}
}

// synAck answers the generator's next SYN.
func (d *dialogue) synAck() segmentIn {
	d.t.Helper()
	syn := parsed(d.t, d.syn())
	return segmentIn{tuple: back(tupleOf(syn)), header: frame.TCP{Flags: frame.SYN | frame.ACK, SequenceNumber: 77, AcknowledgmentNumber: syn.TCP.SequenceNumber + 1}}
}

func (r segmentIn) frame() []byte {
	b := segmentFrame(testLink, r.tuple, r.header, r.payload)
	if r.change != nil {
		b = r.change(b)
	}
	return b
}

// TestOncePerStep has every segment come twice, and the first of a round after its end.
func TestOncePerStep(t *testing.T) {
	cfg := connections("198.18.0.1:80")
	cfg.Flows.Sources, cfg.Flows.SourcePorts, cfg.Flows.Count, cfg.Window = cfg.Flows.Sources[:1], nat.Ports{First: 5, Last: 5}, 1, 1
	d := newDialogue(t, cfg)
	old := d.synAck().frame()
	d.toClient(old)
	d.toClient(old)
	if got, want := d.counts(), (pktgenClientCounters{Established: 1, Duplicated: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	now := d.synAck() // the only flow again
	d.toClient(old)
	if got, want := d.counts(), (pktgenClientCounters{Established: 1, Duplicated: 1, Late: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	now.header.Flags = frame.RST | frame.ACK
	d.toClient(now.frame())
	now.header.Flags = frame.SYN | frame.ACK
	d.toClient(now.frame())
	if got, want := d.counts(), (pktgenClientCounters{Established: 1, Duplicated: 1, Late: 2, Resets: [4]uint64{1: 1}}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if n, err := d.client.counts(); err != nil || n.pending != 0 {
		t.Errorf("%d connections are under way, %v", n.pending, err)
	}
}

// TestCorruptReply has the reply's token be another flow's, with a right checksum.
func TestCorruptReply(t *testing.T) {
	d := newDialogue(t, connections("198.18.0.1:80"))
	r := d.synAck()
	d.toClient(r.frame())
	r.header.Flags, r.header.SequenceNumber = frame.ACK|frame.PSH, r.header.SequenceNumber+1
	r.header.AcknowledgmentNumber += dataLen
	r.payload = d.token(back(r.tuple))
	r.payload[7] ^= 1
	if verdict, _ := d.toClient(r.frame()); verdict != xdpDrop || d.counts().Misdelivered != 1 {
		t.Errorf("verdict %d, %+v", verdict, d.counts())
	}
	r.payload[7] ^= 1
	if verdict, _ := d.toClient(r.frame()); verdict != xdpTX || d.counts().Answered != 1 {
		t.Errorf("verdict %d, %+v", verdict, d.counts())
	}
}

// TestNoBitIsMissed turns each bit of the SYN-ACK around that a checksum covers: no such frame may
// advance a connection or the server, and none of any length crashes.
func TestNoBitIsMissed(t *testing.T) {
	for _, to := range []string{"198.18.0.1:80", "[2001:db8:18::1]:80"} {
		d := newDialogue(t, connections(to))
		syn := d.syn()
		f := parsed(t, syn)
		good := segmentFrame(testLink, back(tupleOf(f)), frame.TCP{Flags: frame.SYN | frame.ACK, AcknowledgmentNumber: f.TCP.SequenceNumber + 1}, nil)
		first, last := frame.EthernetLen, frame.EthernetLen+frame.IPv4Len+24
		if d.cfg.Flows.IPv6() {
			first, last = frame.EthernetLen+8, frame.EthernetLen+frame.IPv6Len+24 // class, flow and hop limit are not covered
		}
		for bit := first * 8; bit < last*8; bit++ {
			for name, put := range map[string]func([]byte) (uint32, []byte){"client": d.toClient, "server": d.toServer} {
				b := bytes.Clone(good)
				if name == "server" {
					b = bytes.Clone(syn)
				}
				b[bit/8] ^= 1 << (bit % 8)
				if verdict, _ := put(b); verdict != xdpDrop && verdict != xdpPass {
					t.Fatalf("%s, bit %d of byte %d: verdict %d", name, bit%8, bit/8, verdict)
				}
			}
		}
		for n := 14; n < last; n++ {
			for _, put := range []func([]byte) (uint32, []byte){d.toClient, d.toServer} {
				if verdict, _ := put(good[:n:n]); verdict != xdpPass {
					t.Fatalf("%d bytes of a frame: verdict %d", n, verdict)
				}
			}
		}
		if served, err := d.server.Counts(); err != nil || served.Opened != 0 || d.counts().Established != 0 {
			t.Errorf("%+v, %v, %+v", served, err, d.counts())
		}
		if verdict, _ := d.toClient(good); verdict != xdpTX {
			t.Errorf("verdict %d for the whole", verdict)
		}
	}
}

// TestResponderPasses has what the kernel is to get.
func TestResponderPasses(t *testing.T) {
	d := newDialogue(t, connections("198.18.0.1:80"))
	tuple := frame.Tuple{Src: netip.MustParseAddrPort("203.0.113.9:4000"), Dst: netip.MustParseAddrPort("203.0.113.1:80")}
	_, out := d.toServer(segmentFrame(testLink, tuple, frame.TCP{Flags: frame.SYN, SequenceNumber: 9}, nil))
	own := parsed(t, out).TCP.SequenceNumber
	moved := frame.Tuple{Src: netip.MustParseAddrPort("203.0.113.9:4001"), Dst: tuple.Dst}
	closed := frame.Tuple{Src: tuple.Src, Dst: netip.MustParseAddrPort("203.0.113.1:7999")}
	options := frame.IP{Source: tuple.Src.Addr(), Destination: tuple.Dst.Addr(), Protocol: unix.IPPROTO_TCP}.Append(
		testLink.Append(nil, 0, frame.EtherTypeIPv4), frame.AppendTCP(nil, tuple, frame.TCP{Flags: frame.SYN, Options: make([]byte, 20)}, nil))
	udp := frame.IP{Source: tuple.Src.Addr(), Destination: tuple.Dst.Addr(), Protocol: unix.IPPROTO_UDP}.Append(
		testLink.Append(nil, 0, frame.EtherTypeIPv4), frame.AppendUDP(nil, tuple, make([]byte, 30), false))
	check := frame.EthernetLen + frame.IPv4Len + 16
	wrong := func(f []byte) []byte { f[check] ^= 0x55; return f }
	partial := func(f []byte) []byte { // as a kernel leaves it to a network card
		nothing := make([]byte, int(binary.BigEndian.Uint16(f[frame.EthernetLen+2:]))-frame.IPv4Len)
		binary.BigEndian.PutUint16(f[check:], ^frame.SegmentChecksum(tuple.Src.Addr(), tuple.Dst.Addr(), unix.IPPROTO_TCP, nothing))
		return f
	}
	data := make([]byte, dataLen)
	ack := func(flags frame.TCPFlags, ack uint32) frame.TCP {
		return frame.TCP{Flags: flags | frame.ACK, SequenceNumber: 10, AcknowledgmentNumber: ack}
	}
	for name, tt := range map[string]struct {
		frame []byte
		want  uint32
	}{
		"the request":                {segmentFrame(testLink, tuple, ack(frame.PSH, own+1), data), xdpTX},
		"of another mapping":         {segmentFrame(testLink, moved, ack(frame.PSH, own+1), data), xdpPass},
		"of the kernel's connection": {segmentFrame(testLink, tuple, ack(frame.PSH, own+2), data), xdpPass},
		"a FIN out of nothing":       {segmentFrame(testLink, tuple, ack(frame.FIN, own), nil), xdpPass},
		"a reset out of nothing":     {segmentFrame(testLink, tuple, ack(frame.RST, own), nil), xdpPass},
		"a port that is not open":    {segmentFrame(testLink, closed, frame.TCP{Flags: frame.SYN}, nil), xdpPass},
		"a SYN of the kernel's":      {options, xdpPass},

		"a kernel's SYN with no other option":         {partial(segmentFrame(testLink, tuple, frame.TCP{Flags: frame.SYN}, nil)), xdpPass},
		"a kernel's acknowledgement":                  {partial(segmentFrame(testLink, tuple, ack(0, own+2), nil)), xdpPass},
		"a kernel's FIN":                              {partial(segmentFrame(testLink, tuple, ack(frame.FIN, own+2), nil)), xdpPass},
		"a kernel's data as long as a request":        {partial(segmentFrame(testLink, tuple, ack(frame.PSH, own+2), data)), xdpPass},
		"a wrong checksum of the kernel's connection": {wrong(segmentFrame(testLink, tuple, ack(0, own+2), nil)), xdpPass},
		"a SYN with a wrong checksum":                 {wrong(segmentFrame(testLink, tuple, frame.TCP{Flags: frame.SYN}, nil)), xdpDrop},
		"a request with a wrong checksum":             {wrong(segmentFrame(testLink, tuple, ack(frame.PSH, own+1), data)), xdpDrop},
		"a FIN with a wrong checksum":                 {wrong(segmentFrame(testLink, tuple, ack(frame.FIN, own+1+dataLen), nil)), xdpDrop},
		"UDP":                                         {udp, xdpPass},
		"ARP":                                         {append(testLink.Append(nil, 0, 0x0806), make([]byte, 46)...), xdpPass},
	} {
		if verdict, _ := d.toServer(tt.frame); verdict != tt.want {
			t.Errorf("%s: verdict %d, want %d", name, verdict, tt.want)
		}
	}
	if served, err := d.server.Counts(); err != nil || served.BadChecksum != 3 || served.Opened != 1 || served.Passed != 9 {
		t.Errorf("%+v, %v; want 3 with a wrong checksum, and 9 passed on", served, err)
	}
}

// TestExpire gives up what is too old and no more, in the order in which it began.
func TestExpire(t *testing.T) {
	cfg := connections("198.18.0.1:80")
	d := newDialogue(t, cfg)
	for range 10 {
		d.syn()
	}
	order := func(i uint64) *uint64 { return &d.client.records[d.client.order.At(i)] }
	age := func(i uint64, units uint32) {
		*order(i) = *order(i)&(1<<sentShift-1) | uint64(clock()-units)<<sentShift
	}
	for i := range uint64(10) {
		age(i, 0)
	}
	for _, i := range []uint64{0, 1, 3} {
		age(i, uint32(cfg.Timeout>>timeShift)+1000)
	}
	d.client.expire(10)
	if n, err := d.client.counts(); err != nil || n.pending != 8 || d.client.settled != 2 {
		t.Errorf("%d under way, the first %d looked at, %v; want 8 and 2", n.pending, d.client.settled, err)
	}
	*order(2) = *order(2)&^stageMask | 4 // complete
	d.client.expire(10)
	if n, _ := d.client.counts(); n.pending != 7 || d.client.settled != 4 {
		t.Errorf("%d under way, the first %d looked at; want 7 and 4", n.pending, d.client.settled)
	}
}
