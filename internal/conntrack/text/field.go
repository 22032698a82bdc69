package text

import (
	"bytes"
	"net/netip"
	"slices"
	"strconv"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/unix"
)

// field is one field of JSON lines and one column of CSV. Their names are
// stable; new ones come at the end.
//
//	family                   ipv4 or ipv6
//	proto                    name of the protocol, its number where it has none
//	timeout_seconds          until the entry expires; offloaded ones have none
//	state                    of TCP, SCTP or DCCP, as conntrack(8) names it
//	status                   the kernel's IPS_ bits, joined by |
//	orig_src orig_dst        addresses of the original direction
//	orig_sport orig_dport    its ports; the keys of GRE
//	orig_icmp_type, _code, _id
//	orig_packets orig_bytes  what passed; where nf_conntrack_acct is on
//	orig_zone                where it is not 0
//	reply_…                  the same of the reply direction
//	mark
//	use                      references to the entry
//	id
//	start_unix_nanoseconds   when the entry began, where nf_conntrack_timestamp is on
//	stop_unix_nanoseconds    when it ended
//	delta_time_seconds       how long it had lived when it was listed
//	secctx                   security context
//	helper                   name of the helper
//	labels                   numbers of the label bits that are set
//
// What an entry does not have is left out of JSON, and empty in CSV.
type field struct {
	name string
	// quoted: the value is a string of JSON.
	quoted bool
	has    func(*conntrack.Entry) bool
	add    func([]byte, *conntrack.Entry) []byte
	// set is false where the value is none of this field.
	set func(*parser, *conntrack.Entry, []byte) bool
	// key is what stands before a value in JSON, why the cause where it is none.
	key, why string
}

// fields are in the order of the columns.
var fields = func() []field {
	all := headFields()
	all = append(all, tupleFields("orig_", func(e *conntrack.Entry) side { return side{&e.Orig, &e.Sent, &e.Zone} })...)
	all = append(all, tupleFields("reply_", func(e *conntrack.Entry) side { return side{&e.Reply, &e.Received, &e.ReplyZone} })...)
	all = append(all, restFields()...)
	for i := range all {
		f := &all[i]
		if f.key, f.why = `"`+f.name+`":`, f.name+" has a value that it cannot have"; f.quoted {
			f.key += `"`
		}
	}
	return all
}()

// fieldIndex is where a field is, by its name.
var fieldIndex = func() map[string]int {
	index := make(map[string]int, len(fields))
	for i := range fields {
		index[fields[i].name] = i
	}
	return index
}()

// The fields that the words of conntrack(8) have, those of tuples from origField and
// replyField on.
const (
	srcField = iota
	dstField
	sportField
	dportField
	icmpTypeField
	icmpCodeField
	icmpIDField
	packetsField
	bytesField
	zoneField
)

var (
	timeoutField, origField, replyField = fieldIndex["timeout_seconds"], fieldIndex["orig_src"], fieldIndex["reply_src"]
	markField, useField, idField        = fieldIndex["mark"], fieldIndex["use"], fieldIndex["id"]
	deltaTimeField                      = fieldIndex["delta_time_seconds"]
)

// AppendJSON adds e as one line of JSON, without its line feed: one flat object
// with the names of field. e must pass Check.
func AppendJSON(b []byte, e *conntrack.Entry) []byte {
	b = append(b, '{')
	for i := range fields {
		f := &fields[i]
		if !f.has(e) {
			continue
		}
		b = f.add(append(b, f.key...), e)
		if f.quoted {
			b = append(b, '"')
		}
		b = append(b, ',')
	}
	b[len(b)-1] = '}' // there is always a field before
	return b
}

// AppendCSVHeader adds the names of the columns, without a line feed.
func AppendCSVHeader(b []byte) []byte {
	for _, f := range fields {
		b = append(append(b, f.name...), ',')
	}
	return b[:len(b)-1]
}

// AppendCSV adds e as one line of CSV (RFC 4180), without its line feed. e must
// pass Check. A value has no quotes (appendName); one with a comma is put between them.
func AppendCSV(b []byte, e *conntrack.Entry) []byte {
	for i := range fields {
		if f := &fields[i]; f.has(e) {
			start := len(b)
			if b = f.add(b, e); bytes.IndexByte(b[start:], ',') >= 0 {
				b = append(slices.Insert(b, start, '"'), '"')
			}
		}
		b = append(b, ',')
	}
	return b[:len(b)-1]
}

func always(*conntrack.Entry) bool { return true }

func headFields() []field {
	return []field{
		{name: "family", quoted: true, has: always, add: addFamily, set: setFamily},
		{name: "proto", quoted: true, has: always, add: addProto, set: setProto},
		unless("timeout_seconds", conntrack.NoTimeout, func(e *conntrack.Entry) *uint32 { return &e.Timeout }),
		{name: "state", quoted: true,
			has: func(e *conntrack.Entry) bool { return e.StateName() != "" },
			add: func(b []byte, e *conntrack.Entry) []byte { return append(b, e.StateName()...) },
			set: func(p *parser, _ *conntrack.Entry, v []byte) bool { p.state = v; return true }},
		{name: "status", quoted: true, has: always, add: addStatus, set: setStatus},
	}
}

// side is what an entry has of one direction.
type side struct {
	tuple    *conntrack.Tuple
	counters *conntrack.Counters
	zone     *uint16
}

func tupleFields(prefix string, of func(*conntrack.Entry) side) []field {
	addr := func(name string, get func(*conntrack.Tuple) *netip.Addr) field {
		return field{name: prefix + name, quoted: true, has: always,
			add: func(b []byte, e *conntrack.Entry) []byte { return appendAddr(b, *get(of(e).tuple)) },
			set: func(_ *parser, e *conntrack.Entry, v []byte) bool {
				to := get(of(e).tuple)
				return !to.IsValid() && address(v, to)
			}}
	}
	icmp := func(e *conntrack.Entry) bool { return isICMP(e.Orig.Proto) }
	return []field{
		addr("src", func(t *conntrack.Tuple) *netip.Addr { return &t.Src }),
		addr("dst", func(t *conntrack.Tuple) *netip.Addr { return &t.Dst }),
		numeric(prefix+"sport", hasKeys, func(e *conntrack.Entry) *uint16 { return &of(e).tuple.SrcPort }),
		numeric(prefix+"dport", hasKeys, func(e *conntrack.Entry) *uint16 { return &of(e).tuple.DstPort }),
		numeric(prefix+"icmp_type", icmp, func(e *conntrack.Entry) *uint8 { return &of(e).tuple.ICMPType }),
		numeric(prefix+"icmp_code", icmp, func(e *conntrack.Entry) *uint8 { return &of(e).tuple.ICMPCode }),
		numeric(prefix+"icmp_id", icmp, func(e *conntrack.Entry) *uint16 { return &of(e).tuple.ICMPID }),
		where(prefix+"packets", conntrack.HasCounters, func(e *conntrack.Entry) *uint64 { return &of(e).counters.Packets }),
		where(prefix+"bytes", conntrack.HasCounters, func(e *conntrack.Entry) *uint64 { return &of(e).counters.Bytes }),
		positive(prefix+"zone", func(e *conntrack.Entry) *uint16 { return of(e).zone }),
	}
}

func hasKeys(e *conntrack.Entry) bool {
	return hasPorts(e.Orig.Proto) || e.Orig.Proto == unix.IPPROTO_GRE
}

func restFields() []field {
	return []field{
		unless("mark", conntrack.NoMark, func(e *conntrack.Entry) *uint32 { return &e.Mark }),
		positive("use", func(e *conntrack.Entry) *uint32 { return &e.Use }),
		positive("id", func(e *conntrack.Entry) *uint32 { return &e.ID }),
		positive("start_unix_nanoseconds", func(e *conntrack.Entry) *uint64 { return &e.Start }),
		positive("stop_unix_nanoseconds", func(e *conntrack.Entry) *uint64 { return &e.Stop }),
		where("delta_time_seconds", conntrack.HasDeltaTime, func(e *conntrack.Entry) *uint64 { return &e.DeltaTime }),
		name("secctx", func(e *conntrack.Entry) *[]byte { return &e.SecCtx }),
		name("helper", func(e *conntrack.Entry) *[]byte { return &e.Helper }),
		{name: "labels", quoted: true, has: hasLabels, add: addLabels, set: setLabels},
	}
}

type unsigned interface {
	uint8 | uint16 | uint32 | uint64
}

func numeric[T unsigned](name string, has func(*conntrack.Entry) bool, get func(*conntrack.Entry) *T) field {
	return field{name: name, has: has,
		add: func(b []byte, e *conntrack.Entry) []byte { return strconv.AppendUint(b, uint64(*get(e)), 10) },
		set: func(_ *parser, e *conntrack.Entry, v []byte) bool { return number(v, get(e)) }}
}

// where is a number that is there where Fields has a bit, unless one where it has not.
func where[T unsigned](name string, bit conntrack.Fields, get func(*conntrack.Entry) *T) field {
	f := numeric(name, func(e *conntrack.Entry) bool { return e.Fields.Has(bit) }, get)
	f.set = func(_ *parser, e *conntrack.Entry, v []byte) bool {
		e.Fields |= bit
		return number(v, get(e))
	}
	return f
}

func unless[T unsigned](name string, bit conntrack.Fields, get func(*conntrack.Entry) *T) field {
	f := numeric(name, func(e *conntrack.Entry) bool { return !e.Fields.Has(bit) }, get)
	f.set = func(_ *parser, e *conntrack.Entry, v []byte) bool {
		e.Fields &^= bit
		return number(v, get(e))
	}
	return f
}

// positive is a number whose zero means nothing.
func positive[T unsigned](name string, get func(*conntrack.Entry) *T) field {
	return numeric(name, func(e *conntrack.Entry) bool { return *get(e) != 0 }, get)
}

// name is a text of the kernel's.
func name(name string, get func(*conntrack.Entry) *[]byte) field {
	return field{name: name, quoted: true,
		has: func(e *conntrack.Entry) bool { return len(*get(e)) > 0 },
		add: func(b []byte, e *conntrack.Entry) []byte { return appendName(b, *get(e)) },
		set: func(_ *parser, e *conntrack.Entry, v []byte) bool { *get(e) = v; return true }}
}

// appendName writes a text so that it needs no escape in JSON or CSV: such names
// have no quotes, and need no line feeds.
func appendName(b, text []byte) []byte {
	start := len(b)
	b = appendWord(b, text)
	for i := start; i < len(b); i++ {
		if b[i] == '"' || b[i] == '\\' {
			b[i] = '?'
		}
	}
	return b
}

func addFamily(b []byte, e *conntrack.Entry) []byte {
	if e.Orig.Src.Is4() {
		return append(b, "ipv4"...)
	}
	return append(b, "ipv6"...)
}

// setFamily only compares: the addresses have it.
func setFamily(_ *parser, _ *conntrack.Entry, v []byte) bool {
	return string(v) == "ipv4" || string(v) == "ipv6"
}

func addProto(b []byte, e *conntrack.Entry) []byte {
	return append(b, protocolNames[e.Orig.Proto]...)
}

// protocolNames spare an allocation for protocols without a name.
var protocolNames = func() (names [256]string) {
	for n := range names {
		names[n] = nat.ProtocolName(uint8(n))
	}
	return names
}()

var protocolNumbers = func() map[string]uint8 {
	numbers := make(map[string]uint8, len(protocolNames))
	for n, name := range protocolNames {
		numbers[name] = uint8(n)
	}
	return numbers
}()

func setProto(_ *parser, e *conntrack.Entry, v []byte) bool {
	n, ok := protocolNumbers[string(v)]
	e.Orig.Proto = n
	return ok || number(v, &e.Orig.Proto)
}

func hasLabels(e *conntrack.Entry) bool {
	return slices.ContainsFunc(e.Labels, func(c byte) bool { return c != 0 })
}

func addLabels(b []byte, e *conntrack.Entry) []byte {
	start := len(b)
	for bit := range maxLabels {
		if hasBit(e.Labels, bit) {
			if len(b) > start {
				b = append(b, ' ')
			}
			b = strconv.AppendInt(b, int64(bit), 10)
		}
	}
	return b
}

// setLabels keeps the bits in the parser: e points to them.
func setLabels(p *parser, e *conntrack.Entry, v []byte) bool {
	p.labels = [maxLabels / 8]byte{}
	for s := (scanner{b: v}); !s.end(); {
		var bit uint8
		if !number(s.word(), &bit) || bit >= maxLabels {
			return false
		}
		p.labels[bit/8] |= 1 << (bit % 8)
	}
	e.Labels = p.labels[:]
	return true
}

// statusNames are those of the kernel's IPS_ bits from the lowest one on (enum
// ip_conntrack_status, include/uapi/linux/netfilter/nf_conntrack_common.h).
var statusNames = [...]string{
	"EXPECTED", "SEEN_REPLY", "ASSURED", "CONFIRMED", "SRC_NAT", "DST_NAT", "SEQ_ADJUST",
	"SRC_NAT_DONE", "DST_NAT_DONE", "DYING", "FIXED_TIMEOUT", "TEMPLATE", "UNTRACKED",
	"HELPER", "OFFLOAD", "HW_OFFLOAD",
}

const namedStatus = 1<<len(statusNames) - 1

// addStatus joins the names of e's bits by |, with bits that have no name as one
// hexadecimal number at the end.
func addStatus(b []byte, e *conntrack.Entry) []byte {
	start := len(b)
	for bit, name := range statusNames {
		if e.Status&(1<<bit) != 0 {
			b = append(append(b, name...), '|')
		}
	}
	if rest := e.Status &^ namedStatus; rest != 0 {
		return strconv.AppendUint(append(b, "0x"...), uint64(rest), 16)
	}
	if len(b) > start {
		b = b[:len(b)-1]
	}
	return b
}

func setStatus(_ *parser, e *conntrack.Entry, v []byte) bool {
	for len(v) > 0 {
		var name []byte
		name, v, _ = bytes.Cut(v, []byte{'|'})
		bits, ok := statusBits(name)
		if !ok {
			return false
		}
		e.Status |= bits
	}
	return true
}

func statusBits(name []byte) (bits conntrack.Status, ok bool) {
	for bit, known := range statusNames {
		if string(name) == known {
			return 1 << bit, true
		}
	}
	return bits, bytes.HasPrefix(name, []byte("0x")) && number(name, (*uint32)(&bits))
}
