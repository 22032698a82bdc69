package pcp

import (
	"encoding/json"
	"net/netip"
	"time"

	"github.com/natkit/natkit/internal/gateway"
)

// State is what outlives the process: by it epoch and leases go on.
type State struct {
	// Saved is when it was; Began when the epoch did, External the address that it is of.
	Saved    time.Time       `json:"saved_at"`
	Began    time.Time       `json:"epoch_began_at"`
	External netip.Addr      `json:"external,omitzero"`
	Leases   []gateway.Lease `json:"leases"`
}

// State is the server's, by the wall clock of now: while a process runs, its times follow a clock that nobody sets.
func (s *Server) State(now time.Time) *State {
	wall := now.Round(0)
	kept := &State{Saved: wall, Began: wall.Add(s.began.Sub(now)), External: s.external, Leases: s.Leases(now)}
	for i := range kept.Leases {
		l := &kept.Leases[i]
		l.Expires = wall.Add(l.Expires.Sub(now))
	}
	return kept
}

// ParseState reads what State became in JSON; nil where it is none.
func ParseState(text []byte) *State {
	s := &State{}
	if json.Unmarshal(text, s) != nil || s.Saved.IsZero() || s.Began.IsZero() {
		return nil
	}
	return s
}

// at is when the epoch began, and the leases that are left, by the clock of now. Where the wall clock was set back
// since, no time has passed: a router may begin without one.
func (s *State) at(now time.Time) (began time.Time, leases []gateway.Lease) {
	passed := max(now.Round(0).Sub(s.Saved), 0)
	for _, l := range s.Leases {
		if left := l.Expires.Sub(s.Saved) - passed; left > 0 {
			l.Expires = now.Add(left)
			leases = append(leases, l)
		}
	}
	return now.Add(s.Began.Sub(s.Saved) - passed), leases
}

// Left are the leases that have not expired.
func (s *State) Left(now time.Time) []gateway.Lease {
	if s == nil {
		return nil
	}
	_, leases := s.at(now)
	return leases
}
