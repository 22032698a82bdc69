package conntrack

import "math"

// recent estimates the births that two dumps do not show because their tuple was
// used once more before the second one. Linux clients do this: connect(2) walks
// the port range of a destination in steps of about nine ports (table_perturb,
// net/ipv4/inet_hashtables.c), so at 3,000 connections/s with the default range it
// comes around every second.
//
// The entries that were closed in the last second before the second dump have had
// less time to be replaced than those of the whole time between the dumps: they
// show a higher rate. So does a busy last second. Therefore the higher rate counts
// only where it is more than a standard deviation away, and no further than the
// reuse that was seen explains: of tuples that were closed in the second before
// the first dump a share q was opened again by the second one; of the births
// between, no greater share can be missing. Where no tuple is reused within the
// time between the dumps nothing is corrected; where most are, the rate is that
// of the last second.
type recent struct {
	gap Gap
	// enough is whether the last second lies between the dumps.
	enough bool
	born   [classes]int64
	// young tuples were closed in the second before the first dump; reused of them
	// are new in the second one.
	young, reused int64
	// foreign is set by an entry with more time left than its timeout: another
	// timeout holds for some, so ages are not known.
	foreign bool
}

func (r *recent) begin(gap Gap) {
	r.gap = gap
	r.enough = gap.seconds() >= 1
}

// look takes every entry of the second dump.
func (r *recent) look(e *Entry) {
	if t := r.gap.timeout(stateOf(e)); t > 0 && e.Timeout > t {
		r.foreign = true
	}
}

// again takes an entry of the first dump whose tuple is in the second one.
func (r *recent) again(k known, reborn bool) {
	if !r.gap.lately(k.state(), k.left()) {
		return
	}
	r.young++
	if reborn {
		r.reused++
	}
}

// unseen is the rate of TCP births that were not seen, by the class in which they
// ended; empty where none can be told. born are those that were, in so many
// seconds.
func (r *recent) unseen(born *[classes]int64, seconds float64) map[class]float64 {
	tcp, late := int64(0), int64(0)
	for c := class(0); c <= class(tcpStates); c++ {
		tcp += born[c]
		late += r.born[c]
	}
	if !r.enough || r.foreign || late == 0 || r.reused == 0 {
		return nil
	}
	seen, rate := float64(tcp)/seconds, float64(late)
	if rate < seen+math.Sqrt(rate) {
		return nil
	}
	if missing := float64(r.reused) / float64(r.young); missing < 1 {
		rate = min(rate, seen/(1-missing))
	}
	unseen := map[class]float64{}
	for c := class(0); c <= class(tcpStates); c++ {
		if r.born[c] > 0 {
			unseen[c] = (rate - seen) * float64(r.born[c]) / float64(late)
		}
	}
	return unseen
}
