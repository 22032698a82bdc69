package text

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/unix"
)

const (
	// maxLine bounds a line; those of the kernel and of the tools have a few
	// hundred bytes.
	maxLine    = 64 << 10
	bufferSize = 256 << 10
	// kept is how many lines of a kind are remembered, keptText how much of one.
	kept     = 5
	keptText = 160
)

// Stats are what was read.
type Stats struct {
	// Lines are all lines, Entries those that fn was called with, Garbled those
	// that are no entry and no part of a list.
	Lines, Entries, Garbled int64
	// Unknown counts words, states and fields in entries that were passed over.
	Unknown int64
	// First are the first garbled lines, FirstUnknown the first of Unknown.
	First, FirstUnknown []Garbled
}

// Garbled is a line, or a word of it, that could not be read.
type Garbled struct {
	// Line is its number, from 1 on.
	Line int64
	// Text is its beginning, in printable ASCII with the escapes of Go.
	Text string
	Why  string
}

// The causes of an error of Each where what was read is no list at all.
var (
	// ErrEmpty may be the list of an empty table.
	ErrEmpty = errors.New("this is not a list of connections: it is empty")
	// ErrNoList is the cause where not one entry was found.
	ErrNoList = errors.New("this is not a list of connections")
)

// Each calls fn with every entry in r: lines of conntrack -L in all of its
// formats but XML, of /proc/net/nf_conntrack and of /proc/net/ip_conntrack, JSON
// lines and CSV as of AppendJSON and AppendCSV; gzipped or not, which it detects.
// Garbled lines are passed over and counted.
//
// What a text does not have is zero in an entry, and Fields says which zeros are
// none; its status is what can be derived. Times without a time zone
// are read as UTC. The entry and what it points to hold until fn returns.
//
// fn's error ends it and is returned as it is.
func Each(r io.Reader, fn func(*conntrack.Entry) error) (Stats, error) {
	p := &parser{}
	lines, err := decompress(r)
	if err == nil {
		err = p.readAll(lines, fn)
	}
	return p.stats, err
}

// decompress checks for gzip's magic number (RFC 1952, 2.3.1) and takes off a mark
// of byte order, which some editors put first.
func decompress(r io.Reader) (*bufio.Reader, error) {
	lines := bufio.NewReaderSize(r, bufferSize)
	head, err := lines.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read connections: %w", err)
	}
	if bytes.Equal(head, []byte{0x1f, 0x8b}) {
		unzipped, err := gzip.NewReader(lines)
		if err != nil {
			return nil, fmt.Errorf("read gzipped connections: %w", err)
		}
		lines = bufio.NewReaderSize(unzipped, bufferSize)
	}
	if head, _ := lines.Peek(3); bytes.Equal(head, []byte("\ufeff")) { // errors are those of reading on
		_, err = lines.Discard(len(head))
		return lines, err
	}
	return lines, nil
}

// nextLine returns a line without its end, valid until the next call; of one that is too
// long the beginning. What was read before an error is no line: what is cut off can look
// like an entry with another port.
func nextLine(r *bufio.Reader) (line []byte, tooLong bool, err error) {
	line, err = r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		line, tooLong = bytes.Clone(line[:keptText+1]), true
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = r.ReadSlice('\n')
		}
	}
	if err != nil && (!errors.Is(err, io.EOF) || len(line) == 0) {
		return nil, false, err
	}
	line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
	return line, tooLong || len(line) > maxLine, nil
}

func (p *parser) readAll(lines *bufio.Reader, fn func(*conntrack.Entry) error) error {
	e := new(conntrack.Entry)
	for {
		line, tooLong, err := nextLine(lines)
		if errors.Is(err, io.EOF) {
			return p.verdict()
		}
		if err != nil {
			return fmt.Errorf("read connections after line %d: %w", p.stats.Lines, err)
		}
		p.stats.Lines++
		entry, why := false, "the line is longer than 64 KiB"
		if !tooLong {
			entry, why = p.parse(line, e)
		}
		switch {
		case why != "":
			p.stats.Garbled++
			p.binary = p.binary || bytes.IndexByte(line, 0) >= 0
			p.stats.First = p.remember(p.stats.First, line, why)
		case entry:
			p.stats.Entries++
			if err := fn(e); err != nil {
				return err
			}
		}
		if p.stats.Lines == judgedLines && p.stats.Entries == 0 && p.binary {
			return p.verdict()
		}
	}
}

func (p *parser) remember(first []Garbled, text []byte, why string) []Garbled {
	if len(first) == kept {
		return first
	}
	return append(first, Garbled{Line: p.stats.Lines, Text: printable(text), Why: why})
}

// unknown counts something in an entry that was passed over.
func (p *parser) unknown(text []byte, why string) {
	p.stats.Unknown++
	p.stats.FirstUnknown = p.remember(p.stats.FirstUnknown, text, why)
}

// printable is the beginning of a text, safe for a terminal.
func printable(text []byte) string {
	cut := text[:min(len(text), keptText)]
	quoted := strconv.QuoteToASCII(string(cut))
	quoted = string(bytes.ReplaceAll([]byte(quoted[1:len(quoted)-1]), []byte(`\"`), []byte(`"`)))
	if len(cut) < len(text) {
		quoted += "…"
	}
	return quoted
}

// judgedLines is after how many lines without an entry a binary file is given up.
const judgedLines = 1000

// verdict is the error where nothing of what was read was of a list.
func (p *parser) verdict() error {
	switch s := &p.stats; {
	case s.Lines == 0:
		return ErrEmpty
	case s.Entries > 0 || s.Garbled == 0:
		return nil
	case p.binary:
		return fmt.Errorf("%w: it is a binary file; give the text of conntrack -L or of /proc/net/nf_conntrack, gzipped or not", ErrNoList)
	default:
		return fmt.Errorf("%w: none of its %d lines is an entry; line %d (%s): %s", ErrNoList, s.Lines, s.First[0].Line, s.First[0].Text, s.First[0].Why)
	}
}

// parser reads lines one after the other. A reading function returns why a line
// is garbled, "" where it is not.
type parser struct {
	stats Stats
	scan  scanner
	// binary: a garbled line had what no text has.
	binary bool
	// columns of CSV are indices into fields, -1 for an unknown one; nil before a
	// header came.
	columns []int
	// state is the present entry's, to be read when its protocol is known.
	state []byte
	// labels and text hold what an entry points to and is not in its line so.
	labels [maxLabels / 8]byte
	text   []byte
	// before takes what comes before the addresses.
	before conntrack.Tuple
}

// Reasons that more than one function returns.
const (
	noReply     = "it has no reply tuple: the line may be cut off"
	noPorts     = "it has not both ports of both directions: the line may be cut off"
	noTuple     = "it has no addresses"
	noAddresses = "a port or a counter comes before the addresses"
	mixed       = "its addresses are of two families"
	whyXML      = "XML is not read: list with conntrack -L -o extended, without xml"
	whySave     = "commands of conntrack -o save are not read: list with conntrack -L -o extended"
	whyEvent    = "an event, and no entry of the table: list with conntrack -L"
	whyArray    = "a list of JSON: give its objects alone, each on one line (jq -c '.[]')"
	whyJSON     = "its JSON is no flat object of names and values on one line"
	whyQuotes   = "a quote of its CSV is not closed"
	whyColumns  = "it has not as many columns as the header"
	whyExpect   = "an expectation, and no entry of the table"
	whyOther    = "it is no entry of a connection table"
)

// parse reads one line into e. It is false where the line has nothing of an
// entry and is none the worse for it.
func (p *parser) parse(line []byte, e *conntrack.Entry) (entry bool, why string) {
	p.scan = scanner{b: line}
	s := &p.scan
	if s.end() {
		return false, ""
	}
	*e = conntrack.Entry{Fields: conntrack.NoTimeout | conntrack.NoMark | conntrack.NoState}
	p.state, p.text = nil, p.text[:0]
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
		p.header(line[s.i:])
		return false, ""
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

// isTotal matches the line in which the tool counts what it showed; on a terminal,
// or with 2>&1, it comes together with the list.
func isTotal(line []byte) bool {
	return bytes.HasPrefix(line, []byte("conntrack v")) && bytes.HasSuffix(bytes.TrimRight(line, " \t"), []byte("have been shown."))
}

// finish derives what a text does not have.
func (p *parser) finish(e *conntrack.Entry) string {
	e.Reply.Proto = e.Orig.Proto
	e.Family = e.Orig.Family()
	switch bits := e.Orig.Src.BitLen(); {
	case !e.Orig.Src.IsValid() || !e.Orig.Dst.IsValid():
		return noTuple
	case !e.Reply.Src.IsValid() || !e.Reply.Dst.IsValid():
		return noReply
	case e.Orig.Dst.BitLen() != bits || e.Reply.Src.BitLen() != bits || e.Reply.Dst.BitLen() != bits:
		return mixed
	}
	state := e.State()
	if state == nil || p.state != nil {
		e.Fields &^= conntrack.NoState
	}
	if p.state == nil {
		return ""
	}
	n, known := conntrack.ParseState(e.Orig.Proto, p.state)
	if state != nil {
		*state = n
	}
	if !known && string(p.state) != "UNKNOWN" {
		p.unknown(p.state, "no state of this protocol")
	}
	return ""
}

// setField gives a field its value; an empty one, as of CSV, is none.
func (p *parser) setField(i int, value []byte, e *conntrack.Entry) string {
	if len(value) == 0 || fields[i].set(p, e, value) {
		return ""
	}
	return fields[i].why
}

// words reads a line of conntrack -L or /proc/net/nf_conntrack:
//
//	[ipv4 2] tcp 6 [431999] [ESTABLISHED] src=… dst=… sport=… dport=… [UNREPLIED]
//	src=… dst=… sport=… dport=… [ASSURED] mark=0 use=1
func (p *parser) words(s *scanner, e *conntrack.Entry) string {
	if why := p.head(s, e); why != "" {
		return why
	}
	e.Status = conntrack.Confirmed | conntrack.SeenReply
	w := wordParser{parser: p, e: e, t: &p.before, tuple: -1}
	for !s.end() {
		why := ""
		if s.b[s.i] == '[' {
			why = w.flag(s)
		} else {
			why = w.word(s)
		}
		if why != "" {
			return why
		}
	}
	// Other protocols' ports a kernel may be built without.
	if w.ports < 4 && e.Reply.Dst.IsValid() && (e.Orig.Proto == unix.IPPROTO_TCP || e.Orig.Proto == unix.IPPROTO_UDP) {
		return noPorts
	}
	if e.IsSNAT() {
		e.Status |= conntrack.SrcNAT
	}
	if e.IsDNAT() {
		e.Status |= conntrack.DstNAT
	}
	return ""
}

// head reads up to the first address: protocols, timeout and state.
func (p *parser) head(s *scanner, e *conntrack.Entry) string {
	if s.b[s.i] == '[' {
		return whyEvent
	}
	name := s.word()
	if (string(name) == "ipv4" || string(name) == "ipv6") && !s.end() {
		s.word() // its number
		s.end()
		name = s.word() // the transport's
	}
	if s.end() {
		return whyOther
	}
	if len(name) == 0 || name[0]|0x20 < 'a' || name[0]|0x20 > 'z' || !number(s.word(), &e.Orig.Proto) {
		if bytes.Contains(s.b, []byte("mask-src=")) || bytes.Contains(s.b, []byte(" proto=")) {
			return whyExpect
		}
		return whyOther
	}
	if !s.end() && s.b[s.i]-'0' <= 9 {
		if why := p.setField(timeoutField, s.word(), e); why != "" {
			return why
		}
	}
	if s.end() {
		return noTuple
	}
	if s.b[s.i]-'A' <= 'Z'-'A' {
		p.state = s.word()
	}
	return ""
}

// wordParser is what reading a line's words needs between them.
type wordParser struct {
	*parser
	e *conntrack.Entry
	// tuple is the direction of the present one, t; -1 before the first source.
	tuple int
	t     *conntrack.Tuple
	// hasType: the tuple's next id is ICMP's.
	hasType bool
	// ports counts the ports and keys that came.
	ports int
}

// word reads a key and its value.
func (w *wordParser) word(s *scanner) string {
	start := s.i
	key, ok := s.key()
	if !ok {
		return w.other(s.word())
	}
	field := 0 // of the tuple; what is in nearly every line is read here
	switch string(key) {
	case "src":
		if w.tuple++; w.tuple == 2 {
			return "it has more than two source addresses"
		}
		w.t = [...]*conntrack.Tuple{&w.e.Orig, &w.e.Reply}[w.tuple]
		field, ok = srcField, !w.t.Src.IsValid() && s.address(&w.t.Src)
	case "dst":
		field, ok = dstField, !w.t.Dst.IsValid() && s.address(&w.t.Dst)
	case "sport", "srckey":
		w.ports++
		field, ok = sportField, take(s, &w.t.SrcPort)
	case "dport", "dstkey":
		w.ports++
		field, ok = dportField, take(s, &w.t.DstPort)
	case "packets":
		return w.setInTuple(packetsField, s.word())
	case "bytes":
		return w.setInTuple(bytesField, s.word())
	case "type", "code":
		if w.tuple < 0 || !isICMP(w.e.Orig.Proto) {
			s.i = start
			return w.other(s.word())
		}
		w.hasType = true
		if field = icmpTypeField; key[0] == 'c' {
			field = icmpCodeField
		}
		return w.setInTuple(field, s.word())
	case "id": // one that comes after both tuples have theirs is the entry's
		if !w.hasType {
			return w.set(idField, s.word())
		}
		w.hasType = false
		return w.setInTuple(icmpIDField, s.word())
	case "mark":
		return w.set(markField, s.word())
	case "use":
		return w.set(useField, s.word())
	case "zone":
		value := s.word()
		return cmp.Or(w.set(origField+zoneField, value), w.set(replyField+zoneField, value))
	case "zone-orig":
		return w.set(origField+zoneField, s.word())
	case "zone-reply":
		return w.set(replyField+zoneField, s.word())
	case "delta-time":
		return w.set(deltaTimeField, s.word())
	default:
		s.i = start
		return w.other(s.word())
	}
	switch {
	case w.tuple < 0:
		return noAddresses
	case !ok:
		return fields[w.inTuple(field)].why
	}
	return ""
}

// inTuple returns the index of a field of the present tuple.
func (w *wordParser) inTuple(field int) int {
	return origField + w.tuple*(replyField-origField) + field
}

func (w *wordParser) setInTuple(field int, value []byte) string {
	if w.tuple < 0 {
		return noAddresses
	}
	return w.set(w.inTuple(field), value)
}

func (w *wordParser) set(field int, value []byte) string {
	if len(value) == 0 {
		return fields[field].why
	}
	return w.setField(field, value, w.e)
}

// other reads what is rare, and passes over what is unknown.
func (w *wordParser) other(word []byte) string {
	key, value, _ := bytes.Cut(word, []byte("="))
	switch string(key) {
	case "secctx":
		w.e.SecCtx = value
	case "helper":
		w.e.Helper = value
	case "labels": // names, whose bits are in a file of the other machine
	case "secmark", "timeout", "stream_timeout": // of old kernels, and GRE's in /proc
	default:
		w.unknown(word, "an unknown word or key")
	}
	return ""
}

// flag reads words in brackets.
func (w *wordParser) flag(s *scanner) string {
	end := max(bytes.IndexByte(s.b[s.i:], ']'), 1)
	key, text, _ := bytes.Cut(s.b[s.i+1:s.i+end], []byte("="))
	switch string(key) {
	case "ASSURED":
		w.e.Status |= conntrack.Assured
	case "UNREPLIED":
		w.e.Status &^= conntrack.SeenReply
	case "OFFLOAD":
		w.e.Status |= conntrack.Offload
	case "HW_OFFLOAD":
		w.e.Status |= conntrack.Offload | conntrack.HWOffload
	case "start", "stop": // the form of ctime(3), as of UTC: the text has no time zone
		t, err := time.Parse(time.ANSIC, string(text))
		if err != nil || t.Unix() < 0 {
			return "start or stop is no time"
		}
		to := &w.e.Start
		if string(key) == "stop" {
			to = &w.e.Stop
		}
		*to = uint64(t.Unix()) * uint64(time.Second)
	default:
		return w.other(s.word())
	}
	s.i += end + 1
	return ""
}

// json reads an object of one line, with its fields in any order.
func (p *parser) json(s *scanner, e *conntrack.Entry) string {
	for n := 0; ; n++ {
		s.i++ // the brace or the comma
		if s.end() {
			return whyJSON
		}
		if n == 0 && s.b[s.i] == '}' {
			break
		}
		name, value, ok := p.member(s)
		if !ok || s.end() {
			return whyJSON
		}
		if i, known := fieldIndex[string(name)]; !known {
			p.unknown(name, "an unknown field")
		} else if why := p.setField(i, value, e); why != "" {
			return why
		}
		if s.b[s.i] == '}' {
			break
		}
		if s.b[s.i] != ',' {
			return whyJSON
		}
	}
	if s.i++; !s.end() {
		return whyJSON
	}
	return ""
}

// member takes a name and its value; the value is without its quotes, and nil
// where it is null.
func (p *parser) member(s *scanner) (name, value []byte, ok bool) {
	if name, ok = p.quoted(s); !ok || s.end() || s.b[s.i] != ':' {
		return nil, nil, false
	}
	if s.i++; s.end() {
		return nil, nil, false
	}
	if s.b[s.i] == '"' {
		value, ok = p.quoted(s)
		return name, value, ok
	}
	n := bytes.IndexAny(s.b[s.i:], " \t,}{[\"")
	if n <= 0 || s.b[s.i+n] == '{' || s.b[s.i+n] == '[' || s.b[s.i+n] == '"' {
		return nil, nil, false
	}
	value = s.b[s.i : s.i+n]
	if s.i += n; string(value) == "null" {
		value = nil
	}
	return name, value, true
}

// quoted takes a string. What is no printable ASCII in it is made so where it is written.
func (p *parser) quoted(s *scanner) ([]byte, bool) {
	if s.b[s.i] != '"' {
		return nil, false
	}
	start, escaped := s.i, false
	for s.i++; s.i < len(s.b); s.i++ {
		switch s.b[s.i] {
		case '\\':
			escaped = true
			s.i++
		case '"':
			if s.i++; !escaped {
				return s.b[start+1 : s.i-1], true
			}
			var text string
			err := json.Unmarshal(s.b[start:s.i], &text)
			from := len(p.text)
			p.text = append(p.text, text...)
			return p.text[from:], err == nil
		}
	}
	return nil, false
}

// isHeader matches the names of the columns of CSV, in any order.
func isHeader(line []byte) bool {
	return bytes.IndexByte(line, ',') > 0 && bytes.Contains(line, []byte("orig_src")) && bytes.IndexByte(line, '=') < 0
}

// header learns which column is what.
func (p *parser) header(line []byte) {
	p.columns = p.columns[:0]
	for name := range bytes.SplitSeq(line, []byte{','}) {
		name = bytes.Trim(name, "\" ")
		i, ok := fieldIndex[string(name)]
		if !ok {
			i = -1
			p.unknown(name, "an unknown column")
		}
		p.columns = append(p.columns, i)
	}
}

// csv reads a line by the header that came.
func (p *parser) csv(line []byte, e *conntrack.Entry) string {
	column := 0
	for rest, more := line, true; more; column++ {
		var value []byte
		var ok bool
		if value, rest, more, ok = p.cell(rest); !ok {
			return whyQuotes
		}
		if column == len(p.columns) {
			return whyColumns
		}
		if i := p.columns[column]; i >= 0 {
			if why := p.setField(i, value, e); why != "" {
				return why
			}
		}
	}
	if column != len(p.columns) {
		return whyColumns
	}
	return ""
}

// cell takes a value and the comma behind it; more reports whether there was one.
func (p *parser) cell(line []byte) (value, rest []byte, more, ok bool) {
	if len(line) == 0 || line[0] != '"' {
		value, rest, more = bytes.Cut(line, []byte{','})
		return value, rest, more, true
	}
	from := len(p.text)
	for i := 1; i < len(line); i++ {
		switch {
		case line[i] != '"':
			p.text = append(p.text, line[i])
		case i+1 < len(line) && line[i+1] == '"': // a quote in a value is doubled
			p.text = append(p.text, '"')
			i++
		case i+1 == len(line):
			return p.text[from:], nil, false, true
		default:
			return p.text[from:], line[i+2:], true, line[i+1] == ','
		}
	}
	return nil, nil, false, false
}
