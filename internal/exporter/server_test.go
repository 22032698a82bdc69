package exporter

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/metrics"
	"github.com/natkit/natkit/internal/state"
	"github.com/natkit/natkit/internal/testutil"
)

// oneState is that of a host whose counters are so old.
func oneState(age float64) func() state.State {
	return func() state.State {
		return state.State{Schema: state.Schema, EverySeconds: 5, Namespaces: []state.Namespace{{
			Counters: &state.Counters{Reading: state.Reading{AgeSeconds: age}, Entries: 7}}}}
	}
}

func served(t *testing.T, current func() state.State, o ServeOptions) http.Handler {
	t.Helper()
	o.Metrics = metrics.NewRegistry(current).Handler()
	return handler(current, o)
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const goodToken = "0123456789abcdef0123456789abcdef"

// TestAccess: who may ask for what, with a token and without.
func TestAccess(t *testing.T) {
	fail := func(err error) { t.Error(err) }
	token, err := LoadToken(writeFile(t, "token", goodToken+"\n"), fail)
	if err != nil {
		t.Fatal(err)
	}
	bearer := func(token string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
	}
	none := func(*http.Request) {}
	for _, tt := range []struct {
		name, method, path, host string
		token                    *Token
		with                     func(*http.Request)
		status                   int
		body                     string
	}{
		{"metrics", "GET", "/metrics", "127.0.0.1:9752", nil, none, 200, `natkit_conntrack_entries{netns=""} 7`},
		{"by name", "GET", "/metrics", "localhost:9752", nil, none, 200, "natkit_build_info"},
		{"IPv6", "GET", "/api/state", "[::1]:9752", nil, none, 200, `"schema":"natkit.state/1"`},
		{"another name", "GET", "/api/state", "evil.example.net:9752", nil, none, 403, "--token-file"},
		{"another name for the page", "GET", "/", "evil.example.net", nil, none, 403, "--token-file"},
		{"health by any name", "GET", "/healthz", "gw1.example.net:9752", nil, none, 200, "ok\n"},
		{"index", "GET", "/", "127.0.0.1:9752", nil, none, 200, "/metrics"},
		{"no such page", "GET", "/etc/passwd", "127.0.0.1:9752", nil, none, 404, ""},
		{"a change", "POST", "/api/state", "127.0.0.1:9752", nil, none, 404, ""},
		{"no token", "GET", "/metrics", "127.0.0.1:9752", token, none, 401, "token"},
		{"wrong token", "GET", "/metrics", "127.0.0.1:9752", token, bearer(goodToken[1:]), 401, "token"},
		{"empty token", "GET", "/metrics", "127.0.0.1:9752", token, bearer(""), 401, "token"},
		{"right token", "GET", "/metrics", "gw1.example.net:9752", token, bearer(goodToken), 200, "natkit_build_info"},
		{"right password", "GET", "/api/state", "gw1.example.net:9752", token, func(r *http.Request) { r.SetBasicAuth("me", goodToken) }, 200, state.Schema},
		{"health without a token", "GET", "/healthz", "127.0.0.1:9752", token, none, 200, "ok\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest(tt.method, tt.path, nil)
			r.Host = tt.host
			tt.with(r)
			w := httptest.NewRecorder()
			served(t, oneState(1), ServeOptions{Token: tt.token}).ServeHTTP(w, r)
			if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.body) {
				t.Errorf("%d: %.300s", w.Code, w.Body)
			}
			if w.Header().Get("Cache-Control") != "no-store" || w.Header().Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("headers %v", w.Header())
			}
			if tt.status == 401 && !strings.HasPrefix(w.Header().Get("WWW-Authenticate"), "Basic ") {
				t.Errorf("a browser is not asked for the token: %v", w.Header())
			}
		})
	}
}

// TestFormats: OpenMetrics where the client asks for it.
func TestFormats(t *testing.T) {
	r := httptest.NewRequest("GET", "/metrics", nil)
	r.Host = "127.0.0.1"
	r.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	w := httptest.NewRecorder()
	served(t, oneState(1), ServeOptions{}).ServeHTTP(w, r)
	if !strings.HasPrefix(w.Header().Get("Content-Type"), "application/openmetrics-text") || !strings.HasSuffix(w.Body.String(), "# EOF\n") {
		t.Errorf("%v: %s", w.Header(), w.Body)
	}
}

func TestPage(t *testing.T) {
	page := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "the page "+r.URL.Path) })
	for _, path := range []string{"/", "/app.js"} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("GET", path, nil)
		r.Host = "127.0.0.1"
		served(t, oneState(1), ServeOptions{Page: page}).ServeHTTP(w, r)
		if w.Body.String() != "the page "+path {
			t.Errorf("%s: %s", path, w.Body)
		}
	}
}

// TestParts: one namespace alone, and no history.
func TestParts(t *testing.T) {
	current := func() state.State {
		h := state.History{Times: []float64{1}, Series: map[string][]state.Value{state.SeriesEntries: {7}}}
		return state.State{Namespaces: []state.Namespace{{Name: "a", History: h}, {Name: "b", History: h}, {History: h}}}
	}
	for query, want := range map[string][]int{"": {3, 1}, "?netns=b": {1, 1}, "?netns=b&netns=&history=0": {2, 0}, "?netns=none": {0, 0}} {
		r := httptest.NewRequest("GET", "/api/state"+query, nil)
		r.Host = "127.0.0.1"
		w := httptest.NewRecorder()
		served(t, current, ServeOptions{}).ServeHTTP(w, r)
		var s state.State
		if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil || len(s.Namespaces) != want[0] || want[0] > 0 && len(s.Namespaces[0].History.Times) != want[1] {
			t.Errorf("%s: %s, %v", query, w.Body, err)
		}
	}
}

func TestHealth(t *testing.T) {
	for age, want := range map[float64]int{5: 200, 119: 200, 121: 503} {
		w := httptest.NewRecorder()
		served(t, oneState(age), ServeOptions{}).ServeHTTP(w, httptest.NewRequest("GET", "/healthz", nil))
		if w.Code != want {
			t.Errorf("counters of %g s: %d, want %d: %s", age, w.Code, want, w.Body)
		}
	}
}

// TestToken: a renewed file counts, and one that cannot be read is reported and the token before it kept.
func TestToken(t *testing.T) {
	for text, why := range map[string]string{
		"":                          "at least",
		"short":                     "at least",
		goodToken + "\n" + "second": "one line",
		strings.Repeat("x", 5000):   "one line",
	} {
		if _, err := LoadToken(writeFile(t, "token", text), nil); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%.40q: %v", text, err)
		}
	}
	if _, err := LoadToken("/nonexistent/token", nil); err == nil {
		t.Error("a file that does not exist")
	}
	name := writeFile(t, "token", goodToken)
	var failed []error
	token, err := LoadToken(name, func(err error) { failed = append(failed, err) })
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(strings.Repeat("y", 40)), 0o600); err != nil {
		t.Fatal(err)
	}
	if token.matches(goodToken) || !token.matches(strings.Repeat("y", 40)) {
		t.Error("the new token does not count")
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if !token.matches(strings.Repeat("y", 40)) || token.matches(goodToken) || len(failed) != 1 {
		t.Errorf("without its file the token is forgotten, or that is not reported: %v", failed)
	}
	// One that cannot be used is read again, though its time and its size stay as they are.
	at := time.Now().Add(-time.Hour)
	for _, text := range []string{strings.Repeat("z ", 20), strings.Repeat("z", 40)} {
		if err := errors.Join(os.WriteFile(name, []byte(text), 0o600), os.Chtimes(name, at, at)); err != nil {
			t.Fatal(err)
		}
		if got, want := token.matches(strings.Repeat("z", 40)), !strings.Contains(text, " "); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
	if len(failed) != 2 {
		t.Error(failed)
	}
}

// certificate writes one for 127.0.0.1 with a name.
func certificate(t *testing.T, dir, name string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// start serves until the test ends.
func start(t *testing.T, o ServeOptions) (address string) {
	t.Helper()
	listeners, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	o.Metrics = metrics.NewRegistry(oneState(1)).Handler()
	go func() { ended <- Serve(ctx, listeners, oneState(1), o) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return listeners[0].Addr().String()
}

// TestTLS: a renewed certificate is served, and one that cannot be read is reported and the one before it kept.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := certificate(t, dir, "first")
	var failed []string
	loaded, err := LoadCertificate(cert, key, func(err error) { failed = append(failed, err.Error()) })
	if err != nil {
		t.Fatal(err)
	}
	address := start(t, ServeOptions{TLS: loaded, Fail: func(error) {}})
	served := func() string {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		r, err := client.Get("https://" + address + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		return r.TLS.PeerCertificates[0].Subject.CommonName
	}
	if name := served(); name != "first" {
		t.Errorf("certificate %s", name)
	}
	certificate(t, dir, "second")
	if name := served(); name != "second" {
		t.Errorf("certificate %s after it was renewed", name)
	}
	if err := os.WriteFile(key, []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if name := served(); name != "second" || len(failed) != 1 || !strings.Contains(failed[0], cert) {
		t.Errorf("certificate %s with a broken key, reported %q", name, failed)
	}
	if _, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 is spoken")
	}
	if _, err := LoadCertificate(cert, key, nil); err == nil {
		t.Error("a broken key is loaded")
	}
}

// TestStop: a client that keeps a connection open does not keep the server from ending.
func TestStop(t *testing.T) {
	t.Parallel()
	var idle net.Conn
	t.Cleanup(func() { idle.Close() }) // after the server has ended
	address := start(t, ServeOptions{})
	connection, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	idle = connection
	if _, err := io.WriteString(idle, "GET /metrics HTTP/1.1\r\n"); err != nil { // and no end of it
		t.Fatal(err)
	}
	r, err := http.Get("http://" + address + "/api/state")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var s state.State
	if err := json.NewDecoder(r.Body).Decode(&s); err != nil || s.Namespaces[0].Counters.Entries != 7 {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestExposed(t *testing.T) {
	for address, exposed := range map[string]bool{"127.0.0.1:0": false, "127.9.9.9:0": false, "[::1]:0": false, ":0": true, "0.0.0.0:0": true} {
		all, err := Listen(address)
		if err != nil {
			t.Logf("%s: %v", address, err) // no IPv6
			continue
		}
		if got := Exposed(all); (got != nil) != exposed {
			t.Errorf("%s: %v", address, got)
		}
		closeAll(all)
	}
	unix, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close()
	if at := Exposed([]net.Listener{unix}); at != nil {
		t.Errorf("a socket of a file: %v", at)
	}
}

const activatedEnv = "NATKIT_TEST_ACTIVATED"

// TestActivated runs itself with sockets, as systemd does.
func TestActivated(t *testing.T) {
	if os.Getenv(activatedEnv) != "" {
		all, err := Activated(os.Getenv, os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range all {
			t.Logf("got %s", l.Addr())
		}
		if others, err := Activated(os.Getenv, os.Getpid()+1); len(others) != 0 || err != nil {
			t.Errorf("took the sockets of another process: %v, %v", others, err)
		}
		return
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	socket, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	run := func(n string, files ...*os.File) string {
		cmd := exec.Command("sh", "-c", `LISTEN_PID=$$ exec "$0" -test.run='^TestActivated$' -test.v`, os.Args[0])
		cmd.Env = append(os.Environ(), activatedEnv+"=1", "LISTEN_FDS="+n)
		cmd.ExtraFiles = files
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	if out := run("1", socket); !strings.Contains(out, "got "+l.Addr().String()) || strings.Contains(out, "FAIL") {
		t.Errorf("%s", out)
	}
	if out := run("1", file); !strings.Contains(out, "must be a stream socket") {
		t.Errorf("%s", out)
	}
	if none, err := Activated(func(string) string { return "" }, 1); len(none) != 0 || err != nil {
		t.Errorf("%v, %v", none, err)
	}
	testutil.Eventually(t, "the socket is still this process's", func() bool {
		c, err := net.Dial("tcp", l.Addr().String())
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}
