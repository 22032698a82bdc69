package run

import (
	"bytes"

	"github.com/natkit/natkit/internal/load"
	"golang.org/x/sys/unix"
)

// read takes what has arrived. Where the mask says that the FIN is there
// (EPOLLRDHUP) and the response is complete, nothing more is asked of the kernel.
func (w *worker) read(i int32, c *conn, mask uint32) {
	if c.state == draining && mask&unix.EPOLLRDHUP != 0 && mask&unix.EPOLLERR == 0 {
		w.stamp()
		w.finish(i, c)
		return
	}
	for {
		n, errno := w.sys.receive(c.fd, w.buf)
		switch {
		case errno == unix.EAGAIN:
			return
		case errno != 0:
			w.fail(i, c.readPhase(), load.Reason(errno))
			return
		}
		w.stamp()
		if n == 0 {
			w.endOfStream(i, c)
			return
		}
		if !w.feed(i, c, w.buf[:n]) {
			return
		}
		switch {
		case c.state == draining && (mask&unix.EPOLLRDHUP != 0 || !w.serverCloses(c)):
			w.finish(i, c)
			return
		case n == len(w.buf) || mask&unix.EPOLLRDHUP != 0:
			// There may be more: the buffer was full, or the FIN follows.
		default:
			return
		}
	}
}

func (c *conn) readPhase() load.PhaseIndex {
	if c.state == waiting {
		return load.InWait
	}
	return load.InRead
}

// feed hands received bytes to the parser; false where the request has failed.
func (w *worker) feed(i int32, c *conn, b []byte) bool {
	w.tally.Received += int64(len(b))
	switch c.state {
	case waiting:
		c.first = w.now
		c.state = reading
		if w.server == "" {
			w.server = serverName(b)
		}
	case draining:
		w.fail(i, load.InReply, load.Surplus)
		return false
	}
	n, bad := c.resp.Feed(b)
	if bad == 0 && n < len(b) {
		bad = load.Surplus
	}
	if bad != 0 {
		w.fail(i, load.InReply, bad)
		return false
	}
	if c.resp.Done() {
		c.state = draining
	}
	return true
}

// serverName is the Server header of a response's first bytes, at most 64 of its.
func serverName(head []byte) string {
	const name = "\nserver:"
	for at := bytes.IndexByte(head, '\n'); at >= 0 && at+len(name) < len(head); {
		line := head[at:]
		if bytes.EqualFold(line[:len(name)], []byte(name)) {
			value, _, _ := bytes.Cut(line[len(name):], []byte("\n"))
			value = bytes.TrimSpace(value)
			return printable(value[:min(len(value), 64)])
		}
		next := bytes.IndexByte(line[1:], '\n')
		if next < 0 {
			break
		}
		at += next + 1
	}
	return ""
}

// printable leaves out what could steer a terminal.
func printable(b []byte) string {
	return string(bytes.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, b))
}

func (w *worker) endOfStream(i int32, c *conn) {
	if c.state == draining {
		w.finish(i, c)
		return
	}
	switch bad := c.resp.End(); bad {
	case 0:
		w.finish(i, c)
	case load.ClosedEarly:
		w.fail(i, load.InWait, bad)
	default:
		w.fail(i, load.InRead, bad)
	}
}
