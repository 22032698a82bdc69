package simulate

import "slices"

// A connection of the reference, from its first SYN to its end.

func (r *reference) group(c *refConn) *clientGroup {
	return &r.people.groups[r.people.hosts[c.host].group]
}

func (r *reference) send(c *refConn) {
	if c.dead != nil {
		if r.ports[c.tuple] == c.dead {
			delete(r.ports, c.tuple)
		}
		c.dead = nil
	}
	if c.port == nil && !r.assign(c) {
		r.count(c, nil, fNoPort)
		r.wait(c)
		return
	}
	c.server = r.route(c)
	s := r.servers[c.server]
	r.count(c, s, fSYNs)
	for _, t := range s.sockets {
		if t.tuple == c.tuple {
			r.meet(c, s, t)
			return
		}
	}
	r.accept(c)
}

func (r *reference) meet(c *refConn, s *refServer, t *refTimeWait) {
	g := r.group(c)
	stamp := c.stamp + uint32(r.now/g.tick)
	saw := g.stamps && t.stamps
	paws := saw && int32(t.stamp-stamp) > 0 && t.stamp != 0 && r.now-t.stamped < 24*24*3600*second
	switch {
	case !paws && (int32(c.isn-t.rcvNxt) > 0 || saw && int32(stamp-t.stamp) > 0):
		r.kill(s, t)
		r.count(c, s, fReused)
		r.accept(c)
		return
	case paws:
		r.count(c, s, fPAWS)
		t.renewed = true
		s.remove(t)
		r.schedule(s, t)
	default:
		r.count(c, s, fSequence)
	}
	if s.group.Kernel != KernelTimer || r.now-t.answered >= second/2 {
		t.answered = r.now
		if c.tries == 0 {
			c.hastened = true
		}
		r.reset(c, s, t)
	}
	r.wait(c)
}

func (r *reference) reset(c *refConn, s *refServer, t *refTimeWait) {
	how := r.cfg.NAT.Reset
	if how == ResetDropped {
		return
	}
	if !s.group.RFC1337 {
		r.kill(s, t)
		r.count(c, s, fResets)
	}
	if b := r.cfg.Balancer; b != nil {
		*r.sessions[c.tuple] = refSession{c.server, r.now + int64(b.ResetTimeout.Duration), true}
	}
	if how == ResetReopens {
		c.dead, c.port = c.port, nil
		c.dead.end = c.isn + 1
		r.hold(c.tuple, c.dead, 10*second, 4, true)
	}
}

// hold keeps a port taken for a while after its connection.
func (r *reference) hold(tuple refTuple, p *refPort, time int64, class int, ended bool) {
	p.conn, p.ended = nil, ended
	free := func() {
		if r.ports[tuple] == p {
			delete(r.ports, tuple)
		}
	}
	if time == 0 {
		free()
		return
	}
	r.after(time, class, free)
}

func (r *reference) wait(c *refConn) {
	table := c.waits
	if c.hastened {
		table = c.hastening
	}
	last := c.tries+1 == len(table)
	class := 100 + slices.Index(r.delays, table[c.tries])
	r.after(table[c.tries], class, func() {
		if last {
			r.count(c, nil, fFailed)
			if c.port != nil {
				r.hold(c.tuple, c.port, int64(r.cfg.NAT.SYNHold.Duration), 5, false)
			}
			r.over(c)
			return
		}
		c.tries++
		r.count(c, nil, fRetransmits)
		r.send(c)
	})
}

func (r *reference) accept(c *refConn) {
	how := fAccepted
	if c.tries > 0 {
		how = fDelayed
	}
	r.waited[r.now-c.begin]++
	r.count(c, r.servers[c.server], how)
	if r.cfg.Balancer != nil {
		r.sessions[c.tuple].until = never
	}
	r.after(int64(r.cfg.Connection.Duration.Duration), 6, func() { r.closed(c) })
}

func (r *reference) closed(c *refConn) {
	g, s := r.group(c), r.servers[c.server]
	end := c.isn + uint32(r.cfg.Connection.RequestBytes*r.cfg.Connection.Requests) + 2
	if r.cfg.Connection.ClosesFirst == CloseServer {
		if limit := s.group.MaxTimeWait; limit != nil && len(s.sockets) >= *limit {
			r.count(nil, s, fOverflow)
		} else {
			r.count(nil, s, fTimeWaits)
			r.schedule(s, &refTimeWait{tuple: c.tuple, rcvNxt: end, stamp: c.stamp + uint32(r.now/g.tick), stamped: r.now,
				stamps: g.stamps && *s.group.Timestamps, born: r.now, answered: -second})
		}
	}
	c.port.end = end
	r.hold(c.tuple, c.port, int64(r.cfg.NAT.HoldDown.Duration), 3, true)
	if b := r.cfg.Balancer; b != nil {
		s := r.sessions[c.tuple]
		s.until, s.ended = r.now+int64(b.Timeout.Duration), true
	}
	r.over(c)
}

func (r *reference) over(c *refConn) {
	r.live--
	r.source.over(c.batch, r.now)
}
