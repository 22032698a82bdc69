package load

import "bytes"

// maxHead bounds a response head, and the framing lines between two chunks.
const maxHead = 64 << 10

// Response reads one HTTP/1.x response to a GET, in pieces of any size, and
// keeps nothing of it but what a load generator needs. It does not allocate; the
// zero value is ready. RFC 9112 gives the framing; what that leaves open is
// refused rather than guessed.
type Response struct {
	// remaining bytes of the body or of the current chunk.
	remaining int64
	body      int64
	line      uint32 // bytes of the head, or of the framing lines since the last chunk
	status    uint16
	state     parseState
	// candidates are names that the bytes so far can still become; pos is how
	// many bytes there were.
	candidates uint8
	pos        uint8
	sub        uint8
	flags      responseFlags
}

type parseState uint8

const (
	inStatusLine parseState = iota
	inSkippedLine
	inLineStart
	inHeadEnd // CR of the empty line seen
	inName
	inLength
	inTokens
	inBody
	inBodyToEOF
	inChunkSize
	inChunkExtension
	inChunkLineEnd // CR of a chunk's line seen
	inChunkData
	inChunkDataCR
	inChunkDataLF
	inDone
)

type responseFlags uint16

const (
	flagHTTP10 responseFlags = 1 << iota
	flagClose
	flagKeepAlive
	flagLength
	flagCoding   // Transfer-Encoding seen
	flagChunked  // and its value is "chunked"
	flagBadCode  // and there is something else in it
	flagInCoding // the tokens now read are Transfer-Encoding's
	flagTrailer
	flagToEOF
	flagRequest // the head is a request's
)

// Status of the response; 0 until its line was read.
func (p *Response) Status() int { return int(p.status) }

// Body is how many bytes of the body were read, chunk framing not counted.
func (p *Response) Body() int64 { return p.body }

// Done reports whether the response is complete.
func (p *Response) Done() bool { return p.state == inDone }

// Started reports whether any byte was read.
func (p *Response) Started() bool { return p.state != inStatusLine || p.pos > 0 || p.line > 0 }

// Persistent reports, once Done, whether another response may follow on the same
// connection (RFC 9112, 9.3).
func (p *Response) Persistent() bool {
	switch {
	case p.flags&(flagClose|flagToEOF) != 0:
		return false
	case p.flags&flagHTTP10 != 0:
		return p.flags&flagKeepAlive != 0
	}
	return true
}

// End says what the end of the stream means at this point: 0 where the response
// is complete.
func (p *Response) End() Reason {
	switch {
	case p.state == inBodyToEOF:
		p.state = inDone
		return 0
	case p.state == inDone:
		return 0
	case !p.Started():
		return ClosedEarly
	}
	return Truncated
}

// Feed reads on. It returns how many bytes belong to the response, fewer than
// len(b) only where the response ends inside b, and a reason other than 0 where
// the response is wrong; then nothing more may be fed.
func (p *Response) Feed(b []byte) (int, Reason) {
	i := 0
	for i < len(b) && p.state != inDone {
		if p.state >= inBody {
			n, bad := p.feedBody(b[i:])
			if i += n; bad != 0 {
				return i, bad
			}
			continue
		}
		switch {
		case p.state == inSkippedLine:
			i += p.skipLine(b[i:])
		case p.state == inName && p.candidates == 0 && isTokenByte[b[i]]:
			i += p.skipName(b[i:])
		default:
			if bad := p.headByte(b[i]); bad != 0 {
				return i, bad
			}
			i++
			p.line++
		}
		if p.line > maxHead {
			return i, OversizedHead
		}
	}
	return i, 0
}

func (p *Response) skipLine(b []byte) int {
	n := bytes.IndexByte(b, '\n') + 1
	if n == 0 {
		n = len(b)
	} else {
		p.state = inLineStart
	}
	p.line += uint32(min(n, maxHead+1))
	return n
}

// skipName passes by the rest of a name that does not matter.
func (p *Response) skipName(b []byte) int {
	n := 1
	for n < len(b) && isTokenByte[b[n]] {
		n++
	}
	p.line += uint32(min(n, maxHead+1))
	return n
}

func (p *Response) headByte(c byte) Reason {
	switch p.state {
	case inStatusLine:
		return p.statusByte(c)
	case inLineStart:
		switch c {
		case '\r':
			p.state = inHeadEnd
			return 0
		case '\n':
			return p.endHead()
		}
		p.state, p.candidates, p.pos = inName, allNames, 0
		return p.nameByte(c)
	case inHeadEnd:
		if c != '\n' {
			return Malformed
		}
		return p.endHead()
	case inName:
		return p.nameByte(c)
	case inLength:
		return p.lengthByte(c)
	default:
		return p.tokenByte(c)
	}
}

const statusPrefix = "HTTP/1."

// statusByte reads "HTTP/1.x NNN" and leaves the reason phrase to skipLine.
func (p *Response) statusByte(c byte) Reason {
	const version, blank = uint8(len(statusPrefix)), uint8(len(statusPrefix)) + 1
	switch {
	case p.pos < version:
		if c != statusPrefix[p.pos] {
			return Malformed
		}
	case p.pos == version:
		if c < '0' || c > '9' {
			return Malformed
		}
		if c == '0' {
			p.flags |= flagHTTP10
		}
	case p.pos == blank:
		if c != ' ' {
			return Malformed
		}
	case p.pos <= blank+3:
		if c == ' ' && p.pos == blank+1 {
			return 0 // several blanks
		}
		if c < '0' || c > '9' {
			return Malformed
		}
		p.status = p.status*10 + uint16(c-'0')
	default:
		return p.endStatus(c)
	}
	p.pos++
	return 0
}

func (p *Response) endStatus(c byte) Reason {
	if p.status < 100 {
		return Malformed
	}
	switch c {
	case '\n':
		p.state = inLineStart
	case ' ', '\r':
		p.state = inSkippedLine
	default:
		return Malformed
	}
	return 0
}

// endHead decides how the body is framed (RFC 9112, 6.3).
func (p *Response) endHead() Reason {
	if p.flags&(flagTrailer|flagRequest) != 0 {
		p.state = inDone
		return 0
	}
	if p.flags&flagHTTP10 == 0 && p.flags&flagCoding != 0 && p.flags&(flagChunked|flagBadCode) != flagChunked {
		return BadFraming
	}
	switch {
	case p.status < 200 && p.status != 101:
		// An interim response: the real one follows.
		*p = Response{line: p.line}
	case p.status == 101 || p.status == 204 || p.status == 304:
		p.state = inDone
	case p.flags&(flagCoding|flagHTTP10) == flagCoding:
		p.startChunk()
	case p.flags&flagLength == 0:
		p.state = inBodyToEOF
		p.flags |= flagToEOF
	case p.remaining == 0:
		p.state = inDone
	default:
		p.state = inBody
	}
	return 0
}

func (p *Response) startChunk() {
	p.state, p.remaining, p.pos, p.sub, p.line = inChunkSize, 0, 0, 0, 0
}

func (p *Response) feedBody(b []byte) (int, Reason) {
	switch p.state {
	case inBodyToEOF:
		p.body += int64(len(b))
		return len(b), 0
	case inBody, inChunkData:
		n := int(min(int64(len(b)), p.remaining))
		p.body += int64(n)
		if p.remaining -= int64(n); p.remaining == 0 {
			// inDone after inBody, the chunk's line end after inChunkData.
			if p.state == inBody {
				p.state = inDone
			} else {
				p.state = inChunkDataCR
			}
		}
		return n, 0
	}
	bad := p.chunkByte(b[0])
	if bad != 0 {
		return 0, bad
	}
	if p.line++; p.line > maxHead {
		return 1, OversizedHead
	}
	return 1, 0
}

// chunkByte reads a chunk's size line and the line end after its data. A bare LF
// is not a line end here: accepting one lets two parsers see different chunks.
func (p *Response) chunkByte(c byte) Reason {
	switch p.state {
	case inChunkSize:
		return p.chunkSizeByte(c)
	case inChunkExtension:
		switch c {
		case '\r':
			p.state = inChunkLineEnd
		case '\n':
			return BadFraming
		}
		return 0
	case inChunkLineEnd:
		if c != '\n' {
			return BadFraming
		}
		if p.state = inChunkData; p.remaining == 0 {
			p.flags |= flagTrailer
			p.state, p.line = inLineStart, 0
		}
		return 0
	case inChunkDataCR:
		if c != '\r' {
			return BadFraming
		}
		p.state = inChunkDataLF
		return 0
	default: // inChunkDataLF
		if c != '\n' {
			return BadFraming
		}
		p.startChunk()
		return 0
	}
}

func (p *Response) chunkSizeByte(c byte) Reason {
	digit, isHex := hexDigit(c)
	switch {
	case isHex && p.sub == 0:
		// 15 digits keep the size inside 60 bits.
		if p.pos++; p.pos > 15 {
			return BadFraming
		}
		p.remaining = p.remaining<<4 | int64(digit)
	case p.pos == 0:
		return BadFraming
	case c == ' ' || c == '\t':
		p.sub = 1
	case c == ';' && p.sub == 0:
		p.state = inChunkExtension
	case c == '\r':
		p.state = inChunkLineEnd
	default:
		return BadFraming
	}
	return 0
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return c | 0x20 - 'a' + 10, true
	}
	return 0, false
}
