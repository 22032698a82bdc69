package load

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
