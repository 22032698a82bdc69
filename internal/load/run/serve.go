package run

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/permit"
)

// ServeConfig is how the built-in server runs. Only Listen must be given.
type ServeConfig struct {
	// Listen is where; port 0 takes a free one.
	Listen netip.AddrPort
	// Netns is where it listens; nil for the caller's.
	Netns *netns.Handle
	// Page is what every request gets; a short text if it is empty.
	Page []byte
	// Ready is called once, when connections are accepted, with the bound address; may be nil.
	Ready func(netip.AddrPort)
}

const (
	// idleTimeout ends connections on which nothing comes.
	idleTimeout = 60 * time.Second
	// acceptPause is the time until the next try after a connection could not be accepted, for
	// lack of file descriptors or memory.
	acceptPause = 5 * time.Millisecond
	maxPage     = 16 << 20
)

var defaultPage = []byte("<!doctype html><title>natkit</title><p>This is natkit's built-in server.\n")

// server answers HTTP requests, a goroutine per connection.
type server struct {
	closed  []byte // a response after which the connection is closed
	kept    []byte
	readers sync.Pool

	mu    sync.Mutex
	conns map[net.Conn]bool // nil when it has ended
	all   sync.WaitGroup
}

// Serve answers every HTTP/1.x request with a small page until ctx ends, then returns nil. It
// closes after each response unless the request asks for keep-alive by name. It returns an error
// that wraps unix.EADDRINUSE if another server has the address.
func Serve(ctx context.Context, cfg ServeConfig) error {
	if err := permit.Change("serve"); err != nil {
		return err
	}
	fail := func(err error) error { return fmt.Errorf("serve on %v: %w", cfg.Listen, err) }
	if !cfg.Listen.IsValid() {
		return errors.New("serve: no address to listen on; give ADDRESS:PORT")
	}
	if len(cfg.Page) > maxPage {
		return fail(fmt.Errorf("a page of %d bytes is too long: at most %d", len(cfg.Page), maxPage))
	}
	network := "tcp"
	if cfg.Listen.Addr().Unmap().Is4() { // else 0.0.0.0 includes IPv6
		network = "tcp4"
	}
	var listener net.Listener
	plain := net.ListenConfig{KeepAlive: -1}
	plain.SetMultipathTCP(false)
	if err := cfg.Netns.Do(func() (err error) {
		listener, err = plain.Listen(ctx, network, cfg.Listen.String())
		return err
	}); err != nil {
		return fail(bindError(err))
	}
	if cfg.Ready != nil {
		cfg.Ready(netip.AddrPortFrom(cfg.Listen.Addr(), listener.Addr().(*net.TCPAddr).AddrPort().Port()))
	}
	newServer(cfg.Page).serve(ctx, listener)
	return nil
}

func newServer(page []byte) *server {
	if len(page) == 0 {
		page = defaultPage
	}
	response := func(connection string) []byte {
		head := fmt.Sprintf("HTTP/1.1 200 OK\r\nServer: natkit\r\nContent-Type: text/html\r\nContent-Length: %d\r\nConnection: %s\r\n\r\n",
			len(page), connection)
		return append([]byte(head), page...)
	}
	return &server{
		closed: response("close"), kept: response("keep-alive"), conns: map[net.Conn]bool{},
		readers: sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 8<<10) }},
	}
}

// serve accepts connections until ctx ends, and closes all.
func (s *server) serve(ctx context.Context, listener net.Listener) {
	defer s.all.Wait()
	context.AfterFunc(ctx, func() {
		listener.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.conns {
			c.Close()
		}
		s.conns = nil
	})
	for {
		switch c, err := listener.Accept(); {
		case err == nil:
			if s.add(c) {
				s.all.Go(func() { s.answer(c) })
			}
		case ctx.Err() != nil:
			return
		default:
			time.Sleep(acceptPause)
		}
	}
}

func (s *server) add(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == nil {
		c.Close()
		return false
	}
	s.conns[c] = true
	return true
}

// answer answers the requests of one connection, and closes it.
func (s *server) answer(c net.Conn) {
	r := s.readers.Get().(*bufio.Reader)
	r.Reset(c)
	defer func() {
		c.Close()
		s.readers.Put(r)
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}()
	for keep := true; keep; {
		if err := c.SetDeadline(time.Now().Add(idleTimeout)); err != nil {
			return
		}
		var err error
		if keep, err = load.ReadRequest(r); err != nil {
			return
		}
		response := s.closed
		if keep {
			response = s.kept
		}
		if _, err := c.Write(response); err != nil {
			return
		}
	}
}
