package pktgen

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/load/packets"
)

var (
	fine       = pktgenSinkCounters{Received: 1}
	badIP      = pktgenSinkCounters{BadIpChecksum: 1}
	badSegment = pktgenSinkCounters{BadChecksum: 1}
	partial    = pktgenSinkCounters{PartialChecksum: 1}
	other      = pktgenSinkCounters{Other: 1}
)

// TestSinkVerifiesEveryLength has random payloads of every length that Ethernet
// carries, and some of longer ones; each comes once as it is and once with one bit
// inverted, which a checksum always shows.
func TestSinkVerifiesEveryLength(t *testing.T) {
	for _, kind := range stacks() {
		t.Run(kind.name, func(t *testing.T) {
			cfg := kind.config()
			s := loadSink(t, cfg, false)
			head := cfg.Spec.HeaderLen()
			for length := head; length <= 1514; length++ {
				s.verifyLength(length)
			}
			for length := 1514; length < 3300; length += 1 + s.random.IntN(30) {
				s.verifyLength(length)
			}
		})
	}
}

func (s *sinkTest) verifyLength(length int) {
	s.t.Helper()
	frame := s.randomFrame(length)
	s.verdict(frame, fine)
	segment := frame[s.l4():]
	at := s.random.IntN(len(segment))
	if s.inToken(at) {
		return
	}
	segment[at] ^= 1 << s.random.IntN(8)
	s.verdict(frame, s.wrong(frame))
}

// wrong is what frame.Frame, which parses in Go, thinks of a frame of this run.
func (s *sinkTest) wrong(b []byte) pktgenSinkCounters {
	s.t.Helper()
	f, err := frame.Parse(b)
	if err != nil { // lengths of the transport header that cannot be
		return badSegment
	}
	if !f.IPChecksumOK() {
		return badIP
	}
	switch f.TransportChecksum() {
	case frame.ChecksumOK, frame.ChecksumNone:
		return fine
	case frame.ChecksumPartial:
		return partial
	}
	return badSegment
}

// verdict checks what the receiver says of a frame of flow 0.
func (s *sinkTest) verdict(frame []byte, want pktgenSinkCounters) {
	s.t.Helper()
	wantVerdict := uint32(xdpDrop)
	if want == other {
		wantVerdict = xdpPass
	}
	verdict, got := s.put(frame)
	got.Octets, got.Duplicated, got.Reordered, got.Late = 0, 0, 0, 0
	if verdict != wantVerdict || got != want {
		s.t.Fatalf("%d bytes: verdict %d\n got %+v\nwant %+v\n%x", len(frame), verdict, got, want, frame)
	}
}

// randomFrame has random bytes behind the token, and the right checksum.
func (s *sinkTest) randomFrame(length int) []byte {
	frame := s.frame(s.flows[0], 0, 0, length)
	for i := s.cfg.Spec.HeaderLen(); i < length; i++ {
		frame[i] = byte(s.random.Uint32())
	}
	s.complete(frame)
	return frame
}

// complete writes the transport checksum, summed here as RFC 1071 has it, word by
// word.
func (s *sinkTest) complete(frame []byte) {
	segment := frame[s.l4():]
	check := s.check(segment)
	binary.BigEndian.PutUint16(check, 0)
	sum := ^fold(s.pseudo(frame) + wordSum(segment))
	if sum == 0 && s.cfg.Spec.Protocol == unix.IPPROTO_UDP {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(check, sum)
}

// pseudo is the sum of the pseudo header.
func (s *sinkTest) pseudo(frame []byte) uint32 {
	addresses := frame[s.l4()-8 : s.l4()]
	if s.cfg.Spec.IPv6 {
		addresses = frame[s.l4()-32 : s.l4()]
	}
	return wordSum(addresses) + uint32(s.cfg.Spec.Protocol) + uint32(len(frame)-s.l4())
}

// check is where the transport checksum lies.
func (s *sinkTest) check(segment []byte) []byte {
	if s.cfg.Spec.Protocol == unix.IPPROTO_TCP {
		return segment[16:18]
	}
	return segment[6:8]
}

// l4 is where the transport header begins.
func (s *sinkTest) l4() int { return s.cfg.Spec.HeaderLen() - packets.TokenLen - s.transportLen() }

func (s *sinkTest) transportLen() int {
	if s.cfg.Spec.Protocol == unix.IPPROTO_TCP {
		return frame.TCPLen
	}
	return frame.UDPLen
}

// inToken reports whether a byte of the segment is one of the run's mark or the flow's
// number, without which a packet is none of the run.
func (s *sinkTest) inToken(at int) bool { return at >= s.transportLen() && at < s.transportLen()+8 }

func wordSum(b []byte) (sum uint32) {
	for i, x := range b {
		sum += uint32(x) << (8 * (1 - i%2))
	}
	return sum
}

func fold(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

func TestSinkTellsPartialChecksums(t *testing.T) {
	for _, kind := range stacks() {
		cfg := kind.config()
		s := loadSink(t, cfg, false)
		for _, length := range []int{cfg.Spec.HeaderLen(), 99, 1514} {
			frame := s.randomFrame(length)
			binary.BigEndian.PutUint16(s.check(frame[s.l4():]), fold(s.pseudo(frame))) // CHECKSUM_PARTIAL
			s.verdict(frame, partial)
		}
	}
}

func TestSinkOfChecksumZero(t *testing.T) {
	for _, kind := range stacks() {
		cfg := kind.config()
		s := loadSink(t, cfg, false)
		frame := s.randomFrame(100)
		binary.BigEndian.PutUint16(s.check(frame[s.l4():]), 0)
		want := badSegment // RFC 8200, section 8.1: not with IPv6
		if !kind.tcp && !kind.ipv6 {
			want = fine // RFC 768: there is none
		}
		s.verdict(frame, want)
		s.zeroChecksum(want)
	}
}

// zeroChecksum has a payload whose checksum is 0, which TCP sends so and UDP as
// 0xffff.
func (s *sinkTest) zeroChecksum(want pktgenSinkCounters) {
	s.t.Helper()
	frame := s.randomFrame(s.cfg.Spec.HeaderLen() + 2)
	segment := frame[s.l4():]
	last := segment[len(segment)-2:]
	binary.BigEndian.PutUint16(last, 0)
	binary.BigEndian.PutUint16(s.check(segment), 0)
	binary.BigEndian.PutUint16(last, ^fold(s.pseudo(frame)+wordSum(segment)))
	if s.cfg.Spec.Protocol == unix.IPPROTO_TCP {
		want = fine
	}
	s.verdict(frame, want)
	s.complete(frame)
	s.verdict(frame, fine)
}

func TestSinkVerifiesTheIPHeader(t *testing.T) {
	for _, kind := range stacks() {
		if kind.ipv6 {
			continue
		}
		cfg := kind.config()
		s := loadSink(t, cfg, false)
		for _, at := range []int{1, 4, 8, 10, 11, 12, 19} { // TOS … addresses
			frame := s.frame(s.flows[0], 0, 0, 100)
			frame[s.l4()-20+at] ^= 0x10
			s.verdict(frame, badIP)
		}
	}
}

// TestSinkNeedNotVerify checks that a run without verification takes all of these.
func TestSinkNeedNotVerify(t *testing.T) {
	cfg := config("198.18.0.1:9")
	cfg.Verify = false
	s := loadSink(t, cfg, false)
	b := s.randomFrame(100)
	b[99]++
	b[frame.EthernetLen+8]-- // the TTL
	s.verdict(b, fine)
}
