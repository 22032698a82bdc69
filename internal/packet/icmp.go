package packet

import (
	"errors"

	"golang.org/x/sys/unix"
)

// ICMPError reports whether the frame is an ICMP error message, which quotes the
// packet that it is about.
func (f *Frame) ICMPError() bool {
	switch f.Transport {
	case unix.IPPROTO_ICMP: // RFC 792
		switch f.ICMP.Type {
		case 3, 4, 5, 11, 12: // unreachable, quench, redirect, time exceeded, parameter problem
			return true
		}
	case unix.IPPROTO_ICMPV6:
		return f.ICMP.Type < 128 // RFC 4443, section 2.1
	}
	return false
}

// Quoted parses the packet that an ICMP error message quotes. It is cut nearly
// always: Missing tells, and eight bytes of the transport header, which have the
// ports, are enough (RFC 792). The error is that of Decode, or says that nothing is
// quoted.
func (f *Frame) Quoted(inner *Frame) error {
	if !f.ICMPError() {
		*inner = Frame{}
		return errors.New("parse quoted packet: the frame is no ICMP error message")
	}
	etherType := uint16(EtherTypeIPv4)
	if f.Version == 6 {
		etherType = EtherTypeIPv6
	}
	err := inner.DecodeNetwork(etherType, f.Payload)
	if err == nil {
		return nil
	}
	var cut *CutError
	if errors.As(err, &cut) && inner.Protocol == unix.IPPROTO_TCP && cut.Header == "TCP" && cut.Have >= 8 {
		inner.Transport, inner.Payload, inner.unverifiable = unix.IPPROTO_TCP, nil, true
		return nil
	}
	return err
}
