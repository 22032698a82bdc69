package simulate

// destination is an address that clients call.
type destination struct {
	// server answers there; none where a balancer does.
	server int32
	from   int64
}

// session is what the balancer knows of a slot.
type session struct {
	// until is when it forgets that.
	until  int64
	server int16
	// ended: its connection ended.
	ended bool
}

// turnOver makes the lists of who takes part now, and notes when that changes.
func (e *engine) turnOver() {
	e.changes = never
	e.calling = e.calling[:0]
	for i, d := range e.destinations {
		if d.from <= e.now {
			e.calling = append(e.calling, uint16(i))
		} else {
			e.changes = min(e.changes, d.from)
		}
	}
	if e.balancer != nil {
		e.circle = e.circle[:0]
		e.weigh()
	}
	e.call, e.turnAt = 0, 0
}

// weigh makes one round of the weighted round robin (ip_vs_wrr.c): servers of the
// greatest weight first, and each so often as its weight.
func (e *engine) weigh() {
	divisor, most := 0, 0
	var present []int32
	for i := range e.servers {
		g := &e.cfg.Servers[e.servers[i].group]
		if from := int64(g.From.Duration); from > e.now {
			e.changes = min(e.changes, from)
			continue
		}
		present = append(present, int32(i))
		divisor, most = gcd(divisor, g.Weight), max(most, g.Weight)
	}
	for weight := most; weight > 0; weight -= divisor {
		for _, i := range present {
			if e.cfg.Servers[e.servers[i].group].Weight >= weight {
				e.circle = append(e.circle, i)
			}
		}
	}
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// destination is the next one in turn.
func (e *engine) destination() uint16 {
	if e.now >= e.changes {
		e.turnOver()
	}
	if len(e.calling) == 1 {
		return e.calling[0]
	}
	if e.call >= len(e.calling) {
		e.call = 0
	}
	e.call++
	return e.calling[e.call-1]
}

// route is which server gets the SYN of a connection.
func (e *engine) route(c *conn) int32 {
	if e.balancer == nil {
		return e.destinations[c.dest].server
	}
	s := &e.sessions[c.slot]
	switch known := s.until > e.now && !(s.ended && e.balancer.NewSession); {
	case c.routed && known:
	case known:
		e.add(c, fSessionsReused)
	default:
		e.add(c, fSessions)
		s.server = int16(e.wrr())
	}
	c.routed = true
	s.until, s.ended = e.now+int64(e.balancer.SYNTimeout.Duration), false
	return int32(s.server)
}

// wrr is the next server in turn.
func (e *engine) wrr() int32 {
	if e.now >= e.changes {
		e.turnOver()
	}
	if e.turnAt >= len(e.circle) {
		e.turnAt = 0
	}
	e.turnAt++
	return e.circle[e.turnAt-1]
}

// keep sets how long the balancer keeps a slot's session, now that its connection ended.
func (e *engine) keep(slot uint32, timeout Duration) {
	s := &e.sessions[slot]
	s.until, s.ended = e.now+int64(timeout.Duration), true
}
