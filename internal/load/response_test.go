package load

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/testutil"
)

// outcome is what a parse of a whole stream came to.
type outcome struct {
	Reason     Reason
	Status     int
	Body       int64
	Persistent bool
	Rest       int // bytes after the response
}

// parse feeds a stream in pieces of the given size and then ends it.
func parse(stream []byte, piece int) outcome {
	var p Response
	for at := 0; at < len(stream) && !p.Done(); {
		b := stream[at:min(at+piece, len(stream))]
		n, bad := p.Feed(b)
		if at += n; bad != 0 {
			return outcome{Reason: bad, Status: p.Status()}
		}
		if p.Done() {
			return outcome{0, p.Status(), p.Body(), p.Persistent(), len(stream) - at}
		}
	}
	if bad := p.End(); bad != 0 {
		return outcome{Reason: bad, Status: p.Status()}
	}
	return outcome{0, p.Status(), p.Body(), p.Persistent(), 0}
}

var responses = []struct {
	name   string
	stream string
	want   outcome
}{
	{"length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", outcome{0, 200, 5, true, 0}},
	{"1.0 closes", "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", outcome{0, 200, 5, false, 0}},
	{"1.0 keep-alive", "HTTP/1.0 200 OK\r\ncontent-LENGTH:5 \r\nConnection: Keep-Alive\r\n\r\nhello", outcome{0, 200, 5, true, 0}},
	{"1.1 close", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", outcome{0, 200, 0, false, 0}},
	{"close in a list", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: foo , CLOSE\t\r\n\r\n", outcome{0, 200, 0, false, 0}},
	{"close is not closed", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: closed, x close, clos\r\n\r\n", outcome{0, 200, 0, true, 0}},
	{"to end of stream", "HTTP/1.1 200 OK\r\n\r\nanything", outcome{0, 200, 8, false, 0}},
	{"bare line feeds", "HTTP/1.1 200 OK\nContent-Length: 2\n\nab", outcome{0, 200, 2, true, 0}},
	{"no reason phrase", "HTTP/1.1 404\r\nContent-Length: 0\r\n\r\n", outcome{0, 404, 0, true, 0}},
	{"similar names", "HTTP/1.1 200 OK\r\nContent-Lengths: 9\r\nXContent-Length: 8\r\nContent-Lengt: 7\r\nContent-Length: 1\r\n\r\na", outcome{0, 200, 1, true, 0}},
	{"surplus", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nabc", outcome{0, 200, 1, true, 2}},
	{"no content", "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nHTTP", outcome{0, 204, 0, true, 4}},
	{"not modified", "HTTP/1.1 304 Not Modified\r\n\r\n", outcome{0, 304, 0, true, 0}},
	{"interim", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nz", outcome{0, 200, 1, true, 0}},
	{"chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\nA;x=\"y\"\r\n0123456789\r\n0\r\n\r\n", outcome{0, 200, 15, true, 0}},
	{"chunked with trailer", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1 \r\na\r\n0\r\nContent-Length: 7\r\nX: y\r\n\r\n", outcome{0, 200, 1, true, 0}},
	{"chunked outweighs length", "HTTP/1.1 200 OK\r\nContent-Length: 99\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", outcome{0, 200, 0, true, 0}},
	{"1.0 knows no chunks", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n", outcome{0, 200, 3, false, 0}},

	{"nothing", "", outcome{Reason: ClosedEarly}},
	{"inside the head", "HTTP/1.1 200 OK\r\nContent-", outcome{Reason: Truncated, Status: 200}},
	{"inside the body", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", outcome{Reason: Truncated, Status: 200}},
	{"inside a chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", outcome{Reason: Truncated, Status: 200}},
	{"after interim", "HTTP/1.1 100 Continue\r\n\r\n", outcome{Reason: Truncated}},
	{"ssh", "SSH-2.0-OpenSSH_9.2\r\n", outcome{Reason: Malformed}},
	{"http/2", "HTTP/2.0 200 OK\r\n\r\n", outcome{Reason: Malformed}},
	{"status too short", "HTTP/1.1 20\r\n\r\n", outcome{Reason: Malformed}},
	{"status too long", "HTTP/1.1 2000 OK\r\n\r\n", outcome{Reason: Malformed}},
	{"status below 100", "HTTP/1.1 099 OK\r\n\r\n", outcome{Reason: Malformed}},
	{"no colon", "HTTP/1.1 200 OK\r\nServer nginx\r\n\r\n", outcome{Reason: Malformed, Status: 200}},
	{"empty name", "HTTP/1.1 200 OK\r\n: x\r\n\r\n", outcome{Reason: Malformed, Status: 200}},
	{"folded line", "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", outcome{Reason: Malformed, Status: 200}},
	{"blank before colon", "HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nhello", outcome{Reason: Malformed, Status: 200}},
	{"length empty", "HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\n", outcome{Reason: BadFraming, Status: 200}},
	{"length negative", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", outcome{Reason: BadFraming, Status: 200}},
	{"length of two words", "HTTP/1.1 200 OK\r\nContent-Length: 1 2\r\n\r\n", outcome{Reason: BadFraming, Status: 200}},
	{"length too long", "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", outcome{Reason: BadFraming, Status: 200}},
	{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", outcome{Reason: BadFraming, Status: 200}},
	{"unknown coding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", outcome{Reason: BadFraming, Status: 200}},
	{"empty coding", "HTTP/1.1 200 OK\r\nTransfer-Encoding:\r\n\r\n", outcome{Reason: BadFraming, Status: 200}},
	{"chunk size not hex", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", outcome{Reason: BadFraming, Status: 200}},
	{"chunk size too long", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1000000000000000\r\n", outcome{Reason: BadFraming, Status: 200}},
	{"chunk longer than announced", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n", outcome{Reason: BadFraming, Status: 200}},
	{"chunk with bare line feed", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n", outcome{Reason: BadFraming, Status: 200}},
	{"endless head", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", maxHead) + "\r\n\r\n", outcome{Reason: OversizedHead, Status: 200}},
	{"endless headers", "HTTP/1.1 200 OK\r\n" + strings.Repeat("X: y\r\n", maxHead/5) + "\r\n", outcome{Reason: OversizedHead, Status: 200}},
}

func TestResponse(t *testing.T) {
	for _, tt := range responses {
		t.Run(tt.name, func(t *testing.T) {
			for _, piece := range []int{1, 2, 7, 1 << 20} {
				got := parse([]byte(tt.stream), piece)
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("in pieces of %d (-want +got):\n%s", piece, diff)
				}
			}
		})
	}
}

func TestResponseDoesNotAllocate(t *testing.T) {
	stream := []byte("HTTP/1.1 200 OK\r\nServer: nginx\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
	if n := testing.AllocsPerRun(100, func() {
		var p Response
		if n, bad := p.Feed(stream); bad != 0 || n != len(stream) || !p.Done() {
			t.Fatal(n, bad)
		}
	}); n != 0 {
		t.Errorf("%v allocations per response, want 0", n)
	}
}

// oracle is what net/http makes of a stream.
func oracle(stream []byte) (outcome, error) {
	r := bufio.NewReader(bytes.NewReader(stream))
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return outcome{}, err
	}
	n, err := io.Copy(io.Discard, resp.Body)
	if err != nil {
		return outcome{}, err
	}
	rest, _ := io.Copy(io.Discard, r)
	return outcome{0, resp.StatusCode, n, !resp.Close, int(rest)}, nil
}

// FuzzResponse holds that the pieces do not matter, and that what this parser
// takes net/http takes too, with the same result. The other way round holds for
// well-formed responses (FuzzWellFormed): this one is stricter on purpose.
func FuzzResponse(f *testing.F) {
	for _, tt := range responses {
		if len(tt.stream) < 1000 {
			f.Add([]byte(tt.stream), 3)
		}
	}
	f.Fuzz(func(t *testing.T, stream []byte, piece int) {
		defer testutil.Bounded(t, len(stream)+8)()
		piece = 1 + (piece&0x7fffffff)%64
		got := parse(stream, piece)
		if whole := parse(stream, len(stream)+1); whole != got {
			t.Fatalf("in pieces of %d: %+v, in one: %+v", piece, got, whole)
		}
		if got.Reason != 0 || unchecked(stream) {
			return
		}
		want, err := oracle(stream)
		if err != nil {
			t.Fatalf("taken: %+v; net/http: %v", got, err)
		}
		if got != want {
			t.Fatalf("%+v; net/http: %+v", got, want)
		}
	})
}

// unchecked streams have what net/http looks at and a load generator has no
// reason to: bytes of values that are not text, interim responses (skipped here,
// handed out there), and what chunk extensions may look like.
func unchecked(stream []byte) bool {
	head, _, _ := bytes.Cut(stream, []byte("\r\n\r\n"))
	if at := bytes.Index(stream, []byte("\n\n")); at >= 0 && at < len(head) {
		head = stream[:at]
	}
	chunked := bytes.Contains(bytes.ToLower(stream), []byte("chunked"))
	if chunked {
		head = stream // size lines and trailers are lines too
	}
	for i, c := range head {
		switch {
		case c == '\r' && i+1 < len(stream) && stream[i+1] != '\n':
			return true
		case c < ' ' && c != '\r' && c != '\n' && c != '\t', c == 0x7f:
			return true
		}
	}
	return bytes.Contains(stream, []byte(" 1")) || // an interim status, perhaps
		chunked && bytes.ContainsAny(stream, ";") ||
		// A bare LF after the last chunk: net/http wants CRLF to end a trailer.
		chunked && bytes.Count(stream, []byte("\n")) != bytes.Count(stream, []byte("\r\n"))
}

// FuzzWellFormed builds correct responses and holds that net/http agrees in full.
func FuzzWellFormed(f *testing.F) {
	f.Add(uint16(200), true, uint8(1), []byte("hello"), uint8(3), uint8(2))
	f.Add(uint16(404), false, uint8(2), []byte(""), uint8(0), uint8(0))
	f.Add(uint16(503), true, uint8(0), []byte("x"), uint8(1), uint8(1))
	f.Fuzz(func(t *testing.T, status uint16, http11 bool, framing uint8, body []byte, connection, piece uint8) {
		defer testutil.Bounded(t, len(body)+40)()
		var b strings.Builder
		fmt.Fprintf(&b, "HTTP/1.%d %d Some Reason\r\nserver: x\r\n", map[bool]int{true: 1}[http11], 200+status%400)
		b.WriteString([]string{"", "Connection: close\r\n", "CONNECTION: Keep-Alive\r\n", "Connection: upgrade, close\r\n"}[connection%4])
		switch framing % 3 {
		case 0:
			fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%s", len(body), body)
		case 1:
			if !http11 {
				return // HTTP/1.0 has no chunks
			}
			b.WriteString("Transfer-Encoding: chunked\r\n\r\n")
			for len(body) > 0 {
				n := min(len(body), 1+int(piece)%7)
				fmt.Fprintf(&b, "%x\r\n%s\r\n", n, body[:n])
				body = body[n:]
			}
			b.WriteString("0\r\n\r\n")
		default:
			fmt.Fprintf(&b, "\r\n%s", body)
		}
		stream := []byte(b.String())
		want, err := oracle(stream)
		if err != nil {
			t.Fatalf("net/http does not take %q: %v", stream, err)
		}
		if got := parse(stream, 1+int(piece)); got != want {
			t.Fatalf("%q: %+v; net/http: %+v", stream, got, want)
		}
	})
}

func BenchmarkResponse(b *testing.B) {
	stream := []byte("HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\nDate: Sat, 21 Nov 2026 20:44:47 GMT\r\nContent-Type: text/html\r\nContent-Length: 34\r\nLast-Modified: Sat, 21 Nov 2026 20:44:47 GMT\r\nConnection: close\r\nETag: \"6920d08f-22\"\r\nAccept-Ranges: bytes\r\n\r\nhello, this is the page of the lab")
	b.ReportAllocs()
	for b.Loop() {
		var p Response
		p.Feed(stream)
		if !p.Done() {
			b.Fatal("not done")
		}
	}
}
