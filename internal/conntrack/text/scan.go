package text

import (
	"bytes"
	"net/netip"
	"unsafe"

	"github.com/natkit/natkit/internal/conntrack"
	"golang.org/x/sys/unix"
)

// scanner walks over the words of a line.
type scanner struct {
	b []byte
	i int
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' }

// end passes over blanks and reports whether nothing comes after them.
func (s *scanner) end() bool {
	for s.i < len(s.b) && isBlank(s.b[s.i]) {
		s.i++
	}
	return s.i == len(s.b)
}

// word takes what comes before the next blank, perhaps nothing.
func (s *scanner) word() []byte {
	start := s.i
	for s.i < len(s.b) && !isBlank(s.b[s.i]) {
		s.i++
	}
	return s.b[start:s.i]
}

// take passes over prefix if that is next.
func (s *scanner) take(prefix string) bool {
	if len(s.b)-s.i >= len(prefix) && string(s.b[s.i:s.i+len(prefix)]) == prefix {
		s.i += len(prefix)
		return true
	}
	return false
}

// ends reports whether a word ends here.
func (s *scanner) ends() bool { return s.i == len(s.b) || isBlank(s.b[s.i]) }

// decimal takes a word that is a number up to limit, which must be far below
// 2^64; decimal64 knows no limit.
func (s *scanner) decimal(limit uint64) (v uint64, ok bool) {
	start := s.i
	for s.i < len(s.b) {
		d := uint64(s.b[s.i] - '0')
		if d > 9 || v > limit {
			break
		}
		v = v*10 + d
		s.i++
	}
	return v, s.i > start && v <= limit && s.ends()
}

func (s *scanner) decimal64() (v uint64, ok bool) { return decimal(s.word()) }

// hex takes a word that is a hexadecimal number up to limit, with 0x before it.
func (s *scanner) hex(limit uint64) (uint64, bool) {
	if !s.take("0x") {
		return 0, false
	}
	return hexadecimal(s.word(), limit)
}

// addr takes a word that is an IP address.
func (s *scanner) addr(to *netip.Addr) bool {
	if a, n := ipv4(s.b[s.i:]); n > 0 {
		s.i += n
		if s.ends() {
			*to = netip.AddrFrom4(a)
			return true
		}
		s.i -= n
	}
	return ipv6(s.word(), to)
}

// decimal reads a whole text as a number.
func decimal(v []byte) (n uint64, ok bool) {
	if len(v) == 0 || len(v) > 20 {
		return 0, false
	}
	for _, c := range v {
		d := uint64(c - '0')
		if d > 9 || n > (1<<64-1-d)/10 {
			return 0, false
		}
		n = n*10 + d
	}
	return n, true
}

// number reads a whole text as a number that its destination can hold.
func number[T unsigned](v []byte, to *T) bool {
	n, ok := decimal(v)
	*to = T(n)
	return ok && uint64(T(n)) == n
}

// address reads a whole text as an IP address.
func address(v []byte, to *netip.Addr) bool {
	s := scanner{b: v}
	return s.addr(to) && s.i == len(v)
}

func hexadecimal(v []byte, limit uint64) (n uint64, ok bool) {
	if len(v) == 0 || len(v) > 16 {
		return 0, false
	}
	for _, c := range v {
		d, ok := hexDigit(c)
		if !ok {
			return 0, false
		}
		n = n<<4 | uint64(d)
	}
	return n, n <= limit
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case c-'0' <= 9:
		return c - '0', true
	case c|0x20-'a' <= 5:
		return c | 0x20 - 'a' + 10, true
	}
	return 0, false
}

// ipv4 reads an address at the beginning of b and tells how long it is, 0 where
// there is none.
func ipv4(b []byte) (a [4]byte, n int) {
	for part := range a {
		if part > 0 {
			if n >= len(b) || b[n] != '.' {
				return a, 0
			}
			n++
		}
		start, v := n, uint(0)
		for ; n < len(b) && b[n]-'0' <= 9 && n-start < 3; n++ {
			v = v*10 + uint(b[n]-'0')
		}
		// Like netip, no zeros before: some read them as octal.
		if n == start || v > 255 || (b[start] == '0' && n > start+1) {
			return a, 0
		}
		a[part] = byte(v)
	}
	return a, n
}

// ipv6 reads a whole text as an IPv6 address without a zone. ParseAddr keeps its argument
// for an error only, which is not used here.
func ipv6(v []byte, to *netip.Addr) bool {
	if bytes.IndexByte(v, ':') < 0 {
		return false
	}
	a, err := netip.ParseAddr(unsafe.String(unsafe.SliceData(v), len(v)))
	if err != nil || a.Zone() != "" {
		return false
	}
	*to = a
	return true
}

// parser reads lines one after the other. A reading function returns why a line
// is garbled, "" where it is not.
type parser struct {
	stats Stats
	// line is the number of the present one.
	line int64
	scan scanner
	// binary tells that a garbled line had what no text has.
	binary bool
	// columns of CSV are indices into fields, -1 for an unknown one; nil before a
	// header came.
	columns []int
	// order are the fields of the last object of JSON: the next one's are likely
	// the same.
	order []int
	// state is the present entry's, to be read when its protocol is known.
	state []byte
	// labels and text hold what an entry points to and is not in its line so.
	labels [maxLabels / 8]byte
	text   []byte
}

// Reasons that are told by more than one function.
const (
	noReply   = "it has no reply tuple: the line may be cut off"
	noPorts   = "it has not both ports of both directions: the line may be cut off"
	noTuple   = "it has no addresses"
	mixed     = "its addresses are of two families"
	whyXML    = "XML is not read: list with conntrack -L -o extended, without xml"
	whySave   = "commands of conntrack -o save are not read: list with conntrack -L -o extended"
	whyEvent  = "an event, and no entry of the table: list with conntrack -L"
	whyArray  = "a list of JSON: give its objects alone, each on one line (jq -c '.[]')"
	whyExpect = "an expectation, and no entry of the table"
	whyOther  = "it is no entry of a connection table"
)

// parse reads one line into e. It is false where the line says nothing of an
// entry and is none the worse for it.
func (p *parser) parse(line []byte, e *conntrack.Entry) (entry bool, why string) {
	p.scan = scanner{b: line}
	s := &p.scan
	if s.end() {
		return false, ""
	}
	*e = conntrack.Entry{Fields: conntrack.NoTimeout | conntrack.NoMark | conntrack.NoState}
	p.state = nil
	switch c := line[s.i]; {
	case c == '{':
		why = p.json(s, e)
	case c == '[' && s.i+1 == len(line):
		return false, whyArray
	case c == '<':
		return false, whyXML
	case c == '-':
		return false, whySave
	case isHeader(line[s.i:]):
		return false, p.header(line[s.i:])
	case p.columns != nil:
		why = p.csv(line, e)
	case isTotal(line[s.i:]):
		return false, ""
	default:
		why = p.words(s, e)
	}
	if why == "" {
		why = p.finish(e)
	}
	return why == "", why
}

// isTotal knows the line in which the tool counts what it showed; on a terminal,
// or with 2>&1, it comes together with the list.
func isTotal(line []byte) bool {
	return bytes.HasPrefix(line, []byte("conntrack v")) && bytes.HasSuffix(bytes.TrimRight(line, " \t"), []byte("have been shown."))
}

// finish derives what a text does not say itself.
func (p *parser) finish(e *conntrack.Entry) string {
	e.Reply.Proto = e.Orig.Proto
	switch {
	case !e.Orig.Src.IsValid() || !e.Orig.Dst.IsValid():
		return noTuple
	case !e.Reply.Src.IsValid() || !e.Reply.Dst.IsValid():
		return noReply
	}
	e.Family = unix.AF_INET
	if !e.Orig.Src.Is4() {
		e.Family = unix.AF_INET6
	}
	if bits := e.Orig.Src.BitLen(); e.Orig.Dst.BitLen() != bits || e.Reply.Src.BitLen() != bits || e.Reply.Dst.BitLen() != bits {
		return mixed
	}
	return p.finishState(e)
}

// unknownState is none of any protocol's.
const unknownState = 255

// finishState reads the state by the names of the entry's protocol.
func (p *parser) finishState(e *conntrack.Entry) string {
	n := uint8(unknownState)
	switch e.Orig.Proto {
	case unix.IPPROTO_TCP:
		n = tcpState(p.state)
		if p.state != nil {
			e.TCPState = conntrack.TCPState(n)
		}
	case unix.IPPROTO_SCTP:
		n = stateNumber[conntrack.SCTPState](p.state)
		if p.state != nil {
			e.SCTPState = conntrack.SCTPState(n)
		}
	case unix.IPPROTO_DCCP:
		n = stateNumber[conntrack.DCCPState](p.state)
		if p.state != nil {
			e.DCCPState = conntrack.DCCPState(n)
		}
	default:
		e.Fields &^= conntrack.NoState
	}
	if p.state != nil {
		e.Fields &^= conntrack.NoState
		if n == unknownState && string(p.state) != "UNKNOWN" {
			p.unknown(p.state, "no state of this protocol")
		}
	}
	return ""
}

// tcpState tries the most frequent names first.
func tcpState(name []byte) uint8 {
	switch string(name) {
	case "ESTABLISHED":
		return uint8(conntrack.TCPEstablished)
	case "TIME_WAIT":
		return uint8(conntrack.TCPTimeWait)
	case "LISTEN": // until 2009 the number's name
		return uint8(conntrack.TCPSynSent2)
	}
	return stateNumber[conntrack.TCPState](name)
}

type state interface {
	~uint8
	String() string
}

// states is more than any protocol has.
const states = 16

func stateNumber[S state](name []byte) uint8 {
	for n := range S(states) {
		if s := n.String(); s == string(name) && s != "UNKNOWN" {
			return uint8(n)
		}
	}
	return unknownState
}

// unknown counts something in an entry that was passed over.
func (p *parser) unknown(text []byte, why string) {
	p.stats.Unknown++
	p.stats.FirstUnknown = remember(p.stats.FirstUnknown, p.line, text, why)
}
