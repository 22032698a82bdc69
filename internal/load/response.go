package load

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// maxHead bounds a head, and the framing lines between two chunks, in bytes.
const maxHead = 64 << 10

// Response parses one HTTP/1.x response to a GET, in pieces of any size, and keeps what a load
// generator needs of it. It allocates only for a line that is split over two pieces; the zero
// value is ready. The framing is that of RFC 9112; what is ambiguous there is rejected.
type Response struct {
	// remaining bytes of the body or of the current chunk.
	remaining int64
	body      int64
	partial   []byte // of a line whose end has not come
	line      uint32 // bytes of the head, or of the framing lines since the last chunk
	status    uint16
	state     parseState
	flags     responseFlags
}

type parseState uint8

const (
	inStatusLine parseState = iota
	inHeader
	inChunkSize
	inChunkEnd // the line end after a chunk's data
	inTrailer
	inBody
	inBodyToEOF
	inChunkData
	inDone
)

type responseFlags uint8

const (
	flagHTTP10 responseFlags = 1 << iota
	flagClose
	flagKeepAlive
	flagLength
	flagCoding // Transfer-Encoding: chunked
)

// Status returns the response's status; 0 until its line was read.
func (p *Response) Status() int { return int(p.status) }

// Body returns how many bytes of the body were read, without chunk framing.
func (p *Response) Body() int64 { return p.body }

// Done reports whether the response is complete.
func (p *Response) Done() bool { return p.state == inDone }

// Persistent reports, once Done, whether another response may follow on the same connection
// (RFC 9112, 9.3).
func (p *Response) Persistent() bool {
	if p.flags&flagHTTP10 != 0 {
		return p.flags&(flagClose|flagKeepAlive) == flagKeepAlive
	}
	return p.flags&flagClose == 0
}

// End processes the end of the stream: 0 if the response is complete.
func (p *Response) End() Reason {
	switch {
	case p.state == inBodyToEOF || p.state == inDone:
		p.state = inDone
		return 0
	case p.line == 0 && p.state == inStatusLine:
		return ClosedEarly
	}
	return Truncated
}

// Feed parses the next piece. It returns how many bytes belong to the response, fewer than
// len(b) only if the response ends inside b, and a reason other than 0 if the response is wrong;
// then nothing more may be fed.
func (p *Response) Feed(b []byte) (int, Reason) {
	rest := b
	for len(rest) > 0 && p.state != inDone {
		if p.state >= inBody {
			rest = rest[p.feedBody(rest):]
			continue
		}
		n, bad := p.feedLine(rest)
		if rest = rest[n:]; bad != 0 {
			return len(b) - len(rest), bad
		}
	}
	return len(b) - len(rest), 0
}

func (p *Response) feedBody(b []byte) int {
	n := len(b)
	if p.state != inBodyToEOF {
		n = int(min(int64(n), p.remaining))
		p.remaining -= int64(n)
	}
	p.body += int64(n)
	switch {
	case p.state == inBodyToEOF || p.remaining > 0:
	case p.state == inChunkData:
		p.state = inChunkEnd
	default:
		p.state = inDone
	}
	return n
}

// feedLine parses one line, or keeps the beginning of one.
func (p *Response) feedLine(b []byte) (int, Reason) {
	n := bytes.IndexByte(b, '\n') + 1
	complete := n > 0
	if !complete {
		n = len(b)
	}
	line := b[:n]
	if !complete || len(p.partial) > 0 {
		p.partial = append(p.partial, line...)
		line = p.partial
	}
	// Another protocol may never end its first line.
	if start := min(len(line), len(statusPrefix)); p.state == inStatusLine && string(line[:start]) != statusPrefix[:start] {
		return n, Malformed
	}
	if p.line += uint32(min(n, maxHead+1)); p.line > maxHead {
		return n, OversizedHead
	}
	if !complete {
		return n, 0
	}
	p.partial = p.partial[:0]
	return n, p.parseLine(line[:len(line)-1])
}

// parseLine parses a line without its line feed. A bare one does not end a chunk's line:
// accepting it lets two parsers see different chunks.
func (p *Response) parseLine(line []byte) Reason {
	text, crlf := bytes.CutSuffix(line, []byte("\r"))
	switch p.state {
	case inStatusLine:
		return p.parseStatus(text)
	case inChunkSize:
		if !crlf {
			return BadFraming
		}
		return p.parseChunkSize(text)
	case inChunkEnd:
		if !crlf || len(text) > 0 {
			return BadFraming
		}
		p.startChunk()
		return 0
	}
	if len(text) == 0 {
		return p.endHead()
	}
	name, value, ok := cutHeader(text)
	if !ok {
		return Malformed
	}
	if p.state == inTrailer {
		return 0
	}
	return p.parseHeader(name, value)
}

const statusPrefix = "HTTP/1."

// parseStatus parses "HTTP/1.x NNN" with or without a reason phrase.
func (p *Response) parseStatus(line []byte) Reason {
	version, rest, _ := bytes.Cut(line[min(len(line), len(statusPrefix)):], []byte(" "))
	code, _, _ := bytes.Cut(bytes.TrimLeft(rest, " "), []byte(" "))
	status, err := strconv.ParseUint(string(code), 10, 16)
	if len(version) != 1 || version[0] < '0' || version[0] > '9' || len(code) != 3 || err != nil || status < 100 {
		return Malformed
	}
	if version[0] == '0' {
		p.flags |= flagHTTP10
	}
	p.status, p.state = uint16(status), inHeader
	return 0
}

// isTokenByte marks the characters of a field name (RFC 9110, 5.6.2).
var isTokenByte = func() (t [256]bool) {
	for c := '!'; c <= '~'; c++ {
		t[c] = !strings.ContainsRune("\"(),/:;<=>?@[\\]{}", c)
	}
	return t
}()

// cutHeader splits a header line; ok is false if it has no valid name.
func cutHeader(line []byte) (name, value []byte, ok bool) {
	name, value, ok = bytes.Cut(line, []byte(":"))
	for _, c := range name {
		ok = ok && isTokenByte[c]
	}
	return name, bytes.Trim(value, " \t\r"), ok && len(name) > 0
}

// is reports whether b is a word, in upper or lower case.
func is(b []byte, word string) bool { return len(b) == len(word) && strings.EqualFold(string(b), word) }

func (p *Response) parseHeader(name, value []byte) Reason {
	switch {
	case is(name, "content-length"):
		n, err := strconv.ParseUint(string(value), 10, 59)
		if err != nil || p.flags&flagLength != 0 {
			return BadFraming
		}
		p.remaining = int64(n)
		p.flags |= flagLength
	case is(name, "transfer-encoding"):
		// HTTP/1.0 has no codings; any but chunked, or several, are not supported.
		if p.flags&flagHTTP10 == 0 && (p.flags&flagCoding != 0 || !is(value, "chunked")) {
			return BadFraming
		}
		p.flags |= flagCoding
	case is(name, "connection"):
		p.flags |= connectionFlags(value)
	}
	return 0
}

func connectionFlags(value []byte) (flags responseFlags) {
	for more := true; more; {
		var option []byte
		option, value, more = bytes.Cut(value, []byte(","))
		switch option = bytes.Trim(option, " \t\r"); {
		case is(option, "close"):
			flags |= flagClose
		case is(option, "keep-alive"):
			flags |= flagKeepAlive
		}
	}
	return flags
}

// endHead determines how the body is framed (RFC 9112, 6.3).
func (p *Response) endHead() Reason {
	switch {
	case p.state == inTrailer, p.status == 101 || p.status == 204 || p.status == 304:
		p.state = inDone
	case p.status < 200: // an interim response: the real one follows
		*p = Response{line: p.line, partial: p.partial}
	case p.flags&(flagCoding|flagHTTP10) == flagCoding:
		p.startChunk()
	case p.flags&flagLength == 0:
		p.state = inBodyToEOF
		p.flags |= flagClose
	case p.remaining == 0:
		p.state = inDone
	default:
		p.state = inBody
	}
	return 0
}

func (p *Response) startChunk() { p.state, p.line = inChunkSize, 0 }

// parseChunkSize parses up to 15 hexadecimal digits, which keep the size inside 60 bits, and
// ignores extensions.
func (p *Response) parseChunkSize(line []byte) Reason {
	digits, _, _ := bytes.Cut(line, []byte(";"))
	digits = bytes.TrimRight(digits, " \t")
	n, err := strconv.ParseUint(string(digits), 16, 60)
	if err != nil || len(digits) > 15 {
		return BadFraming
	}
	p.remaining, p.state = int64(n), inChunkData
	if n == 0 {
		p.state, p.line = inTrailer, 0
	}
	return 0
}

// ServerName returns the Server header in the first bytes of a response, at most 64 bytes of it,
// without what could control a terminal; empty if there is none.
func ServerName(head []byte) string {
	for line := range bytes.SplitSeq(head, []byte("\n")) {
		if name, value, ok := cutHeader(line); ok && is(name, "server") {
			return strings.Map(func(r rune) rune {
				if r > unicode.MaxASCII || !unicode.IsPrint(r) {
					return -1
				}
				return r
			}, string(value[:min(len(value), 64)]))
		}
	}
	return ""
}

// ReadRequest reads the head of one HTTP/1.x request, and reports whether the request asks by name
// to keep the connection, and has no body that would have to be skipped.
func ReadRequest(r *bufio.Reader) (keepAlive bool, err error) {
	flags, body := responseFlags(0), false
	for n := 0; n <= maxHead; {
		line, more, err := r.ReadLine()
		if err != nil {
			return false, err
		}
		requestLine := n == 0
		n += len(line) + len("\r\n")
		whole := !more
		for ; more && n <= maxHead; n += len(line) {
			if line, more, err = r.ReadLine(); err != nil {
				return false, err
			}
		}
		if requestLine || !whole { // every request gets the same answer, and a line as long asks for no other
			continue
		}
		if len(line) == 0 {
			return flags == flagKeepAlive && !body, nil
		}
		switch name, value, ok := cutHeader(line); {
		case !ok:
			return false, errors.New("read request: malformed header")
		case is(name, "connection"):
			flags |= connectionFlags(value)
		case is(name, "transfer-encoding"), is(name, "content-length") && !is(value, "0"):
			body = true
		}
	}
	return false, fmt.Errorf("read request: more than %d bytes of headers", maxHead)
}
