package simulate

import "slices"

// The NAT and the balancer of the reference.

func (r *reference) assign(c *refConn) bool {
	n := &r.cfg.NAT
	first, size := int(n.Ports[0]), int(n.Ports[1])-int(n.Ports[0])+1
	tuple := refTuple{nat: int(r.people.hosts[c.host].nat), dest: int(c.dest)}
	free := func(i int) bool {
		tuple.port = first + (i%size+size)%size
		return r.ports[tuple] == nil
	}
	give := func(i int) bool {
		tuple.port = first + i%size
		c.tuple, c.port, c.routed = tuple, &refPort{conn: c}, false
		r.ports[tuple] = c.port
		return true
	}
	from := 0
	switch n.Strategy {
	case StrategyKernel:
		return r.kernel(c, first, size, free, give, tuple)
	case StrategyRoundRobin:
		from = r.cursors[[2]int{tuple.nat, tuple.dest}]
	}
	found := false
	for i := range size {
		if free(i) {
			found = true
			break
		}
	}
	if !found {
		return false
	}
	switch n.Strategy {
	case StrategyRandom:
		from = r.random.IntN(size)
	case StrategyHash:
		from = int(mix(r.people.secret+4, uint64(c.host)<<32|uint64(c.source)<<16|uint64(c.dest)) % uint64(size))
	}
	for i := from; ; i++ {
		if free(i) {
			r.cursors[[2]int{tuple.nat, tuple.dest}] = i%size + 1
			return give(i)
		}
	}
}

func (r *reference) kernel(c *refConn, first, size int, free, give func(int) bool, tuple refTuple) bool {
	if own := int(c.source) - first; own >= 0 && own < size && free(own) {
		return give(own)
	}
	for attempts := min(size, 128); ; attempts /= 2 {
		from := r.random.IntN(65536) % size
		for i := range attempts {
			if free(from + i) {
				return give(from + i)
			}
			tuple.port = first + (from+i)%size
			old := r.ports[tuple]
			if attempts-i <= 32 && *r.cfg.NAT.Evicts && old.ended && int32(c.isn+1-old.end) > 0 {
				return give(from + i)
			}
		}
		if attempts >= size || attempts < 16 {
			return false
		}
	}
}

func (r *reference) route(c *refConn) int {
	b := r.cfg.Balancer
	if b == nil {
		servers, _ := r.destinations()
		return servers[c.dest]
	}
	s := r.sessions[c.tuple]
	if s == nil || s.until <= r.now || s.ended && b.NewSession {
		s = &refSession{server: r.wrr()}
		r.sessions[c.tuple] = s
		r.count(c, nil, fSessions)
	} else if !c.routed {
		r.count(c, nil, fSessionsReused)
	}
	c.routed = true
	s.until, s.ended = r.now+int64(b.SYNTimeout.Duration), false
	return s.server
}

// wrr goes through all servers that are there once for each weight, from the greatest
// common divisor steps down.
func (r *reference) wrr() int {
	r.meetNewcomers()
	var weights []int
	divisor := 0
	for _, s := range r.servers {
		weight := 0
		if int64(s.group.From.Duration) <= r.now {
			weight = s.group.Weight
		}
		for a, b := divisor, weight; ; a, b = b, a%b {
			if b == 0 {
				divisor = a
				break
			}
		}
		weights = append(weights, weight)
	}
	var round []int
	for least := slices.Max(weights); least > 0; least -= divisor {
		for i, w := range weights {
			if w >= least {
				round = append(round, i)
			}
		}
	}
	r.turns++
	return round[(r.turns-1)%len(round)]
}
