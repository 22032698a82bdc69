package syn

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/natkit/natkit/internal/testutil"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/snapshot"
)

var (
	client  = netip.MustParseAddr("198.18.0.1")
	service = netip.MustParseAddrPort("198.19.0.2:80")
)

// script is a short life of a namespace: what comes, what goes, and what the kernel says
// when it is asked.
type script struct {
	*Watch
	iface  int
	at     float64
	states map[uint16]uint8
}

func newScript() *script {
	return &script{Watch: NewWatch(func(a netip.AddrPort) bool { return a == service }), states: map[uint16]uint8{}}
}

type segment struct {
	port     uint16
	flags    frame.TCPFlags
	seq, ack uint32
	ts, echo uint32 // none where both are 0
}

func (s segment) frame(from, to netip.AddrPort) *frame.Frame {
	f := &frame.Frame{Source: from.Addr(), Destination: to.Addr(), Protocol: 6, Transport: 6}
	f.TCP = frame.TCP{SourcePort: from.Port(), DestinationPort: to.Port(), SequenceNumber: s.seq, AcknowledgmentNumber: s.ack, Flags: s.flags}
	if s.ts|s.echo != 0 {
		f.TCP.Options = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte{1, 1, frame.OptionTimestamps, 10}, s.ts), s.echo)
	}
	return f
}

func (s *script) in(g segment) {
	s.at += 0.01
	s.Arrived(g.frame(netip.AddrPortFrom(client, g.port), service), s.iface, s.at)
}

func (s *script) out(g segment) {
	s.at += 0.01
	s.Answered(g.frame(service, netip.AddrPortFrom(client, g.port)), s.at)
	for _, q := range s.Questions() {
		s.Resolve(q, s.states[q.Tuple.Src.Port()])
	}
}

func TestWatch(t *testing.T) {
	const syn, ack, synAck, rst = frame.SYN, frame.ACK, frame.SYN | frame.ACK, frame.RST
	tests := []struct {
		name      string
		play      func(s *script)
		want      snapshot.SYNSource
		suspicion bool
	}{
		{"accepted", func(s *script) {
			s.Watching()
			s.in(segment{port: 1, flags: syn, seq: 100, ts: 5})
			s.out(segment{port: 1, flags: synAck, seq: 7, ack: 101, ts: 9, echo: 5})
			s.out(segment{port: 1, flags: ack, seq: 8, ack: 90, ts: 9, echo: 6})
		}, snapshot.SYNSource{SYNs: 1}, false},
		{"older timestamp", func(s *script) {
			s.Watching()
			s.states[1] = stateTimeWait
			s.in(segment{port: 1, flags: syn, seq: 100, ts: 5})
			s.out(segment{port: 1, flags: ack, seq: 7, ack: 90, ts: 9, echo: 6})
		}, snapshot.SYNSource{SYNs: 1, ByTimestamp: 1, TimeWait: 1}, false},
		{"older timestamp across the wrap", func(s *script) {
			s.Watching()
			s.in(segment{port: 1, flags: syn, seq: 100, ts: 0xfffffff0})
			s.out(segment{port: 1, flags: ack, seq: 7, ack: 90, ts: 9, echo: 6})
		}, snapshot.SYNSource{SYNs: 1, ByTimestamp: 1}, false},
		{"sequence number behind, no timestamps", func(s *script) {
			s.Watching()
			s.in(segment{port: 1, flags: syn, seq: 100})
			s.out(segment{port: 1, flags: ack, seq: 7, ack: 1 << 30})
		}, snapshot.SYNSource{SYNs: 1, Plain: 1, BySequence: 1}, false},
		{"sequence number behind, timestamps of the client only", func(s *script) {
			s.Watching()
			s.in(segment{port: 1, flags: syn, seq: 100, ts: 5})
			s.out(segment{port: 1, flags: ack, seq: 7, ack: 1 << 30})
		}, snapshot.SYNSource{SYNs: 1, BySequence: 1}, false},
		{"a challenge ACK", func(s *script) {
			s.Watching()
			s.in(segment{port: 1, flags: syn, seq: 100})
			s.out(segment{port: 1, flags: ack, seq: 7, ack: 90})
		}, snapshot.SYNSource{SYNs: 1, Plain: 1}, false},
		{"a challenge ACK that looks like a rejection", func(s *script) {
			s.Watching()
			s.states[1] = 1 // ESTABLISHED
			s.in(segment{port: 1, flags: syn, seq: 100})
			s.out(segment{port: 1, flags: ack, seq: 7, ack: 1 << 30})
		}, snapshot.SYNSource{SYNs: 1, Plain: 1, Challenged: 1}, false},
		{"sequence number behind, timestamp after: an open connection that the client's RST has ended", func(s *script) {
			s.Watching()
			s.in(segment{port: 1, flags: syn, seq: 100, ts: 7})
			s.out(segment{port: 1, flags: ack, seq: 7, ack: 1 << 30, ts: 9, echo: 6})
		}, snapshot.SYNSource{SYNs: 1}, false},
		{"sequence number behind, the same timestamp", func(s *script) {
			s.Watching()
			s.in(segment{port: 1, flags: syn, seq: 100, ts: 6})
			s.out(segment{port: 1, flags: ack, seq: 7, ack: 1 << 30, ts: 9, echo: 6})
		}, snapshot.SYNSource{SYNs: 1, BySequence: 1}, false},
		{"answers were not watched when it came", func(s *script) {
			s.in(segment{port: 1, flags: syn, seq: 100})
			s.Watching()
			s.out(segment{port: 1, flags: ack, seq: 7, ack: 1 << 30})
		}, snapshot.SYNSource{SYNs: 1, Plain: 1}, false},
		{"an ACK long after", func(s *script) {
			s.Watching()
			s.in(segment{port: 1, flags: syn, seq: 100})
			s.at += answerWithin
			s.out(segment{port: 1, flags: ack, seq: 7, ack: 1 << 30})
		}, snapshot.SYNSource{SYNs: 1, Plain: 1}, false},
		{"one answer counts once", func(s *script) {
			s.Watching()
			s.in(segment{port: 1, flags: syn, seq: 100})
			s.out(segment{port: 1, flags: ack, seq: 7, ack: 1 << 30})
			s.out(segment{port: 1, flags: ack, seq: 7, ack: 1 << 30})
		}, snapshot.SYNSource{SYNs: 1, Plain: 1, BySequence: 1}, false},
		{"sent again and rejected again", func(s *script) {
			s.Watching()
			for range 3 {
				s.in(segment{port: 1, flags: syn, seq: 100})
				s.out(segment{port: 1, flags: ack, seq: 7, ack: 1 << 30})
			}
		}, snapshot.SYNSource{SYNs: 3, Repeated: 2, Plain: 3, BySequence: 3}, true},
		{"sent again by way of another port of the NAT", func(s *script) {
			s.in(segment{port: 1, flags: syn, seq: 100})
			s.in(segment{port: 2, flags: syn, seq: 100})
		}, snapshot.SYNSource{SYNs: 2, Repeated: 1, Plain: 2}, true},
		{"sent again at once, and after a second, twice", func(s *script) {
			s.in(segment{port: 1, flags: syn, seq: 100})
			s.in(segment{port: 1, flags: syn, seq: 100})
			s.at++
			s.in(segment{port: 1, flags: syn, seq: 100})
			s.in(segment{port: 1, flags: syn, seq: 100})
			s.at++
			s.in(segment{port: 1, flags: syn, seq: 900})
		}, snapshot.SYNSource{SYNs: 5, Repeated: 3, Late: 1, Plain: 5}, true},
		{"by a port of a bridge and by the bridge, twice", func(s *script) {
			for range 2 {
				s.iface = 1
				s.in(segment{port: 1, flags: syn, seq: 100})
				s.iface = 2
				s.in(segment{port: 1, flags: syn, seq: 100})
				s.at += 2
			}
		}, snapshot.SYNSource{SYNs: 2, Repeated: 1, Late: 1, Plain: 2}, true},
		{"sent again by another way", func(s *script) {
			s.in(segment{port: 1, flags: syn, seq: 100})
			s.iface, s.at = 2, s.at+1
			s.in(segment{port: 1, flags: syn, seq: 100})
		}, snapshot.SYNSource{SYNs: 2, Repeated: 1, Late: 1, Plain: 2}, true},
		{"another connection of the same tuple", func(s *script) {
			s.in(segment{port: 1, flags: syn, seq: 100})
			s.in(segment{port: 1, flags: syn, seq: 200})
		}, snapshot.SYNSource{SYNs: 2, Plain: 2}, false},
		{"refused by its client", func(s *script) {
			s.in(segment{port: 1, flags: syn, seq: 100})
			s.in(segment{port: 1, flags: rst, seq: 77})
		}, snapshot.SYNSource{SYNs: 1, Plain: 1}, true},
		{"an RST of nothing", func(s *script) {
			s.in(segment{port: 1, flags: syn, seq: 100})
			s.in(segment{port: 2, flags: rst, seq: 77})
		}, snapshot.SYNSource{SYNs: 1, Plain: 1}, false},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			s := newScript()
			tc.play(s)
			r := s.Result()
			if len(r.Sources) != 1 {
				t.Fatalf("sources: %+v", r.Sources)
			}
			if d := cmp.Diff(tc.want, r.Sources[0], cmpopts.IgnoreFields(snapshot.SYNSource{}, "Source", "Destination", "Clocks", "PerConnection")); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if s.Suspicion() != tc.suspicion {
				t.Errorf("suspicion %v", s.Suspicion())
			}
			if r.SYNs != tc.want.SYNs || r.Repeated != tc.want.Repeated || r.Late != tc.want.Late || !r.LateKnown {
				t.Errorf("sums %+v", r)
			}
		})
	}
}

func TestElsewhere(t *testing.T) {
	w := NewWatch(func(netip.AddrPort) bool { return false })
	w.Arrived(segment{flags: frame.SYN}.frame(netip.AddrPortFrom(client, 1), service), 1, 1)
	if r := w.Result(); r.Elsewhere != 1 || r.SYNs != 0 || len(r.Sources) != 0 {
		t.Errorf("%+v", r)
	}
}

// TestBounded: a flood from everywhere does not fill the memory, and nothing that is
// counted gets lost.
func TestBounded(t *testing.T) {
	w := NewWatch(func(netip.AddrPort) bool { return true })
	w.Watching()
	const flood = 6 * mostAttempts
	for i := range uint32(flood) {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), uint16(i>>16))
		g := segment{flags: frame.SYN, seq: i, ts: i + 1}
		w.Arrived(g.frame(from, service), 1, float64(i)*1e-6)
		w.Answered(segment{flags: frame.ACK, ack: i + 1<<30}.frame(service, from), float64(i)*1e-6)
	}
	if n := len(w.attempts.newer) + len(w.attempts.older) + len(w.numbers.newer) + len(w.numbers.older); n > 4*mostAttempts {
		t.Errorf("%d attempts and numbers are held", n)
	}
	asked := w.Questions()
	if len(w.sources) > mostSources || len(asked) != mostAsked {
		t.Errorf("%d sources, %d questions", len(w.sources), len(asked))
	}
	const synReceived = 3
	for _, q := range asked {
		w.Resolve(q, synReceived)
	}
	if byTimestamp, bySequence := w.Result().Rejected(); byTimestamp+bySequence > 0 {
		t.Errorf("%d and %d are taken for rejected, of which the kernel knew otherwise or was not asked", byTimestamp, bySequence)
	}
	r := w.Result()
	if r.SYNs != flood || len(r.Sources) != mostListed || r.MoreSources != mostSources-mostListed {
		t.Errorf("%d SYNs, %d sources and %d more", r.SYNs, len(r.Sources), r.MoreSources)
	}
}

// FuzzWatch takes in frames as they come, at times that they name themselves.
func FuzzWatch(f *testing.F) {
	f.Add([]byte{0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 198, 18, 0, 1, 198, 19, 0, 2, 0, 9, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 1, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, stream []byte) {
		defer testutil.Bounded(t, 4*len(stream))()
		w := NewWatch(func(netip.AddrPort) bool { return true })
		for at := 0; len(stream) > 0; at++ {
			n := min(len(stream), 40)
			var frame frame.Frame
			if frame.DecodeNetwork(0x0800, stream[:n]) == nil && frame.Transport == 6 {
				w.Arrived(&frame, 1, float64(at))
			}
			stream = stream[n:]
		}
		if len(w.attempts.newer)+len(w.attempts.older) > 2*mostAttempts {
			t.Errorf("%d attempts are kept", len(w.attempts.newer)+len(w.attempts.older))
		}
	})
}
