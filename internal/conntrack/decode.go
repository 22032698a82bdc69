package conntrack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/unix"
)

// errNoTuple is the cause where a message has no usable original or reply tuple.
var errNoTuple = errors.New("a tuple or an address in it is missing")

// Decode fills e from the body of a ctnetlink message: a struct nfgenmsg and
// attributes (written by ctnetlink_fill_info, net/netfilter/nf_conntrack_netlink.c).
// Attributes that it does not know are passed over. It allocates only for errors.
// e's byte slices point into body.
func (e *Entry) Decode(body []byte) error {
	*e = Entry{Fields: NoTimeout | NoMark | NoState}
	if len(body) < netlink.SizeofNetfilter {
		return fmt.Errorf("conntrack entry: %w", netlink.ErrTruncated)
	}
	e.Family = body[0]
	for b := body[netlink.SizeofNetfilter:]; len(b) > 0; {
		typ, value, rest, err := netlink.NextAttr(b)
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
	if e.State() == nil {
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

// decodeExtension decodes what only entries have for which something is switched on
// (struct nf_ct_ext).
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
		typ, v, rest, err := netlink.NextAttr(b)
		if err != nil {
			return err
		}
		switch typ {
		case ctaProtoInfoTCP:
			err = e.decodeTCP(v)
		case ctaProtoInfoSCTP:
			err = e.decodeState(v, &e.SCTPState)
		case ctaProtoInfoDCCP:
			err = e.decodeState(v, &e.DCCPState)
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
		typ, v, rest, err := netlink.NextAttr(b)
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
		typ, v, rest, err := netlink.NextAttr(b)
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
		m, rest, err := netlink.Next(datagram)
		if err != nil {
			return err
		}
		datagram = rest
		if m.Type != New {
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

func (t *Tuple) complete() bool {
	return t.Src.IsValid() && t.Dst.IsValid() && t.Src.BitLen() == t.Dst.BitLen()
}

func (t *Tuple) decode(b []byte, zone *uint16) error {
	*t = Tuple{}
	if t.decodePlain(b) {
		return nil
	}
	return t.decodeAttrs(b, zone)
}

func (t *Tuple) decodeAttrs(b []byte, zone *uint16) error {
	for len(b) > 0 {
		typ, v, rest, err := netlink.NextAttr(b)
		if err != nil {
			return err
		}
		switch typ {
		case ctaTupleIP:
			err = t.decodeIP(v)
		case ctaTupleProto:
			err = t.decodeProto(v)
		case ctaTupleZone:
			err = getU16(v, zone)
		}
		if err != nil {
			return err
		}
		b = rest
	}
	return nil
}

func (t *Tuple) decodeIP(b []byte) error {
	for len(b) > 0 {
		typ, v, rest, err := netlink.NextAttr(b)
		if err != nil {
			return err
		}
		switch typ {
		case ctaIPv4Src:
			err = getAddr4(v, &t.Src)
		case ctaIPv4Dst:
			err = getAddr4(v, &t.Dst)
		case ctaIPv6Src:
			err = getAddr16(v, &t.Src)
		case ctaIPv6Dst:
			err = getAddr16(v, &t.Dst)
		}
		if err != nil {
			return err
		}
		b = rest
	}
	return nil
}

func (t *Tuple) decodeProto(b []byte) error {
	for len(b) > 0 {
		typ, v, rest, err := netlink.NextAttr(b)
		if err != nil {
			return err
		}
		switch typ {
		case ctaProtoNum:
			err = getU8(v, &t.Proto)
		case ctaProtoSrcPort:
			err = getU16(v, &t.SrcPort)
		case ctaProtoDstPort:
			err = getU16(v, &t.DstPort)
		case ctaProtoICMPID, ctaProtoICMPv6ID:
			err = getU16(v, &t.ICMPID)
		case ctaProtoICMPType, ctaProtoICMPv6Type:
			err = getU8(v, &t.ICMPType)
		case ctaProtoICMPCode, ctaProtoICMPv6Code:
			err = getU8(v, &t.ICMPCode)
		}
		if err != nil {
			return err
		}
		b = rest
	}
	t.dropForeign()
	return nil
}

// dropForeign clears what a message may say and this protocol does not have.
func (t *Tuple) dropForeign() {
	if isICMP(t.Proto) {
		t.SrcPort, t.DstPort = 0, 0
	} else {
		t.ICMPID, t.ICMPType, t.ICMPCode = 0, 0, 0
	}
}

// plain are the headers of the attributes in a tuple of IPv4 with ports, as
// every kernel writes it: 4 bytes each, with the places of what follows them.
var plain = struct{ ip, src, dst, proto, num, srcPort, dstPort uint32 }{
	attrHeader(20, ctaTupleIP|unix.NLA_F_NESTED), attrHeader(8, ctaIPv4Src), attrHeader(8, ctaIPv4Dst),
	attrHeader(28, ctaTupleProto|unix.NLA_F_NESTED), attrHeader(5, ctaProtoNum), attrHeader(6, ctaProtoSrcPort), attrHeader(6, ctaProtoDstPort),
}

const plainLen = 48

// attrHeader is an attribute's header as one number in the host's byte order.
func attrHeader(size, typ uint16) uint32 {
	return binary.NativeEndian.Uint32(netlink.AppendAttrHeader(nil, typ, int(size)-unix.SizeofNlAttr))
}

// decodePlain reads the tuple that most entries have with seven comparisons
// instead of attribute by attribute, which takes half of the time of an entry.
// It is false where b is another one.
func (t *Tuple) decodePlain(b []byte) bool {
	if len(b) != plainLen {
		return false
	}
	h := binary.NativeEndian
	if h.Uint32(b) != plain.ip || h.Uint32(b[4:]) != plain.src || h.Uint32(b[12:]) != plain.dst ||
		h.Uint32(b[20:]) != plain.proto || h.Uint32(b[24:]) != plain.num ||
		h.Uint32(b[32:]) != plain.srcPort || h.Uint32(b[40:]) != plain.dstPort || isICMP(b[28]) {
		return false
	}
	t.Src, t.Dst = netip.AddrFrom4([4]byte(b[8:])), netip.AddrFrom4([4]byte(b[16:]))
	t.Proto = b[28]
	t.SrcPort, t.DstPort = binary.BigEndian.Uint16(b[36:]), binary.BigEndian.Uint16(b[44:])
	return true
}

func getU8(v []byte, to *uint8) error {
	if len(v) < 1 {
		return netlink.ErrTruncated
	}
	*to = v[0]
	return nil
}

func getU16(v []byte, to *uint16) error {
	if len(v) < 2 {
		return netlink.ErrTruncated
	}
	*to = binary.BigEndian.Uint16(v)
	return nil
}

func getU32(v []byte, to *uint32) error {
	if len(v) < 4 {
		return netlink.ErrTruncated
	}
	*to = binary.BigEndian.Uint32(v)
	return nil
}

func getU64(v []byte, to *uint64) error {
	if len(v) < 8 {
		return netlink.ErrTruncated
	}
	*to = binary.BigEndian.Uint64(v)
	return nil
}

func getAddr4(v []byte, to *netip.Addr) error {
	if len(v) < 4 {
		return netlink.ErrTruncated
	}
	*to = netip.AddrFrom4([4]byte(v))
	return nil
}

func getAddr16(v []byte, to *netip.Addr) error {
	if len(v) < 16 {
		return netlink.ErrTruncated
	}
	*to = netip.AddrFrom16([16]byte(v))
	return nil
}

// getTwoU64 reads two 64-bit attributes out of a nest.
func getTwoU64(b []byte, kindA uint16, a *uint64, kindB uint16, z *uint64) error {
	for len(b) > 0 {
		kind, v, rest, err := netlink.NextAttr(b)
		switch {
		case err != nil:
		case kind == kindA:
			err = getU64(v, a)
		case kind == kindB:
			err = getU64(v, z)
		}
		if err != nil {
			return err
		}
		b = rest
	}
	return nil
}

// getName reads a string out of a nest.
func getName(b []byte, want uint16, to *[]byte) error {
	for len(b) > 0 {
		kind, v, rest, err := netlink.NextAttr(b)
		if err != nil {
			return err
		}
		if kind == want {
			*to, _, _ = bytes.Cut(v, []byte{0})
		}
		b = rest
	}
	return nil
}

// StatsCPU decodes the body of an IPCTNL_MSG_CT_GET_STATS_CPU answer: the
// counters of one CPU (ctnetlink_ct_stat_cpu_fill_info).
func StatsCPU(body []byte) (map[string]uint64, error) {
	return counters(body, statsCPUNames[:])
}

// statsCPUNames are the kernel's names by attribute number (enum
// ctattr_stats_cpu); CTA_STATS_ERROR is the column icmp_error of
// /proc/net/stat/nf_conntrack.
var statsCPUNames = [...]string{
	1: "searched", 2: "found", 3: "new", 4: "invalid", 5: "ignore", 6: "delete",
	7: "delete_list", 8: "insert", 9: "insert_failed", 10: "drop", 11: "early_drop",
	12: "icmp_error", 13: "search_restart", 14: "clash_resolve", 15: "chaintoolong",
}

// AppendStats adds the message in which the kernel gives the counters of a CPU (ctnetlink_ct_stat_cpu_fill_info);
// names that it does not have are left out.
func AppendStats(b []byte, cpu uint16, stats map[string]uint64) []byte {
	start := len(b)
	b = netlink.AppendNetfilter(netlink.Begin(b, GetStatsCPU, 0, 0), unix.AF_UNSPEC, cpu)
	for kind, name := range statsCPUNames {
		if n, there := stats[name]; there && name != "" {
			b = netlink.AppendU32(b, uint16(kind), uint32(n))
		}
	}
	return netlink.End(b, start)
}

// StatsGlobal decodes the body of an IPCTNL_MSG_CT_GET_STATS answer: "entries"
// and, since Linux 4.18, "max_entries" (enum ctattr_stats_global).
func StatsGlobal(body []byte) (map[string]uint64, error) {
	return counters(body, []string{1: "entries", 2: "max_entries"})
}

func counters(body []byte, names []string) (map[string]uint64, error) {
	if len(body) < netlink.SizeofNetfilter {
		return nil, fmt.Errorf("conntrack counters: %w", netlink.ErrTruncated)
	}
	out := make(map[string]uint64, len(names))
	for b := body[netlink.SizeofNetfilter:]; len(b) > 0; {
		kind, v, rest, err := netlink.NextAttr(b)
		if err == nil && int(kind) < len(names) && names[kind] != "" {
			var n uint32
			err = getU32(v, &n)
			out[names[kind]] = uint64(n)
		}
		if err != nil {
			return nil, fmt.Errorf("conntrack counters, attribute %d: %w", kind, err)
		}
		b = rest
	}
	return out, nil
}
