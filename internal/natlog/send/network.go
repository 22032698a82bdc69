//go:build linux

package send

import (
	"context"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/natkit/natkit/internal/natlog"
)

// Bounds of connections. A receiver that takes nothing for so long is given up, and tried again.
const (
	dialTimeout  = 5 * time.Second
	writeTimeout = 10 * time.Second
)

// wire is a socket to a receiver, which is opened when it is needed.
type wire struct {
	network, address string
	conn             net.Conn
	// gone is closed when the other side has closed a connection: what is written then is lost.
	gone chan struct{}
}

// connect reports whether the socket is a new one.
func (w *wire) connect(ctx context.Context) (fresh bool, err error) {
	if w.conn != nil {
		select {
		case <-w.gone:
			w.close()
		default:
			return false, nil
		}
	}
	d := net.Dialer{Timeout: dialTimeout}
	if w.conn, err = d.DialContext(ctx, w.network, w.address); err != nil {
		w.conn = nil
		return false, err
	}
	w.gone = make(chan struct{})
	if w.network == "tcp" {
		go func(c net.Conn, gone chan struct{}) { // nothing is answered: this ends with the connection
			_, _ = io.Copy(io.Discard, c)
			close(gone)
		}(w.conn, w.gone)
	}
	return true, nil
}

func (w *wire) close() {
	if w.conn != nil {
		w.conn.Close()
		w.conn = nil
	}
}

// write writes, and closes the socket after an error.
func (w *wire) write(ctx context.Context, b []byte) (int, error) {
	_ = w.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	conn := w.conn
	stop := context.AfterFunc(ctx, func() { _ = conn.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	n, err := w.conn.Write(b)
	if err != nil {
		w.close()
	}
	return n, err
}

// Close ends a connection after what was written.
func (w *wire) Close() error {
	w.close()
	return nil
}

// Syslog sends messages of RFC 5424: one in a datagram (RFC 5426), or one after the other with its length before it over
// TCP (RFC 6587, octet counting).
type Syslog struct {
	wire
	counts bool
	text   []byte
	ends   []int
}

// NewSyslog sends over the network tcp, udp or unixgram.
func NewSyslog(network, address string) *Syslog {
	return &Syslog{wire: wire{network: network, address: address}, counts: network == "tcp"}
}

// Send sends messages. Over TCP those that it counts were taken by the kernel: if the connection ends, the receiver may lack
// the last of them.
func (s *Syslog) Send(ctx context.Context, records []natlog.Record) (int, error) {
	if _, err := s.connect(ctx); err != nil {
		return 0, err
	}
	pid := os.Getpid()
	if !s.counts {
		for i := range records {
			s.text = records[i].AppendSyslog(s.text[:0], pid)
			if _, err := s.write(ctx, s.text); err != nil {
				return i, err
			}
		}
		return len(records), nil
	}
	s.text, s.ends = s.text[:0], s.ends[:0]
	var one []byte
	for i := range records {
		one = records[i].AppendSyslog(one[:0], pid)
		s.text = append(append(strconv.AppendInt(s.text, int64(len(one)), 10), ' '), one...)
		s.ends = append(s.ends, len(s.text))
	}
	n, err := s.write(ctx, s.text)
	whole, found := slices.BinarySearch(s.ends, n)
	if found {
		whole++
	}
	return whole, err
}

// templatesEvery is how often templates are sent over UDP, where one may be lost (RFC 7011, section 8.4).
const templatesEvery = time.Minute

// Collector sends IPFIX messages over UDP or TCP.
type Collector struct {
	wire
	x    natlog.IPFIX
	sent time.Time
	now  func() time.Time
}

// NewCollector sends over the network udp or tcp, with a number of the observation domain.
func NewCollector(network, address string, domain uint32, now func() time.Time) *Collector {
	return &Collector{wire: wire{network: network, address: address}, x: natlog.IPFIX{Domain: domain, MaxMessage: natlog.UsualMessage}, now: now}
}

// Send sends messages.
func (c *Collector) Send(ctx context.Context, records []natlog.Record) (int, error) {
	fresh, err := c.connect(ctx)
	if err != nil {
		return 0, err
	}
	if fresh {
		c.x = natlog.IPFIX{Domain: c.x.Domain, MaxMessage: c.x.MaxMessage} // counts begin with the session
	}
	if now := c.now(); fresh || c.network == "udp" && now.Sub(c.sent) >= templatesEvery {
		if _, err := c.write(ctx, c.x.Templates(now)); err != nil {
			return 0, err
		}
		c.sent = now
	}
	return c.x.Messages(records, func(message []byte) error {
		_, err := c.write(ctx, message)
		return err
	})
}
