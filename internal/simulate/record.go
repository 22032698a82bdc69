package simulate

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"time"
)

// record is what a simulation keeps for its Result.
type record struct {
	// current counts since the last sample, servers in all; lastServers is what those
	// were at the last sample.
	current              tally
	perServer, lastTally []tally
	points               []point
	started, interval    int64
	// scanned are the sessions counted since the interval was last doubled, scanBudget
	// how many may be.
	scanned, scanBudget int
	// until is the time that is sampled in any case.
	until    int64
	life     []lives
	delays   waited
	batches  []batchRecord
	progress func(Progress)
	reported int
	total    tally
}

// point is one interval.
type point struct {
	tally
	// Point is without Counts.
	Point
}

type batchRecord struct {
	tally  tally
	delays waited
}

func (e *engine) buildRecord() {
	groups := len(e.cfg.Servers)
	e.perServer, e.lastTally, e.life = make([]tally, groups), make([]tally, groups), make([]lives, groups)
	e.delays, e.scanBudget = waited{}, scanBudget
	for range e.cfg.Batches {
		e.batches = append(e.batches, batchRecord{delays: waited{}})
	}
	e.interval = int64(e.cfg.Interval.Duration)
	if e.cfg.Arrivals != nil {
		e.until = int64(e.cfg.Duration.Duration)
	}
	e.next[atSample] = e.interval
}

// add counts something of a connection.
func (e *engine) add(c *conn, f field) {
	e.current[f]++
	if c.batch >= 0 {
		e.batches[c.batch].tally[f]++
	}
}

// addServer counts something of a group of servers.
func (e *engine) addServer(group int32, f field) {
	e.current[f]++
	e.perServer[group][f]++
}

// addBoth counts something of both.
func (e *engine) addBoth(c *conn, group int32, f field) {
	e.add(c, f)
	e.perServer[group][f]++
}

// sample ends an interval.
func (e *engine) sample() {
	if e.now == e.started && e.current == (tally{}) {
		return
	}
	p := point{e.current, Point{StartSeconds: seconds(e.started), Servers: make([]ServerPoint, len(e.perServer))}}
	for i := range e.perServer {
		p.Servers[i] = serverPoint(&e.perServer[i], &e.lastTally[i])
	}
	for i := range e.servers {
		s := &e.servers[i]
		p.TimeWait += int64(s.count)
		p.Servers[s.group].TimeWait += int64(s.count)
	}
	for i := range e.ports {
		p.PortsTaken += int64(e.ports[i].size - e.ports[i].free)
	}
	p.SessionsOpen = e.openSessions()
	copy(e.lastTally, e.perServer)
	e.total.add(&e.current)
	e.points, e.current, e.started = append(e.points, p), tally{}, e.now
	e.thin()
	e.next[atSample] = e.now + e.interval
	e.report()
}

// scanBudget is how many sessions may be counted before the points have to be fewer.
const scanBudget = 2_000_000_000

// thin makes one of each two points, with twice the interval, where there are too many:
// how long batches take is not known before, and each point costs a pass over all
// sessions.
func (e *engine) thin() {
	e.scanned += len(e.sessions)
	if len(e.points) < 2*mostPoints && (e.scanned < e.scanBudget || len(e.points) < 2) {
		return
	}
	thinned := e.points[:0]
	for i := 0; i+1 < len(e.points); i += 2 {
		thinned = append(thinned, e.points[i].and(e.points[i+1]))
	}
	if len(e.points)%2 != 0 {
		thinned = append(thinned, e.points[len(e.points)-1])
	}
	e.points, e.interval, e.scanned = thinned, 2*e.interval, 0
}

// and is one point for two that follow each other.
func (p point) and(next point) point {
	next.StartSeconds = p.StartSeconds
	next.tally.add(&p.tally)
	for n := range next.Servers {
		next.Servers[n].Connections += p.Servers[n].Connections
		next.Servers[n].Rejects += p.Servers[n].Rejects
	}
	return next
}

// curve is all points.
func (e *engine) curve() []Point {
	curve := make([]Point, len(e.points))
	for i := range e.points {
		curve[i] = e.points[i].Point
		curve[i].Counts = e.points[i].counts()
	}
	return curve
}

func serverPoint(now, last *tally) ServerPoint {
	since := func(f field) int64 { return now[f] - last[f] }
	return ServerPoint{Connections: since(fAccepted) + since(fDelayed), Rejects: since(fPAWS) + since(fSequence)}
}

// openSessions counts those that the balancer knows.
func (e *engine) openSessions() (open int64) {
	for i := range e.sessions {
		if e.sessions[i].until > e.now {
			open++
		}
	}
	return open
}

// report passes on the progress of the simulation, about a hundred times.
func (e *engine) report() {
	share := 100
	if e.until > 0 {
		share = int(min(100*e.now/e.until, 100))
	}
	if e.progress == nil || share <= e.reported && e.until > 0 {
		return
	}
	e.reported = share
	e.progress(Progress{
		Seconds: seconds(min(e.now, cmp.Or(e.until, e.now))), Total: seconds(e.until), Connections: e.total[fConnections],
		Rejects: e.total[fPAWS] + e.total[fSequence],
	})
}

// result is all of it.
func (e *engine) result() *Result {
	r := &Result{
		Config: *e.cfg, Seconds: seconds(e.now), Totals: e.total.counts(), IntervalSeconds: seconds(e.interval), Curve: e.curve(),
	}
	rtt := int64(e.cfg.Connection.RTT.Duration)
	e.delays[0] = e.total[fAccepted]
	r.ConnectDelay = e.delays.summary(rtt)
	for i, g := range e.cfg.Servers {
		r.Servers = append(r.Servers, ServerResult{Name: g.Name, Kernel: g.Kernel, Totals: e.perServer[i].counts(), Life: e.life[i].life()})
	}
	for i, b := range e.batches {
		span := e.source.(*course).spans[i]
		r.Batches = append(r.Batches, BatchResult{Name: e.cfg.Batches[i].Name, StartSeconds: seconds(span.start),
			EndSeconds: seconds(span.end), Counts: b.tally.counts(), ConnectDelay: b.delays.summary(rtt)})
	}
	r.Incidents = incidents(r)
	return r
}

// Schema names the JSON form of a Result.
const Schema = "natkit.simulate/1"

// Result is what a simulation came to.
type Result struct {
	// Config is what was simulated, with the defaults filled in.
	Config Config `json:"config"`
	// Seconds is the simulated time until the last event, those after the last
	// arrival included.
	Seconds float64 `json:"simulated_s"`
	Totals  Counts  `json:"totals"`
	// Servers are the groups of Config.Servers, in their order.
	Servers []ServerResult `json:"servers"`
	// Batches are those of Config.Batches, in their order.
	Batches []BatchResult `json:"batches,omitempty"`
	// IntervalSeconds is the distance of the points of Curve. It is a multiple of
	// Config.Interval where that makes too many.
	IntervalSeconds float64 `json:"interval_s"`
	Curve           []Point `json:"curve"`
	// Incidents are what began and ended, in the order of time.
	Incidents []Incident `json:"incidents"`
	// ConnectDelay is how long clients waited for a connection.
	ConnectDelay Delay `json:"connect_delay"`
}

// Counts add up, over the simulation, an interval, a batch, or a group of servers.
//
// Connections = Accepted + Delayed + Failed + those still under way (0 in totals).
type Counts struct {
	// Connections that clients began.
	Connections int64 `json:"connections"`
	// Accepted are those whose first SYN was.
	Accepted int64 `json:"accepted"`
	// Delayed were accepted after the SYN was repeated.
	Delayed int64 `json:"delayed"`
	// Failed were given up.
	Failed int64 `json:"failed"`
	// NoPort are SYNs that the NAT dropped, as it had no port for them.
	NoPort int64 `json:"no_port"`
	// SYNs that reached a server, repetitions (SYNRetransmits) among them.
	SYNs           int64 `json:"syns"`
	SYNRetransmits int64 `json:"syn_retransmits"`
	// Of the SYNs that met a TIME_WAIT: Reused it (TCP_TW_SYN), or were answered with
	// its ACK, as the timestamp went back (PAWSRejects) or, without that, as the
	// sequence number did (SequenceRejects).
	Reused          int64 `json:"time_wait_reused"`
	PAWSRejects     int64 `json:"paws_rejects"`
	SequenceRejects int64 `json:"sequence_rejects"`
	// Resets are the RSTs that answered those ACKs and ended a TIME_WAIT.
	Resets int64 `json:"time_wait_reset"`
	// Sessions that the balancer made, SessionsReused that were there.
	Sessions       int64 `json:"balancer_sessions_new"`
	SessionsReused int64 `json:"balancer_sessions_reused"`
	// Closed connections that TIME_WAIT was made for, and those that found no place
	// (tcp_max_tw_buckets).
	TimeWaits        int64 `json:"time_waits"`
	TimeWaitOverflow int64 `json:"time_wait_overflow"`
}

// Rejects are the SYNs that were answered with a former connection's ACK.
func (c *Counts) Rejects() int64 { return c.PAWSRejects + c.SequenceRejects }

// ServerResult is a group of servers.
type ServerResult struct {
	Name   string `json:"name"`
	Kernel string `json:"kernel"`
	Totals Counts `json:"totals"`
	// Life is how long TIME_WAITs stood whose time ran out.
	Life Life `json:"time_wait_life"`
}

// Life is the least, the mean and the longest.
type Life struct {
	MinSeconds  float64 `json:"min_s"`
	MeanSeconds float64 `json:"mean_s"`
	MaxSeconds  float64 `json:"max_s"`
	Count       int64   `json:"count"`
}

// BatchResult is what became of a batch.
type BatchResult struct {
	Name         string  `json:"name,omitempty"`
	StartSeconds float64 `json:"start_s"`
	EndSeconds   float64 `json:"end_s"`
	Counts       Counts  `json:"counts"`
	ConnectDelay Delay   `json:"connect_delay"`
}

// Point is one interval.
type Point struct {
	// StartSeconds is since the beginning.
	StartSeconds float64 `json:"start_s"`
	Counts       Counts  `json:"counts"`
	// TimeWait, PortsTaken and SessionsOpen are at the interval's end.
	TimeWait     int64 `json:"time_wait"`
	PortsTaken   int64 `json:"ports_taken"`
	SessionsOpen int64 `json:"balancer_sessions"`
	// Servers are the groups.
	Servers []ServerPoint `json:"servers"`
}

// ServerPoint is one group in one interval.
type ServerPoint struct {
	// Connections that were accepted.
	Connections int64 `json:"connections"`
	Rejects     int64 `json:"rejects"`
	TimeWait    int64 `json:"time_wait"`
}

// Incident is something that began; StartSeconds since the beginning.
type Incident struct {
	// Kind is one of the Incident constants.
	Kind         string  `json:"kind"`
	StartSeconds float64 `json:"start_s"`
	// EndSeconds is when it was over, the simulation's end where it was not.
	EndSeconds float64 `json:"end_s"`
	// Rate is the connections per second when it began.
	Rate float64 `json:"connections_per_s"`
	// Count is how often it happened.
	Count int64 `json:"count"`
}

// What Incident.Kind may be.
const (
	// IncidentRejects: servers answered SYNs with a former connection's ACK.
	IncidentRejects = "rejects"
	// IncidentFailures: clients gave up.
	IncidentFailures = "failures"
	// IncidentSessions: the balancer made fewer sessions than there were
	// connections.
	IncidentSessions = "sessions-reused"
	// IncidentPorts: the NAT had no port.
	IncidentPorts = "no-port"
	// IncidentOverflow: a server had no place for a TIME_WAIT.
	IncidentOverflow = "time-wait-overflow"
)

// Delay is what clients waited until they were connected.
type Delay struct {
	MeanSeconds float64 `json:"mean_s"`
	P50Seconds  float64 `json:"p50_s"`
	P99Seconds  float64 `json:"p99_s"`
	MaxSeconds  float64 `json:"max_s"`
}

// Progress is how far a simulation is.
type Progress struct {
	// Seconds of Total are simulated.
	Seconds, Total float64
	Connections    int64
	Rejects        int64
}

// field is one of the numbers of Counts.
type field uint8

const (
	fConnections field = iota
	fAccepted
	fDelayed
	fFailed
	fNoPort
	fSYNs
	fRetransmits
	fReused
	fPAWS
	fSequence
	fResets
	fSessions
	fSessionsReused
	fTimeWaits
	fOverflow
	fields
)

// tally counts.
type tally [fields]int64

func (t *tally) counts() Counts {
	return Counts{
		Connections: t[fConnections], Accepted: t[fAccepted], Delayed: t[fDelayed], Failed: t[fFailed], NoPort: t[fNoPort],
		SYNs: t[fSYNs], SYNRetransmits: t[fRetransmits], Reused: t[fReused], PAWSRejects: t[fPAWS],
		SequenceRejects: t[fSequence], Resets: t[fResets], Sessions: t[fSessions], SessionsReused: t[fSessionsReused],
		TimeWaits: t[fTimeWaits], TimeWaitOverflow: t[fOverflow],
	}
}

func (t *tally) add(other *tally) {
	for i := range t {
		t[i] += other[i]
	}
}

// waited counts how long clients waited: a few values, as SYNs are repeated after
// fixed times.
type waited map[int64]int64

// summary takes the time of the first SYN's answer, rtt, for those who waited for
// nothing else.
func (w waited) summary(rtt int64) Delay {
	var keys []int64
	var n, sum float64
	for at, count := range w {
		keys = append(keys, at)
		n += float64(count)
		sum += float64(count) * float64(at+rtt)
	}
	if n == 0 {
		return Delay{}
	}
	slices.Sort(keys)
	rank := func(share float64) float64 {
		seen := 0.0
		for _, at := range keys {
			if seen += float64(w[at]); seen >= share*n {
				return seconds(at + rtt)
			}
		}
		return seconds(keys[len(keys)-1] + rtt)
	}
	return Delay{MeanSeconds: sum / n / float64(second), P50Seconds: rank(0.5), P99Seconds: rank(0.99), MaxSeconds: rank(1)}
}

func seconds(at int64) float64 { return float64(at) / float64(second) }

// lives are how long TIME_WAITs stood.
type lives struct{ count, sum, least, longest int64 }

func (l *lives) add(life int64) {
	if l.count == 0 || life < l.least {
		l.least = life
	}
	l.longest = max(l.longest, life)
	l.sum += life
	l.count++
}

func (l *lives) life() Life {
	if l.count == 0 {
		return Life{}
	}
	return Life{MinSeconds: seconds(l.least), MeanSeconds: seconds(l.sum) / float64(l.count), MaxSeconds: seconds(l.longest), Count: l.count}
}

const (
	second = int64(time.Second)
	day    = 24 * time.Hour
)

// At is the curve's value, in connections per second, so long after the beginning,
// which is at the time of day start.
func (a *Arrivals) At(start, since time.Duration) float64 {
	switch {
	case len(a.Hours) > 0:
		return hourly(a.Hours, start+since)
	case a.Daily != nil:
		phase := 2 * math.Pi * (start + since - a.Daily.Peak.Duration).Hours() / 24
		return a.Daily.Low + (a.Daily.High-a.Daily.Low)*(1+math.Cos(phase))/2
	case len(a.Points) > 0:
		return between(a.Points, since)
	}
	return a.Rate
}

// hourly goes from the middle of each hour to that of the next.
func hourly(hours []float64, at time.Duration) float64 {
	h := math.Mod((at%day).Hours()-0.5+24, 24)
	n := int(h)
	share := h - float64(n)
	return hours[n]*(1-share) + hours[(n+1)%24]*share
}

func between(points []RatePoint, at time.Duration) float64 {
	n := sort.Search(len(points), func(i int) bool { return points[i].At.Duration > at })
	switch n {
	case 0:
		return points[0].Rate
	case len(points):
		return points[n-1].Rate
	}
	a, b := points[n-1], points[n]
	share := float64(at-a.At.Duration) / float64(b.At.Duration-a.At.Duration)
	return a.Rate*(1-share) + b.Rate*share
}

// stream gives the times of arrivals by a curve. Within a second the rate is that of
// its middle.
type stream struct {
	arrivals *Arrivals
	start    time.Duration
	share    float64 // connections for each arrival
	even     bool
	random   *rand.Rand
	end      int64
	// at is the last arrival, rate that of the second whose end is known.
	at, secondEnd, rate float64
}

func newStream(c *Config, random *rand.Rand) *stream {
	return &stream{
		arrivals: c.Arrivals, start: c.Start.Duration, share: 1 / float64(c.Connection.Requests),
		even: c.Arrivals.Spacing == SpacingEven, random: random, end: int64(c.Duration.Duration),
	}
}

// next is the time of the next arrival, never after the end.
func (s *stream) next() int64 {
	need := 1.0
	if !s.even {
		need = s.random.ExpFloat64()
	}
	for {
		if left := (s.secondEnd - s.at) * s.rate; need <= left {
			s.at += need / s.rate
			if at := int64(s.at); at < s.end {
				return at
			}
			return never
		} else if s.secondEnd >= float64(s.end) {
			return never
		} else {
			need -= left
		}
		s.at = s.secondEnd
		middle := time.Duration(s.at) + time.Second/2
		s.rate = s.arrivals.At(s.start, middle) * s.share / float64(second)
		s.secondEnd += float64(second)
	}
}

// incidents finds what began and ended in a curve.
func incidents(r *Result) []Incident {
	all := []Incident{}
	for _, k := range []struct {
		kind  string
		count func(*Point) int64
	}{
		{IncidentRejects, func(p *Point) int64 { return p.Counts.Rejects() }},
		{IncidentFailures, func(p *Point) int64 { return p.Counts.Failed }},
		{IncidentSessions, func(p *Point) int64 {
			if p.Counts.SessionsReused <= p.Counts.Sessions {
				return 0
			}
			return p.Counts.SessionsReused
		}},
		{IncidentPorts, func(p *Point) int64 { return p.Counts.NoPort }},
		{IncidentOverflow, func(p *Point) int64 { return p.Counts.TimeWaitOverflow }},
	} {
		all = append(all, spells(r, k.kind, k.count)...)
	}
	slices.SortStableFunc(all, func(a, b Incident) int { return cmp.Compare(a.StartSeconds, b.StartSeconds) })
	return all
}

// quiet is how many intervals without anything end an incident.
const quiet = 3

// spells are the incidents of one kind.
func spells(r *Result, kind string, count func(*Point) int64) (found []Incident) {
	last := -quiet - 1
	for i := range r.Curve {
		p := &r.Curve[i]
		n := count(p)
		if n == 0 {
			continue
		}
		end := r.Seconds
		if i+1 < len(r.Curve) {
			end = r.Curve[i+1].StartSeconds
		}
		if i-last > quiet {
			rate := 0.0
			if end > p.StartSeconds {
				rate = float64(p.Counts.Connections) / (end - p.StartSeconds)
			}
			found = append(found, Incident{Kind: kind, StartSeconds: p.StartSeconds, Rate: rate})
		}
		f := &found[len(found)-1]
		f.EndSeconds, f.Count, last = end, f.Count+n, i
	}
	return found
}
