package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

// scrapes are those of a run.
const scrapes = 100

// milliseconds is the quantity of the suite.
const milliseconds = "milliseconds"

// scrapeSuite measures how long a scrape of the exporter takes, beside what people let a textfile collector run.
func scrapeSuite(natkit string) bench.Suite {
	const own = "a scrape of natkit exporter"
	s := &scraper{natkit: natkit}
	return bench.Suite{
		Name: "scrape", Title: "Metrics of a large connection table",
		About: "What Prometheus waits for an answer of `natkit exporter`, which reads the table in the background, by samples at a bounded\n" +
			"cost, beside the programs that count a table's entries when they are asked.",
		Method:     fmt.Sprintf("the mean of %d scrapes, one after the other; %s connections", scrapes, units.Count(manyEntries)),
		Quantities: []bench.Quantity{{Name: milliseconds, Label: "time", Better: bench.Lower, Text: func(v float64) string { return units.Fixed(v, 2) + " ms" }}},
		Subjects: []bench.Subject{
			{Name: own, Run: s.scrape},
			{Name: "conntrack -C", Run: s.program("conntrack", "-C")},
			{Name: "conntrack -L, awk, sort, uniq -c", Run: s.program("sh", "-c", pipeline)},
		},
		Claims: []bench.Claim{{Subject: own, Quantity: milliseconds, Bound: 50}},
		Rounds: 5, WarmUp: 1,
		Parameters: map[string]any{"entries": manyEntries, "scrapes": scrapes},
		Programs:   [][]string{{natkit, "--version"}, {"conntrack", "--version"}},
		Setup:      s.setUp,
	}
}

// scraper is an exporter beside a large table, in its namespace.
type scraper struct {
	natkit   string
	table    *table
	exporter *exec.Cmd
	client   *http.Client
	url      string
}

func (s *scraper) setUp(ctx context.Context) (_ func(context.Context) error, err error) {
	if s.table, err = newTable(ctx); err != nil {
		return nil, err
	}
	s.client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{DialContext: s.dial}}
	if err := errors.Join(s.table.fill(ctx), s.start(ctx)); err != nil {
		return nil, errors.Join(err, s.tearDown(ctx))
	}
	return s.tearDown, nil
}

// dial connects in the namespace.
func (s *scraper) dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	err = s.table.ns.Do(func() error {
		c, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// start starts the exporter at a free port of the namespace, and waits until it has read the table and judged it.
func (s *scraper) start(ctx context.Context) error {
	links, err := s.table.ns.Links()
	if err != nil {
		return err
	}
	defer links.Close()
	if err := links.SetUp("lo"); err != nil {
		return err
	}
	s.exporter = exec.Command(s.natkit, "exporter", "--listen", "127.0.0.1:0")
	notes, err := s.exporter.StderrPipe()
	if err == nil {
		err = s.table.ns.Do(s.exporter.Start)
	}
	if err != nil {
		s.exporter = nil
		return fmt.Errorf("start the exporter: %w", err)
	}
	lines := bufio.NewScanner(notes)
	for s.url == "" && lines.Scan() {
		_, s.url, _ = strings.Cut(lines.Text(), "serving ")
	}
	go func() { _, _ = io.Copy(io.Discard, notes) }()
	for {
		text, err := s.ask(ctx)
		if err != nil || bytes.Contains(text, []byte("\nnatkit_examinations_total")) {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (s *scraper) tearDown(context.Context) error {
	var err error
	if s.exporter != nil {
		err = errors.Join(s.exporter.Process.Signal(syscall.SIGTERM), s.exporter.Wait())
	}
	s.client.CloseIdleConnections()
	return errors.Join(err, s.table.close())
}

func (s *scraper) scrape(ctx context.Context) (bench.Sample, error) {
	began := time.Now()
	for range scrapes {
		if _, err := s.ask(ctx); err != nil {
			return bench.Sample{}, err
		}
	}
	return bench.Sample{Values: bench.Values{milliseconds: time.Since(began).Seconds() * 1000 / scrapes}}, nil
}

// ask returns the metrics.
func (s *scraper) ask(ctx context.Context) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"metrics", nil)
	if err != nil {
		return nil, err
	}
	answer, err := s.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && (answer.StatusCode != http.StatusOK || !bytes.Contains(text, []byte("\nnatkit_conntrack_entries{"))) {
		err = fmt.Errorf("scrape %s: %s: %.200s", s.url, answer.Status, text)
	}
	return text, err
}

func (s *scraper) program(args ...string) func(context.Context) (bench.Sample, error) {
	return func(ctx context.Context) (bench.Sample, error) {
		_, u, err := bench.Program{Netns: s.table.ns, Args: args}.Run(ctx)
		return bench.Sample{Values: bench.Values{milliseconds: u.Seconds * 1000}}, err
	}
}
