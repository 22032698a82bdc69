package load

import (
	"bufio"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestRequest(t *testing.T) {
	for _, tt := range []struct {
		name, stream string
		keepAlive    bool
		rest         int
	}{
		{"ab", "GET / HTTP/1.0\r\nHost: a\r\n\r\n", false, 0},
		{"ab -k", "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\nHost: a\r\n\r\n", true, 0},
		{"1.1 without a word", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", false, 0},
		{"close wins", "GET / HTTP/1.1\r\nConnection: keep-alive, close\r\n\r\n", false, 0},
		{"a body is not read past", "POST / HTTP/1.1\r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\nabc", false, 3},
		{"a long header", "GET / HTTP/1.1\r\nCookie: " + strings.Repeat("x", 50_000) + "\r\nConnection: keep-alive\r\n\r\nGET", true, 3},
		{"a long path", "GET /" + strings.Repeat("x", 50_000) + " HTTP/1.1\r\nConnection: keep-alive\r\n\r\n", true, 0},
		{"pipelined", "GET / HTTP/1.1\r\nConnection: keep-alive\r\n\r\nGET", true, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := bufio.NewReader(iotest.OneByteReader(strings.NewReader(tt.stream)))
			keep, err := ReadRequest(r)
			rest, _ := io.ReadAll(r)
			if err != nil || keep != tt.keepAlive || len(rest) != tt.rest {
				t.Errorf("keep-alive %v, %d bytes left, error %v", keep, len(rest), err)
			}
		})
	}
}
