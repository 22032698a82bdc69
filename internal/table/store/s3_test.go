package store

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/table"
)

const (
	testKey    = "AKIDTESTKEY"
	testSecret = "secret/never+printed"
	testToken  = "token-never-printed"
)

// openS3 opens a bucket behind an endpoint.
func openS3(ctx context.Context, endpoint string, patience time.Duration) (*Store, error) {
	return Open(ctx, Options{To: "s3://nat/tables", Node: "gw-1", Version: "1.2.3", Now: noon,
		S3: S3{Endpoint: endpoint, AccessKey: testKey, SecretKey: testSecret, SessionToken: testToken, Patience: patience}})
}

// refusal is an answer of a store.
func refusal(w http.ResponseWriter, r *http.Request, status int, code, more string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		fmt.Fprintf(w, `<?xml version="1.0"?><Error><Code>%s</Code><Message>it says no</Message>%s</Error>`, code, more)
	}
}

// writeS3 writes a table of some rows, and returns the first error.
func writeS3(ctx context.Context, endpoint string, patience time.Duration) error {
	s, err := openS3(ctx, endpoint, patience)
	if err != nil {
		return err
	}
	defer s.Abort()
	sink := Of[table.Finding](s)
	for _, row := range findings(10, 0) {
		if err := sink.Add(row); err != nil {
			return err
		}
	}
	return s.Commit()
}

// Every refusal is one line that says what to do, and has no secret; a request is sent a bounded number of times.
func TestS3Refuses(t *testing.T) {
	for _, c := range []struct {
		name string
		// head is the answer to the question whether the bucket is there, put that to an upload.
		head, put, code, more string
		want                  []string
		most                  int64
	}{
		{"bucket missing", "404", "404", "NoSuchBucket", "", []string{"bucket nat does not exist", "make it"}, 2},
		{"bucket removed meanwhile", "200", "404", "NoSuchBucket", "", []string{"bucket nat does not exist"}, 2},
		{"may not write", "403", "403", "AccessDenied", "", []string{"refuses to write into bucket nat", "s3:PutObject"}, 3},
		{"wrong key", "403", "403", "InvalidAccessKeyId", "", []string{"does not accept the credentials", "AWS_ACCESS_KEY_ID"}, 2},
		{"wrong secret", "403", "403", "SignatureDoesNotMatch", "", []string{"does not accept the credentials"}, 2},
		{"wrong region", "200", "400", "AuthorizationHeaderMalformed", "<Region>eu-north-1</Region>", []string{"another region", `"eu-north-1"`, "AWS_REGION"}, 3},
		{"clock", "200", "403", "RequestTimeTooSkewed", "", []string{"set its clock"}, 2},
		{"not XML", "200", "418", "A<\x1b[31m", "", []string{"request about bucket nat"}, 2},
		{"full", "200", "507", "InsufficientStorage", "", []string{"not able to take it", "InsufficientStorage"}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			var requests atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				status := c.put
				if r.Method == http.MethodHead {
					status = c.head
				}
				var n int
				_, _ = fmt.Sscan(status, &n)
				refusal(w, r, n, c.code, c.more)
			}))
			defer server.Close()
			err := writeS3(t.Context(), server.URL, time.Minute)
			checkLine(t, err, c.want...)
			if n := requests.Load(); n > c.most {
				t.Errorf("%d requests, at most %d expected", n, c.most)
			}
		})
	}
}

// Check ends where no file can ever be written, and nowhere else: with one request, or two where the first answer has no reason.
func TestS3Check(t *testing.T) {
	for _, c := range []struct {
		name string
		// head and get are the statuses of the answers, code is in that to get.
		head, get int
		code      string
		want      []string
		requests  int64
	}{
		{"there", 200, 0, "", nil, 1},
		{"bucket missing", 404, 404, "NoSuchBucket", []string{"bucket nat does not exist", "make it"}, 2},
		{"bucket missing, it seems", 404, 404, "InvalidAccessKeyId", []string{"does not accept the credentials"}, 2},
		{"wrong key", 403, 403, "InvalidAccessKeyId", []string{"does not accept the credentials (InvalidAccessKeyId)", "AWS_ACCESS_KEY_ID"}, 2},
		{"wrong secret", 403, 403, "SignatureDoesNotMatch", []string{"does not accept the credentials"}, 2},
		{"odd token", 400, 400, "InvalidToken", []string{"does not accept the credentials"}, 2},
		{"may not list", 403, 403, "AccessDenied", nil, 2},
		{"clock", 403, 403, "RequestTimeTooSkewed", nil, 2},
		{"may list alone", 403, 200, "", nil, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			var requests atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				switch {
				case r.Method == http.MethodHead:
					w.WriteHeader(c.head)
				case r.Method == http.MethodGet && c.get == 200:
					fmt.Fprint(w, `<?xml version="1.0"?><ListBucketResult></ListBucketResult>`)
				case r.Method == http.MethodGet:
					refusal(w, r, c.get, c.code, "")
				default:
					t.Errorf("%s %s", r.Method, r.URL)
				}
			}))
			defer server.Close()
			err := Check(t.Context(), Options{To: "s3://nat/tables", Node: "gw-1", Version: "1.2.3", Now: noon,
				S3: S3{Endpoint: server.URL, AccessKey: testKey, SecretKey: testSecret, SessionToken: testToken}})
			if len(c.want) > 0 {
				checkLine(t, err, c.want...)
			} else if err != nil {
				t.Error(err)
			}
			if n := requests.Load(); n != c.requests {
				t.Errorf("%d requests, want %d", n, c.requests)
			}
		})
	}
	// One that is away may come back; what is wrong on this host will not.
	away := Options{To: "s3://nat/tables", Node: "gw-1", Now: noon, S3: S3{Endpoint: "http://127.0.0.1:1", AccessKey: testKey, SecretKey: testSecret, Patience: 50 * time.Millisecond}}
	if err := Check(t.Context(), away); err != nil {
		t.Error(err)
	}
	away.To = "s3://n_/tables"
	checkLine(t, Check(t.Context(), away), `"n_" is no name of a bucket`)
	away.To, away.S3.SecretKey = "s3://nat/tables", ""
	checkLine(t, Check(t.Context(), away), "there are no credentials")
}

// TestS3CheckEnds: a store that answers no listing is not waited for beyond its time.
func TestS3CheckEnds(t *testing.T) {
	ended := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		fmt.Fprint(w, `<?xml version="1.0"?>`)
		w.(http.Flusher).Flush()
		<-r.Context().Done() // when the request is given up
		close(ended)
	}))
	defer server.Close()
	err := Check(t.Context(), Options{To: "s3://nat/tables", Node: "gw-1", Version: "1.2.3", Now: noon,
		S3: S3{Endpoint: server.URL, AccessKey: testKey, SecretKey: testSecret, Patience: 100 * time.Millisecond}})
	if err != nil {
		t.Error(err)
	}
	<-ended
}

// checkLine checks an error.
func checkLine(t *testing.T, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("there is no error")
	}
	for _, text := range want {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q is missing in: %v", text, err)
		}
	}
	for _, secret := range []string{testSecret, testToken, testKey, "never", "\n", "\x1b"} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%q is in: %v", secret, err)
		}
	}
}

// A store that cannot take it now is asked again, a bounded number of times.
func TestS3Retries(t *testing.T) {
	var puts atomic.Int64
	fails := int64(2)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut && puts.Add(1) <= fails {
			refusal(w, r, http.StatusServiceUnavailable, "SlowDown", "")
			return
		}
		w.Header().Set("ETag", `"0123"`)
	}))
	defer server.Close()
	if err := writeS3(t.Context(), server.URL, time.Minute); err != nil || puts.Load() != fails+1 {
		t.Errorf("after %d requests: %v", puts.Load(), err)
	}
	puts.Store(0)
	fails = 1 << 30
	checkLine(t, writeS3(t.Context(), server.URL, time.Minute), "not able to take it", "SlowDown")
	if n := puts.Load(); n != tries {
		t.Errorf("%d requests, %d expected", n, tries)
	}
}

// A store that is away or silent is given up; an interrupt ends it at once.
func TestS3Away(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close() // nobody listens there now
	checkLine(t, writeS3(t.Context(), "http://"+l.Addr().String(), time.Minute), "cannot be reached", "check the endpoint")

	over := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-over:
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	defer close(over)
	checkLine(t, writeS3(t.Context(), server.URL, 300*time.Millisecond), "did not finish a request within 300ms")
	ctx, stop := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, stop)
	if err := writeS3(ctx, server.URL, time.Minute); err == nil || ctx.Err() == nil {
		t.Errorf("interrupted: %v", err)
	}
}

// Without credentials, or with a strange endpoint, nothing is sent.
func TestS3Options(t *testing.T) {
	_, err := Open(t.Context(), Options{To: "s3://nat", Node: "n", Now: noon})
	checkLine(t, err, "AWS_ACCESS_KEY_ID")
	for _, endpoint := range []string{"s3.example.net", "ftp://x", "http://", "https://" + testKey + ":" + testSecret + "@x", "http://x/path", "http://x/?q=1", "::"} {
		_, err := openS3(t.Context(), endpoint, time.Second)
		checkLine(t, err, "the endpoint must be a URL")
	}
}

// parts is a store of uploads in parts, which notes what becomes of them.
type parts struct{ begun, completed, aborted atomic.Int64 }

func (p *parts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, begins := r.URL.Query()["uploads"]
	switch {
	case r.Method == http.MethodPost && begins:
		p.begun.Add(1)
		fmt.Fprint(w, `<InitiateMultipartUploadResult><Bucket>nat</Bucket><Key>k</Key><UploadId>u1</UploadId></InitiateMultipartUploadResult>`)
	case r.Method == http.MethodPost:
		p.completed.Add(1)
		fmt.Fprint(w, `<CompleteMultipartUploadResult><Bucket>nat</Bucket><Key>k</Key><ETag>"x"</ETag></CompleteMultipartUploadResult>`)
	case r.Method == http.MethodDelete:
		p.aborted.Add(1)
		w.WriteHeader(http.StatusNoContent)
	default:
		w.Header().Set("ETag", `"0123"`)
	}
}

// Large objects go in parts. What is not committed is aborted, also after an interrupt.
func TestS3Parts(t *testing.T) {
	p := &parts{}
	server := httptest.NewServer(p)
	defer server.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	large := func() (*Store, file) {
		s, err := openS3(ctx, server.URL, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		f, err := s.begin(table.Findings, "2026-11-30", "gw-1")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(make([]byte, 2*partBytes+1)); err != nil {
			t.Fatal(err)
		}
		return s, f
	}
	s, _ := large()
	if err := s.Commit(); err != nil {
		t.Fatal(err)
	}
	if p.begun.Load() != 1 || p.completed.Load() != 1 || p.aborted.Load() != 0 {
		t.Errorf("%d begun, %d completed, %d aborted", p.begun.Load(), p.completed.Load(), p.aborted.Load())
	}
	s, _ = large()
	interrupt()
	s.Abort()
	s.Abort()
	if p.begun.Load() != 2 || p.completed.Load() != 1 || p.aborted.Load() != 1 {
		t.Errorf("%d begun, %d completed, %d aborted", p.begun.Load(), p.completed.Load(), p.aborted.Load())
	}
}
