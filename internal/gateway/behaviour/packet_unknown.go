package behaviour

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
)

// Protocols that a NAT need not know (IANA, Assigned Internet Protocol Numbers).
const (
	protocolESP        = 50
	protocolGRE        = 47
	protocolExperiment = 253
	protocolDCCP       = 33
)

func unknownProtocols() []Case {
	return append(staticProtocols(), Case{
		ID: "unknown-dynamic", Level: Natkit, Want: []Outcome{"one host at a time, others dropped and counted", "each host with its own address"},
		Asks: "a protocol without ports goes through a shared address for one host and destination; a second host does not get the first one's answers",
		Run:  unknownShared,
	}, Case{
		ID: "sctp-shared", Level: Natkit, Want: []Outcome{"each its own port, CRC32c right"},
		Asks: "SCTP of two hosts with the same port shares an address by ports, with its CRC32c right (RFC 9260)",
		Run:  sctpShared,
	})
}

// mendsChecksum is why a protocol passes the programs.
const mendsChecksum = "the programs know where its checksum is, and change it by what the addresses change"

// staticProtocols go both ways with a static address.
func staticProtocols() []Case {
	var cases []Case
	for _, k := range []struct {
		id, name string
		make     func(from, to netip.Addr) datagram
		expect   map[string]Expectation
	}{
		{"static-unknown", "an unknown protocol (253)", opaque(protocolExperiment), nil},
		{"static-esp", "ESP", opaque(protocolESP), nil},
		{"static-gre", "GRE", gre, nil},
		{"static-sctp", "SCTP, with its CRC32c as it was", func(from, to netip.Addr) datagram {
			return sctp(netip.AddrPortFrom(from, 4000), netip.AddrPortFrom(to, 5000), 1)
		}, nil},
		{"static-udplite", "UDP-Lite, with its checksum right (RFC 3828)", udpLite, metByEBPF(onNetfilter("lost on its way out",
			"the tracker verifies it with the protocol number of UDP in the pseudo header (udplite_error), so that every right one is wrong to it; what is invalid is not translated, and natkit drops it"), mendsChecksum)},
		{"static-dccp", "DCCP, with its checksum right (RFC 4340)", dccp, metByEBPF(map[string]Expectation{Netfilter: {
			Outcome: "out: its checksum is wrong", Where: func() bool { return !tracksDCCP() },
			Reason: "kernels that do not know DCCP (its tracker was removed in Linux 6.16) change the addresses only, which the checksum covers"}}, mendsChecksum)},
	} {
		cases = append(cases, Case{
			Expect: k.expect,
			ID:     k.id, Level: Natkit, Want: []Outcome{"both ways"}, Gateway: basicNAT,
			Asks: fmt.Sprintf("with a static address %s goes both ways", k.name),
			Run:  func(p *Play) (Outcome, error) { return protocolBothWays(p, k.make) },
		})
	}
	return cases
}

func opaque(protocol uint8) func(from, to netip.Addr) datagram {
	return func(from, to netip.Addr) datagram {
		return datagramOf(from, to, protocol, []byte("\x12\x34\x56\x78\x00\x00\x00\x01 what only the ends know"))
	}
}

// gre is an IPv4 packet in GRE with a key (RFC 2784, RFC 2890).
func gre(from, to netip.Addr) datagram {
	inner := udpData(ap("10.9.9.1:1"), ap("10.9.9.2:2")).bytes()
	return datagramOf(from, to, protocolGRE, append([]byte{0x20, 0, 8, 0, 0, 0, 0, 77}, inner...))
}

// sctp is an INIT chunk (RFC 9260, section 3.3.2) with the checksum of section 6.8.
func sctp(from, to netip.AddrPort, tag uint32) datagram {
	b := binary.BigEndian.AppendUint16(nil, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = append(b, make([]byte, 8)...) // verification tag 0, checksum
	b = append(b, 1, 0, 0, 20)
	b = binary.BigEndian.AppendUint32(b, tag)
	b = append(b, 0, 0, 0xff, 0xff, 0, 10, 0, 10, 0, 0, 0, 1)
	binary.LittleEndian.PutUint32(b[8:], sctpChecksum(b))
	return datagramOf(from.Addr(), to.Addr(), unix.IPPROTO_SCTP, b)
}

// sctpChecksum is CRC32c with the field taken for 0.
func sctpChecksum(b []byte) uint32 {
	b = bytes.Clone(b)
	clear(b[8:12])
	return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
}

func sctpRight(b []byte) bool { return binary.LittleEndian.Uint32(b[8:]) == sctpChecksum(b) }

// udpLite has a checksum over all of it, as the coverage says that UDP-Lite has in place
// of the length.
func udpLite(from, to netip.Addr) datagram {
	b := append([]byte{0x0f, 0xa0, 0x13, 0x88, 0, 16, 0, 0}, "covered."...)
	binary.BigEndian.PutUint16(b[6:], frame.SegmentChecksum(from, to, unix.IPPROTO_UDPLITE, b))
	return datagramOf(from, to, unix.IPPROTO_UDPLITE, b)
}

// dccp is a Request (RFC 4340, sections 5.1 and 5.2).
func dccp(from, to netip.Addr) datagram {
	b := []byte{0x0f, 0xa0, 0x13, 0x88, 5, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 42}
	binary.BigEndian.PutUint16(b[6:], frame.SegmentChecksum(from, to, protocolDCCP, b))
	return datagramOf(from, to, protocolDCCP, b)
}

// protocolBothWays sends a packet out from A, and one back from X, and wants them to be what
// the ends would have sent to and from the static address.
func protocolBothWays(p *Play, compose func(from, to netip.Addr) datagram) (Outcome, error) {
	out, err := carry(p, insideA, outsideX, compose(insideA.Addr(), outsideX.Addr()))
	if err != nil {
		return lostOr("lost on its way out", err)
	}
	if o := same(out, compose(staticA, outsideX.Addr())); o != "" {
		return "out: " + o, nil
	}
	in, err := carry(p, outsideX, insideA, compose(outsideX.Addr(), staticA))
	if err != nil {
		return lostOr("lost on its way in", err)
	}
	if o := same(in, compose(outsideX.Addr(), insideA.Addr())); o != "" {
		return "in: " + o, nil
	}
	return "both ways", nil
}

func lostOr(o Outcome, err error) (Outcome, error) {
	if Lost(err) {
		return o, nil
	}
	return "", err
}

// tracksDCCP reports whether the kernel's tracker knows DCCP.
func tracksDCCP() bool {
	_, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_dccp_loose")
	return err == nil
}

// same wants addresses and payload, with all checksums in it.
func same(e exchanged, want datagram) Outcome {
	f := &e.got.Frame
	got := ipPayload(e.got.Packet)
	switch {
	case f.Source == insideA.Addr():
		return leavesUntranslated
	case f.Source != want.Source || f.Destination != want.Destination:
		return "with other addresses"
	case len(got) > 8 && len(got) == len(want.Payload) && bytes.Equal(got[:6], want.Payload[:6]) && bytes.Equal(got[8:], want.Payload[8:]) &&
		!bytes.Equal(got, want.Payload):
		return "its checksum is wrong"
	case !bytes.Equal(got, want.Payload):
		return "with another payload"
	}
	return ""
}

// unknownShared has A and then B send the same protocol to X, which answers both.
func unknownShared(p *Play) (Outcome, error) {
	compose := opaque(protocolExperiment)
	ofA, err := carry(p, insideA, outsideX, compose(insideA.Addr(), outsideX.Addr()))
	if err != nil {
		return lostOr("no host has it", err)
	}
	before, err := p.Failures()
	if err != nil {
		return "", err
	}
	ofB, err := p.Send(B, compose(insideB.Addr(), outsideX.Addr()).bytes())
	if err != nil {
		return "", err
	}
	if len(ofB) > 0 {
		return yes(ofB[0].Frame.Source != ofA.got.Frame.Source, "each host with its own address", "both hosts with one address"), nil
	}
	after, err := p.Failures()
	if err != nil {
		return "", err
	}
	answer, err := p.Send(X, compose(outsideX.Addr(), ofA.got.Frame.Source).bytes())
	if where(answer, A) != Passes {
		return "the first host gets no answer", err
	}
	return yes(after == before+1, "one host at a time, others dropped and counted", "one host at a time, others dropped"), err
}

func sctpShared(p *Play) (Outcome, error) {
	ports := map[uint16]bool{}
	for i, from := range []end{insideA, insideB} {
		got, err := carry(p, from, outsideX, sctp(from.AddrPort, outsideX.AddrPort, uint32(i+1)))
		if err != nil {
			return lostOr(Outcome(fmt.Sprintf("lost from host %d", i+1)), err)
		}
		b := ipPayload(got.got.Packet)
		if got.got.Frame.Source != WANAddress.Addr() || !sctpRight(b) {
			return yes(sctpRight(b), "not translated", "CRC32c wrong"), nil
		}
		ports[binary.BigEndian.Uint16(b)] = true
	}
	return yes(len(ports) == 2, "each its own port, CRC32c right", "one port for both"), nil
}
