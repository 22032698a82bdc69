package exporter

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/state"
)

// ServeOptions specify how a State is served.
type ServeOptions struct {
	// Metrics serves /metrics, Page what is not known otherwise: /, and what it needs. Page nil is a list of what is served.
	Metrics, Page http.Handler
	// TLS is nil where connections are not encrypted, Token where requests need none.
	TLS   *Certificate
	Token *Token
	// Fail receives errors of the server that end one connection alone.
	Fail func(error)
}

// Bounds of what a client may take.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	writeTimeout  = 30 * time.Second
	idleTimeout   = 2 * time.Minute
	// stopTimeout is how long requests may go on when the server is to end.
	stopTimeout    = 2 * time.Second
	mostHeader     = 16 << 10
	mostConnection = 128
)

// Serve serves what current returns on all listeners until ctx ends, and closes them.
func Serve(ctx context.Context, listeners []net.Listener, current func() state.State, o ServeOptions) error {
	server := &http.Server{
		Handler:           handler(current, o),
		ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: mostHeader,
		ErrorLog:       errorLog(o.Fail),
	}
	ended := make(chan error, len(listeners))
	for _, l := range listeners {
		l = limited(l, mostConnection)
		if o.TLS != nil {
			l = tls.NewListener(l, o.TLS.config())
		}
		go func() { ended <- server.Serve(l) }()
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-ended:
		err = fmt.Errorf("serve metrics: %w", err)
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if stopErr := server.Shutdown(stopping); errors.Is(stopErr, context.DeadlineExceeded) {
		stopErr = server.Close() // a client that takes longer is not waited for
		err = errors.Join(err, stopErr)
	}
	return err
}

// handler routes requests.
func handler(current func() state.State, o ServeOptions) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", o.Metrics)
	mux.HandleFunc("GET /api/state", func(w http.ResponseWriter, r *http.Request) { writeState(w, r.URL.Query(), current()) })
	page := o.Page
	if page == nil {
		page = http.HandlerFunc(index)
	}
	mux.Handle("/", page)
	open := http.NewServeMux() // what needs no token
	open.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { health(w, current()) })
	open.Handle("/", guarded(mux, o.Token))
	return headers(open)
}

// headers are those of every answer: nothing of it is kept, framed, or taken for another type.
func headers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		next.ServeHTTP(w, r)
	})
}

// writeState writes the state; of the network namespaces netns=NAME alone, where that is asked for, and without their
// history with history=0.
func writeState(w http.ResponseWriter, q url.Values, s state.State) {
	if q.Has("netns") {
		s.Namespaces = slices.DeleteFunc(s.Namespaces, func(n state.Namespace) bool { return !slices.Contains(q["netns"], n.Name) })
	}
	if q.Get("history") == "0" {
		for i := range s.Namespaces {
			s.Namespaces[i].History = state.History{Times: []float64{}, Series: map[string][]state.Value{}}
		}
	}
	text, err := json.Marshal(s)
	if err != nil {
		http.Error(w, "encode the state: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(text, '\n')) // the client is gone
}

// unhealthy is the age of counters, in intervals, from which the exporter does not work; leastUnhealthy is that in seconds at
// least, as counters of many namespaces are read less often.
const unhealthy, leastUnhealthy = 6, 120

// health answers 200 where the counters of every namespace are new.
func health(w http.ResponseWriter, s state.State) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	limit := max(unhealthy*s.EverySeconds, leastUnhealthy)
	for i := range s.Namespaces {
		n := &s.Namespaces[i]
		if age, known := n.Ages()[state.PartCounters]; known && age > limit {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintf(w, "counters were read %.0f s ago, every %.0f s is wanted\n", age, s.EverySeconds)
			return
		}
	}
	fmt.Fprintln(w, "ok")
}

// index lists what is served, where there is no page.
func index(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/" {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprint(w, "natkit exporter\n\n/metrics    for Prometheus\n/api/state  the same and more, as JSON ("+state.Schema+")\n/healthz    whether the exporter works\n")
}
