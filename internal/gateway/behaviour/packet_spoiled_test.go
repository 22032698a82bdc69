package behaviour

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/testutil"
)

// spoiledWorld changes what arrives, as a NAT with one fault would.
type spoiledWorld struct {
	World
	spoil func(a *Arrival) []byte
}

func (w spoiledWorld) Send(from Host, packets ...[]byte) (Arrivals, error) {
	arrivals, err := w.World.Send(from, packets...)
	var all Arrivals
	for _, a := range arrivals {
		a.Packet = slices.Clone(a.Packet)
		if a.Packet = w.spoil(&a); a.Packet == nil {
			continue
		}
		a.Frame = frame.Frame{}
		if err := decode(&a.Frame, a.Packet); err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, err
}

// faults are what a NAT can do wrong with all checksums right, each with cases that have
// to see it.
var faults = []struct {
	name  string
	spoil func(a *Arrival) []byte
	seen  string
}{
	{"quotes the port that the mapping has", inQuote(func(q []byte) { q[headerLength(q)] ^= 1 }),
		"rfc5508-req-4 rfc5508-req-4-ipv6 rfc5508-req-4-cut rfc5508-req-5 rfc5508-req-7-a rfc5508-req-10-a2-inbound icmp-too-big-inbound rfc5382-req-9 fragments-error-about-first"},
	{"quotes another address", inQuote(func(q []byte) { q[headerLength(q)-1]++ }),
		"rfc5508-req-4-ipv6 rfc5508-req-5-c-ipv6 rfc5508-req-10-a2-inbound-ipv6"},
	{"quotes a changed UDP checksum", inQuote(func(q []byte) { q[headerLength(q)+7] ^= 1 }), "rfc5508-req-4 rfc5508-req-4-cut rfc5508-req-5-ipv6"},
	{"changes the MTU of an error", inICMP(func(b []byte) { b[7] ^= 1 }), "rfc5508-req-4 rfc5508-req-4-ipv6 icmp-too-big-inbound icmp-too-big-inbound-ipv6"},
	{"changes the code of an error", inICMP(func(b []byte) { b[1] ^= 2 }), "rfc5508-req-4 rfc5508-req-5 rfc5508-req-3-d"},
	{"cuts ICMP extensions off", inICMP(func(b []byte) { clear(b[max(0, len(b)-8):]) }), "rfc5508-req-3-d"},
	{"changes identifiers of echoes", inICMP(func(b []byte) { b[5] ^= 1 }), "rfc5508-req-1 rfc5508-req-1-ipv6 icmp-same-identifier"},
	{"moves sequence numbers", inTCP(func(b []byte) { b[7]++ }), "rfc5382-req-2 rfc5382-req-2-external rfc5382-req-8"},
	{"takes timestamps for padding", inTCP(func(b []byte) { withoutOption(b, frame.OptionTimestamps) }), "tcp-options tcp-options-ipv6"},
	{"does not clamp", inTCP(func(b []byte) { unclamp(b) }), "tcp-mss-number tcp-mss-clamp tcp-mss-clamp-narrow-ipv6"},
	{"leaves the TTL", inIP(func(b []byte) { b[8]++ }), "ip-fields"},
	{"clears DF", inIP(func(b []byte) { b[6] &^= 0x40 }), "ip-fields"},
	{"clears ECN", inIP(func(b []byte) { b[1] &^= 3 }), "ip-fields"},
	{"replaces options by NOPs", inIP(func(b []byte) { b[20] = 1; b[21] = 1 }), "ip-options"},
	{"makes a checksum that was not there", inUDP(func(b []byte, right uint16) uint16 { return right }), "udp-checksum-zero"},
	{"takes checksums away", inUDP(func([]byte, uint16) uint16 { return 0 }), "udp-checksum-ffff"},
	{"loses the last fragment", lastFragment, "fragments-in-order fragments-reversed-ipv6 fragments-hairpinned fragments-inbound"},
	{"loses every RST", func(a *Arrival) []byte {
		if a.Frame.Transport == unix.IPPROTO_TCP && a.Frame.TCP.Flags&frame.RST != 0 {
			return nil
		}
		return a.Packet
	}, "tcp-rst-inside rfc7857-2-2"},
}

// TestCasesSeeFaults plays cases in worlds with one fault each, and all of them in one
// with none.
func TestCasesSeeFaults(t *testing.T) {
	testutil.NeedRoot(t)
	untouched := func(a *Arrival) []byte { return a.Packet }
	var every []string
	for _, fault := range faults {
		ids := strings.Fields(fault.seen)
		every = append(every, ids...)
		for _, r := range runSpoiled(t, ids, fault.spoil) {
			t.Logf("%s: %s: %q, %v", fault.name, r.ID, r.Outcome, r.Err)
			if r.Status != Unexpected {
				t.Errorf("%s does not see a gateway that %s: %s, %q", r.ID, fault.name, r.Status, r.Outcome)
			}
		}
	}
	for _, r := range runSpoiled(t, every, untouched) {
		if r.Status == Unexpected {
			t.Errorf("%s: %v", r.ID, r.Err)
		}
	}
}

func runSpoiled(t *testing.T, ids []string, spoil func(*Arrival) []byte) []Result {
	t.Helper()
	slices.Sort(ids)
	ids = slices.Compact(ids)
	cases := slices.DeleteFunc(All(), func(c Case) bool { return !slices.Contains(ids, c.ID) })
	if len(cases) != len(ids) {
		t.Errorf("%d cases of %s", len(cases), ids)
	}
	cases = playable(t, cases)
	world := worlds(alone)
	return Run(Netfilter, cases, func() (World, error) {
		w, err := world()
		return spoiledWorld{w, spoil}, err
	}, slow(), 8)
}

// inIP changes a header of IPv4, and makes its checksum right.
func inIP(change func([]byte)) func(*Arrival) []byte {
	return func(a *Arrival) []byte {
		b := a.Packet
		if b[0]>>4 == 4 {
			change(b)
			headerChecksum(b)
		}
		return b
	}
}

func headerChecksum(b []byte) {
	b[10], b[11] = 0, 0
	binary.BigEndian.PutUint16(b[10:], gopacket.FoldChecksum(gopacket.ComputeChecksum(b[:headerLength(b)], 0)))
}

// inSegment changes a segment of one protocol, and makes its checksum right.
func inSegment(transport, transport6 uint8, checksum int, change func([]byte)) func(*Arrival) []byte {
	return func(a *Arrival) []byte {
		f := &a.Frame
		if f.Fragment.Is() || f.Transport != transport && f.Transport != transport6 {
			return a.Packet
		}
		b := a.Packet[headerLength(a.Packet):]
		change(b)
		b[checksum], b[checksum+1] = 0, 0
		sum := gopacket.FoldChecksum(gopacket.ComputeChecksum(b, 0))
		if f.Transport != unix.IPPROTO_ICMP {
			sum = frame.SegmentChecksum(f.Source, f.Destination, f.Transport, b)
		}
		binary.BigEndian.PutUint16(b[checksum:], sum)
		return a.Packet
	}
}

func inTCP(change func([]byte)) func(*Arrival) []byte {
	return inSegment(unix.IPPROTO_TCP, unix.IPPROTO_TCP, 16, change)
}

func inICMP(change func([]byte)) func(*Arrival) []byte {
	return inSegment(unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6, 2, change)
}

// inQuote changes the packet that an error quotes.
func inQuote(change func([]byte)) func(*Arrival) []byte {
	return func(a *Arrival) []byte {
		if quoted(a.Packet) == nil {
			return a.Packet
		}
		return inICMP(func(b []byte) {
			change(b[8:])
			if b[8]>>4 == 4 {
				headerChecksum(b[8:])
			}
		})(a)
	}
}

// inUDP gives datagrams another checksum than they have, out of the right one.
func inUDP(choose func(b []byte, right uint16) uint16) func(*Arrival) []byte {
	return func(a *Arrival) []byte {
		if a.Frame.Transport != unix.IPPROTO_UDP || a.Frame.Fragment.Is() {
			return a.Packet
		}
		b := a.Packet[headerLength(a.Packet):]
		clear(b[6:8])
		right := frame.SegmentChecksum(a.Frame.Source, a.Frame.Destination, unix.IPPROTO_UDP, b)
		binary.BigEndian.PutUint16(b[6:], choose(b, right))
		return a.Packet
	}
}

func withoutOption(b []byte, kind byte) {
	options := b[20 : int(b[12]>>4)*4]
	if at := bytes.IndexByte(options, kind); at >= 0 && at+1 < len(options) {
		for i := range options[at+1] {
			options[at+int(i)] = 1
		}
	}
}

func unclamp(b []byte) {
	options := b[20 : int(b[12]>>4)*4]
	if at := bytes.Index(options, []byte{frame.OptionMaximumSegmentSize, 4}); at >= 0 {
		binary.BigEndian.PutUint16(options[at+2:], 8960)
	}
}

func lastFragment(a *Arrival) []byte {
	if a.Frame.Fragment.Offset != 0 && !a.Frame.Fragment.More {
		return nil
	}
	return a.Packet
}
