package run

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestServeAnswersNetHTTP(t *testing.T) {
	addr := startServe(t, ServeConfig{Page: []byte("hello")})
	resp, err := http.Get("http://" + addr.String() + "/any/path")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || string(body) != "hello" || resp.StatusCode != 200 || !resp.Close {
		t.Errorf("%q, %v, %+v", body, err, resp)
	}
}

// dial connects and sends text; everything has to be over by the deadline.
func dial(t *testing.T, addr netip.AddrPort, text string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(deadline))
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn)
}

func TestServeKeepsAndCloses(t *testing.T) {
	addr := startServe(t, ServeConfig{Page: []byte("x")})
	keep := "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"
	for _, tt := range []struct {
		name, sent string
		responses  int
	}{
		{"HTTP/1.0", "GET / HTTP/1.0\r\n\r\n", 1},
		{"HTTP/1.1 without a word", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", 1},
		{"pipelined", keep + keep + "GET / HTTP/1.0\r\n\r\n", 3},
		{"after a body nothing is guessed", "POST / HTTP/1.1\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nab", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := dial(t, addr, tt.sent)
			r := bufio.NewReader(c)
			for i := range tt.responses {
				resp, err := http.ReadResponse(r, nil)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, resp.Body); err != nil {
					t.Fatal(err)
				}
				if last := i == tt.responses-1; resp.Close != last {
					t.Errorf("response %d says close: %v", i, resp.Close)
				}
			}
			// A body that was not read may turn the FIN into a reset.
			if rest, err := io.ReadAll(r); len(rest) > 0 || err != nil && !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("after the responses: %q, %v", rest, err)
			}
		})
	}
}

// TestServeInPieces has a request that comes byte by byte and a page larger than
// the socket's buffers.
func TestServeInPieces(t *testing.T) {
	page := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	addr := startServe(t, ServeConfig{Page: page})
	c := dial(t, addr, "")
	for _, b := range []byte("GET / HTTP/1.0\r\nHost: a\r\n\r\n") {
		if _, err := c.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(body, page) {
		t.Errorf("%d bytes, %v", len(body), err)
	}
}

func TestServeEndsBadRequests(t *testing.T) {
	addr := startServe(t, ServeConfig{})
	for name, sent := range map[string]string{
		"no colon":     "GET / HTTP/1.0\r\nnonsense\r\n\r\n",
		"endless line": strings.Repeat("x", 200<<10),
		"a bare FIN":   "",
	} {
		c := dial(t, addr, "")
		io.WriteString(c, sent) // the server may end it in the middle
		c.CloseWrite()
		if got, err := io.ReadAll(c); len(got) > 0 {
			t.Errorf("%s: answered %q, %v", name, got, err)
		}
	}
	if resp, err := http.Get("http://" + addr.String()); err != nil || resp.StatusCode != 200 {
		t.Errorf("after that: %v", err)
	} else {
		resp.Body.Close()
	}
}

func TestServeErrors(t *testing.T) {
	addr := startServe(t, ServeConfig{})
	before := openFileCount(t)
	for _, tt := range []struct {
		cfg  ServeConfig
		want string
		is   error
	}{
		{ServeConfig{Listen: addr}, "serve on " + addr.String() + ": another server listens there", unix.EADDRINUSE},
		{ServeConfig{Listen: netip.MustParseAddrPort("203.0.113.1:8080")}, "not an address of this machine", unix.EADDRNOTAVAIL},
		{ServeConfig{}, "no address", nil},
		{ServeConfig{Listen: netip.MustParseAddrPort("127.0.0.1:0"), Page: make([]byte, maxPage+1)}, "too long", nil},
	} {
		err := Serve(t.Context(), tt.cfg)
		if err == nil || !strings.Contains(err.Error(), tt.want) || tt.is != nil && !errors.Is(err, tt.is) {
			t.Errorf("error %v, want one with %q", err, tt.want)
		}
	}
	noMoreFiles(t, before)
}

// TestServeEnds closes its port and its connections with its context.
func TestServeEnds(t *testing.T) {
	before := openFileCount(t)
	ctx, cancel := context.WithCancel(t.Context())
	ready := make(chan netip.AddrPort, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- Serve(ctx, ServeConfig{
			Listen: netip.MustParseAddrPort("127.0.0.1:0"),
			Ready:  func(a netip.AddrPort) { ready <- a },
		})
	}()
	addr := <-ready
	c, err := net.Dial("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "GET / HT"); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	c.SetDeadline(time.Now().Add(deadline))
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the connection stays: %v", err)
	}
	c.Close()
	if c, err := net.Dial("tcp", addr.String()); err == nil {
		c.Close()
		t.Error("the port is still open")
	}
	noMoreFiles(t, before)
}
