package natlog

import (
	"encoding/binary"
	"net/netip"
	"time"
)

// Numbers of IPFIX (RFC 7011).
const (
	ipfixVersion = 10
	setTemplates = 2
	setOptions   = 3
	// Ours: sessions of IPv4, of IPv6, and how many records were lost.
	templateIPv4, templateIPv6, templateLost = 256, 257, 258

	ipfixHeader = 16
	setHeader   = 4
)

// field is an information element (IANA, IPFIX Information Elements) and its length.
type field struct{ element, length uint16 }

// The elements of RFC 8158, section 5.
const (
	elementProtocol     = 4
	elementSourcePort   = 7
	elementSourceIPv4   = 8
	elementDestPort     = 11
	elementDestIPv4     = 12
	elementSourceIPv6   = 27
	elementDestIPv6     = 28
	elementExporter     = 144
	elementNotSent      = 165
	elementPostSource4  = 225
	elementPostDest4    = 226
	elementPostSPort    = 227
	elementPostDPort    = 228
	elementNATEvent     = 230
	elementPostSource6  = 281
	elementPostDest6    = 282
	elementMilliseconds = 323
)

// sessionFields are those of table 6 of RFC 8158 (NAT44 session create and delete).
func sessionFields(source, dest, postSource, postDest, length uint16) []field {
	return []field{
		{elementMilliseconds, 8}, {elementNATEvent, 1}, {elementProtocol, 1},
		{source, length}, {elementSourcePort, 2}, {postSource, length}, {elementPostSPort, 2},
		{dest, length}, {elementDestPort, 2}, {postDest, length}, {elementPostDPort, 2},
	}
}

// natEvent values (IANA, natEvent Values). Of IPv6 there is none for sessions: 1 and 2 are of translations in general.
const (
	translationCreate = 1
	translationDelete = 2
	nat44Create       = 4
	nat44Delete       = 5
)

func (r *Record) natEvent() uint8 {
	event := uint8(nat44Create)
	if r.Src.Addr().Is6() {
		event = translationCreate
	}
	if r.Kind == End {
		event++
	}
	return event
}

// IPFIX makes messages of records.
type IPFIX struct {
	// Domain is the observation domain.
	Domain uint32
	// MaxMessage bounds a message, so that it needs no fragments.
	MaxMessage int
	// sequence is the number of records before the message (section 3.1).
	sequence uint32
	message  []byte
	// set is where the last set begins and its template, 0 for none; records counts those of the message.
	set, template int
	records       uint32
}

// UsualMessage is what fits into a packet by any way (RFC 7011, section 10.3.3).
const UsualMessage = 1400

// lostBytes and mostSession bound records; a message has room for several.
const (
	mostSession = 8 + 1 + 1 + 4*16 + 4*2
	lostBytes   = 4 + 8
)

// Templates is a message that describes the others. Over UDP it is sent again and again.
func (x *IPFIX) Templates(at time.Time) []byte {
	b := x.header(at)
	b = appendSet(b, setTemplates, func(b []byte) []byte {
		b = appendTemplate(b, templateIPv4, sessionFields(elementSourceIPv4, elementDestIPv4, elementPostSource4, elementPostDest4, 4))
		return appendTemplate(b, templateIPv6, sessionFields(elementSourceIPv6, elementDestIPv6, elementPostSource6, elementPostDest6, 16))
	})
	b = appendSet(b, setOptions, func(b []byte) []byte {
		b = binary.BigEndian.AppendUint16(b, templateLost)
		b = binary.BigEndian.AppendUint16(b, 2) // fields, of which
		b = binary.BigEndian.AppendUint16(b, 1) // one is the scope
		return appendFields(b, []field{{elementExporter, 4}, {elementNotSent, 8}})
	})
	return ended(b)
}

func (x *IPFIX) header(at time.Time) []byte {
	b := binary.BigEndian.AppendUint16(make([]byte, 0, UsualMessage), ipfixVersion)
	b = append(b, 0, 0) // the length
	b = binary.BigEndian.AppendUint32(b, uint32(at.Unix()))
	b = binary.BigEndian.AppendUint32(b, x.sequence)
	return binary.BigEndian.AppendUint32(b, x.Domain)
}

// ended puts the length in.
func ended(b []byte) []byte {
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	return b
}

func appendSet(b []byte, id uint16, content func([]byte) []byte) []byte {
	at := len(b)
	b = content(append(binary.BigEndian.AppendUint16(b, id), 0, 0))
	binary.BigEndian.PutUint16(b[at+2:], uint16(len(b)-at))
	return b
}

func appendTemplate(b []byte, id uint16, fields []field) []byte {
	b = binary.BigEndian.AppendUint16(b, id)
	return appendFields(binary.BigEndian.AppendUint16(b, uint16(len(fields))), fields)
}

func appendFields(b []byte, fields []field) []byte {
	for _, f := range fields {
		b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, f.element), f.length)
	}
	return b
}

// Messages calls send with the messages that records fill, each valid until the next. Records that IPFIX has no words for
// are left out. sent is how many of the records were in messages that send took.
func (x *IPFIX) Messages(records []Record, send func([]byte) error) (sent int, err error) {
	most := max(x.MaxMessage, ipfixHeader+setHeader+mostSession)
	x.message = nil
	flush := func(upTo int) error {
		if x.message == nil {
			return nil
		}
		x.endSet()
		if err := send(ended(x.message)); err != nil {
			x.message = nil
			return err
		}
		x.sequence += x.records
		x.message, sent = nil, upTo
		return nil
	}
	for i := range records {
		r := &records[i]
		template, size := r.ipfixTemplate()
		if template == 0 {
			continue
		}
		if x.message != nil && len(x.message)+setHeader+size > most {
			if err := flush(i); err != nil {
				return sent, err
			}
		}
		if x.message == nil {
			x.message, x.records, x.template = x.header(r.Time), 0, 0
		}
		x.begin(template)
		x.records++
		if template == templateLost {
			x.message = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(x.message, x.Domain), r.Count)
		} else {
			x.message = r.appendIPFIX(x.message)
		}
	}
	if err := flush(len(records)); err != nil {
		return sent, err
	}
	return len(records), nil
}

func (r *Record) ipfixTemplate() (template, size int) {
	switch {
	case r.Kind == Lost:
		return templateLost, lostBytes
	case !r.IsSession():
		return 0, 0
	case r.Src.Addr().Is6():
		return templateIPv6, mostSession
	}
	return templateIPv4, mostSession
}

// begin ends the set of another template, and begins one.
func (x *IPFIX) begin(template int) {
	if x.template == template {
		return
	}
	x.endSet()
	x.set, x.template = len(x.message), template
	x.message = append(binary.BigEndian.AppendUint16(x.message, uint16(template)), 0, 0)
}

func (x *IPFIX) endSet() {
	if x.template != 0 {
		binary.BigEndian.PutUint16(x.message[x.set+2:], uint16(len(x.message)-x.set))
		x.template = 0
	}
}

// appendIPFIX writes the values of sessionFields. What was not translated stands there as it was.
func (r *Record) appendIPFIX(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(r.Time.UnixMilli()))
	b = append(b, r.natEvent(), r.Protocol)
	put := func(a, otherwise netip.AddrPort) {
		if !a.IsValid() {
			a = otherwise
		}
		b = append(b, a.Addr().AsSlice()...)
		b = binary.BigEndian.AppendUint16(b, a.Port())
	}
	put(r.Src, r.Src)
	put(r.NAT, r.Src)
	put(r.Dst, r.Dst)
	put(r.Server, r.Dst)
	return b
}
