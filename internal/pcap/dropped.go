package pcap

// arrivals are the SYNs that came lately, in captures that have dropped packets as well: a SYN that came and was then dropped
// is there twice. It is not recognised by its addresses, which DNAT may have changed in between.
type arrivals struct {
	// on is set with the first packet that was dropped: those that came shortly before it wait in the sorter.
	on bool
	// recent are those since a time, former those before.
	recent, former map[arrival]struct{}
	since          int64
}

// arrival is what a NAT leaves of a SYN.
type arrival struct {
	seq, tsval uint32
	window, id uint16
}

// Bounds of arrivals. A packet may wait in a queue of the kernel before it is dropped; one that is sent again was captured again.
const (
	arrivedWithin = 1_000_000_000 // ns
	mostArrivals  = 2048
)

// had notes a SYN that came, and reports whether one that was dropped had come.
func (a *arrivals) had(s *segment) bool {
	if !a.on {
		return false
	}
	if s.at-a.since > arrivedWithin || len(a.recent) >= mostArrivals {
		a.recent, a.former, a.since = map[arrival]struct{}{}, a.recent, s.at
	}
	one := arrival{s.seq, s.tsval, s.window, s.id}
	if !s.dropped {
		a.recent[one] = struct{}{}
		return false
	}
	_, recently := a.recent[one]
	_, before := a.former[one]
	return recently || before
}
