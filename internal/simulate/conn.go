package simulate

// conn is a connection under way, from its first SYN until it is closed or given up.
type conn struct {
	begin int64
	// held is when the NAT's entry that a RST closed is gone.
	held   int64
	host   int32
	server int32
	batch  int32
	set    int32
	slot   uint32
	isn    uint32
	stamp  uint32
	next   int32 // of the free ones
	source uint16
	dest   uint16
	tries  uint8
	// mapped: the NAT has a port for it. routed: the balancer knows it.
	mapped, routed bool
	// hastened: the first SYN was answered with another connection's ACK.
	hastened bool
}

func (e *engine) newConn() int32 {
	if n := e.freeConn; n != none {
		e.freeConn = e.conns[n].next
		return n
	}
	e.conns = append(e.conns, conn{})
	return int32(len(e.conns) - 1)
}

// begin starts a connection.
func (e *engine) begin() {
	batch, host := e.source.take()
	id := e.newConn()
	c := &e.conns[id]
	*c = conn{begin: e.now, host: host, batch: batch, dest: e.destination()}
	c.source = e.people.sourcePort(host, c.dest, e.random)
	c.isn = e.people.isn(host, c.source, c.dest, e.now, e.random)
	c.stamp = e.people.stampOffset(host, c.source, c.dest)
	c.set = int32(e.people.hosts[host].nat)*int32(len(e.destinations)) + int32(c.dest)
	e.live++
	e.add(c, fConnections)
	e.send(id)
}

func (e *engine) groupOf(c *conn) *clientGroup { return &e.people.groups[e.people.hosts[c.host].group] }

// send is a SYN on its way through NAT and balancer to a server.
func (e *engine) send(id int32) {
	c := &e.conns[id]
	if c.held != 0 && e.slots[c.slot].heldUntil == c.held {
		e.release(c.slot) // nf_ct_kill: an entry in CLOSE makes place for the SYN
		e.outdated++
	}
	c.held = 0
	if !c.mapped && !e.assign(c) {
		e.add(c, fNoPort)
		e.wait(id)
		return
	}
	c.server = e.route(c)
	e.addBoth(c, e.servers[c.server].group, fSYNs)
	n := e.find(c.slot, c.server)
	if n == none {
		e.accept(id)
		return
	}
	e.meet(id, n)
}

// meet is a SYN that finds a TIME_WAIT.
func (e *engine) meet(id, n int32) {
	c, t := &e.conns[id], &e.nodes[n]
	s, g := &e.servers[c.server], e.groupOf(c)
	switch t.syn(c.isn, c.stamp+uint32(e.now/g.tick), g.stamps, e.now) {
	case twSYN:
		e.deschedule(n)
		e.addBoth(c, s.group, fReused)
		e.accept(id)
		return
	case twPAWS:
		e.addBoth(c, s.group, fPAWS)
		e.reschedule(n)
	case twSequence:
		e.addBoth(c, s.group, fSequence)
	}
	if !s.limitsACKs || e.now-t.answered >= ackLimit {
		t.answered = e.now
		c.hastened = c.hastened || c.tries == 0
		e.reset(c, n)
	}
	e.wait(id)
}

// reset is the RST with which a client answers an ACK that it does not expect: it
// bears the sequence number that the ACK asks for and no timestamps, so that
// TIME_WAIT takes it for its own.
func (e *engine) reset(c *conn, n int32) {
	if e.cfg.NAT.Reset == ResetDropped {
		return
	}
	if s := &e.servers[c.server]; !s.rfc1337 {
		e.deschedule(n)
		e.addBoth(c, s.group, fResets)
	}
	if e.balancer != nil {
		e.keep(c.slot, e.balancer.ResetTimeout)
	}
	if e.cfg.NAT.Reset == ResetReopens {
		e.slots[c.slot].end = c.isn + 1
		e.hold(qClosed, c.slot, true)
		c.held, c.mapped = e.slots[c.slot].heldUntil, false
	}
}

// timetable are the queues in which a connection waits between its SYNs.
func (e *engine) timetable(c *conn) []int {
	group := e.people.hosts[c.host].group
	if c.hastened {
		return e.hasten[group]
	}
	return e.waits[group]
}

// wait is until the next SYN, or until the client gives up.
func (e *engine) wait(id int32) {
	c := &e.conns[id]
	e.put(e.timetable(c)[c.tries], id)
}

// wake is the end of that time.
func (e *engine) wake(v event) {
	id := int32(v.id)
	c := &e.conns[id]
	if int(c.tries)+1 == len(e.timetable(c)) {
		e.fail(id)
		return
	}
	c.tries++
	e.add(c, fRetransmits)
	e.send(id)
}

// accept is a connection that is established.
func (e *engine) accept(id int32) {
	c := &e.conns[id]
	how := fAccepted
	if c.tries > 0 {
		how = fDelayed
		e.delays[e.now-c.begin]++
	}
	e.addBoth(c, e.servers[c.server].group, how)
	if c.batch >= 0 {
		e.batches[c.batch].delays[e.now-c.begin]++
	}
	if e.balancer != nil {
		e.sessions[c.slot].until = never
	}
	e.put(qClose, id)
}

// closed is the end of a connection.
func (e *engine) closed(v event) {
	id := int32(v.id)
	c := &e.conns[id]
	g, s := e.groupOf(c), &e.servers[c.server]
	end := c.isn + e.length
	if e.serverCloses {
		e.enter(c.slot, c.server, end, c.stamp+uint32(e.now/g.tick), g.stamps && s.stamps)
	}
	e.slots[c.slot].end = end
	e.hold(qHold, c.slot, true)
	if e.balancer != nil {
		e.keep(c.slot, e.balancer.Timeout)
	}
	e.over(id)
}

// fail is a client that gives up.
func (e *engine) fail(id int32) {
	c := &e.conns[id]
	e.add(c, fFailed)
	if c.mapped {
		e.hold(qSYN, c.slot, false)
	}
	e.over(id)
}

func (e *engine) over(id int32) {
	c := &e.conns[id]
	e.live--
	e.source.over(c.batch, e.now)
	e.next[e.atArrival] = e.source.due()
	c.next, e.freeConn = e.freeConn, id
}
