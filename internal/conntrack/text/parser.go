package text

import (
	"bytes"

	"github.com/natkit/natkit/internal/conntrack"
	"golang.org/x/sys/unix"
)

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
