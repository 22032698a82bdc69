// Package text writes entries of the connection table as conntrack(8), JSON
// lines and CSV write them, and reads all of these and /proc/net/nf_conntrack.
// It keeps nothing of an entry and allocates nothing for one.
package text

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/unix"
)

// Options are those of conntrack(8)'s flag -o, and what it takes from its
// surroundings.
type Options struct {
	// Extended puts the network layer's protocol first (-o extended).
	Extended bool
	// ID adds the entry's ID (-o id).
	ID bool
	// Timestamps adds when the entry began and ended (-o ktimestamp), in Location,
	// or UTC where that is nil. The tool takes the local time zone.
	Timestamps bool
	Location   *time.Location
	// Labels adds the names of connection labels (-o labels).
	Labels *Labels
	// Now in seconds since 1970 is the end of delta-time, which every entry has
	// whose beginning the kernel knows.
	Now int64
}

// Append adds the line about e that conntrack -L prints (format of
// libnetfilter_conntrack 1.0.9), without a line feed. e must pass Check.
func Append(b []byte, e *conntrack.Entry, o Options) []byte {
	if o.Extended {
		b = appendLayer3(b, e)
	}
	b = append(b, protocolHeads[e.Orig.Proto]...)
	if !e.Fields.Has(conntrack.NoTimeout) {
		b = append(strconv.AppendUint(b, uint64(e.Timeout), 10), ' ')
	}
	b = appendState(b, e)
	b = appendOrig(b, e)
	b = appendReply(b, e)
	b = appendRest(b, e, &o)
	return b[:len(b)-1] // every word ended with a blank
}

func appendLayer3(b []byte, e *conntrack.Entry) []byte {
	if e.Orig.Src.Is4() {
		return append(b, "ipv4     2 "...)
	}
	return append(b, "ipv6     10 "...)
}

// protocolHeads are the names and numbers of protocols as the tool pads them.
var protocolHeads = func() (heads [256]string) {
	for n := range heads {
		name := "unknown"
		if known[n] {
			name = nat.ProtocolName(uint8(n))
		}
		b := append([]byte(name), "        "[:8-len(name)]...)
		b = strconv.AppendInt(append(b, ' '), int64(n), 10)
		heads[n] = string(append(b, ' '))
	}
	return heads
}()

// known are the protocols that the tool prints by name.
var known = [256]bool{
	unix.IPPROTO_ICMP: true, unix.IPPROTO_TCP: true, unix.IPPROTO_UDP: true, unix.IPPROTO_DCCP: true,
	unix.IPPROTO_GRE: true, unix.IPPROTO_ICMPV6: true, unix.IPPROTO_SCTP: true, unix.IPPROTO_UDPLITE: true,
}

func appendState(b []byte, e *conntrack.Entry) []byte {
	if name := e.StateName(); name != "" {
		b = append(append(b, name...), ' ')
	}
	return b
}

func appendOrig(b []byte, e *conntrack.Entry) []byte {
	b = appendTuple(b, &e.Orig)
	if e.Zone != e.ReplyZone && e.Zone != 0 {
		b = appendNumber(b, "zone-orig=", uint64(e.Zone))
	}
	if e.Fields.Has(conntrack.HasCounters) {
		b = appendCounters(b, &e.Sent)
	}
	if !e.Status.Has(conntrack.SeenReply) {
		b = append(b, "[UNREPLIED] "...)
	}
	return b
}

func appendReply(b []byte, e *conntrack.Entry) []byte {
	b = appendTuple(b, &e.Reply)
	if e.Zone != e.ReplyZone && e.ReplyZone != 0 {
		b = appendNumber(b, "zone-reply=", uint64(e.ReplyZone))
	}
	if e.Fields.Has(conntrack.HasCounters) {
		b = appendCounters(b, &e.Received)
	}
	switch {
	case e.Status.Has(conntrack.HWOffload):
		b = append(b, "[HW_OFFLOAD] "...)
	case e.Status.Has(conntrack.Offload):
		b = append(b, "[OFFLOAD] "...)
	case e.Status.Has(conntrack.Assured):
		b = append(b, "[ASSURED] "...)
	}
	return b
}

func appendTuple(b []byte, t *conntrack.Tuple) []byte {
	b = appendAddr(append(b, "src="...), t.Src)
	b = appendAddr(append(b, " dst="...), t.Dst)
	b = append(b, ' ')
	switch {
	case hasPorts(t.Proto):
		b = appendNumber(b, "sport=", uint64(t.SrcPort))
		return appendNumber(b, "dport=", uint64(t.DstPort))
	case t.Proto == unix.IPPROTO_GRE:
		b = strconv.AppendUint(append(b, "srckey=0x"...), uint64(t.SrcPort), 16)
		b = strconv.AppendUint(append(b, " dstkey=0x"...), uint64(t.DstPort), 16)
		return append(b, ' ')
	case isICMP(t.Proto):
		b = appendNumber(b, "type=", uint64(t.ICMPType))
		b = appendNumber(b, "code=", uint64(t.ICMPCode))
		return appendNumber(b, "id=", uint64(t.ICMPID))
	}
	return b
}

func hasPorts(proto uint8) bool {
	switch proto {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_UDPLITE, unix.IPPROTO_SCTP, unix.IPPROTO_DCCP:
		return true
	}
	return false
}

func isICMP(proto uint8) bool { return proto == unix.IPPROTO_ICMP || proto == unix.IPPROTO_ICMPV6 }

func appendCounters(b []byte, c *conntrack.Counters) []byte {
	b = appendNumber(b, "packets=", c.Packets)
	return appendNumber(b, "bytes=", c.Bytes)
}

// appendRest writes the fields of the entry as a whole, in the tool's order.
func appendRest(b []byte, e *conntrack.Entry, o *Options) []byte {
	if !e.Fields.Has(conntrack.NoMark) {
		b = appendNumber(b, "mark=", uint64(e.Mark))
	}
	if len(e.SecCtx) > 0 {
		b = append(appendWord(append(b, "secctx="...), e.SecCtx), ' ')
	}
	if e.Zone == e.ReplyZone && e.Zone != 0 {
		b = appendNumber(b, "zone=", uint64(e.Zone))
	}
	b = appendTimes(b, e, o)
	if len(e.Helper) > 0 {
		b = append(appendWord(append(b, "helper="...), e.Helper), ' ')
	}
	if e.Use != 0 {
		b = appendNumber(b, "use=", uint64(e.Use))
	}
	if o.ID && e.ID != 0 {
		b = appendNumber(b, "id=", uint64(e.ID))
	}
	if o.Labels != nil && len(e.Labels) > 0 {
		b = append(o.Labels.appendNames(append(b, "labels="...), e.Labels), ' ')
	}
	return b
}

func appendTimes(b []byte, e *conntrack.Entry, o *Options) []byte {
	switch {
	case e.Fields.Has(conntrack.HasDeltaTime):
		b = appendNumber(b, "delta-time=", e.DeltaTime)
	case e.Start != 0 && (o.Now != 0 || e.Stop != 0):
		b = appendNumber(b, "delta-time=", uint64(deltaTime(e, o.Now)))
	}
	if !o.Timestamps {
		return b
	}
	if e.Start != 0 {
		b = append(o.appendTime(append(b, "[start="...), e.Start), "] "...)
	}
	if e.Stop != 0 {
		b = append(o.appendTime(append(b, "[stop="...), e.Stop), "] "...)
	}
	return b
}

// SetAge sets DeltaTime to the age of an entry, where the kernel knows its beginning; now is in
// seconds since 1970.
func SetAge(e *conntrack.Entry, now int64) {
	if e.Start != 0 {
		e.DeltaTime, e.Fields = uint64(max(0, deltaTime(e, now))), e.Fields|conntrack.HasDeltaTime
	}
}

// deltaTime returns how long e has lived in seconds, as the tool counts: whole
// seconds of the end less those of the beginning.
func deltaTime(e *conntrack.Entry, now int64) int64 {
	if e.Stop != 0 {
		now = int64(e.Stop / uint64(time.Second))
	}
	return now - int64(e.Start/uint64(time.Second))
}

// appendTime writes a time as ctime(3) does.
func (o *Options) appendTime(b []byte, ns uint64) []byte {
	t := time.Unix(int64(ns/uint64(time.Second)), 0).UTC()
	if o.Location != nil {
		t = t.In(o.Location)
	}
	return t.AppendFormat(b, time.ANSIC)
}

func appendNumber(b []byte, key string, v uint64) []byte {
	return append(strconv.AppendUint(append(b, key...), v, 10), ' ')
}

// appendWord writes a name that the kernel gave without what would break a line
// or a terminal.
func appendWord(b, word []byte) []byte {
	for _, c := range word {
		if c < ' ' || c >= 0x7f {
			c = '?'
		}
		b = append(b, c)
	}
	return b
}

// appendAddr writes an address as inet_ntop(3) does. That differs from netip's
// in IPv4-compatible addresses.
func appendAddr(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		v := a.As4()
		b = appendByte(b, v[0])
		b = appendByte(append(b, '.'), v[1])
		b = appendByte(append(b, '.'), v[2])
		return appendByte(append(b, '.'), v[3])
	}
	if v := a.As16(); isCompatible(&v) {
		return appendAddr(append(b, "::"...), netip.AddrFrom4([4]byte(v[12:])))
	}
	return a.AppendTo(b)
}

// isCompatible reports whether v is ::a.b.c.d: 96 zero bits, but not 112 or more, which
// inet_ntop shortens as well.
func isCompatible(v *[16]byte) bool {
	return [12]byte(v[:12]) == [12]byte{} && (v[12] != 0 || v[13] != 0)
}

func appendByte(b []byte, v byte) []byte {
	switch {
	case v >= 100:
		return append(b, '0'+v/100, '0'+v/10%10, '0'+v%10)
	case v >= 10:
		return append(b, '0'+v/10, '0'+v%10)
	}
	return append(b, '0'+v)
}

// maxLabels is how many connection labels there are (XT_CONNLABEL_MAXBIT,
// include/uapi/linux/netfilter/xt_connlabel.h, and bit 0).
const maxLabels = 128

// Labels are the names of connection labels by their bit; of the unnamed ones
// the tool prints nothing.
type Labels [maxLabels]string

// ReadLabels reads connlabel.conf, in which a line is a bit and its name.
func ReadLabels(r io.Reader) (*Labels, error) {
	var l Labels
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(text)
		if len(words) < 2 {
			continue
		}
		bit, err := strconv.ParseUint(words[0], 10, 8)
		if err != nil || bit >= maxLabels {
			return nil, fmt.Errorf("connection labels, line %d: %q is no bit from 0 to %d", n, words[0], maxLabels-1)
		}
		l[bit] = words[1]
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("connection labels: %w", err)
	}
	return &l, nil
}

// appendNames adds the names of set, separated by commas. Where it has none the
// tool's line has the key without its sign of equality, and so has this one.
func (l *Labels) appendNames(b, set []byte) []byte {
	for bit, name := range l {
		if name != "" && hasBit(set, bit) {
			b = append(append(b, name...), ',')
		}
	}
	return b[:len(b)-1]
}

// hasBit reads the kernel's bit set of 64-bit words on a little-endian machine.
func hasBit(set []byte, bit int) bool {
	return bit/8 < len(set) && set[bit/8]>>(bit%8)&1 == 1
}
