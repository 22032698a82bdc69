package live

import (
	"time"

	"github.com/natkit/natkit/internal/natrules"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ports"
	"github.com/natkit/natkit/internal/snapshot"
)

// What is shown of ports, and the memory to find it in: as many pools as a reading
// can have entries need less.
const (
	shownPools = 50
	shownUsers = 3
	poolMemory = 8 << 20
)

// rulesAge is how long NAT rules are taken for those that there are: reading all of a
// large rule set takes milliseconds.
const rulesAge = 30 * time.Second

// rules are the NAT rules of a namespace, read now and then.
type rules struct {
	rules *snapshot.NATRules
	err   error
	at    time.Time
}

// read returns nil, and says why, where there is no reading them: then the kernel's own
// ranges are assumed.
func (r *rules) read(ns *netns.Handle) (*snapshot.NATRules, error) {
	if r.at.IsZero() || time.Since(r.at) > rulesAge {
		r.rules, r.err = natrules.Read(ns)
		r.at = time.Now()
	}
	return r.rules, r.err
}

// poolsOf tells how far the ports are used up, by the entries of a reading and, where
// both are whole, by the one before.
func poolsOf(r, before *reading, s *snapshot.Snapshot) *snapshot.Ports {
	entries, _ := s.Sysctls.Int(snapshot.ConntrackCount)
	q := ports.Query{Complete: r.complete, Entries: entries, Rules: s.NATRules, Release: s.Kernel.Release,
		Top: shownPools, Users: shownUsers}
	if before != nil && before.complete && r.complete {
		q.Before, q.Seconds = before.collector, r.middle().Sub(before.middle()).Seconds()
	}
	return r.collector.Ports(q)
}
