package simulate

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/testutil"
)

const small = `name: small
duration: 1m
arrivals: {rate: 10}
clients: [{name: a, hosts: 2}]
servers: [{name: s, kernel: timer}]
`

func TestParse(t *testing.T) {
	for _, tt := range []struct{ name, old, new, want string }{
		{"as it is", "", "", ""},
		{"unknown key", "hosts: 2", "host: 2", `x.yaml:4:21: unknown field "host"`},
		{"duration", "1m", "1", `x.yaml:2:11: expected a duration such as 500ms, 2s or 1h30m, found "1"`},
		{"no duration", "duration: 1m\n", "", "x.yaml:1:1: expected 1ms or more"},
		{"too long", "1m", "99999h", "x.yaml:2:11: duration 99999h0m0s: expected 0s to 9600h"},
		{"no curve", "arrivals: {rate: 10}\n", "", "expected either arrivals or batches"},
		{"two curves", "{rate: 10}", "{rate: 10, daily: {low: 1, high: 2}}", "x.yaml:3:11: expected one of rate, hours, daily, points, csv"},
		{"both", "clients:", "batches: [{connections: 1}]\nclients:", "expected either arrivals or batches"},
		{"negative rate", "rate: 10", "rate: -1", "x.yaml:3:18: arrivals.rate -1: expected 0 to 50000"},
		{"no number", "rate: 10", "rate: .nan", "x.yaml:3:18: expected"},
		{"hours", "{rate: 10}", "{hours: [1, 2]}", "x.yaml:3:19: expected 24 rates"},
		{"points go back", "{rate: 10}", "{points: [{at: 1s, rate: 1}, {at: 1s, rate: 2}]}", "x.yaml:3:45: expected a later time than before"},
		{"file to come", "{rate: 10}", "{csv: rates.csv}", ""},
		{"same name", "hosts: 2}", "hosts: 2}, {name: a}", "x.yaml:4:39: expected another name for each group"},
		{"clock", "hosts: 2", "clock: {offset: x}", `clock.offset "x": expected one of: pair, uptime, connection, values`},
		{"values", "hosts: 2", "hosts: 2, clock: {offset: values, values: [1]}", "expected a value for each host"},
		{"kernel", "kernel: timer", "kernel: 2.6", `x.yaml:5:29: servers.kernel "2.6": expected one of: wheel, wheel-rearm, timer`},
		{"servers to come", "kernel: timer", "from: 1s", "expected servers that are there from the beginning"},
		{"ports", "servers:", "nat: {ports: [2, 1]}\nservers:", "x.yaml:5:14: expected the first and the last port"},
		{"too many ports", "servers:", "nat: {addresses: 1000}\nservers:", "x.yaml:5:6: expected at most 4194304 ports of all addresses"},
		{"strategy", "servers:", "nat: {strategy: best}\nservers:", `nat.strategy "best": expected one of: round-robin, random, hash, kernel`},
		{"interval", "duration: 1m", "duration: 1m\ninterval: 1ms", "x.yaml:3:11: expected an interval that makes at most 20000 points, not 60000"},
		{"client of a batch", "arrivals: {rate: 10}", "batches: [{connections: 1, clients: b}]", `x.yaml:3:37: batches.clients "b": expected one of: a`},
		{"too slow", "arrivals: {rate: 10}", "batches: [{connections: 1000, rate: 1e-6}]", "x.yaml:3:37: expected a rate at which all begin within 9600h0m0s"},
		{"two speeds", "arrivals: {rate: 10}", "batches: [{connections: 1, rate: 1, concurrency: 1}]", "expected either concurrency or rate"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Parse("x.yaml", []byte(strings.Replace(small, tt.old, tt.new, 1)))
			if tt.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if c != nil || err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, error %v, want %q", c, err, tt.want)
			}
		})
	}
}

// What Check says names the place, as it has no text to point at.
func TestCheckNamesThePlace(t *testing.T) {
	c := sourceCase(Servers{Kernel: "x"})
	c.Arrivals = &Arrivals{Rate: 1}
	if err := c.Check(); err == nil || err.Error() != `servers[0].kernel "x": expected one of: wheel, wheel-rearm, timer` {
		t.Error(err)
	}
	if _, err := Run(t.Context(), c, nil); err == nil || !strings.HasPrefix(err.Error(), "simulate: servers[0].kernel ") {
		t.Error(err)
	}
	c.Servers[0].Kernel, c.Arrivals = "", &Arrivals{CSV: "rates.csv"}
	if _, err := Run(t.Context(), c, nil); err == nil || err.Error() != "simulate: the arrivals of rates.csv were not read" {
		t.Error(err)
	}
}

func TestParseCSV(t *testing.T) {
	got, err := ParseCSV("x.csv", []byte("seconds,rate\n0,100\n\n 0.5 , 7.25 \r\n60,0"))
	want := []RatePoint{{Rate: 100}, {Duration{500 * time.Millisecond}, 7.25}, {Duration{time.Minute}, 0}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v: %s", err, diff)
	}
	if got, err := ParseCSV("x.csv", []byte("\ufeff0,100\r\n1,5\r\n")); err != nil || len(got) != 2 || got[0].Rate != 100 {
		t.Errorf("with a byte order mark: %v, error %v", got, err)
	}
	for text, want := range map[string]string{
		"NaN,1\n0,2\n":     "x.csv:1: expected 0 to",
		"time,5\n0,2\n":    `x.csv:1: expected seconds,rate, found "time,5"`,
		"0,1e99999\n1,2\n": "x.csv:1: expected",
		"":                 "x.csv: expected lines with seconds,rate, found none",
		"a,b\n":            "x.csv: expected lines with seconds,rate, found none",
		"a,b\nc,d\n":       `x.csv:2: expected seconds,rate, found "c,d"`,
		"5\n":              `x.csv:1: expected seconds,rate, found "5"`,
		"1,2,3\n":          `x.csv:1: expected seconds,rate, found "1,2,3"`,
		"5,1\n5,2\n":       "x.csv:2: expected a later time than in the line before",
		"0,-1\n":           "x.csv:1: expected 0 to 34560000 seconds and 0 to 50000 connections per second",
		"0,NaN\n":          "x.csv:1: expected 0 to",
		"1e300,1\n":        "x.csv:1: expected 0 to",
		"0,1\n\x1b[2J\n":   `x.csv:2: expected seconds,rate, found " [2J"`,
	} {
		points, err := ParseCSV("x.csv", []byte(text))
		if points != nil || err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: got %v, error %v, want %q", text, points, err, want)
		}
	}
}

// Whatever is in a file: an error with a place, or a simulation that can be run.
func FuzzParse(f *testing.F) {
	f.Add(small)
	for _, p := range Presets() {
		f.Add(p.Text)
	}
	f.Add(strings.Replace(small, "arrivals: {rate: 10}", "batches: [{connections: 3, rate: 0.1, pause: 1s}, {connections: 5, concurrency: 2}]", 1))
	f.Fuzz(func(t *testing.T, text string) {
		defer testutil.Bounded(t, len(text))()
		c, err := Parse("x.yaml", []byte(text))
		var syntax *document.SyntaxError
		if err != nil && !errors.As(err, &syntax) {
			t.Fatalf("%T %v", err, err)
		}
		if err != nil || !affordable(c) {
			return
		}
		r := run(t, *c)
		if problem := conserved(r); problem != "" {
			t.Fatal(problem)
		}
	})
}

// affordable reports whether a simulation is short enough for a test.
func affordable(c *Config) bool {
	f := c.filled()
	for _, b := range c.Batches {
		if b.Pause.Duration > time.Minute || b.Rate > 0 && b.Rate < 0.1 {
			return false
		}
	}
	return c.total() < 1000 && f.Duration.Duration/f.Interval.Duration < 1000 && f.NAT.Addresses < 4 && f.Duration.Duration < day &&
		(c.Arrivals == nil || c.Arrivals.CSV == "") && (c.Balancer == nil || c.Balancer.Addresses < 4)
}

func FuzzParseCSV(f *testing.F) {
	f.Add("seconds,rate\n0,1\n2,3\n")
	f.Fuzz(func(t *testing.T, text string) {
		defer testutil.Bounded(t, len(text))()
		points, err := ParseCSV("x.csv", []byte(text))
		if (err == nil) != (len(points) > 0) || err != nil && strings.Contains(err.Error(), "\n") {
			t.Fatalf("%d points, error %v", len(points), err)
		}
		c := Config{Duration: Duration{time.Hour}, Arrivals: &Arrivals{Points: points}, Clients: []Clients{{}}, Servers: []Servers{{}}}
		if err == nil && c.total() < 1e10 && c.Arrivals.peak() < 30_000 { // more may wait than Check lets
			if err := c.Check(); err != nil {
				t.Fatal(err)
			}
			newStream(&c, rand.New(rand.NewPCG(1, 2)))
		}
	})
}

// TestYAML: each preset written and read again is the same.
func TestYAML(t *testing.T) {
	for _, p := range Presets() {
		text, err := YAML(&p.Config)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Parse("again.yaml", []byte(text))
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if diff := cmp.Diff(&p.Config, got); diff != "" {
			t.Errorf("%s:\n%s\n%s", p.Name, diff, text)
		}
	}
	off := false
	c := Config{Servers: []Servers{{Timestamps: &off}}, NAT: NAT{HoldDown: &Duration{}}}
	text, err := YAML(&c)
	if err != nil || !strings.Contains(text, "timestamps: false") || !strings.Contains(text, "hold_down: 0s") {
		t.Errorf("what is set to nothing is lost: %v\n%s", err, text)
	}
}
