package simulate

import "cmp"

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
// nobody knows before how long batches take, and each point costs a look at all
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

// report tells how far the simulation is, about a hundred times.
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
