package pcap

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/testutil"
)

// seeds are files of several kinds, whole and broken.
func seeds(t testing.TB) [][]byte {
	t.Helper()
	rejected := serverFirst + `
		30005 > S   5000 0   0  4000 0
		30006 < A   922  112 0  37000 5002
		30007 > R   112  0   0
		31005 > S   5000 0   0  5000 0
		31006 < icmp 3 4 5000
		31007 < SA  77   5001 0 38000 5000`
	story := scripted(t, parseScript(t, clientA, serverA, rejected))
	w := &blocks{order: binary.BigEndian}
	w.section()
	w.iface(linkRaw, 0, uint16(optionResolution), uint16(1), []byte{9, 0, 0, 0})
	w.enhanced(0, 1, udpFrame(3)[14:])
	w.block(blockSimple, uint32(40), udpFrame(3)[14:])
	list := [][]byte{story, swapped(story), story[:len(story)-7], zipped(t, story), zipped(t, story)[:100], w.b,
		append(bytes.Clone(w.b[:len(w.b)-9]), w.b...), withSnapLen(bytes.Clone(story), 1<<31)}
	for _, c := range linkCases() {
		list = append(list, classicFile(t, layers.LinkType(c.link), c.frame(t)))
	}
	return append(list, ngFile(t, layers.LinkTypeEthernet, udpFrame(1), udpFrame(2)))
}

// FuzzEach holds what readers of packets rely on, whatever the file.
func FuzzEach(f *testing.F) {
	for _, seed := range seeds(f) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		defer testutil.Bounded(t, len(file))()
		var packets, last int64
		stats, err := Each(bytes.NewReader(file), func(p *Packet) error {
			packets++
			if p.Number <= last || len(p.Data) > MaxFrame || p.Length < len(p.Data) || p.Interface >= maxInterfaces {
				t.Fatalf("packet %d behind %d: %d of %d bytes", p.Number, last, len(p.Data), p.Length)
			}
			if p.Reason == Decoded && p.Frame.Version == 0 {
				t.Fatalf("reason %v, IP version %d", p.Reason, p.Frame.Version)
			}
			last = p.Number
			return nil
		})
		if err == nil && (stats.Packets != packets || len(stats.Damage) > maxDamage) {
			t.Fatalf("%d packets of %d, %d damages", packets, stats.Packets, len(stats.Damage))
		}
	})
}

// FuzzRead reads whole files.
func FuzzRead(f *testing.F) {
	for _, seed := range seeds(f) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		defer testutil.Bounded(t, len(file))()
		r, err := Read(bytes.NewReader(file), Options{Memory: MinMemory})
		if err != nil {
			return
		}
		checkReport(t, r)
	})
}

// checkReport holds what is so of every report.
func checkReport(t *testing.T, r *Report) {
	t.Helper()
	if _, err := json.Marshal(r); err != nil {
		t.Fatal(err)
	}
	var kept int64
	for _, k := range r.Kinds {
		kept += k.Kept
	}
	if kept != int64(len(r.Incidents)) || r.Limits.Peak > r.Limits.Memory {
		t.Fatalf("%d incidents, %d kept; limits %+v", len(r.Incidents), kept, r.Limits)
	}
	for i := range r.Incidents {
		if n := &r.Incidents[i]; len(n.SYNs) > MaxSYNs || len(n.Ladder) > maxLadder+ringSize || !n.Client.IsValid() {
			t.Fatalf("incident %+v", n)
		}
	}
	c := r.Connections
	if c.Established > c.Begun || c.Begun > c.Total || c.Refused+c.Unanswered+c.Pending > c.Begun {
		t.Fatalf("connections %+v", c)
	}
}

// FuzzTrack makes packets of bytes: 8 for each of them, in a small space of ports,
// numbers and times, so that they meet.
func FuzzTrack(f *testing.F) {
	f.Add([]byte("\x02\x00\x10\x00\x00\x00\x50\x01\x12\x01\x90\x11\x00\x50\x70\x01"))
	f.Add(bytes.Repeat([]byte{2, 0, 16, 0, 0, 0, 80, 200}, 20))
	f.Add(bytes.Repeat([]byte{2, 0, 16, 0, 0, 0, 80, 200, 0x12, 1, 9, 17, 0, 80, 1, 9, 0x11, 0, 17, 10, 3, 1, 80, 1, 0x11, 1, 10, 20, 2, 80, 1, 1, 0x10, 0, 9, 9, 0, 4, 4, 4}, 9))
	f.Fuzz(func(t *testing.T, script []byte) {
		defer testutil.Bounded(t, len(script))()
		tr := newTracker(Options{Memory: MinMemory, Incidents: 50})
		var p Packet
		var stats Stats
		for ; len(script) >= 8 && p.Number < 5000; script = script[8:] {
			fuzzPacket(&p, script)
			tr.packet(&p)
			stats.Packets++
		}
		checkReport(t, tr.finished(stats))
	})
}

func fuzzPacket(p *Packet, b []byte) {
	number, at := p.Number+1, p.At+int64(b[7])*int64(b[7])*10e6
	*p = Packet{Number: number, At: at, HasTimestamps: b[1]&8 == 0, TSVal: uint32(b[5]) << 24, TSEcr: uint32(b[6]) << 24}
	src, dst := clientA, serverA
	if b[1]&1 != 0 {
		src, dst = dst, src
	}
	port := uint16(b[1] >> 6)
	p.Frame = frame.Frame{Version: 4, Source: src.Addr(), Destination: dst.Addr(), Protocol: 6, Transport: 6, Payload: make([]byte, b[4]&31)}
	p.Frame.TCP = frame.TCP{SourcePort: src.Port() + port, DestinationPort: dst.Port() + port, Flags: frame.TCPFlags(b[0]),
		SequenceNumber: uint32(b[2]) << 26 >> 4, AcknowledgmentNumber: uint32(b[3]), Window: uint16(b[4]) << 4}
	if b[0]&0xc0 == 0xc0 { // an ICMP error instead
		p.HasQuoted, p.Quoted = true, p.Frame
		p.Frame.Protocol, p.Frame.Transport, p.Frame.ICMP = 1, 1, frame.ICMP{Type: 3, Code: b[5]}
	}
}
