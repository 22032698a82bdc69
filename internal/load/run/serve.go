package run

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/thread"
)

// ServeConfig is how the built-in server runs. Only Listen must be given.
type ServeConfig struct {
	// Listen is where; port 0 takes a free one.
	Listen netip.AddrPort
	// Netns is where it listens; nil for the caller's.
	Netns *netns.Handle
	// Workers is the number of threads; 0 means one per CPU.
	Workers int
	// Page is what every request gets; a short text where it is empty.
	Page []byte
	// Ready is called once, when connections are accepted, with the bound
	// address; may be nil.
	Ready func(netip.AddrPort)
}

const (
	// backlog of each worker's socket; the kernel caps it at net.core.somaxconn.
	backlog = 65535
	// idleTimeout ends connections on which nothing comes.
	idleTimeout = 60 * time.Second
	maxPage     = 16 << 20
)

var defaultPage = []byte("<!doctype html><title>natkit</title><p>This is natkit's built-in server.\n")

// server is what its workers share.
type server struct {
	listen   netip.AddrPort
	started  time.Time
	files    int
	closed   []byte // a response after which the connection is closed
	kept     []byte
	stop     atomic.Bool
	stopFile int
}

// Serve answers every HTTP/1.x request with a small page until ctx ends, then
// returns nil. It closes after each response unless the request asks for
// keep-alive by name. It returns an error that wraps unix.EADDRINUSE where
// another server has the address.
func Serve(ctx context.Context, cfg ServeConfig) error {
	fail := func(err error) error { return fmt.Errorf("serve on %v: %w", cfg.Listen, err) }
	if !cfg.Listen.IsValid() {
		return errors.New("serve: no address to listen on; give ADDRESS:PORT")
	}
	if len(cfg.Page) > maxPage {
		return fail(fmt.Errorf("a page of %d bytes is too long: at most %d", len(cfg.Page), maxPage))
	}
	n := cfg.Workers
	if n <= 0 {
		n = runtime.NumCPU()
	}
	s, err := newServer(cfg)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(s.stopFile)
	sockets, err := listenAll(cfg.Netns, unix.SOCK_STREAM, cfg.Listen, n)
	if err != nil {
		return fail(err)
	}
	s.listen = sockets.addr
	defer moreProcs(n)()
	if err := s.serve(ctx, cfg, sockets.fds); err != nil {
		return fail(err)
	}
	return nil
}

func newServer(cfg ServeConfig) (*server, error) {
	files, err := fileLimit()
	if err != nil {
		return nil, err
	}
	page := cfg.Page
	if len(page) == 0 {
		page = defaultPage
	}
	answer := func(connection string) []byte {
		head := fmt.Sprintf("HTTP/1.1 200 OK\r\nServer: natkit\r\nContent-Type: text/html\r\nContent-Length: %d\r\nConnection: %s\r\n\r\n",
			len(page), connection)
		return append([]byte(head), page...)
	}
	s := &server{started: time.Now(), files: files, closed: answer("close"), kept: answer("keep-alive")}
	if s.stopFile, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("make an eventfd: %w", err)
	}
	return s, nil
}

// serve runs one worker per listening socket until ctx ends. It owns the sockets.
func (s *server) serve(ctx context.Context, cfg ServeConfig, sockets []int) error {
	var done sync.WaitGroup
	ready := make(chan error, len(sockets))
	for _, fd := range sockets {
		done.Go(func() {
			_ = thread.Do(func() error { // with a file table of its own
				w := newServeWorker(s, int32(fd))
				err := w.setUp()
				ready <- err
				if err == nil {
					w.loop()
				}
				return nil
			})
		})
	}
	var err error
	for range sockets {
		err = errors.Join(err, <-ready)
	}
	// Each worker has a copy of its own.
	for _, fd := range sockets {
		unix.Close(fd)
	}
	if err == nil {
		if cfg.Ready != nil {
			cfg.Ready(s.listen)
		}
		<-ctx.Done()
	}
	s.stop.Store(true)
	one := [8]byte{1}
	_, _ = unix.Write(s.stopFile, one[:])
	done.Wait()
	return err
}
