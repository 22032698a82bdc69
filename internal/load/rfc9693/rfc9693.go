// Package rfc9693 measures stateful NAT as RFC 9693 describes it: the maximum connection
// establishment rate, the connection tear-down rate and the capacity of the connection tracking
// table. It searches; a Gateway carries out the trials.
package rfc9693

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Measurement is one of the RFC's.
type Measurement string

// The measurements, in the order in which they are made.
const (
	// Rate is the maximum connection establishment rate.
	Rate Measurement = "rate"
	// TearDown is the connection tear-down rate.
	TearDown Measurement = "teardown"
	// Capacity is that of the connection tracking table.
	Capacity Measurement = "capacity"
)

// Measurements are all of them.
var Measurements = []Measurement{Rate, TearDown, Capacity}

// Alpha is the rate of validation as a share of the rate at which connections were established
// (RFC 9693, Validation of Connection Establishment): a known connection costs less than a new one.
const Alpha = 0.8

const (
	// capacityRate is at what share of the maximum rate, found with few connections, the capacity
	// is searched: the RFC's gamma, the drop of the rate from which on a table counts as too full.
	capacityRate = 0.5
	// attempts bound how often a trial is made that is invalid.
	attempts = 6
	// confirmations is how often a size of the table has to fail.
	confirmations = 2
	// leastRate ends a search that finds no rate, as does one at which a trial takes longestTrial.
	leastRate    = 100
	longestTrial = 30 * time.Second
	// oldest is the age of the oldest entry when its reply arrives, in times that phase 1 takes: the
	// reply to connection i of N leaves N/R + i/(Alpha·R) after the first frame, the frame at i/R.
	oldest = 1 / Alpha
	// betweenPhases is what an entry has to last besides.
	betweenPhases = 500 * time.Millisecond
	// usualTimeout is how long an entry may be taken to last where that is not known: the kernel's
	// nf_conntrack_udp_timeout.
	usualTimeout = 30 * time.Second
)

// Config is what is measured, and how exactly.
type Config struct {
	Measure []Measurement `json:"measure"`
	// Connections is the number N of test frames of phase 1, each of a connection of its own.
	Connections int `json:"connections"`
	// MaxRate bounds the search for the rate, in connections per second.
	MaxRate float64 `json:"max_rate_per_second"`
	// MaxConnections bounds the search for the capacity.
	MaxConnections int `json:"max_connections"`
	// Precision is by what share of the upper bound a binary search may be wrong.
	Precision float64 `json:"precision"`
	// Repeat is how often each measurement is made.
	Repeat int `json:"repeat"`
	// UDPTimeout is how long the gateway keeps an entry without a reply; 0: not known. It bounds the
	// search for the capacity, as a table is not full whose entries expire.
	UDPTimeout time.Duration `json:"udp_timeout_ns,omitempty"`
}

// Bounds of a Config.
const (
	MaxConnections = 1 << 24
	MaxRepeat      = 1000
	MinPrecision   = 0.0001
	MaxPrecision   = 0.5
)

// Check finds what cannot be measured.
func (c Config) Check() error {
	switch {
	case len(c.Measure) == 0:
		return errors.New("nothing is to be measured: name rate, teardown or capacity")
	case c.Connections < 1 || c.Connections > MaxConnections:
		return fmt.Errorf("connections %d: must be 1 to %d", c.Connections, MaxConnections)
	case c.MaxConnections < c.Connections || c.MaxConnections > MaxConnections:
		return fmt.Errorf("max connections %d: must be from the %d connections of a trial to %d", c.MaxConnections, c.Connections, MaxConnections)
	case !(c.MaxRate >= leastRate && c.MaxRate <= 1e8):
		return fmt.Errorf("max rate %g: must be %d to 1e8 connections per second", c.MaxRate, leastRate)
	case !(c.Precision >= MinPrecision && c.Precision <= MaxPrecision):
		return fmt.Errorf("precision %g: must be %g to %g", c.Precision, MinPrecision, MaxPrecision)
	case c.Repeat < 1 || c.Repeat > MaxRepeat:
		return fmt.Errorf("repeat %d: must be 1 to %d", c.Repeat, MaxRepeat)
	}
	for i, m := range c.Measure {
		if !slices.Contains(Measurements, m) || slices.Contains(c.Measure[:i], m) {
			return fmt.Errorf("measurement %q: must be each of rate, teardown, capacity at most once", m)
		}
	}
	return nil
}

// Trial is one filling of the empty table.
type Trial struct {
	Connections int     `json:"connections"`
	PerSecond   float64 `json:"rate_per_second"`
}

// Verdict is what a trial shows.
type Verdict string

const (
	// Passed: all test frames of both phases arrived.
	Passed Verdict = "passed"
	// Failed: some did not.
	Failed Verdict = "failed"
	// Invalid: the sender did not keep to the rate, so that the trial shows nothing of the gateway.
	Invalid Verdict = "invalid"
)

// Outcome is what came of a trial.
type Outcome struct {
	Trial
	Verdict Verdict `json:"verdict"`
	// Sent and Arrived count the test frames of phase 1, Replied and Returned those of the
	// validation, in the opposite direction.
	Sent     int64 `json:"sent"`
	Arrived  int64 `json:"arrived"`
	Replied  int64 `json:"replied"`
	Returned int64 `json:"returned"`
	// OverrunSeconds is by how much the last frame of phase 1 left after it was due, LateSeconds the
	// longest such time of any frame, replies included.
	OverrunSeconds float64 `json:"overrun_seconds"`
	LateSeconds    float64 `json:"late_seconds"`
}

// Tolerance is what is asked of the sender of a valid trial. The RFC has none of its own; siitperf
// invalidates a test that takes 0.001 % longer than it should.
type Tolerance struct {
	// Share of the time that sending should take, and Overrun besides, may pass until the last frame
	// leaves.
	Share   float64       `json:"share"`
	Overrun time.Duration `json:"overrun_ns"`
	// Late is the longest that any frame may leave after it was due where frames are lost, no more than were
	// due in that time: a sender that stops catches up with a burst, whose loss is its own doing.
	Late time.Duration `json:"late_ns"`
}

// DefaultTolerance is that of an even run of packets.
var DefaultTolerance = Tolerance{Share: 0.001, Overrun: time.Millisecond, Late: 2 * time.Millisecond}

// TooSlow reports whether the sender missed the rate of phase 1.
func (o Outcome) TooSlow(t Tolerance) bool {
	return o.OverrunSeconds > t.Share*float64(o.Connections)/o.PerSecond+t.Overrun.Seconds()
}

// Judge returns the verdict of a trial.
func (o Outcome) Judge(t Tolerance) Verdict {
	lost := int64(o.Connections) - o.Arrived
	if lost == 0 {
		lost = int64(o.Connections) - o.Returned
	}
	switch {
	case o.TooSlow(t):
		return Invalid
	case lost == 0:
		return Passed
	case o.LateSeconds > t.Late.Seconds() && float64(lost) <= o.LateSeconds*o.PerSecond:
		return Invalid
	}
	return Failed
}

// Deletion is how long it took to delete all entries of the table.
type Deletion struct {
	Connections int `json:"connections"`
	// Seconds is for the table with these, EmptySeconds for the empty one.
	Seconds      float64 `json:"seconds"`
	EmptySeconds float64 `json:"empty_seconds"`
	// PerSecond is the tear-down rate; 0 where the difference is not positive, which is no value of the
	// summary.
	PerSecond float64 `json:"per_second"`
}

// newDeletion calculates the rate (RFC 9693, Measurement of the Connection Tear-Down Rate).
func newDeletion(n int, full, empty time.Duration) Deletion {
	d := Deletion{Connections: n, Seconds: full.Seconds(), EmptySeconds: empty.Seconds()}
	if full > empty {
		d.PerSecond = float64(n) / (full - empty).Seconds()
	}
	return d
}

// Gateway is what is measured.
type Gateway interface {
	// Establish empties the table and makes a trial.
	Establish(context.Context, Trial) (Outcome, error)
	// Empty deletes all entries, and returns how long that took.
	Empty(context.Context) (time.Duration, error)
}

// Limit is what bounds a value.
type Limit string

const (
	// ByGateway: the value is the gateway's.
	ByGateway Limit = "gateway"
	// ByGenerator: beyond the value the sender did not keep to the rate; the gateway's is unknown.
	ByGenerator Limit = "generator"
	// ByMaximum: the value is the greatest that was to be tried, or that could be before entries expire.
	ByMaximum Limit = "maximum"
)

// Found is the result of a search: the greatest value that passed, and what bounds it.
type Found struct {
	// Value is 0 where none passed, which is no value of the summary.
	Value float64 `json:"value"`
	// Above is the least value that did not pass, or the maximum.
	Above float64 `json:"above"`
	Limit Limit   `json:"limit"`
	// PerSecond is the rate at which capacity was searched.
	PerSecond float64   `json:"rate_per_second,omitempty"`
	Trials    []Outcome `json:"trials"`
}

// Summary are the values of repetitions.
type Summary struct {
	Repetitions int `json:"repetitions"`
	// Median, and the 1st and 99th percentile by nearest rank, as RFC 9693 reports them (Reporting
	// Format): with fewer than a hundred repetitions these are the least and the greatest value.
	Median float64 `json:"median"`
	P1     float64 `json:"p1"`
	P99    float64 `json:"p99"`
	// Limit is ByGateway if all values are the gateway's, ByGenerator if one is the sender's.
	Limit Limit `json:"limit"`
}

func summarize(values []float64, limits []Limit) *Summary {
	if len(values) == 0 {
		return nil
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	rank := func(share float64) float64 { return sorted[max(int(math.Ceil(share*float64(n)))-1, 0)] }
	s := &Summary{Repetitions: n, Median: (sorted[(n-1)/2] + sorted[n/2]) / 2, P1: rank(0.01), P99: rank(0.99), Limit: ByGateway}
	for _, limit := range []Limit{ByMaximum, ByGenerator} {
		if slices.Contains(limits, limit) {
			s.Limit = limit
		}
	}
	return s
}

// Result is what was measured. A part that was not, or not yet, is empty.
type Result struct {
	Config Config `json:"config"`

	Rate     *Summary `json:"establishment_rate_per_second,omitempty"`
	TearDown *Summary `json:"teardown_rate_per_second,omitempty"`
	Capacity *Summary `json:"capacity_connections,omitempty"`

	Rates      []Found    `json:"rates,omitempty"`
	TearDowns  []Deletion `json:"teardowns,omitempty"`
	Capacities []Found    `json:"capacities,omitempty"`
	// Interrupted: there were to be more.
	Interrupted bool `json:"interrupted,omitempty"`
}

// Progress is a trial that begins.
type Progress struct {
	Measurement Measurement
	Repetition  int // from 1
	Trial       Trial
}

// Measure makes the measurements of cfg. Where ctx ends it returns what was reached until then.
// progress may be nil.
func Measure(ctx context.Context, cfg Config, g Gateway, progress func(Progress)) (*Result, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	s := &session{Result: Result{Config: cfg}, gateway: g, progress: progress}
	err := s.measure(ctx)
	s.summarize()
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		s.Interrupted, err = true, nil
	}
	return &s.Result, err
}

type session struct {
	Result
	gateway  Gateway
	progress func(Progress)
	now      Progress
}

func (s *session) measure(ctx context.Context) error {
	steps := map[Measurement]func(context.Context) error{Rate: s.rate, TearDown: s.tearDown, Capacity: s.capacity}
	for _, m := range Measurements {
		if !slices.Contains(s.Config.Measure, m) {
			continue
		}
		for i := range s.Config.Repeat {
			s.now = Progress{Measurement: m, Repetition: i + 1}
			if err := steps[m](ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *session) summarize() {
	list := func(found []Found) *Summary {
		var values []float64
		var limits []Limit
		for _, f := range found {
			if f.Value > 0 {
				values, limits = append(values, f.Value), append(limits, f.Limit)
			}
		}
		return summarize(values, limits)
	}
	s.Rate, s.Capacity = list(s.Rates), list(s.Capacities)
	var values []float64
	for _, d := range s.TearDowns {
		if d.PerSecond > 0 {
			values = append(values, d.PerSecond)
		}
	}
	s.TearDown = summarize(values, nil)
}

func (s *session) rate(ctx context.Context) error {
	found, err := s.search(ctx, s.Config.Connections)
	if err != nil {
		return err
	}
	s.Rates = append(s.Rates, found)
	if found.Value == 0 { // slower with each trial, and again
		return s.noRate(found)
	}
	return nil
}

// search looks for the greatest rate at which so many connections pass (RFC 9693, Measurement of the
// Maximum Connection Establishment Rate): a binary search between 0 and the maximum. Its bounds are whole
// numbers, so that each trial moves one.
func (s *session) search(ctx context.Context, connections int) (Found, error) {
	f := Found{Above: math.Floor(s.Config.MaxRate), Limit: ByMaximum}
	least := max(leastRate, float64(connections)/longestTrial.Seconds())
	for f.Above-f.Value > max(1, s.Config.Precision*f.Above) && f.Above > least {
		rate := math.Floor((f.Value + f.Above) / 2)
		outcome, err := s.establish(ctx, &f, Trial{connections, rate})
		if err != nil {
			return f, err
		}
		f.narrow(rate, outcome)
	}
	return f, nil
}

// narrow takes the half of a binary search that the verdict of its middle leaves.
func (f *Found) narrow(middle float64, v Verdict) {
	switch v {
	case Passed:
		f.Value = middle
	case Failed:
		f.Above, f.Limit = middle, ByGateway
	case Invalid:
		f.Above, f.Limit = middle, ByGenerator
	}
}

// establish makes a trial, and makes it again while it is invalid: another program may have taken
// the sender's CPU.
func (s *session) establish(ctx context.Context, f *Found, t Trial) (Verdict, error) {
	s.now.Trial = t
	var verdict Verdict
	for range attempts {
		if s.progress != nil {
			s.progress(s.now)
		}
		if err := ctx.Err(); err != nil {
			return "", err
		}
		o, err := s.gateway.Establish(ctx, t)
		if err != nil {
			return "", err
		}
		f.Trials = append(f.Trials, o)
		if verdict = o.Verdict; verdict != Invalid {
			break
		}
	}
	return verdict, nil
}

// steady returns a rate well below the maximum, which is measured first where it was not yet.
func (s *session) steady(ctx context.Context) (float64, error) {
	if len(s.Rates) == 0 {
		if err := s.rate(ctx); err != nil {
			return 0, err
		}
	}
	s.summarize()
	return math.Ceil(s.Rate.Median * capacityRate), nil
}

// noRate is why a search found no rate.
func (s *session) noRate(f Found) error {
	why := "the table does not hold as many, the way loses frames, or entries expire before their replies"
	if f.Limit == ByGenerator {
		why = "the sender did not keep to any rate; other programs may have taken its CPU"
	}
	return fmt.Errorf("no rate was found at which %d connections are established: %s", s.Config.Connections, why)
}

// tearDown fills the table and deletes all of it.
func (s *session) tearDown(ctx context.Context) error {
	rate, err := s.steady(ctx)
	if err != nil {
		return err
	}
	if err := s.fill(ctx, Trial{s.Config.Connections, rate}); err != nil {
		return err
	}
	full, err := s.gateway.Empty(ctx)
	if err != nil {
		return err
	}
	empty, err := s.gateway.Empty(ctx)
	if err != nil {
		return err
	}
	s.TearDowns = append(s.TearDowns, newDeletion(s.Config.Connections, full, empty))
	return nil
}

// fill makes connections, however late the sender is.
func (s *session) fill(ctx context.Context, t Trial) error {
	var trials Found
	for range attempts {
		if _, err := s.establish(ctx, &trials, t); err != nil {
			return err
		}
		if o := trials.Trials[len(trials.Trials)-1]; o.Arrived == int64(t.Connections) {
			return nil
		}
	}
	return fmt.Errorf("fill the table with %d connections at %.0f per second: frames were lost in each of several trials; the gateway is not steady at half of its maximum rate", t.Connections, t.PerSecond)
}

// capacity doubles the number of connections until they do not pass, then searches between the last
// two numbers (RFC 9693, Measurement of the Connection Tracking Table Capacity). The RFC searches
// for the maximum rate with each number, and asks whether it is below a share of the one before;
// a trial at that share of the rate found first answers it.
func (s *session) capacity(ctx context.Context) error {
	rate, err := s.steady(ctx)
	if err != nil {
		return err
	}
	f, most := Found{Limit: ByMaximum, PerSecond: rate}, s.Config.mostAt(rate)
	for n := s.Config.Connections; f.Limit == ByMaximum && int(f.Value) < most; n *= 2 {
		if err := s.hold(ctx, &f, min(n, most)); err != nil {
			return err
		}
	}
	f.Above = cmp.Or(f.Above, f.Value)
	for f.Limit == ByGateway && f.Above-f.Value > max(1, s.Config.Precision*f.Above) {
		if err := s.hold(ctx, &f, int(f.Value+f.Above)/2); err != nil {
			return err
		}
	}
	s.Capacities = append(s.Capacities, f)
	return nil
}

// mostAt is how many connections may be tried at a rate: all get their replies before an entry expires.
func (c Config) mostAt(rate float64) int {
	if c.UDPTimeout == 0 {
		return c.MaxConnections
	}
	last := (c.UDPTimeout - betweenPhases).Seconds() / oldest
	return max(1, int(min(float64(c.MaxConnections), last*rate)))
}

// Remarks are what a reader of the summaries has to know of the repetitions.
func (r *Result) Remarks() (remarks []string) {
	unmeasured, none, expiring, unknown := 0, 0, 0, 0
	for _, d := range r.TearDowns {
		if d.PerSecond == 0 {
			unmeasured++
		}
	}
	for _, f := range r.Capacities {
		most := r.Config.mostAt(f.PerSecond)
		switch {
		case f.Value == 0:
			none++
		case f.Limit == ByMaximum && most < r.Config.MaxConnections:
			expiring = max(expiring, most)
		case f.Limit == ByGateway && r.Config.UDPTimeout == 0 && oldest*f.Above/f.PerSecond > usualTimeout.Seconds():
			unknown++
		}
	}
	say := func(n int, format string, args ...any) {
		if n > 0 {
			remarks = append(remarks, fmt.Sprintf(format, args...))
		}
	}
	say(unmeasured, "tear-down: %d of %d repetitions have no rate: the full table was emptied as fast as the empty one; use more --connections", unmeasured, len(r.TearDowns))
	say(none, "capacity: %d of %d repetitions have no number: no valid trial passed", none, len(r.Capacities))
	say(expiring, "capacity: more than %d connections were not tried, as their entries expire before all have a reply (nf_conntrack_udp_timeout %v): raise the timeout on the gateway", expiring, r.Config.UDPTimeout)
	say(unknown, "capacity: %d of %d repetitions filled the table for so long that entries of a timeout of %v expire, and the number may be the timeout's: make the gateway's timeout of UDP longer", unknown, len(r.Capacities), usualTimeout)
	return remarks
}

// hold tries a number of connections. One failure may be another program's doing; it stands where what
// follows is invalid.
func (s *session) hold(ctx context.Context, f *Found, connections int) error {
	verdict := Failed
	for i := 0; verdict == Failed && i < confirmations; i++ {
		now, err := s.establish(ctx, f, Trial{connections, f.PerSecond})
		if err != nil {
			return err
		}
		if now == Invalid && i > 0 {
			break
		}
		verdict = now
	}
	f.narrow(float64(connections), verdict)
	return nil
}
