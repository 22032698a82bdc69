package behaviour

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// wrongChecksums verifies an IP packet and, in an ICMP error, at the packet quoted
// there, with gopacket: neither the code that built the packet nor the engine that
// translated it. A quoted packet that is cut has no transport checksum to verify.
func wrongChecksums(ip []byte) error {
	if err := layersChecksums(ip); err != nil {
		return err
	}
	quote := quoted(ip)
	if quote == nil {
		return nil
	}
	if err := quotedChecksums(quote); err != nil {
		return fmt.Errorf("quoted packet: %w", err)
	}
	return nil
}

func layersChecksums(ip []byte) error {
	p := gopacket.NewPacket(ip, firstLayer(ip), gopacket.NoCopy)
	coverPseudoHeader(p)
	err, wrong := p.VerifyChecksums()
	if err != nil {
		return err
	}
	if len(wrong) > 0 {
		return fmt.Errorf("checksum of %s is %#04x, not %#04x", wrong[0].Layer.LayerType(), wrong[0].Actual, wrong[0].Correct)
	}
	return nil
}

// coverPseudoHeader sets the addresses that the checksums of a packet's layers cover:
// those of the IP header before them, of which tunnels have several.
func coverPseudoHeader(p gopacket.Packet) {
	var network gopacket.NetworkLayer
	for _, layer := range p.Layers() {
		if n, ok := layer.(gopacket.NetworkLayer); ok {
			network = n
		}
		if l, ok := layer.(interface {
			SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
		}); ok && network != nil {
			_ = l.SetNetworkLayerForChecksum(network)
		}
	}
}

func quotedChecksums(quote []byte) error {
	if complete(quote) {
		return layersChecksums(quote)
	}
	if quote[0]>>4 != 4 {
		return nil
	}
	var header layers.IPv4
	if err := header.DecodeFromBytes(quote, gopacket.NilDecodeFeedback); err != nil {
		return err
	}
	if err, sum := header.VerifyChecksum(); err != nil || !sum.Valid {
		return errors.Join(err, fmt.Errorf("checksum of IPv4 is %#04x, not %#04x", sum.Actual, sum.Correct))
	}
	return nil
}

func firstLayer(ip []byte) gopacket.LayerType {
	if ip[0]>>4 == 4 {
		return layers.LayerTypeIPv4
	}
	return layers.LayerTypeIPv6
}

// complete reports whether an IP packet is all there. One with ICMP extensions behind it
// (RFC 4884) is, too.
func complete(ip []byte) bool {
	if ip[0]>>4 == 4 {
		return len(ip) >= int(binary.BigEndian.Uint16(ip[2:]))
	}
	return len(ip) >= 40+int(binary.BigEndian.Uint16(ip[4:]))
}

// quoted is the packet that an ICMP error quotes, nil of what is none.
func quoted(ip []byte) []byte {
	header, protocol := headerLength(ip), protocolOf(ip)
	if len(ip) < header+8+20 {
		return nil
	}
	switch kind := ip[header]; {
	case protocol == 1 && (kind == unreachable || kind == sourceQuench || kind == redirect || kind == timeExceeded || kind == parameterProblem):
		return ip[header+8:]
	case protocol == 58 && kind < 128:
		return ip[header+8:]
	}
	return nil
}

func headerLength(ip []byte) int {
	if ip[0]>>4 == 4 {
		return int(ip[0]&15) * 4
	}
	return 40
}

func protocolOf(ip []byte) uint8 {
	if ip[0]>>4 == 4 {
		return ip[9]
	}
	return ip[6]
}
