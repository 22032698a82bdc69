package pktgen

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/load/packets"
)

// TestSinkPassesOthers has what is none of the run's: it goes on to the stack as it
// is, whatever else is wrong with it.
func TestSinkPassesOthers(t *testing.T) {
	for _, kind := range stacks() {
		t.Run(kind.name, func(t *testing.T) {
			s := loadSink(t, kind.config(), false)
			for name, frame := range s.foreign() {
				if verdict, got := s.put(frame); verdict != xdpPass || got != other {
					t.Errorf("%s: verdict %d, %+v", name, verdict, got)
				}
			}
		})
	}
}

// foreign makes frames that resemble the run's.
func (s *sinkTest) foreign() map[string][]byte {
	l3, l4 := s.l3(), s.l4()
	token := l4 + s.transportLen()
	frames := map[string][]byte{
		"another run's mark":        s.edited(func(b []byte) []byte { b[token+3]++; return b }),
		"a flow that is not there":  s.edited(func(b []byte) []byte { binary.BigEndian.PutUint32(b[token+4:], 100); return b }),
		"the greatest flow":         s.edited(func(b []byte) []byte { binary.BigEndian.PutUint32(b[token+4:], ^uint32(0)); return b }),
		"ARP":                       s.edited(func(b []byte) []byte { copy(b[l3-2:], "\x08\x06"); return b }),
		"two tags":                  s.edited(func(b []byte) []byte { return slices.Insert(b, 12, []byte("\x81\x00\x00\x01\x81\x00\x00\x02")...) }),
		"Q-in-Q":                    s.edited(func(b []byte) []byte { return slices.Insert(b, 12, []byte("\x88\xa8\x00\x01\x81\x00\x00\x02")...) }),
		"LLC":                       s.edited(func(b []byte) []byte { binary.BigEndian.PutUint16(b[l3-2:], uint16(len(b)-l3)); return b }),
		"another IP version":        s.edited(func(b []byte) []byte { b[l3] ^= 0x20; return b }),
		"the other family":          s.edited(s.otherFamily),
		"the other protocol":        s.edited(func(b []byte) []byte { b[s.protocolAt()] ^= 6 ^ 17; return b }),
		"ICMP":                      s.edited(func(b []byte) []byte { b[s.protocolAt()] = 1; return b }),
		"a packet without a token":  s.edited(func(b []byte) []byte { return s.setLength(b, s.transportLen()+packets.TokenLen-1) }),
		"a packet of the header":    s.edited(func(b []byte) []byte { return s.setLength(b, s.transportLen()) }),
		"an empty packet":           s.edited(func(b []byte) []byte { return s.setLength(b, 0) }),
		"a token one byte too late": s.edited(func(b []byte) []byte { return slices.Insert(b, token, 0) }),
	}
	if s.cfg.Spec.IPv6 {
		frames["a Hop-by-Hop header"] = s.edited(func(b []byte) []byte {
			b[l3+6] = 0
			return slices.Insert(b, l4, s.cfg.Spec.Protocol, 0, 1, 4, 0, 0, 0, 0)
		})
		frames["a fragment"] = s.edited(func(b []byte) []byte {
			b[l3+6] = 44
			return slices.Insert(b, l4, s.cfg.Spec.Protocol, 0, 0, 1, 0, 0, 0, 1)
		})
		return frames
	}
	frames["options"] = s.edited(func(b []byte) []byte { b[l3]++; return slices.Insert(b, l4, 1, 1, 1, 0) })
	frames["a header too short"] = s.edited(func(b []byte) []byte { b[l3]--; return b })
	frames["a first fragment"] = s.edited(func(b []byte) []byte { b[l3+6] |= 0x20; return b })
	frames["a later fragment"] = s.edited(func(b []byte) []byte { b[l3+7] = 1; return b })
	frames["a total length of less than the header"] = s.edited(func(b []byte) []byte { return s.setLength(b, -1) })
	return frames
}

func (s *sinkTest) edited(edit func([]byte) []byte) []byte {
	return edit(s.frame(s.flows[0], 0, 0, s.cfg.Spec.HeaderLen()+20))
}

func (s *sinkTest) otherFamily(b []byte) []byte {
	binary.BigEndian.PutUint16(b[s.l3()-2:], frame.EtherTypeIPv4^frame.EtherTypeIPv6^binary.BigEndian.Uint16(b[s.l3()-2:]))
	return b
}

// setLength writes the length of the IP payload into the IP header.
func (s *sinkTest) setLength(b []byte, n int) []byte {
	if s.cfg.Spec.IPv6 {
		binary.BigEndian.PutUint16(b[s.l3()+4:], uint16(n))
	} else {
		binary.BigEndian.PutUint16(b[s.l3()+2:], uint16(frame.IPv4Len+n))
	}
	return b
}

// l3 is where the IP header begins.
func (s *sinkTest) l3() int {
	if s.cfg.Spec.IPv6 {
		return s.l4() - frame.IPv6Len
	}
	return s.l4() - frame.IPv4Len
}

// protocolAt is the offset of the protocol in the IP header.
func (s *sinkTest) protocolAt() int {
	if s.cfg.Spec.IPv6 {
		return s.l3() + 6
	}
	return s.l3() + 9
}

// TestSinkTakesOwnPackets is the other side of TestSinkPassesOthers: changes that do
// not matter.
func TestSinkTakesOwnPackets(t *testing.T) {
	for _, kind := range stacks() {
		s := loadSink(t, kind.config(), false)
		s.verdict(s.edited(func(b []byte) []byte { return b }), fine)
		s.verdict(s.edited(func(b []byte) []byte { return append(b, make([]byte, 9)...) }), fine) // padding
		s.verdict(s.edited(func(b []byte) []byte { b[0]++; b[6]++; return b }), fine)
		s.verdict(s.edited(func(b []byte) []byte { return append([]byte(string(b[:12])+"\x88\xa8\x00\x05"), b[s.l3()-2:]...) }), fine)
		s.verdict(s.edited(func(b []byte) []byte { return append(b[:12:12], b[s.l3()-2:]...) }), fine) // the tag removed
	}
}

// TestSinkOfTruncatedFrames cuts a frame at every byte: up to the end of the token it
// is foreign, after that its checksum is wrong.
func TestSinkOfTruncatedFrames(t *testing.T) {
	for _, kind := range stacks() {
		s := loadSink(t, kind.config(), false)
		whole := s.randomFrame(300)
		for n := frame.EthernetLen; n < len(whole); n++ {
			want := badSegment
			if n < s.cfg.Spec.HeaderLen() {
				want = other
			}
			s.verdict(whole[:n], want)
		}
		s.verdict(whole, fine)
	}
}

// TestSinkIsNotFooled changes bytes of valid frames at random, with the checksums
// corrected or not. Whatever counts as received is what frame.Frame, which parses in
// Go, finds intact, expected and of this run.
func TestSinkIsNotFooled(t *testing.T) {
	for _, kind := range stacks() {
		t.Run(kind.name, func(t *testing.T) {
			cfg := kind.config()
			same := packets.End{Address: packets.Same, Port: packets.Same}
			cfg.Expect = packets.Expectation{Source: same, Destination: same}
			s := loadSink(t, cfg, false)
			count := map[pktgenSinkCounters]int{}
			for range 4000 {
				frame := s.mutated()
				verdict, got := s.put(frame)
				got.Octets, got.Reordered, got.Duplicated, got.Late = 0, 0, 0, 0
				if (verdict == xdpPass) != (got == other) || got == fine && !s.valid(frame) {
					t.Fatalf("verdict %d, %+v\n%x", verdict, got, frame)
				}
				count[got]++
			}
			for _, kind := range []pktgenSinkCounters{fine, other, badSegment, {Misdelivered: 1}} {
				if count[kind] < 50 {
					t.Errorf("only %d packets were %+v", count[kind], kind)
				}
			}
		})
	}
}

func (s *sinkTest) mutated() []byte {
	flow := s.random.IntN(len(s.flows))
	frame := s.frame(s.flows[flow], uint32(flow), s.random.Uint32N(4), s.cfg.Spec.HeaderLen()+s.random.IntN(64))
	for range s.random.IntN(4) {
		at := s.random.IntN(len(frame))
		switch s.random.IntN(3) {
		case 0:
			frame[at] ^= 1 << s.random.IntN(8)
		case 1:
			frame[at] = byte(s.random.Uint32())
		case 2:
			other := s.random.IntN(len(frame))
			frame[at], frame[other] = frame[other], frame[at]
		}
	}
	if s.random.IntN(2) == 0 {
		s.completeIP(frame)
	}
	if s.random.IntN(2) == 0 {
		s.complete(frame)
	}
	return frame
}

// completeIP writes the header checksum of IPv4.
func (s *sinkTest) completeIP(frame []byte) {
	if s.cfg.Spec.IPv6 {
		return
	}
	header := frame[s.l3():s.l4()]
	binary.BigEndian.PutUint16(header[10:], 0)
	binary.BigEndian.PutUint16(header[10:], ^fold(wordSum(header)))
}

// valid reports whether a packet has come to where it should, unhurt.
func (s *sinkTest) valid(b []byte) bool {
	f, err := frame.Parse(b)
	token, whole := packets.ParseToken(f.Payload)
	if err != nil || !whole || f.Fragment.Is() || token.Run != s.run() || int(token.Flow) >= len(s.flows) {
		return false
	}
	check := f.TransportChecksum()
	return f.Tuple() == s.flows[token.Flow] && f.IPChecksumOK() && (check == frame.ChecksumOK || check == frame.ChecksumNone)
}
