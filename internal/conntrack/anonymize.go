package conntrack

import (
	"encoding/binary"
	"net/netip"

	"github.com/natkit/natkit/internal/netlink"
)

// form is what becomes of an attribute: its addresses are mapped, its nest is walked through, or it is kept.
type form struct {
	address bool
	nest    map[uint16]form
}

var (
	kept    = form{}
	address = form{address: true}

	tupleForm = form{nest: map[uint16]form{
		ctaTupleIP:    {nest: map[uint16]form{ctaIPv4Src: address, ctaIPv4Dst: address, ctaIPv6Src: address, ctaIPv6Dst: address}},
		ctaTupleProto: kept,
		ctaTupleZone:  kept,
	}}
	countersForm = form{nest: map[uint16]form{ctaCountersPackets: kept, ctaCountersBytes: kept}}

	// entryForms are the attributes of an entry that may leave the host: labels and security contexts may not,
	// as operators name things by them. The name of a helper is that of the kernel's module.
	entryForms = map[uint16]form{
		ctaTupleOrig: tupleForm, ctaTupleReply: tupleForm,
		ctaStatus: kept, ctaProtoInfo: kept, ctaTimeout: kept, ctaMark: kept, ctaUse: kept, ctaID: kept, ctaZone: kept,
		ctaSent: countersForm, ctaReceived: countersForm,
		ctaTimestamp: kept,
		ctaHelp:      {nest: map[uint16]form{ctaHelpName: kept}},
	}
)

// Anonymize maps the addresses of the entries in datagrams of ctnetlink in place, and empties what it does not know.
// Counters (GetStatsCPU) have numbers alone. On an error it has emptied the rest.
func Anonymize(datagrams []byte, mapped func(netip.Addr) netip.Addr) error {
	for rest := datagrams; len(rest) > 0; {
		m, next, err := netlink.Next(rest)
		if err != nil {
			clear(rest)
			return err
		}
		switch body := m.Body; {
		case len(body) < netlink.SizeofNetfilter:
			clear(body)
		case m.Type == New:
			if err := anonymize(body[netlink.SizeofNetfilter:], entryForms, mapped); err != nil {
				clear(rest)
				return err
			}
		case m.Type == GetStatsCPU || m.Type == GetStats:
			numbersOnly(body[netlink.SizeofNetfilter:])
		default: // NLMSG_DONE and NLMSG_ERROR begin with an errno
			clear(body[4:])
		}
		rest = next
	}
	return nil
}

// anonymize walks through attributes.
func anonymize(b []byte, forms map[uint16]form, mapped func(netip.Addr) netip.Addr) error {
	for len(b) > 0 {
		kind, value, rest, err := netlink.NextAttr(b)
		if err != nil {
			return err
		}
		f, known := forms[kind]
		switch {
		case !known:
			empty(b, value)
		case f.address:
			err = mapAddress(value, mapped)
		case f.nest != nil:
			err = anonymize(value, f.nest, mapped)
		}
		if err != nil {
			return err
		}
		b = rest
	}
	return nil
}

// empty makes the first attribute of b one that means nothing (CTA_UNSPEC), of zeros.
func empty(b, value []byte) {
	binary.NativeEndian.PutUint16(b[2:], 0)
	clear(value)
}

func mapAddress(value []byte, mapped func(netip.Addr) netip.Addr) error {
	a, ok := netip.AddrFromSlice(value)
	if !ok {
		return netlink.ErrTruncated
	}
	copy(value, mapped(a).AsSlice())
	return nil
}

// numbersOnly empties what is no number of 32 bits.
func numbersOnly(b []byte) {
	for len(b) > 0 {
		_, value, rest, err := netlink.NextAttr(b)
		if err != nil {
			clear(b)
			return
		}
		if len(value) != 4 {
			empty(b, value)
		}
		b = rest
	}
}
