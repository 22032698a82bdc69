package exporter

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/metrics"
)

// Push sends metrics to a receiver of the OpenTelemetry protocol over HTTP again and again.
type Push struct {
	// URL is of the receiver; without a path it is that of OpenTelemetry, /v1/metrics.
	URL   *url.URL
	Every time.Duration
	// Headers go with each request, such as one that authorizes it.
	Headers http.Header
	Metrics *metrics.Registry
	Version string
	// Note receives that it failed, and that it works again.
	Note func(string)
}

const (
	metricsPath = "/v1/metrics"
	pushTimeout = 10 * time.Second
	// mostAnswer is how much of the answer is read.
	mostAnswer = 4 << 10
)

// ParseReceiver reads the URL of a receiver.
func ParseReceiver(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("must be the URL of a receiver over HTTP, such as http://127.0.0.1:4318")
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = metricsPath
	}
	return u, nil
}

// ParseHeaders reads OTEL_EXPORTER_OTLP_HEADERS: names and values in percent-encoding, "api-key=…,tenant=…".
func ParseHeaders(text string) (http.Header, error) {
	h := http.Header{}
	for pair := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, ok := strings.Cut(pair, "=")
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if !ok || err != nil {
			return nil, errors.New("OTEL_EXPORTER_OTLP_HEADERS: must be NAME=VALUE, separated by commas, values percent-encoded")
		}
		h.Set(strings.TrimSpace(name), value)
	}
	return h, nil
}

// Run sends until ctx ends, and once more then. What could not be sent is not kept: counters of the next request have it.
func (p *Push) Run(ctx context.Context) {
	ticks := time.NewTicker(p.Every)
	defer ticks.Stop()
	failed := false
	for {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
			defer cancel()
			_ = p.send(last) // natkit ends; the receiver has what was before
			return
		}
		err := p.send(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil && !failed:
			p.Note(err.Error() + "; it is tried again every " + p.Every.String())
		case err == nil && failed:
			p.Note("send metrics to " + p.URL.Redacted() + ": it works again")
		}
		failed = err != nil
	}
}

// send sends the metrics once.
func (p *Push) send(ctx context.Context) error {
	if err := p.post(ctx); err != nil {
		return fmt.Errorf("send metrics to %s: %w", p.URL.Redacted(), err)
	}
	return nil
}

func (p *Push) post(ctx context.Context) error {
	families, err := p.Metrics.Gather()
	if err != nil {
		return err
	}
	host, _ := os.Hostname()
	message, err := metrics.OTLP(families, time.Now(), metrics.Origin{Version: p.Version, Host: host})
	if err != nil {
		return err
	}
	var body bytes.Buffer
	z := gzip.NewWriter(&body)
	_, err = z.Write(message)
	if err = errors.Join(err, z.Close()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.URL.String(), &body)
	if err != nil {
		return err
	}
	for name, values := range p.Headers {
		r.Header[name] = values
	}
	r.Header.Set("Content-Type", "application/x-protobuf")
	r.Header.Set("Content-Encoding", "gzip")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		var of *url.Error // it repeats the URL
		if errors.As(err, &of) {
			err = of.Err
		}
		return err
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, mostAnswer))
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("the receiver answered %s: %.200q", answer.Status, text)
	}
	return nil
}
