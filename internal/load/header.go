package load

// Header names that decide the framing, and tokens that occur in their values.
// They are recognised while they pass by, so that a name split over two reads
// needs no memory.
const (
	nameLength = iota
	nameCoding
	nameConnection
	names
)

const (
	tokenClose = iota
	tokenKeepAlive
	tokenChunked
	tokens
)

const (
	allNames  = 1<<names - 1
	allTokens = 1<<tokens - 1
)

var nameText = [names]string{"content-length", "transfer-encoding", "connection"}
var tokenText = [tokens]string{"close", "keep-alive", "chunked"}

// narrow drops the candidates that do not have c at pos.
func narrow(texts *[3]string, candidates, pos, c uint8) uint8 {
	if c >= 'A' && c <= 'Z' {
		c |= 0x20
	}
	for i := range texts {
		if int(pos) >= len(texts[i]) || texts[i][pos] != c {
			candidates &^= 1 << i
		}
	}
	return candidates
}

// whole is the candidate that is exactly pos bytes long, or -1.
func whole(texts *[3]string, candidates, pos uint8) int {
	for i := range texts {
		if candidates&(1<<i) != 0 && len(texts[i]) == int(pos) {
			return i
		}
	}
	return -1
}

// isTokenByte marks the characters of a field name (RFC 9110, 5.6.2).
var isTokenByte = func() (t [256]bool) {
	for c := '0'; c <= '9'; c++ {
		t[c] = true
	}
	for c := 'a'; c <= 'z'; c++ {
		t[c], t[c-'a'+'A'] = true, true
	}
	for _, c := range "!#$%&'*+-.^_`|~" {
		t[c] = true
	}
	return t
}()

func (p *Response) nameByte(c byte) Reason {
	if isTokenByte[c] {
		if p.candidates != 0 {
			p.candidates = narrow(&nameText, p.candidates, p.pos, c)
			p.pos++
		}
		return 0
	}
	if c != ':' || p.pos == 0 {
		return Malformed
	}
	name := whole(&nameText, p.candidates, p.pos)
	p.pos, p.sub, p.candidates = 0, beforeToken, allTokens
	p.flags &^= flagInCoding
	switch {
	case name < 0 || p.flags&flagTrailer != 0:
		p.state = inSkippedLine
	case name == nameLength:
		if p.flags&flagLength != 0 {
			return BadFraming
		}
		p.flags |= flagLength
		p.remaining, p.state = 0, inLength
	case name == nameCoding:
		if p.flags&flagCoding != 0 && p.flags&flagHTTP10 == 0 {
			return BadFraming
		}
		p.flags |= flagCoding | flagInCoding
		p.state = inTokens
	default:
		p.state = inTokens
	}
	return 0
}

// Where in a value the parser is.
const (
	beforeToken = iota
	inToken
	afterToken
)

func (p *Response) lengthByte(c byte) Reason {
	switch {
	case c == '\n':
		if p.sub == beforeToken {
			return BadFraming
		}
		p.state = inLineStart
	case c == ' ' || c == '\t' || c == '\r':
		if p.sub == inToken {
			p.sub = afterToken
		}
	case c >= '0' && c <= '9' && p.sub != afterToken && p.remaining < 1<<59:
		p.sub = inToken
		p.remaining = p.remaining*10 + int64(c-'0')
	default:
		return BadFraming
	}
	return 0
}

// tokenByte reads a list of tokens, separated by commas.
func (p *Response) tokenByte(c byte) Reason {
	switch c {
	case ' ', '\t', '\r':
		if p.sub == inToken {
			p.sub = afterToken
		}
	case ',', '\n':
		p.endToken(c)
		p.sub, p.pos, p.candidates = beforeToken, 0, allTokens
		if c == '\n' {
			p.state = inLineStart
		}
	default:
		if p.sub == afterToken {
			p.candidates = 0 // "close x" is not "close"
			return 0
		}
		p.sub = inToken
		if p.candidates != 0 {
			p.candidates = narrow(&tokenText, p.candidates, p.pos, c)
			p.pos++
		}
	}
	return 0
}

func (p *Response) endToken(end byte) {
	token := whole(&tokenText, p.candidates, p.pos)
	if p.flags&flagInCoding != 0 {
		if token == tokenChunked && end == '\n' && p.flags&flagChunked == 0 {
			p.flags |= flagChunked
		} else {
			p.flags |= flagBadCode
		}
		return
	}
	switch token {
	case tokenClose:
		p.flags |= flagClose
	case tokenKeepAlive:
		p.flags |= flagKeepAlive
	}
}

// Request reads the head of one HTTP/1.x request, in pieces of any size: where it
// ends and whether it asks to keep the connection. It does not allocate. The zero
// value is ready.
type Request struct{ head Response }

// Feed reads on. It returns how many bytes belong to the head, fewer than len(b)
// only where the head ends inside b, and a reason other than 0 where it is not
// HTTP.
func (q *Request) Feed(b []byte) (int, Reason) {
	if q.head.flags == 0 {
		// The request line may say anything; every request gets the same answer.
		q.head = Response{flags: flagRequest, state: inSkippedLine}
	}
	return q.head.Feed(b)
}

// Done reports whether the head is complete.
func (q *Request) Done() bool { return q.head.state == inDone }

// KeepAlive reports, once Done, whether the request asks by name to keep the
// connection, and has no body that would have to be read past.
func (q *Request) KeepAlive() bool {
	h := &q.head
	body := h.flags&flagCoding != 0 || h.flags&flagLength != 0 && h.remaining > 0
	return h.flags&flagKeepAlive != 0 && h.flags&flagClose == 0 && !body
}
