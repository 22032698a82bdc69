package apply

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/natkit/natkit/internal/testutil"
)

// service is one that runs, with a service manager that listens.
type service struct {
	*world
	file     string
	reload   chan os.Signal
	stop     context.CancelFunc
	ended    chan error
	mu       sync.Mutex
	lines    []string
	messages []string
}

func (w *world) serve(text string) *service {
	w.t.Helper()
	s := &service{world: w, file: filepath.Join(w.t.TempDir(), "gateway.yaml"), reload: make(chan os.Signal, 1), ended: make(chan error, 1)}
	s.write(text)
	s.begin(nil)
	return s
}

// begin runs the service, and waits until it is ready.
func (s *service) begin(edit func(*Service)) {
	s.t.Helper()
	socket := s.listen()
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	svc := &Service{Host: s.Host, File: s.file, Reload: s.reload, Look: 50 * time.Millisecond, Log: s.log, Getenv: func(name string) string {
		return map[string]string{"NOTIFY_SOCKET": socket, "WATCHDOG_USEC": "200000", "WATCHDOG_PID": strconv.Itoa(os.Getpid())}[name]
	}}
	if edit != nil {
		edit(svc)
	}
	s.mu.Lock()
	s.messages = nil
	s.mu.Unlock()
	go func() { s.ended <- svc.Run(ctx) }()
	s.t.Cleanup(stop)
	within(s.t, 30*time.Second, "ready", func() bool {
		select {
		case err := <-s.ended:
			s.t.Fatalf("ended: %v; it said %q", err, s.said())
		default:
		}
		return s.notified(wordReady) > 0
	})
}

// listen receives what the service sends to its manager.
func (s *service) listen() (path string) {
	s.t.Helper()
	path = filepath.Join(s.t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	go func() {
		for buf := make([]byte, 4096); ; {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			s.mu.Lock()
			s.messages = append(s.messages, string(buf[:n]))
			s.mu.Unlock()
		}
	}()
	return path
}

func (s *service) notified(word string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.messages {
		n += strings.Count(m, word)
	}
	return n
}

func (s *service) log(line string) { s.mu.Lock(); s.lines = append(s.lines, line); s.mu.Unlock() }

func (s *service) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.lines, "\n")
}

func (s *service) waitSaid(words string) {
	s.t.Helper()
	s.waitAgain(words, 1)
}

// waitAgain waits until something has been said so many times.
func (s *service) waitAgain(words string, times int) {
	s.t.Helper()
	defer func() {
		if s.t.Failed() {
			s.t.Logf("it said:\n%s", s.said())
		}
	}()
	within(s.t, 30*time.Second, "says "+words, func() bool { return strings.Count(s.said(), words) >= times })
}

func (s *service) waitValue(what string, is func(string) bool) {
	s.t.Helper()
	within(s.t, 30*time.Second, what, func() bool { return is(s.value()) })
}

// write replaces the file as editors do.
func (s *service) write(text string) {
	s.t.Helper()
	if err := os.WriteFile(s.file+".new", []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(s.file+".new", s.file); err != nil {
		s.t.Fatal(err)
	}
}

// end is SIGTERM.
func (s *service) end() {
	s.t.Helper()
	s.stop()
	select {
	case err := <-s.ended:
		if err != nil {
			s.t.Errorf("ended with %v", err)
		}
	case <-time.After(testutil.Patience(30 * time.Second)):
		s.t.Fatal("does not end")
	}
}
