package load

import "testing"

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
		{"pipelined", "GET / HTTP/1.1\r\nConnection: keep-alive\r\n\r\nGET", true, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, piece := range []int{1, 5, 1000} {
				var q Request
				at := 0
				for at < len(tt.stream) && !q.Done() {
					n, bad := q.Feed([]byte(tt.stream[at:min(at+piece, len(tt.stream))]))
					if bad != 0 {
						t.Fatalf("in pieces of %d: %v at %d", piece, bad, at)
					}
					at += n
				}
				if !q.Done() || q.KeepAlive() != tt.keepAlive || len(tt.stream)-at != tt.rest {
					t.Errorf("in pieces of %d: done %v, keep-alive %v, %d bytes left", piece, q.Done(), q.KeepAlive(), len(tt.stream)-at)
				}
			}
		})
	}
}
