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

// Bounds of what is simulated, so that it ends and fits into memory; those of single
// values are at the fields.
const (
	mostHosts   = 1 << 20
	mostServers = 256
	mostSlots   = 1 << 22
	mostRate    = 50_000
	mostConns   = 10_000_000_000
	mostPoints  = 20_000
	mostWaiting = 1 << 22
	longest     = 400 * day
)

// Check validates c. It does not check whether Arrivals.CSV was read.
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
	if about, named := strings.CutPrefix(p.Message, document.Field(p.Path)); named {
		return fmt.Errorf("%s%s", &at, about)
	}
	return fmt.Errorf("%s: %s", &at, p.Message)
}

// checker keeps the first fault.
type checker struct{ first *document.Problem }

// need records what is expected at a path, if ok is false.
func (k *checker) need(ok bool, message string, path ...any) {
	if !ok && k.first == nil {
		k.first = &document.Problem{Path: slices.Clone(path), Message: "expected " + message}
	}
}

func (k *checker) ports(p [2]uint16, path ...any) {
	k.need(p == [2]uint16{} || p[0] > 0 && p[0] <= p[1], "the first and the last port, from 1 to 65535", path...)
}

// rules are those that the tags of fields name.
func (c *Config) rules() map[string]document.Rule {
	var groups []string
	for _, g := range c.Clients {
		groups = append(groups, g.Name)
	}
	return map[string]document.Rule{
		"offset": document.OneOf(OffsetPair, OffsetUptime, OffsetConnection, OffsetValues), "isn": document.OneOf(ISNClock, ISNRandom),
		"spacing": document.OneOf(SpacingPoisson, SpacingEven), "closer": document.OneOf(CloseServer, CloseClient),
		"strategy": document.OneOf(StrategyRoundRobin, StrategyRandom, StrategyHash, StrategyKernel),
		"reset":    document.OneOf(ResetPasses, ResetReopens, ResetDropped),
		"kernel":   document.OneOf(KernelWheel, KernelWheelRearm, KernelTimer), "group": document.OneOf(groups...),
	}
}

func (c *Config) check() *document.Problem {
	k := &checker{document.Check(c, c.rules())}
	hosts := 0
	for i := range c.Clients {
		g := &c.Clients[i]
		hosts += max(g.Hosts, 1)
		if g.Clock.Offset == OffsetValues {
			k.need(len(g.Clock.Values) == max(g.Hosts, 1), "a value for each host", "clients", i, "clock", "values")
		}
		k.ports(g.SourcePorts, "clients", i, "source_ports")
		for n := range i {
			k.need(c.Clients[n].Name != g.Name, "another name for each group", "clients", i, "name")
		}
	}
	k.need(hosts <= mostHosts, fmt.Sprintf("at most %d hosts", mostHosts), "clients")
	k.need((c.Arrivals != nil) != (len(c.Batches) > 0), "either arrivals or batches")
	if c.Arrivals != nil {
		k.need(c.Duration.Duration >= time.Millisecond, "1ms or more", "duration")
		c.Arrivals.check(k)
	}
	for i, b := range c.Batches {
		k.need(b.Rate == 0 || float64(b.Connections)/b.Rate <= longest.Seconds(), fmt.Sprintf("a rate at which all begin within %v", longest), "batches", i, "rate")
		k.need(b.Rate == 0 || b.Concurrency == 0, "either concurrency or rate", "batches", i, "rate")
	}
	k.ports(c.NAT.Ports, "nat", "ports")
	servers, early := 0, false
	for _, s := range c.Servers {
		servers += max(s.Count, 1)
		early = early || s.From.Duration == 0
	}
	k.need(servers <= mostServers, fmt.Sprintf("at most %d servers", mostServers), "servers")
	k.need(early, "servers that are there from the beginning", "servers")
	if k.first == nil {
		c.checkSizes(k)
	}
	return k.first
}

func (a *Arrivals) check(k *checker) {
	given := slices.DeleteFunc(document.Given(a), func(key string) bool { return key == "spacing" || key == "csv" && len(a.Points) > 0 })
	k.need(len(given) == 1, "one of rate, hours, daily, points, csv", "arrivals")
	k.need(len(a.Hours) == 0 || len(a.Hours) == 24, "24 rates", "arrivals", "hours")
	last := time.Duration(-1)
	for i, p := range a.Points {
		k.need(p.At.Duration > last, "a later time than before", "arrivals", "points", i, "at")
		last = p.At.Duration
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
	number, last := 0, -1.0
	for line := range strings.Lines(string(document.Unmarked(source))) {
		number++
		text := strings.TrimSpace(line)
		if text == "" {
			continue
		}
		at, rate, _ := strings.Cut(text, ",")
		since, atErr := strconv.ParseFloat(strings.TrimSpace(at), 64)
		perSecond, rateErr := strconv.ParseFloat(strings.TrimSpace(rate), 64)
		var expected string
		switch {
		case number == 1 && atErr != nil && rateErr != nil: // a heading
			continue
		case atErr != nil || rateErr != nil:
			expected = fmt.Sprintf("seconds,rate, found %q", document.OneLine(text))
		case !(since >= 0 && since <= longest.Seconds()) || !(perSecond >= 0 && perSecond <= mostRate):
			expected = fmt.Sprintf("0 to %.0f seconds and 0 to %d connections per second, found %q", longest.Seconds(), mostRate, document.OneLine(text))
		case len(points) == maxPoints:
			expected = fmt.Sprintf("at most %d points", maxPoints)
		case math.Round(since*float64(second)) <= last:
			expected = "a later time than in the line before"
		}
		if expected != "" {
			return nil, fmt.Errorf("%s:%d: expected %s", filename, number, expected)
		}
		last = math.Round(since * float64(second))
		points = append(points, RatePoint{At: Duration{time.Duration(last)}, Rate: perSecond})
	}
	if len(points) == 0 {
		return nil, fmt.Errorf("%s: expected lines with seconds,rate, found none", filename)
	}
	return points, nil
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
