package simulate

import "slices"

// TIME_WAIT and its timers in the reference.

// schedule starts the time of a TIME_WAIT.
func (r *reference) schedule(s *refServer, t *refTimeWait) {
	s.sockets = append(s.sockets, t)
	t.generation++
	if s.group.Kernel == KernelTimer {
		generation := t.generation
		r.after(60*second, 2, func() {
			if t.generation == generation && slices.Contains(s.sockets, t) {
				r.expire(s, t)
			}
		})
		return
	}
	cell := (s.slot + 7) % 8
	s.cells[cell] = append([]*refTimeWait{t}, s.cells[cell]...)
	if len(s.sockets) == 1 {
		r.arm(s, 7500*second/1000)
	}
}

// arm is mod_timer.
func (r *reference) arm(s *refServer, delay int64) {
	s.timerSet++
	set := s.timerSet
	r.after(delay, 1, func() {
		if s.timerSet == set {
			r.hangman(s)
		}
	})
}

func (r *reference) hangman(s *refServer) {
	if len(s.sockets) == 0 {
		return
	}
	if r.purge(s) {
		r.arm(s, 7500*second/1000)
		rounds := 0
		for r.purge(s) {
			rounds++
		}
		if rounds > 0 && s.group.Kernel == KernelWheelRearm {
			r.arm(s, second)
		}
		return
	}
	if len(s.sockets) > 0 {
		r.arm(s, 7500*second/1000)
	}
	s.slot = (s.slot + 1) % 8
}

// purge kills up to 101 of the cell at hand; it reports whether it came so far.
func (r *reference) purge(s *refServer) bool {
	for killed := 1; len(s.cells[s.slot]) > 0; killed++ {
		r.expire(s, s.cells[s.slot][0])
		if killed > 100 {
			return true
		}
	}
	return false
}

func (r *reference) expire(s *refServer, t *refTimeWait) {
	if !t.renewed {
		r.life[s.index].add(r.now - t.born)
	}
	s.remove(t)
}

func (s *refServer) remove(t *refTimeWait) {
	is := func(other *refTimeWait) bool { return other == t }
	s.sockets = slices.DeleteFunc(s.sockets, is)
	for i := range s.cells {
		s.cells[i] = slices.DeleteFunc(s.cells[i], is)
	}
}

// kill ends a TIME_WAIT before its time; the last one stops the wheel.
func (r *reference) kill(s *refServer, t *refTimeWait) {
	s.remove(t)
	t.generation++
	if len(s.sockets) == 0 {
		s.timerSet++
	}
}
