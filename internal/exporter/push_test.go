package exporter

import (
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	request "go.opentelemetry.io/proto/slim/otlp/collector/metrics/v1"
	"google.golang.org/protobuf/proto"

	"github.com/natkit/natkit/internal/metrics"
)

// TestPush: a receiver gets the metrics, with the headers; that it refuses them, and takes them again, is noted once each.
func TestPush(t *testing.T) {
	var mu sync.Mutex
	var names []string
	requests, status := 0, http.StatusOK
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		requests++
		if r.URL.Path != "/v1/metrics" || r.Header.Get("Api-Key") != "a b" || r.Header.Get("Content-Type") != "application/x-protobuf" {
			t.Errorf("%s %v", r.URL, r.Header)
		}
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		body, err := io.ReadAll(z)
		var m request.ExportMetricsServiceRequest
		if err != nil || proto.Unmarshal(body, &m) != nil {
			t.Errorf("%v: %d bytes", err, len(body))
			return
		}
		for _, metric := range m.ResourceMetrics[0].ScopeMetrics[0].Metrics {
			names = append(names, metric.Name)
		}
		w.WriteHeader(status)
		io.WriteString(w, "too much")
	}))
	defer receiver.Close()
	u, err := ParseReceiver(receiver.URL)
	if err != nil {
		t.Fatal(err)
	}
	headers, err := ParseHeaders("api-key=a%20b, other=c")
	if err != nil {
		t.Fatal(err)
	}
	p := &Push{URL: u, Headers: headers, Metrics: metrics.NewRegistry(oneState(1)), Every: time.Millisecond}
	if err := p.send(t.Context()); err != nil || !strings.Contains(strings.Join(names, " "), "natkit_conntrack_entries") {
		t.Fatalf("%v, %v", names, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	answers := func(s int) {
		mu.Lock()
		defer mu.Unlock()
		status = s
	}
	var notes []string
	answers(http.StatusTooManyRequests)
	p.Note = func(text string) {
		if notes = append(notes, text); len(notes) == 1 {
			answers(http.StatusOK)
		} else {
			stop()
		}
	}
	p.Run(ctx)
	if len(notes) != 2 || !strings.Contains(notes[0], "429") || !strings.Contains(notes[0], "too much") || !strings.Contains(notes[1], "works again") {
		t.Errorf("%q", notes)
	}
}

// TestPushUnreachable: the error names the receiver, without a password, and the cause.
func TestPushUnreachable(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	u, err := ParseReceiver(strings.Replace(gone.URL, "//", "//me:secret@", 1))
	if err != nil {
		t.Fatal(err)
	}
	err = (&Push{URL: u, Metrics: metrics.NewRegistry(oneState(1))}).send(t.Context())
	if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "refused") || strings.Count(err.Error(), "http://") != 1 {
		t.Errorf("%v", err)
	}
}

func TestParseReceiver(t *testing.T) {
	for text, want := range map[string]string{
		"http://127.0.0.1:4318":          "http://127.0.0.1:4318/v1/metrics",
		"https://otel.example.net/":      "https://otel.example.net/v1/metrics",
		"https://otel.example.net/own/x": "https://otel.example.net/own/x",
		"127.0.0.1:4318":                 "",
		"grpc://127.0.0.1:4317":          "",
		"http://":                        "",
	} {
		u, err := ParseReceiver(text)
		if (err == nil) != (want != "") || err == nil && u.String() != want {
			t.Errorf("%s: %v, %v", text, u, err)
		}
	}
	for _, text := range []string{"a", "a=%zz"} {
		if h, err := ParseHeaders(text); err == nil {
			t.Errorf("%s: %v", text, h)
		}
	}
}
