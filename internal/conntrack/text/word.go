package text

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"golang.org/x/sys/unix"
)

// wordParser is what reading a line's words needs between them.
type wordParser struct {
	*parser
	*scanner
	e *conntrack.Entry
	// tuple is the present one, nil before the first source.
	tuple *conntrack.Tuple
	// hasType says that the tuple's next id is ICMP's.
	hasType bool
	// ports counts the ports and keys that came.
	ports     int
	seenReply conntrack.Status
}

// word reads one word. What is in every line comes first.
func (w *wordParser) word() string {
	switch w.b[w.i] {
	case 's':
		return w.wordS()
	case 'd':
		return w.wordD()
	case 'p':
		if w.take("packets=") {
			return w.count("packets is no number", func(c *conntrack.Counters) *uint64 { return &c.Packets })
		}
	case 'b':
		if w.take("bytes=") {
			return w.count("bytes is no number", func(c *conntrack.Counters) *uint64 { return &c.Bytes })
		}
	case '[':
		return w.flag()
	case 'm':
		if w.take("mark=") {
			w.e.Fields &^= conntrack.NoMark
			return w.u32(&w.e.Mark, "mark is no number below 2^32")
		}
	case 'u':
		if w.take("use=") {
			return w.u32(&w.e.Use, "use is no number below 2^32")
		}
	case 't', 'c', 'i':
		return w.icmp()
	case 'z':
		return w.zone()
	}
	return w.other()
}

func (w *wordParser) wordS() string {
	switch {
	case w.take("src="):
		if !w.nextTuple() {
			return "it has more than two source addresses"
		}
		return w.address(&w.tuple.Src, "src is no IP address")
	case w.take("sport="):
		return w.port(true, "sport is no number below 65536")
	case w.take("srckey="):
		return w.key(true, "srckey is no hexadecimal number below 65536")
	case w.take("secctx="):
		w.e.SecCtx = w.scanner.word()
		return ""
	case w.take("secmark="), w.take("stream_timeout="): // of old kernels' texts
		w.scanner.word()
		return ""
	}
	return w.other()
}

func (w *wordParser) wordD() string {
	switch {
	case w.tuple == nil:
		return w.other()
	case w.take("dst="):
		return w.address(&w.tuple.Dst, "dst is no IP address")
	case w.take("dport="):
		return w.port(false, "dport is no number below 65536")
	case w.take("dstkey="):
		return w.key(false, "dstkey is no hexadecimal number below 65536")
	case w.take("delta-time="):
		n, ok := w.decimal64()
		if !ok {
			return "delta-time is no number of seconds"
		}
		w.e.DeltaTime = n
		w.e.Fields |= conntrack.HasDeltaTime
		return ""
	}
	return w.other()
}

// nextTuple goes on to the tuple whose source comes.
func (w *wordParser) nextTuple() bool {
	switch w.tuple {
	case nil:
		w.tuple = &w.e.Orig
	case &w.e.Orig:
		w.tuple = &w.e.Reply
	default:
		return false
	}
	return true
}

func (w *wordParser) address(to *netip.Addr, why string) string {
	if to.IsValid() || !w.addr(to) {
		return why
	}
	return ""
}

func (w *wordParser) port(source bool, why string) string {
	n, ok := w.decimal(1<<16 - 1)
	return w.setPort(source, n, ok, why)
}

func (w *wordParser) key(source bool, why string) string {
	n, ok := w.hex(1<<16 - 1)
	return w.setPort(source, n, ok, why)
}

func (w *wordParser) setPort(source bool, n uint64, ok bool, why string) string {
	if !ok {
		return why
	}
	if w.tuple == nil {
		return "a port comes before the addresses"
	}
	w.ports++
	if source {
		w.tuple.SrcPort = uint16(n)
	} else {
		w.tuple.DstPort = uint16(n)
	}
	return ""
}

func (w *wordParser) u32(to *uint32, why string) string {
	n, ok := w.decimal(1<<32 - 1)
	*to = uint32(n)
	if !ok {
		return why
	}
	return ""
}

func (w *wordParser) count(why string, field func(*conntrack.Counters) *uint64) string {
	n, ok := w.decimal64()
	if !ok {
		return why
	}
	w.e.Fields |= conntrack.HasCounters
	if w.tuple == &w.e.Reply {
		*field(&w.e.Received) = n
	} else {
		*field(&w.e.Sent) = n
	}
	return ""
}

// icmp reads what a tuple of ICMP has instead of ports. An id that comes after
// both tuples have theirs is the entry's.
func (w *wordParser) icmp() string {
	icmp := w.tuple != nil && isICMP(w.e.Orig.Proto)
	switch {
	case icmp && w.take("type="):
		w.hasType = true
		return w.u8(&w.tuple.ICMPType, "type is no number below 256")
	case icmp && w.take("code="):
		return w.u8(&w.tuple.ICMPCode, "code is no number below 256")
	case icmp && w.hasType && w.take("id="):
		w.hasType = false
		n, ok := w.decimal(1<<16 - 1)
		w.tuple.ICMPID = uint16(n)
		if !ok {
			return "id is no number below 65536"
		}
		return ""
	case w.take("id="):
		return w.u32(&w.e.ID, "id is no number below 2^32")
	case w.take("timeout="): // GRE's in /proc; the entry's own has been read
		w.scanner.word()
		return ""
	}
	return w.other()
}

func (w *wordParser) u8(to *uint8, why string) string {
	n, ok := w.decimal(1<<8 - 1)
	*to = uint8(n)
	if !ok {
		return why
	}
	return ""
}

func (w *wordParser) zone() string {
	const why = "a zone is no number below 65536"
	var to *uint16
	switch {
	case w.take("zone="):
	case w.take("zone-orig="):
		to = &w.e.Zone
	case w.take("zone-reply="):
		to = &w.e.ReplyZone
	default:
		return w.other()
	}
	n, ok := w.decimal(1<<16 - 1)
	if !ok {
		return why
	}
	if to != nil {
		*to = uint16(n)
	} else {
		w.e.Zone, w.e.ReplyZone = uint16(n), uint16(n)
	}
	return ""
}

// flag reads a word in brackets.
func (w *wordParser) flag() string {
	switch {
	case w.take("[ASSURED]"):
		w.e.Status |= conntrack.Assured
	case w.take("[UNREPLIED]"):
		w.seenReply = 0
	case w.take("[OFFLOAD]"):
		w.e.Status |= conntrack.Offload
	case w.take("[HW_OFFLOAD]"):
		w.e.Status |= conntrack.Offload | conntrack.HWOffload
	case w.take("[start="):
		return w.time(&w.e.Start, "start is no time")
	case w.take("[stop="):
		return w.time(&w.e.Stop, "stop is no time")
	default:
		return w.other()
	}
	return ""
}

// time reads the form of ctime(3) up to the bracket, as of UTC: the text does
// not tell its time zone.
func (w *wordParser) time(to *uint64, why string) string {
	end := bytes.IndexByte(w.b[w.i:], ']')
	if end < 0 || end > len("Mon Jan 02 15:04:05 2006")+1 {
		return why
	}
	t, err := time.Parse(time.ANSIC, string(w.b[w.i:w.i+end]))
	if err != nil || t.Unix() < 0 {
		return why
	}
	*to = uint64(t.Unix()) * uint64(time.Second)
	w.i += end + 1
	return ""
}

// other reads what is rare, and passes over what is unknown.
func (w *wordParser) other() string {
	switch {
	case w.take("helper="):
		w.e.Helper = w.scanner.word()
	case w.take("labels"): // names, whose bits a file of the other machine tells
		w.scanner.word()
	default:
		w.unknown(w.scanner.word(), "an unknown word or key")
	}
	return ""
}

// words reads a line of conntrack -L or /proc/net/nf_conntrack:
//
//	[ipv4 2] tcp 6 [431999] [ESTABLISHED] src=… dst=… sport=… dport=… [UNREPLIED]
//	src=… dst=… sport=… dport=… [ASSURED] mark=0 use=1
func (p *parser) words(s *scanner, e *conntrack.Entry) string {
	if why := p.head(s, e); why != "" {
		return why
	}
	w := wordParser{parser: p, scanner: s, e: e, seenReply: conntrack.SeenReply}
	for !s.end() {
		if why := w.word(); why != "" {
			return why
		}
	}
	if w.ports < 4 && e.Reply.Dst.IsValid() && alwaysHasPorts(e.Orig.Proto) {
		return noPorts
	}
	e.Status |= conntrack.Confirmed | w.seenReply
	if e.IsSNAT() {
		e.Status |= conntrack.SrcNAT
	}
	if e.IsDNAT() {
		e.Status |= conntrack.DstNAT
	}
	return ""
}

// alwaysHasPorts names the protocols whose ports every kernel tells; the others
// it may be built without.
func alwaysHasPorts(proto uint8) bool {
	return proto == unix.IPPROTO_TCP || proto == unix.IPPROTO_UDP
}

// head reads up to the first address: protocols, timeout and state.
func (p *parser) head(s *scanner, e *conntrack.Entry) string {
	if s.b[s.i] == '[' {
		return whyEvent
	}
	if c := s.b[s.i] | 0x20; c-'a' > 'z'-'a' {
		s.word()
		return notHead(s)
	}
	name := s.word()
	if (string(name) == "ipv4" || string(name) == "ipv6") && !s.end() {
		s.word() // its number
		s.end()
		s.word() // the transport's name; its number tells more
	}
	if s.end() {
		return whyOther
	}
	n, ok := s.decimal(255)
	if !ok {
		return notHead(s)
	}
	e.Orig.Proto = uint8(n)
	if s.end() {
		return noTuple
	}
	if c := s.b[s.i]; c-'0' <= 9 {
		n, ok := s.decimal(1<<32 - 1)
		if !ok {
			return "its timeout is no number of seconds"
		}
		e.Timeout = uint32(n)
		e.Fields &^= conntrack.NoTimeout
		if s.end() {
			return noTuple
		}
	}
	if c := s.b[s.i]; c-'A' <= 'Z'-'A' {
		p.state = s.word()
	}
	return ""
}

// notHead says what a line is that does not begin like an entry.
func notHead(s *scanner) string {
	if bytes.Contains(s.b, []byte("mask-src=")) || bytes.Contains(s.b, []byte(" proto=")) {
		return whyExpect
	}
	return whyOther
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
