package exporter

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"
)

// file is a file that is read again when it has changed.
type file struct {
	name    string
	changed time.Time
	size    int64
}

// isNew reports whether the file is another one than when it was asked before.
func (f *file) isNew() (bool, error) {
	at, err := os.Stat(f.name)
	if err != nil {
		return false, err
	}
	if at.ModTime().Equal(f.changed) && at.Size() == f.size {
		return false, nil
	}
	f.changed, f.size = at.ModTime(), at.Size()
	return true, nil
}

// again has the file read again when it is asked for next: what it has could not be used, which a change of its owner, or of
// another file, may mend.
func (f *file) again() { f.changed = time.Time{} }

// reporter reports an error once, until there is another one or none.
type reporter struct {
	fail func(error)
	last string
}

func (r *reporter) report(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != r.last {
		r.fail(err)
	}
	r.last = text
}

// Certificate is the server's, with its key, of two files that may be renewed while the server runs.
type Certificate struct {
	mu        sync.Mutex
	cert, key file
	loaded    *tls.Certificate
	failed    reporter
}

// LoadCertificate reads the files. A later one that cannot be read is reported to fail, and the one before is kept.
func LoadCertificate(cert, key string, fail func(error)) (*Certificate, error) {
	c := &Certificate{cert: file{name: cert}, key: file{name: key}, failed: reporter{fail: fail}}
	return c, c.load()
}

func (c *Certificate) load() error {
	newCert, err := c.cert.isNew()
	newKey, keyErr := c.key.isNew()
	if err = errors.Join(err, keyErr); err == nil && (newCert || newKey || c.loaded == nil) {
		var pair tls.Certificate
		if pair, err = tls.LoadX509KeyPair(c.cert.name, c.key.name); err == nil {
			c.loaded = &pair
		}
	}
	if err != nil {
		c.cert.again()
		return fmt.Errorf("read the certificate %s and its key %s: %w", c.cert.name, c.key.name, err)
	}
	return nil
}

func (c *Certificate) config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.failed.report(c.load())
			return c.loaded, nil
		}}
}

// mostToken bounds the file of a token, leastToken the token itself.
const mostToken, leastToken = 4096, 16

// Token is what requests have to bear, of a file that may be renewed while the server runs.
type Token struct {
	mu     sync.Mutex
	file   file
	hash   [sha256.Size]byte
	failed reporter
}

// LoadToken reads the file, of one line. A later one that cannot be read is reported to fail, and the one before is kept.
func LoadToken(name string, fail func(error)) (*Token, error) {
	t := &Token{file: file{name: name}, failed: reporter{fail: fail}}
	return t, t.load()
}

func (t *Token) load() error {
	isNew, err := t.file.isNew()
	if err == nil && isNew {
		err = t.read()
	}
	if err != nil {
		t.file.again()
	}
	return describe(t.file.name, err)
}

func (t *Token) read() error {
	f, err := os.Open(t.file.name)
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, mostToken+1))
	if err != nil {
		return err
	}
	token := bytes.TrimSpace(text)
	switch {
	case len(text) > mostToken || bytes.ContainsAny(token, " \t\r\n"):
		return errors.New("must be one line without blanks")
	case len(token) < leastToken:
		return fmt.Errorf("must have %d characters at least; make one by 'openssl rand -hex 32'", leastToken)
	}
	t.hash = sha256.Sum256(token)
	return nil
}

func describe(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("read the token of %s: %w", name, err)
}

// matches reports whether a token is the right one, in a time that does not depend on it.
func (t *Token) matches(token string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed.report(t.load())
	hash := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(hash[:], t.hash[:]) == 1
}

// guarded lets through requests that bear the token: as Bearer, or as the password of any user, which browsers ask for.
// Without a token those are refused that name a host: a page of another site could have a browser here ask for it by a
// name that it lets lead here (DNS rebinding).
func guarded(next http.Handler, t *Token) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case t == nil && !isAddress(r.Host):
			http.Error(w, "without --token-file, ask by address or as localhost, not by another name", http.StatusForbidden)
		case t != nil && !t.matches(bearer(r)):
			w.Header().Set("WWW-Authenticate", `Basic realm="natkit exporter", charset="UTF-8"`)
			http.Error(w, "the token is missing or wrong", http.StatusUnauthorized)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func bearer(r *http.Request) string {
	if scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		return token
	}
	_, password, _ := r.BasicAuth()
	return password
}

// isAddress reports whether a Host header is an address or localhost, with a port or without.
func isAddress(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	_, err = netip.ParseAddr(name)
	return err == nil || name == "localhost" || name == ""
}

// limited accepts no more connections than most at a time.
func limited(l net.Listener, most int) net.Listener { return netutil.LimitListener(l, most) }

// errorLog hands what the HTTP server logs to fail.
func errorLog(fail func(error)) *log.Logger {
	return log.New(writerFunc(func(b []byte) (int, error) {
		if fail != nil {
			fail(errors.New(string(bytes.TrimSpace(b))))
		}
		return len(b), nil
	}), "", 0)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
