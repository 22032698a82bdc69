package load

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

// KeepAlive tells, once Done, whether the request asks by name to keep the
// connection, and has no body that would have to be read past.
func (q *Request) KeepAlive() bool {
	h := &q.head
	body := h.flags&flagCoding != 0 || h.flags&flagLength != 0 && h.remaining > 0
	return h.flags&flagKeepAlive != 0 && h.flags&flagClose == 0 && !body
}
