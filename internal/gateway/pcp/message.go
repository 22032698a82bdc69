package pcp

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
)

// Port is where requests arrive, ClientPort where announcements go to (RFC 6887, section 19; RFC 6886, section 3.2.1).
const (
	Port       = 5351
	ClientPort = 5350
)

// MaxSize bounds a message of PCP (section 7). A longer one is read as one byte more.
const MaxSize = 1100

// The versions: NAT-PMP is version 0.
const (
	versionNATPMP = 0
	versionPCP    = 2
)

// Opcodes of PCP (section 19.2), and of NAT-PMP (RFC 6886, section 3). isAnswer is the bit that answers have.
const (
	opAnnounce, opMap, opPeer  = 0, 1, 2
	opAddress, opUDP, opTCP    = 0, 1, 2
	isAnswer                   = 0x80
	headerSize, mapSize        = 24, 36
	pmpMapSize, pmpHeaderSize  = 12, 2
	optionPreferFailure        = 2
	firstOptional              = 128
	protocolTCP, protocolUDP   = 6, 17
	longRefusal, shortRefusal  = 30 * 60, 30 // seconds (section 7.4)
	nonceSize, optionHeadBytes = 12, 4
)

// code is a result of PCP (section 7.4).
type code byte

const (
	success code = iota
	unsupportedVersion
	notAuthorized
	malformedRequest
	unsupportedOpcode
	unsupportedOption
	malformedOption
	networkFailure
	noResources
	unsupportedProtocol
	quotaExceeded
	cannotProvideExternal
	addressMismatch
)

// ofNATPMP are the results of NAT-PMP for those of PCP (RFC 6886, section 3.5); what has none there is "out of
// resources".
var ofNATPMP = map[code]uint16{success: 0, unsupportedVersion: 1, notAuthorized: 2, networkFailure: 3, unsupportedOpcode: 5}

// lifetime is for how long a client can expect the same refusal, in seconds.
func (c code) lifetime() uint32 {
	switch c {
	case networkFailure, noResources, quotaExceeded, cannotProvideExternal:
		return shortRefusal
	}
	return longRefusal
}

// request is what a client asks for.
type request struct {
	natpmp bool
	// opcode is one of PCP: of NAT-PMP a mapping is opMap, and address is true for the question for the address outside.
	opcode  byte
	address bool
	// client is the address that a client of PCP takes for its own.
	client   netip.Addr
	lifetime uint32
	nonce    string
	protocol uint8
	// internal is the client's port; suggested what it would like to have outside, of PCP with an address.
	internal         uint16
	suggested        uint16
	suggestedAddress netip.Addr
	preferFailure    bool
}

// parse reads a request. Silent is true for what is not answered at all; of a request with a fault, the code says
// which one it is.
func parse(b []byte) (r request, result code, silent bool) {
	switch {
	case len(b) < pmpHeaderSize || b[1]&isAnswer != 0:
		return r, 0, true
	case b[0] == versionNATPMP:
		r, result = parseNATPMP(b)
		return r, result, false
	case b[0] != versionPCP:
		return r, unsupportedVersion, false
	}
	r.opcode = b[1]
	switch {
	case len(b) < headerSize || len(b) > MaxSize || len(b)%4 != 0:
		return r, malformedRequest, false
	case r.opcode != opAnnounce && r.opcode != opMap:
		return r, unsupportedOpcode, false
	}
	r.lifetime = binary.BigEndian.Uint32(b[4:])
	r.client = netip.AddrFrom16([16]byte(b[8:24])).Unmap()
	rest := b[headerSize:]
	if r.opcode == opMap {
		if len(rest) < mapSize {
			return r, malformedRequest, false
		}
		r.mapping(rest)
		rest = rest[mapSize:]
	}
	return r, r.options(rest), false
}

// mapping reads the part of a request that is of MAP (section 11.1).
func (r *request) mapping(b []byte) {
	r.nonce = hex.EncodeToString(b[:nonceSize])
	r.protocol = b[12]
	r.internal, r.suggested = binary.BigEndian.Uint16(b[16:]), binary.BigEndian.Uint16(b[18:])
	r.suggestedAddress = netip.AddrFrom16([16]byte(b[20:36])).Unmap()
}

// options reads what follows (section 7.3). Those that must be understood and are not make the request fail:
// THIRD_PARTY is one of them, as a host opens ports to itself only, and so is FILTER.
func (r *request) options(b []byte) code {
	for len(b) > 0 {
		if len(b) < optionHeadBytes {
			return malformedOption
		}
		option, size := b[0], int(binary.BigEndian.Uint16(b[2:]))
		padded := optionHeadBytes + (size+3)/4*4
		switch {
		case padded > len(b):
			return malformedOption
		case option >= firstOptional:
		case option != optionPreferFailure || r.opcode != opMap:
			return unsupportedOption
		case size != 0 || r.preferFailure:
			return malformedOption
		default:
			r.preferFailure = true
		}
		b = b[padded:]
	}
	return success
}

// parseNATPMP reads a request of RFC 6886 (sections 3.2, 3.3).
func parseNATPMP(b []byte) (r request, result code) {
	r = request{natpmp: true, opcode: opMap, protocol: map[byte]uint8{opUDP: protocolUDP, opTCP: protocolTCP}[b[1]]}
	switch {
	case b[1] == opAddress:
		r.address = true
		return r, success
	case r.protocol == 0:
		return r, unsupportedOpcode
	case len(b) < pmpMapSize:
		return r, malformedRequest
	}
	r.internal, r.suggested, r.lifetime = binary.BigEndian.Uint16(b[4:]), binary.BigEndian.Uint16(b[6:]), binary.BigEndian.Uint32(b[8:])
	return r, success
}

// isSuggestion reports whether the client asks for this address, or leaves it to the gateway.
func (r *request) isSuggestion(a netip.Addr) bool {
	return !r.suggestedAddress.IsValid() || r.suggestedAddress.IsUnspecified() || r.suggestedAddress == a
}

// answerHeader begins an answer of PCP (section 7.2).
func answerHeader(opcode byte, result code, lifetime, epoch uint32) []byte {
	b := []byte{versionPCP, opcode | isAnswer, 0, byte(result)}
	b = binary.BigEndian.AppendUint32(b, lifetime)
	b = binary.BigEndian.AppendUint32(b, epoch)
	return append(b, make([]byte, 12)...)
}

// refuse answers a request of PCP that fails: with what it asked (section 7.4).
func refuse(asked []byte, result code, epoch uint32) []byte {
	b := answerHeader(asked[1], result, result.lifetime(), epoch)
	if len(asked) > headerSize {
		b = append(b, asked[headerSize:min(len(asked), MaxSize)]...)
	}
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// refuseNATPMP answers a request of NAT-PMP that fails. The answer to a mapping has its fields without a port
// outside.
func refuseNATPMP(asked []byte, result code, epoch uint32) []byte {
	number, known := ofNATPMP[result]
	if !known {
		number = 4
	}
	b := []byte{versionNATPMP, asked[1] | isAnswer}
	b = binary.BigEndian.AppendUint16(b, number)
	b = binary.BigEndian.AppendUint32(b, epoch)
	switch asked[1] {
	case opAddress:
		return append(b, 0, 0, 0, 0)
	case opUDP, opTCP:
		if len(asked) >= pmpMapSize {
			b = append(b, asked[4], asked[5])
			return append(b, make([]byte, 6)...)
		}
	}
	return b
}

// granted answers a request for a mapping: the port outside that it has for seconds, or none any more where they are 0.
func (r *request) granted(asked []byte, external netip.AddrPort, seconds, epoch uint32) []byte {
	if r.natpmp {
		b := []byte{versionNATPMP, asked[1] | isAnswer, 0, 0}
		b = binary.BigEndian.AppendUint32(b, epoch)
		b = binary.BigEndian.AppendUint16(b, r.internal)
		b = binary.BigEndian.AppendUint16(b, external.Port())
		return binary.BigEndian.AppendUint32(b, seconds)
	}
	b := answerHeader(opMap, success, seconds, epoch)
	b = append(b, asked[headerSize:headerSize+18]...) // nonce, protocol, port inside
	b = binary.BigEndian.AppendUint16(b, external.Port())
	address := external.Addr().As16()
	b = append(b, address[:]...)
	if r.preferFailure {
		b = append(b, optionPreferFailure, 0, 0, 0)
	}
	return b
}

// addressAnswer is NAT-PMP's answer about the address outside (RFC 6886, section 3.2).
func addressAnswer(external netip.Addr, epoch uint32) []byte {
	b := []byte{versionNATPMP, opAddress | isAnswer, 0, 0}
	b = binary.BigEndian.AppendUint32(b, epoch)
	return append(b, external.AsSlice()...)
}
