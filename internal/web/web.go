// Package web is the live page of natkit exporter: what a State says, outcome first, kept current by a script of its own. It
// loads nothing from elsewhere, changes nothing, and takes every text of the host for hostile.
package web

import (
	"bytes"
	"compress/gzip"
	"embed"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"html/template"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/state"
)

//go:embed assets
var assets embed.FS

// shared are the assets that the page has in common with reports.
var shared = []string{"uPlot.min.css", "page.css", "uPlot.iife.min.js", "page.js", "uPlot.LICENSE"}

// pages are parsed for the first page: most starts of natkit do without.
var pages = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("pages").Funcs(template.FuncMap{
		"clean":   report.Clean,
		"value":   report.Value,
		"changed": report.ChangeValue,
		"words":   strings.Fields,
		"next":    func(i int) int { return i + 1 },
	}).ParseFS(assets, "assets/*.tmpl"))
})

// Options are what the page shows.
type Options struct {
	// State returns what is known now.
	State func() state.State
	// Host is the host's name.
	Host string
	// Past returns what was recorded of a namespace, or why there is nothing, or both where a part is lost. Where it is nil the page has the history that is
	// in the state. It is called once a second at most for each namespace and length of history that is looked at.
	Past func(n *state.Namespace, from, to time.Time) (state.History, error)
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// policy lets the page load its own files and nothing else, and no other page frame it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// nowHeader has the host's time, in seconds since 1970, also where the page has not changed.
const nowHeader = "X-Natkit-Now"

// Handler serves the page at / and its files below /assets/. Only GET and HEAD are answered.
func Handler(o Options) http.Handler {
	if o.Now == nil {
		o.Now = time.Now
	}
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", &server{Options: o})
	for name, file := range files() {
		mux.Handle("GET /assets/"+name, file)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{
			"Content-Security-Policy":      policy,
			"X-Content-Type-Options":       "nosniff",
			"Referrer-Policy":              "no-referrer",
			"Cross-Origin-Opener-Policy":   "same-origin",
			"Cross-Origin-Resource-Policy": "same-origin",
		} {
			w.Header().Set(name, value)
		}
		mux.ServeHTTP(w, r)
	})
}

// server serves the page. However many ask for it, and however often, it is made once a second at most for each namespace.
type server struct {
	Options
	mu sync.Mutex
	// second is the time of state and of pages, of what was asked for in it.
	second int64
	state  state.State
	pages  map[request]*rendered
}

// request is what may be asked for: a namespace, and a length of history. There are as many as there are of both.
type request struct {
	netns uint64
	span  time.Duration
	// gone is set where the namespace that was asked for is not watched, and another one is shown.
	gone bool
}

// rendered is a page, or why there is none.
type rendered struct {
	content
	err error
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	asked := r.URL.Query()
	netns, _ := strconv.ParseUint(asked.Get("netns"), 10, 64) // no number is that of no namespace
	span, _ := time.ParseDuration(asked.Get("span"))
	now := s.Now()
	p := s.page(request{netns, span, asked.Has("netns")}, now)
	if p.err != nil {
		http.Error(w, p.err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set(nowHeader, strconv.FormatFloat(unixSeconds(now), 'f', 3, 64))
	p.serve(w, r)
}

func (s *server) page(r request, now time.Time) *rendered {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pages == nil || s.second != now.Unix() {
		s.second, s.state, s.pages = now.Unix(), s.State(), map[request]*rendered{}
	}
	watched := slices.ContainsFunc(s.state.Namespaces, func(n state.Namespace) bool { return n.Inode == r.netns })
	r.gone = r.gone && !watched
	if !watched {
		r.netns = 0
	}
	if s.Past == nil || !slices.Contains(spans, r.span) {
		r.span = 0
	}
	if s.pages[r] == nil {
		s.pages[r] = s.render(r, now)
	}
	return s.pages[r]
}

func (s *server) render(r request, now time.Time) *rendered {
	var text bytes.Buffer
	if err := pages().ExecuteTemplate(&text, "page", pageOf(&s.state, s.Options, r, now)); err != nil {
		return &rendered{err: fmt.Errorf("write the live page: %w", err)}
	}
	return &rendered{content: contentOf("text/html; charset=utf-8", text.Bytes(), revision(&s.state, s.Host, r))}
}

// revision changes whenever the page has something new but for ages, which its script counts.
func revision(s *state.State, host string, r request) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%d %d %t %d", s.Version, host, r.netns, r.span, r.gone, s.LeftOut)
	for i := range s.Namespaces {
		n := &s.Namespaces[i]
		fmt.Fprintf(h, " %d %d %d", n.Inode, len(n.Unread), len(n.History.Times))
		all := n.Readings()
		for _, part := range state.Parts {
			if r := all[part]; r != nil {
				_ = binary.Write(h, binary.LittleEndian, r.At.UnixNano()) // to a hash, which does not fail
			}
			h.Write([]byte{0})
		}
	}
	return strconv.FormatUint(h.Sum64(), 16)
}

// content is what one address has.
type content struct {
	kind         string
	tag          string
	text, zipped []byte
}

func contentOf(kind string, text []byte, revision string) content {
	var zipped bytes.Buffer
	z, _ := gzip.NewWriterLevel(&zipped, gzip.BestSpeed)
	_, _ = z.Write(text) // into memory
	_ = z.Close()
	return content{kind: kind, tag: `"` + revision + `"`, text: text, zipped: zipped.Bytes()}
}

// serve answers a request for it.
func (c content) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("ETag", c.tag)
	h.Set("Vary", "Accept-Encoding")
	if r.Header.Get("If-None-Match") == c.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	text := c.text
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		text = c.zipped
	}
	h.Set("Content-Type", c.kind)
	h.Set("Content-Length", strconv.Itoa(len(text)))
	if r.Method != http.MethodHead {
		_, _ = w.Write(text) // the client may be gone
	}
}

// kinds are the media types of the files, by the end of their names.
var kinds = map[string]string{"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "LICENSE": "text/plain"}

// files are what the page loads.
func files() map[string]http.Handler {
	texts := map[string]string{}
	for _, name := range shared {
		texts[name] = report.Asset(name)
	}
	for _, name := range []string{"live.css", "live.js", "units.js", "icon.svg"} {
		text, err := assets.ReadFile("assets/" + name)
		if err != nil {
			panic(err) // embedded at build time
		}
		texts[name] = string(text)
	}
	all := map[string]http.Handler{}
	for name, text := range texts {
		h := fnv.New64a()
		_, _ = h.Write([]byte(text))
		all[name] = file{contentOf(kinds[name[strings.LastIndexByte(name, '.')+1:]]+"; charset=utf-8", []byte(text), strconv.FormatUint(h.Sum64(), 16))}
	}
	return all
}

// file is one of them, which browsers keep as long as it is the same.
type file struct{ content }

func (f file) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-cache")
	f.serve(w, r)
}
