package rfc9693

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

// model is a gateway with a maximum rate and a table, filled by a sender with a maximum rate of its
// own.
type model struct {
	rate, sender float64
	table        int
	// hiccups is how many of the next trials are invalid, losses how many fail.
	hiccups, losses int
	full            time.Duration
	// timeout after which an entry without a reply expires; 0 never.
	timeout time.Duration
	// after ends ctx with this trial; 0 never.
	after, trials int
	cancel        context.CancelFunc
	broken        error
	filled        int
}

func (m *model) Establish(ctx context.Context, t Trial) (Outcome, error) {
	m.trials++
	if m.trials == m.after {
		m.cancel()
		return Outcome{}, ctx.Err()
	}
	o := Outcome{Trial: t, Sent: int64(t.Connections), Arrived: int64(t.Connections), Replied: int64(t.Connections), Returned: int64(t.Connections)}
	switch {
	case t.PerSecond > m.sender:
		o.OverrunSeconds, o.LateSeconds = 1, 1
	case m.hiccups > 0:
		m.hiccups--
		o.Arrived--
		o.LateSeconds = 0.01
	case t.PerSecond > m.rate:
		o.Arrived--
	case t.Connections > m.table:
		o.Returned--
	case m.timeout > 0 && 1.25*float64(t.Connections)/t.PerSecond > m.timeout.Seconds():
		o.Returned--
	case m.losses > 0:
		m.losses--
		o.Arrived--
	}
	o.Verdict = o.Judge(DefaultTolerance)
	m.filled = t.Connections
	return o, m.broken
}

func (m *model) Empty(context.Context) (time.Duration, error) {
	n := m.filled
	m.filled = 0
	return time.Millisecond + time.Duration(n)*m.full, nil
}

func config(measure ...Measurement) Config {
	return Config{Measure: measure, Connections: 1000, MaxRate: 1e6, MaxConnections: 1 << 20, Precision: 0.01, Repeat: 3}
}

func measure(t *testing.T, cfg Config, m *model) *Result {
	t.Helper()
	r, err := Measure(t.Context(), cfg, m, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

const fast = 1e9

func TestRate(t *testing.T) {
	for _, tt := range []struct {
		name   string
		model  model
		limit  Limit
		around float64
	}{
		{"the gateway's", model{rate: 123_456, sender: fast, table: 1e6}, ByGateway, 123_456},
		{"a slow gateway", model{rate: 321, sender: fast, table: 1e6}, ByGateway, 321},
		{"the sender's", model{rate: 500_000, sender: 200_000, table: 1e6}, ByGenerator, 200_000},
		{"the sender is slower only above", model{rate: 100_000, sender: 200_000, table: 1e6}, ByGateway, 100_000},
		{"faster than asked", model{rate: fast, sender: fast, table: 1e6}, ByMaximum, 1e6},
		{"hiccups", model{rate: 123_456, sender: fast, table: 1e6, hiccups: attempts - 1}, ByGateway, 123_456},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := measure(t, config(Rate), &tt.model)
			if len(r.Rates) != 3 || r.Rate.Repetitions != 3 || r.Rate.Limit != tt.limit {
				t.Fatalf("%d rates, %+v", len(r.Rates), r.Rate)
			}
			f := r.Rates[0]
			if f.Value > tt.around || tt.around > f.Above || f.Above-f.Value > 0.01*f.Above {
				t.Errorf("from %v to %v, want around %v", f.Value, f.Above, tt.around)
			}
			if len(f.Trials) > 25+2*attempts {
				t.Errorf("%d trials", len(f.Trials))
			}
			if r.TearDown != nil || r.Capacity != nil || r.Interrupted {
				t.Errorf("%+v", r)
			}
		})
	}
}

// TestJudge: a trial whose sender missed the rate shows nothing of the gateway. One that was late by the
// way does where nothing was lost.
func TestJudge(t *testing.T) {
	tolerance := Tolerance{Share: 0.001, Overrun: time.Millisecond, Late: 2 * time.Millisecond}
	for _, tt := range []struct {
		arrived, returned int64
		overrun, late     float64
		want              Verdict
	}{
		{1000, 1000, 0.002, 0.002, Passed}, // of a second, a thousandth and a millisecond more
		{1000, 1000, 0.0021, 0.0021, Invalid},
		{999, 0, 0.0021, 0.0021, Invalid},
		{1000, 1000, 0, 1, Passed},
		{999, 0, 0, 0.0021, Invalid},
		{999, 0, 0, 0.002, Failed},
		{997, 0, 0, 0.0021, Failed}, // more than the two that were due meanwhile
		{1000, 999, 0, 0, Failed},
		{1000, 999, 0, 0.003, Invalid},
	} {
		o := Outcome{Trial: Trial{1000, 1000}, Arrived: tt.arrived, Returned: tt.returned, OverrunSeconds: tt.overrun, LateSeconds: tt.late}
		if got := o.Judge(tolerance); got != tt.want {
			t.Errorf("%+v: %s, want %s", o, got, tt.want)
		}
	}
}

// TestInvalidIsRepeated a bounded number of times, and then is the sender's limit.
func TestInvalidIsRepeated(t *testing.T) {
	cfg := config(Rate)
	cfg.Repeat, cfg.Precision = 1, 0.5
	m := &model{rate: 400_000, sender: 400_000, table: 1e6}
	r := measure(t, cfg, m)
	var verdicts []string
	for _, o := range r.Rates[0].Trials {
		verdicts = append(verdicts, string(o.Verdict))
	}
	if got := strings.Join(verdicts, " "); got != strings.Repeat("invalid ", attempts)+"passed" {
		t.Error(got)
	}
	if f := r.Rates[0]; f.Value != 250_000 || f.Above != 500_000 || f.Limit != ByGenerator {
		t.Errorf("%+v", f)
	}
}

func TestTearDown(t *testing.T) {
	r := measure(t, config(TearDown), &model{rate: 100_000, sender: fast, table: 1e6, full: time.Microsecond})
	if len(r.TearDowns) != 3 || math.Abs(r.TearDown.Median-1e6) > 1 || r.TearDown.Limit != ByGateway {
		t.Errorf("%+v, %+v", r.TearDown, r.TearDowns)
	}
	if d := r.TearDowns[0]; d.Connections != 1000 || d.Seconds != 0.002 || d.EmptySeconds != 0.001 {
		t.Errorf("%+v", d)
	}
	if len(r.Rates) != 1 {
		t.Errorf("%d searches for a rate to fill at", len(r.Rates))
	}
	if d := newDeletion(5, time.Millisecond, time.Millisecond); d.PerSecond != 0 {
		t.Errorf("no difference: %+v", d)
	}
}

// TestTearDownUnmeasured: a table that was emptied as fast as an empty one has no rate.
func TestTearDownUnmeasured(t *testing.T) {
	m := &model{rate: 100_000, sender: fast, table: 1e6}
	r, err := Measure(t.Context(), config(TearDown), m, func(p Progress) {
		m.full = 0
		if p.Repetition == 2 {
			m.full = time.Microsecond
		}
	})
	if err != nil || len(r.TearDowns) != 3 || r.TearDown.Repetitions != 1 || math.Abs(r.TearDown.P1-1e6) > 1 {
		t.Fatalf("%+v, %v", r.TearDown, err)
	}
	if remarks := r.Remarks(); len(remarks) != 1 || !strings.Contains(remarks[0], "2 of 3 repetitions") {
		t.Error(remarks)
	}
}

func TestCapacity(t *testing.T) {
	for _, tt := range []struct {
		name                string
		table, most, losses int
		sender, precision   float64
		limit               Limit
		low, high           float64
	}{
		{"exactly", 262_144, 1 << 20, 0, fast, MinPrecision, ByGateway, 262_144 - 26, 262_144},
		{"to a percent", 262_144, 1 << 20, 0, fast, 0.01, ByGateway, 259_500, 262_144},
		{"the first number", 1000, 1 << 20, 0, fast, MinPrecision, ByGateway, 1000, 1000},
		{"more than asked", 1 << 24, 300_000, 0, fast, 0.01, ByMaximum, 300_000, 300_000},
		{"a loss by the way", 10_000, 1 << 20, 1, fast, MinPrecision, ByGateway, 10_000 - 1, 10_000},
		{"the sender's", 10_000, 1 << 20, 0, 60_000, MinPrecision, ByGateway, 10_000 - 1, 10_000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := config(Capacity)
			cfg.MaxConnections, cfg.Precision, cfg.Repeat = tt.most, tt.precision, 1
			m := &model{rate: 100_000, sender: tt.sender, table: tt.table}
			s := session{Result: Result{Config: cfg}, gateway: m}
			if _, err := s.steady(t.Context()); err != nil {
				t.Fatal(err)
			}
			m.losses = tt.losses
			if err := s.capacity(t.Context()); err != nil {
				t.Fatal(err)
			}
			f := s.Capacities[0]
			if f.Value < tt.low || f.Value > tt.high || f.Limit != tt.limit {
				t.Errorf("%v, below %v, by %s; want %v to %v", f.Value, f.Above, f.Limit, tt.low, tt.high)
			}
			if f.PerSecond < 0.29*100_000 || f.PerSecond > 0.51*100_000 {
				t.Errorf("searched at %v", f.PerSecond)
			}
		})
	}
}

// TestCapacitySender: where the sender does not keep to the rate, nothing is said of the table.
func TestCapacitySender(t *testing.T) {
	cfg := config(Capacity)
	m := &model{rate: 100_000, sender: fast, table: 1e6}
	s := session{Result: Result{Config: cfg}, gateway: m}
	if _, err := s.steady(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.sender = 1
	if err := s.capacity(t.Context()); err != nil {
		t.Fatal(err)
	}
	if f := s.Capacities[0]; f.Value != 0 || f.Limit != ByGenerator {
		t.Errorf("%+v", f)
	}
	if s.summarize(); s.Capacity != nil || len(s.Remarks()) != 1 {
		t.Errorf("%+v, %v", s.Capacity, s.Remarks())
	}
}

// TestLongestTrial: a search does not go down to rates at which a trial takes minutes.
func TestLongestTrial(t *testing.T) {
	cfg := config(Rate)
	cfg.Connections, cfg.MaxConnections = 300_000, 300_000
	r, _ := Measure(t.Context(), cfg, &model{sender: fast, table: 1e6}, nil) // which finds no rate
	for _, o := range r.Rates[0].Trials {
		if o.PerSecond < 5000 {
			t.Errorf("a trial with %d connections at %v/s", o.Connections, o.PerSecond)
		}
	}
}

// TestExact: a search ends also where its precision is below a connection per second.
func TestExact(t *testing.T) {
	for _, tt := range []struct{ most, rate, value, above float64 }{
		{5000, 3217, 3217, 3218}, {4999.5, 3217, 3217, 3218}, {4999.5, fast, 4998, 4999},
	} {
		cfg := config(Rate)
		cfg.MaxRate, cfg.Precision, cfg.Repeat = tt.most, MinPrecision, 1
		ctx, cancel := context.WithCancel(t.Context())
		r, err := Measure(ctx, cfg, &model{rate: tt.rate, sender: fast, table: 1e6, after: 100, cancel: cancel}, nil)
		if err != nil || r.Interrupted || r.Rates[0].Value != tt.value || r.Rates[0].Above != tt.above {
			t.Errorf("%+v: %+v, %v", tt, r, err)
		}
		cancel()
	}
}

func TestNoRate(t *testing.T) {
	for _, m := range Measurements {
		r, err := Measure(t.Context(), config(m), &model{sender: fast, table: 1e6}, nil)
		if err == nil || !strings.Contains(err.Error(), "no rate was found") || r.Rate != nil || len(r.Rates) != 1 {
			t.Errorf("%s: %+v, %v", m, r, err)
		}
	}
}

// TestNoRateLater: what was found before stands, and 0 is none of its values.
func TestNoRateLater(t *testing.T) {
	m := &model{rate: 100_000, sender: fast, table: 1e6}
	r, err := Measure(t.Context(), config(Rate), m, func(p Progress) {
		if p.Repetition == 3 {
			m.rate = 0
		}
	})
	if err == nil || len(r.Rates) != 3 || r.Rate.Repetitions != 2 || r.Rate.P1 < 99_000 {
		t.Errorf("%+v, %v", r.Rate, err)
	}
}

// TestTimeout: a number of connections whose entries expire before all have replies says nothing of
// the table.
func TestTimeout(t *testing.T) {
	for _, tt := range []struct {
		name           string
		known, timeout time.Duration
		table          int
		limit          Limit
		low, high      float64
		remarks        int
	}{
		{"known", time.Second, time.Second, 1e6, ByMaximum, 19_000, 20_000, 1}, // 0.5 s × 0.8 × 50,000/s
		{"known, a small table", time.Second, time.Second, 5000, ByGateway, 4950, 5000, 0},
		{"long", time.Hour, time.Hour, 100_000, ByGateway, 99_000, 100_000, 0},
		{"not known", 0, 30 * time.Second, 1e7, ByGateway, 1_180_000, 1_200_000, 1},
		{"not known, a small table", 0, 30 * time.Second, 100_000, ByGateway, 99_000, 100_000, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := config(Capacity)
			cfg.UDPTimeout, cfg.MaxConnections, cfg.Repeat = tt.known, 1<<22, 1
			r := measure(t, cfg, &model{rate: 100_000, sender: fast, table: tt.table, timeout: tt.timeout})
			if f := r.Capacities[0]; f.Value < tt.low || f.Value > tt.high || f.Limit != tt.limit || r.Capacity.Limit != tt.limit {
				t.Errorf("%v, below %v, by %s; want %v to %v by %s", f.Value, f.Above, f.Limit, tt.low, tt.high, tt.limit)
			}
			if remarks := r.Remarks(); len(remarks) != tt.remarks {
				t.Error(remarks)
			}
		})
	}
}

func TestAllInTurn(t *testing.T) {
	var seen []Progress
	r, err := Measure(t.Context(), config(Capacity, Rate, TearDown), &model{rate: 50_000, sender: fast, table: 3000}, func(p Progress) { seen = append(seen, p) })
	if err != nil || len(r.Rates) != 3 || len(r.TearDowns) != 3 || len(r.Capacities) != 3 {
		t.Fatalf("%v, %+v", err, r)
	}
	if first, last := seen[0], seen[len(seen)-1]; first.Measurement != Rate || first.Repetition != 1 || last.Measurement != Capacity || last.Repetition != 3 {
		t.Errorf("from %+v to %+v", first, last)
	}
}

// TestInterrupted keeps what was reached.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, err := Measure(ctx, config(Measurements...), &model{rate: 100_000, sender: fast, table: 1e6, after: 20, cancel: cancel}, nil)
	if err != nil || !r.Interrupted || len(r.Rates) != 1 || r.Rate.Repetitions != 1 {
		t.Errorf("%v, %+v", err, r)
	}
}

func TestBroken(t *testing.T) {
	down := errors.New("the interface went down")
	r, err := Measure(t.Context(), config(Rate), &model{broken: down}, nil)
	if !errors.Is(err, down) || r.Rate != nil || r.Interrupted {
		t.Errorf("%v, %+v", err, r)
	}
}

func TestSummary(t *testing.T) {
	for _, tt := range []struct {
		values []float64
		limits []Limit
		want   Summary
	}{
		{[]float64{3}, nil, Summary{1, 3, 3, 3, ByGateway}},
		{[]float64{4, 1, 2, 3}, []Limit{ByGateway, ByGateway, ByMaximum, ByGateway}, Summary{4, 2.5, 1, 4, ByMaximum}},
		{[]float64{2, 1}, []Limit{ByGenerator, ByMaximum}, Summary{2, 1.5, 1, 2, ByGenerator}},
		{[]float64{5, 1, 9}, []Limit{ByGateway, ByGateway, ByGateway}, Summary{3, 5, 1, 9, ByGateway}},
	} {
		if got := summarize(tt.values, tt.limits); *got != tt.want {
			t.Errorf("%v: %+v, want %+v", tt.values, *got, tt.want)
		}
	}
	hundreds := make([]float64, 200)
	for i := range hundreds {
		hundreds[i] = float64(i + 1)
	}
	if s := summarize(hundreds, nil); s.P1 != 2 || s.P99 != 198 || s.Median != 100.5 {
		t.Errorf("%+v", s)
	}
	if summarize(nil, nil) != nil {
		t.Error("a summary of nothing")
	}
}

func TestCheck(t *testing.T) {
	if err := config(Measurements...).Check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"nothing":       func(c *Config) { c.Measure = nil },
		"unknown":       func(c *Config) { c.Measure = []Measurement{"throughput"} },
		"twice":         func(c *Config) { c.Measure = []Measurement{Rate, Rate} },
		"no connection": func(c *Config) { c.Connections = 0 },
		"too many":      func(c *Config) { c.MaxConnections = MaxConnections + 1 },
		"fewer":         func(c *Config) { c.MaxConnections = c.Connections - 1 },
		"no rate":       func(c *Config) { c.MaxRate = 0 },
		"NaN":           func(c *Config) { c.MaxRate = math.NaN() },
		"no precision":  func(c *Config) { c.Precision = 0 },
		"no repetition": func(c *Config) { c.Repeat = 0 },
	} {
		c := config(Measurements...)
		change(&c)
		if _, err := Measure(t.Context(), c, &model{}, nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
