package simulate

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/document"
	"go.yaml.in/yaml/v4"
)

// Bounds of what is simulated, so that it ends and fits into memory.
const (
	mostHosts    = 1 << 20
	mostGroups   = 1000
	mostServers  = 256
	mostWeight   = 1000
	mostSlots    = 1 << 22
	mostRate     = 50_000
	mostConns    = 10_000_000_000
	mostPoints   = 20_000
	mostRetries  = 60
	mostBatches  = 10_000
	mostParallel = 1 << 20
	mostWaiting  = 1 << 22
	longest      = 400 * day
)

// Check says what of c makes no sense. It does not ask whether Arrivals.CSV was read.
func (c *Config) Check() error {
	p := c.check()
	if p == nil {
		return nil
	}
	var at strings.Builder
	for _, step := range p.Path {
		if n, list := step.(int); list {
			fmt.Fprintf(&at, "[%d]", n)
			continue
		}
		if at.Len() > 0 {
			at.WriteByte('.')
		}
		fmt.Fprint(&at, step)
	}
	if at.Len() == 0 {
		return errors.New(p.Message)
	}
	return fmt.Errorf("%s: %s", &at, p.Message)
}

// checker keeps the first fault.
type checker struct{ first *document.Problem }

// need says what was expected at a path, where it is not so.
func (k *checker) need(ok bool, message string, path ...any) {
	if !ok && k.first == nil {
		k.first = &document.Problem{Path: slices.Clone(path), Message: "expected " + message}
	}
}

func (k *checker) duration(d Duration, least, most time.Duration, path ...any) {
	k.need(d.Duration >= least && d.Duration <= most, fmt.Sprintf("%v to %v", least, most), path...)
}

func (k *checker) whole(n, least, most int, path ...any) {
	k.need(n >= least && n <= most, fmt.Sprintf("a number from %d to %d", least, most), path...)
}

func (k *checker) rate(r float64, path ...any) {
	k.need(r >= 0 && r <= mostRate && !math.IsNaN(r), fmt.Sprintf("0 to %d connections per second", mostRate), path...)
}

// oneOf allows the empty text, too, which is the default.
func (k *checker) oneOf(text string, words []string, path ...any) {
	k.need(text == "" || slices.Contains(words, text), "one of "+strings.Join(words, ", "), path...)
}

func (k *checker) ports(p [2]uint16, path ...any) {
	k.need(p == [2]uint16{} || p[0] > 0 && p[0] <= p[1], "the first and the last port, from 1 to 65535", path...)
}

func (c *Config) check() *document.Problem {
	k := new(checker)
	c.checkTimes(k)
	k.need(len(c.Clients) > 0 && len(c.Clients) <= mostGroups, fmt.Sprintf("1 to %d groups of clients", mostGroups), "clients")
	hosts := 0
	for i := range c.Clients {
		c.Clients[i].check(k, "clients", i)
		hosts += max(c.Clients[i].Hosts, 1)
		for n := range i {
			k.need(c.Clients[n].Name != c.Clients[i].Name, "another name for each group", "clients", i, "name")
		}
	}
	k.need(hosts <= mostHosts, fmt.Sprintf("at most %d hosts", mostHosts), "clients")
	k.need((c.Arrivals != nil) != (len(c.Batches) > 0), "either arrivals or batches")
	if c.Arrivals != nil {
		c.Arrivals.check(k)
	}
	c.checkBatches(k)
	c.Connection.check(k)
	c.NAT.check(k)
	c.checkServers(k)
	if k.first == nil {
		c.checkSizes(k)
	}
	return k.first
}

func (c *Config) checkTimes(k *checker) {
	k.duration(c.Start, 0, day, "start")
	k.duration(c.Interval, 0, longest, "interval")
	k.need(c.Interval.Duration == 0 || c.Interval.Duration >= time.Millisecond, "1ms or more", "interval")
	if c.Arrivals != nil {
		k.duration(c.Duration, time.Millisecond, longest, "duration")
	} else {
		k.duration(c.Duration, 0, longest, "duration")
	}
}

func (g *Clients) check(k *checker, path ...any) {
	at := func(more ...any) []any { return append(slices.Clone(path), more...) }
	k.whole(g.Hosts, 0, mostHosts, at("hosts")...)
	k.need(g.Weight >= 0 && g.Weight <= 1e9 && (g.Weight == 0 || g.Weight >= 1e-9), "a weight from 1e-9 to 1e9", at("weight")...)
	k.whole(g.Clock.Hz, 0, 1_000_000, at("clock", "hz")...)
	k.oneOf(g.Clock.Offset, []string{OffsetPair, OffsetUptime, OffsetConnection, OffsetValues}, at("clock", "offset")...)
	k.duration(g.Clock.Uptime, 0, 100*365*day, at("clock", "uptime")...)
	if g.Clock.Offset == OffsetValues {
		k.need(len(g.Clock.Values) == max(g.Hosts, 1), "a value for each host", at("clock", "values")...)
	}
	k.oneOf(g.ISN.Kind, []string{ISNClock, ISNRandom}, at("isn", "kind")...)
	k.duration(g.ISN.Tick, 0, time.Second, at("isn", "tick")...)
	k.ports(g.SourcePorts, at("source_ports")...)
	g.SYN.check(k, at("syn"))
}

func (s *SYN) check(k *checker, path []any) {
	at := func(more ...any) []any { return append(slices.Clone(path), more...) }
	if s.Retries != nil {
		k.whole(*s.Retries, 0, mostRetries, at("retries")...)
	}
	if s.Linear != nil {
		k.whole(*s.Linear, 0, mostRetries, at("linear")...)
	}
	if s.AfterACK != nil {
		k.duration(*s.AfterACK, 0, maxRTO, at("after_ack")...)
	}
	k.duration(s.First, 0, maxRTO, at("first")...)
	k.need(s.First.Duration == 0 || s.First.Duration >= time.Millisecond, "1ms or more", at("first")...)
	k.duration(s.Timeout, 0, day, at("timeout")...)
}

func (a *Arrivals) check(k *checker) {
	given := 0
	for _, is := range []bool{a.Rate != 0, len(a.Hours) > 0, a.Daily != nil, len(a.Points) > 0 || a.CSV != ""} {
		if is {
			given++
		}
	}
	k.need(given == 1, "one of rate, hours, daily, points, csv", "arrivals")
	k.rate(a.Rate, "arrivals", "rate")
	k.need(len(a.Hours) == 0 || len(a.Hours) == 24, "24 rates", "arrivals", "hours")
	for i, r := range a.Hours {
		k.rate(r, "arrivals", "hours", i)
	}
	if a.Daily != nil {
		k.rate(a.Daily.Low, "arrivals", "daily", "low")
		k.rate(a.Daily.High, "arrivals", "daily", "high")
		k.duration(a.Daily.Peak, 0, day, "arrivals", "daily", "peak")
	}
	last := time.Duration(-1)
	for i, p := range a.Points {
		k.rate(p.Rate, "arrivals", "points", i, "rate")
		k.need(p.At.Duration > last && p.At.Duration <= longest, "a later time than before", "arrivals", "points", i, "at")
		last = p.At.Duration
	}
	k.oneOf(a.Spacing, []string{SpacingPoisson, SpacingEven}, "arrivals", "spacing")
}

func (c *Config) checkBatches(k *checker) {
	k.need(len(c.Batches) <= mostBatches, fmt.Sprintf("at most %d batches", mostBatches), "batches")
	names := map[string]bool{"": true}
	for _, g := range c.Clients {
		names[g.Name] = true
	}
	for i, b := range c.Batches {
		at := func(key string) []any { return []any{"batches", i, key} }
		k.need(names[b.Clients], "the name of a group of clients", at("clients")...)
		k.duration(b.Pause, 0, longest, at("pause")...)
		k.need(b.Connections >= 1 && b.Connections <= mostConns, "1 connection or more", at("connections")...)
		k.whole(b.Concurrency, 0, mostParallel, at("concurrency")...)
		k.rate(b.Rate, at("rate")...)
		k.need(b.Rate == 0 || float64(b.Connections)/b.Rate <= longest.Seconds(), fmt.Sprintf("a rate at which all begin within %v", longest), at("rate")...)
		k.need(b.Rate == 0 || b.Concurrency == 0, "either concurrency or rate", at("rate")...)
	}
}

func (c *Connection) check(k *checker) {
	k.duration(c.Duration, 0, day, "connection", "duration")
	k.duration(c.RTT, 0, time.Minute, "connection", "rtt")
	k.whole(c.RequestBytes, 0, 1<<30, "connection", "request_bytes")
	k.oneOf(c.ClosesFirst, []string{CloseServer, CloseClient}, "connection", "closes_first")
	k.whole(c.Requests, 0, 1_000_000, "connection", "requests")
}

func (n *NAT) check(k *checker) {
	k.whole(n.Addresses, 0, 1024, "nat", "addresses")
	k.ports(n.Ports, "nat", "ports")
	k.oneOf(n.Strategy, []string{StrategyRoundRobin, StrategyRandom, StrategyHash, StrategyKernel}, "nat", "strategy")
	if n.HoldDown != nil {
		k.duration(*n.HoldDown, 0, day, "nat", "hold_down")
	}
	k.duration(n.SYNHold, 0, day, "nat", "syn_hold")
	k.oneOf(n.Reset, []string{ResetPasses, ResetReopens, ResetDropped}, "nat", "reset")
}

func (c *Config) checkServers(k *checker) {
	if b := c.Balancer; b != nil {
		k.whole(b.Addresses, 0, 1024, "balancer", "addresses")
		k.duration(b.Timeout, 0, day, "balancer", "timeout")
		k.duration(b.SYNTimeout, 0, day, "balancer", "syn_timeout")
		k.duration(b.ResetTimeout, 0, day, "balancer", "reset_timeout")
	}
	k.need(len(c.Servers) > 0, "at least one group of servers", "servers")
	count, early := 0, false
	for i := range c.Servers {
		s := &c.Servers[i]
		s.check(k, i)
		count += max(s.Count, 1)
		early = early || s.From.Duration == 0
	}
	k.need(count <= mostServers, fmt.Sprintf("at most %d servers", mostServers), "servers")
	k.need(early, "servers that are there from the beginning", "servers")
}

func (s *Servers) check(k *checker, i int) {
	at := func(key string) []any { return []any{"servers", i, key} }
	k.whole(s.Count, 0, mostServers, at("count")...)
	k.whole(s.Weight, 0, mostWeight, at("weight")...)
	k.whole(s.Addresses, 0, 1024, at("addresses")...)
	k.oneOf(s.Kernel, []string{KernelWheel, KernelWheelRearm, KernelTimer}, at("kernel")...)
	k.duration(s.From, 0, longest, at("from")...)
	if s.MaxTimeWait != nil {
		k.whole(*s.MaxTimeWait, 0, math.MaxInt32, at("max_tw_buckets")...)
	}
}

// MaxSource bounds the text of a configuration, in bytes.
const MaxSource = 256 << 10

// Parse reads a configuration, strictly: a key that is not known, a value that does
// not fit or makes no sense is a *document.SyntaxError with line and column. The file
// that Arrivals.CSV names is not read.
func Parse(filename string, source []byte) (*Config, error) {
	c := new(Config)
	s := document.Source{File: filename, What: "simulation", Text: source, Limit: MaxSource}
	if err := s.Decode(c, c.check); err != nil {
		return nil, err
	}
	return c, nil
}

// maxPoints bounds the lines of a CSV file.
const maxPoints = 1_000_000

// ParseCSV reads a curve: a line "seconds,rate" for each point, in the order of time.
// Empty lines, a heading in the first line, and the byte order mark that spreadsheets
// write are skipped. Errors begin with the file's name and the number of the line.
func ParseCSV(filename string, source []byte) (points []RatePoint, err error) {
	number := 0
	for line := range strings.Lines(strings.TrimPrefix(string(source), "\ufeff")) {
		number++
		text := strings.TrimSpace(line)
		if text == "" {
			continue
		}
		p, err := parsePoint(text)
		if err != nil && number == 1 && isHeading(text) {
			continue
		}
		if err == nil {
			err = p.follows(points)
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", filename, number, err)
		}
		points = append(points, p)
	}
	if len(points) == 0 {
		return nil, fmt.Errorf("%s: expected lines with seconds,rate, found none", filename)
	}
	return points, nil
}

// isHeading reports whether neither field is a number.
func isHeading(line string) bool {
	for field := range strings.SplitSeq(line, ",") {
		if _, err := strconv.ParseFloat(strings.TrimSpace(field), 64); err == nil {
			return false
		}
	}
	return true
}

func (p *RatePoint) follows(points []RatePoint) error {
	switch {
	case len(points) == maxPoints:
		return fmt.Errorf("expected at most %d points", maxPoints)
	case len(points) > 0 && p.At.Duration <= points[len(points)-1].At.Duration:
		return errors.New("expected a later time than in the line before")
	}
	return nil
}

func parsePoint(text string) (p RatePoint, err error) {
	at, rate, ok := strings.Cut(text, ",")
	since, err1 := strconv.ParseFloat(strings.TrimSpace(at), 64)
	p.Rate, err = strconv.ParseFloat(strings.TrimSpace(rate), 64)
	if !ok || err != nil || err1 != nil {
		return p, fmt.Errorf("expected seconds,rate, found %q", document.OneLine(text))
	}
	if !(since >= 0 && since <= longest.Seconds()) || !(p.Rate >= 0 && p.Rate <= mostRate) {
		return p, fmt.Errorf("expected 0 to %.0f seconds and 0 to %d connections per second, found %q", longest.Seconds(), mostRate, document.OneLine(text))
	}
	p.At.Duration = time.Duration(math.Round(since * float64(second)))
	return p, nil
}

// YAML is the configuration as text that Parse reads; what has its default's zero
// value is left out, and so are points that come from a CSV file.
func YAML(c *Config) (string, error) {
	if a := c.Arrivals; a != nil && a.CSV != "" && len(a.Points) > 0 {
		fromFile := *a
		fromFile.Points = nil
		written := *c
		written.Arrivals = &fromFile
		c = &written
	}
	text, err := yaml.Dump(c)
	return string(text), err
}

// Duration is a time.Duration written as 1500ms, 2s, 1h30m.
type Duration struct{ time.Duration }

// UnmarshalYAML reads it and keeps the place for an error.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	return document.Scalar(n, "a duration such as 500ms, 2s or 1h30m", func(text string) (err error) {
		d.Duration, err = time.ParseDuration(text)
		return err
	})
}

// MarshalText is the written form.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what MarshalText writes, in JSON.
func (d *Duration) UnmarshalText(text []byte) (err error) {
	d.Duration, err = time.ParseDuration(string(text))
	return err
}
