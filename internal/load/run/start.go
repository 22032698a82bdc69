package run

import "github.com/natkit/natkit/internal/load"

// begin starts what is due: instead of what has ended, and a burst at most.
func (w *worker) begin() {
	most := w.ended + startBatch
	w.ended = 0
	w.crowded = !w.start(most)
}

// replace starts requests instead of those that have ended, so that nearly the
// allowed number stays in flight while more events wait to be handled. In an open
// loop one may also have become due meanwhile.
func (w *worker) replace() {
	most := w.ended
	if w.run.cfg.Rate > 0 {
		most++
	} else if most < w.batch {
		return
	}
	w.ended = 0
	w.start(most)
}

// start begins up to so many requests; false where more could have begun.
func (w *worker) start(most int) bool {
	if w.run.cfg.Rate > 0 {
		return w.startDue(most)
	}
	for w.inFlight < w.limit && !w.exhausted && w.hold <= w.now {
		if most == 0 {
			return false
		}
		most--
		switch w.run.claim() {
		case granted:
			w.launch(w.stamp())
		case notYet:
			w.hold = w.now + batchTick
		case noMore:
			w.exhausted = true
		}
	}
	return true
}

// startDue follows the schedule, whatever became of earlier requests. What is due
// keeps its time while it waits for a connection.
func (w *worker) startDue(most int) bool {
	for w.hold <= w.now {
		due, ok := w.due()
		if !ok || due > w.now {
			return true
		}
		if due+w.timeout <= w.now {
			w.nextDue += int64(w.run.workers)
			w.starts++
			w.queued++
			w.countFailure(load.InConnect, load.TimedOutQueued)
			continue
		}
		if w.inFlight >= w.limit {
			return true
		}
		if most == 0 {
			return false
		}
		most--
		w.nextDue += int64(w.run.workers)
		w.stamp()
		w.countStart(due)
		w.launch(due)
	}
	return true
}

// due is when the next request of this worker is; false after the last.
func (w *worker) due() (int64, bool) {
	if n := w.run.cfg.Requests; n > 0 && w.nextDue >= n {
		w.exhausted = true
		return 0, false
	}
	return int64(w.run.pace.At(w.nextDue)), true
}

func (w *worker) countStart(due int64) {
	w.starts++
	switch {
	case due <= w.lastFull:
		w.queued++
	case w.now-due > load.LateAfter:
		w.late++
	}
}
