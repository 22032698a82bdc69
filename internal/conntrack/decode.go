package conntrack

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// errNoTuple is the cause where a message has no usable original or reply tuple.
var errNoTuple = errors.New("a tuple or an address in it is missing")

// Decode fills e from the body of a ctnetlink message: a struct nfgenmsg and
// attributes (written by ctnetlink_fill_info, net/netfilter/nf_conntrack_netlink.c).
// Attributes that it does not know are passed over. It allocates only for errors.
// e's byte slices point into body.
func (e *Entry) Decode(body []byte) error {
	*e = Entry{Fields: NoTimeout | NoMark | NoState}
	if len(body) < nfgenLen {
		return fmt.Errorf("conntrack entry: %w", errTruncated)
	}
	e.Family = body[0]
	for b := body[nfgenLen:]; len(b) > 0; {
		typ, value, rest, err := nextAttr(b)
		if err == nil {
			err = e.decodeAttr(typ, value)
		}
		if err != nil {
			return fmt.Errorf("conntrack entry, attribute %d: %w", typ, err)
		}
		b = rest
	}
	if !e.Orig.complete() || !e.Reply.complete() {
		return fmt.Errorf("conntrack entry: %w", errNoTuple)
	}
	if !hasStates(e.Orig.Proto) {
		e.Fields &^= NoState
	}
	return nil
}

func (e *Entry) decodeAttr(typ uint16, v []byte) (err error) {
	switch typ {
	case ctaTupleOrig:
		return e.Orig.decode(v, &e.Zone)
	case ctaTupleReply:
		return e.Reply.decode(v, &e.ReplyZone)
	case ctaStatus:
		return getU32(v, (*uint32)(&e.Status))
	case ctaTimeout:
		e.Fields &^= NoTimeout
		return getU32(v, &e.Timeout)
	case ctaMark:
		e.Fields &^= NoMark
		return getU32(v, &e.Mark)
	case ctaID:
		return getU32(v, &e.ID)
	case ctaUse:
		return getU32(v, &e.Use)
	case ctaZone:
		err = getU16(v, &e.Zone)
		e.ReplyZone = e.Zone
		return err
	case ctaProtoInfo:
		return e.decodeProtoInfo(v)
	}
	return e.decodeExtension(typ, v)
}

// decodeExtension takes what only entries have for which something is switched
// on (struct nf_ct_ext).
func (e *Entry) decodeExtension(typ uint16, v []byte) error {
	switch typ {
	case ctaSent:
		e.Fields |= HasCounters
		return e.Sent.decode(v)
	case ctaReceived:
		e.Fields |= HasCounters
		return e.Received.decode(v)
	case ctaTimestamp:
		return e.decodeTimestamp(v)
	case ctaHelp:
		return getName(v, ctaHelpName, &e.Helper)
	case ctaSecCtx:
		return getName(v, ctaSecCtxName, &e.SecCtx)
	case ctaLabels:
		e.Labels = v
	}
	return nil
}

func (e *Entry) decodeProtoInfo(b []byte) error {
	for len(b) > 0 {
		typ, v, rest, err := nextAttr(b)
		if err != nil {
			return err
		}
		switch typ {
		case ctaProtoInfoTCP:
			err = e.decodeTCP(v)
		case ctaProtoInfoSCTP:
			err = e.decodeState(v, (*uint8)(&e.SCTPState))
		case ctaProtoInfoDCCP:
			err = e.decodeState(v, (*uint8)(&e.DCCPState))
		}
		if err != nil {
			return err
		}
		b = rest
	}
	return nil
}

func (e *Entry) decodeTCP(b []byte) error {
	for len(b) > 0 {
		typ, v, rest, err := nextAttr(b)
		if err != nil {
			return err
		}
		switch typ {
		case ctaProtoState:
			e.Fields &^= NoState
			err = getU8(v, (*uint8)(&e.TCPState))
		case ctaTCPFlagsOrig:
			e.ClientClosed = len(v) > 0 && v[0]&tcpCloseInit != 0
		}
		if err != nil {
			return err
		}
		b = rest
	}
	return nil
}

func (e *Entry) decodeState(b []byte, to *uint8) error {
	for len(b) > 0 {
		typ, v, rest, err := nextAttr(b)
		if err != nil {
			return err
		}
		if typ == ctaProtoState {
			e.Fields &^= NoState
			if err := getU8(v, to); err != nil {
				return err
			}
		}
		b = rest
	}
	return nil
}

func (e *Entry) decodeTimestamp(b []byte) error {
	return getTwoU64(b, ctaTimestampStart, &e.Start, ctaTimestampStop, &e.Stop)
}

func (c *Counters) decode(b []byte) error {
	return getTwoU64(b, ctaCountersPackets, &c.Packets, ctaCountersBytes, &c.Bytes)
}

// Each decodes every entry of a datagram into e and calls fn with it; other
// messages are passed over. fn's error ends it and is returned.
func Each(datagram []byte, e *Entry, fn func(*Entry) error) error {
	for len(datagram) > 0 {
		m, rest, err := Next(datagram)
		if err != nil {
			return err
		}
		datagram = rest
		if !m.Is(New) {
			continue
		}
		if err := e.Decode(m.Body); err != nil {
			return err
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}

// isICMP reports whether a tuple of this protocol has an ICMP id, type and code.
func isICMP(proto uint8) bool { return proto == unix.IPPROTO_ICMP || proto == unix.IPPROTO_ICMPV6 }

// hasStates reports whether the tracker keeps a state of this protocol and tells
// it.
func hasStates(proto uint8) bool {
	return proto == unix.IPPROTO_TCP || proto == unix.IPPROTO_SCTP || proto == unix.IPPROTO_DCCP
}
