// Package health decides which hosts are up: a state machine that says when to check whom, and is given the results.
// It has no clock, and touches no host.
package health

import (
	"cmp"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/nat"
)

// Target is what is checked, and how. Rules that check the same host in the same manner share it.
type Target struct {
	// At without a port is asked for an echo (ICMP).
	At netip.AddrPort
	nat.Check
	// Through is the interface by which it has to answer, Mark what has packets leave there; empty and 0 where the
	// routes decide.
	Through string
	Mark    uint32
	// Zone is the one that it is in, where others may have the same address; VRF its device, where it has one.
	Zone, VRF string
}

// TargetOf is where and how a rule checks one of its hosts.
func TargetOf(a *nat.Action, b nat.Backend) Target {
	return Target{At: a.Check.At(b), Check: *a.Check, Zone: a.Zone}
}

// String is where it is: "10.0.0.1:80", "10.0.0.1:80 in zone red".
func (t Target) String() string {
	if t.Zone != "" {
		return t.At.String() + " in zone " + t.Zone
	}
	return t.At.String()
}

// State is that of a target.
type State struct {
	Up bool
	// Since is when that was found; zero where it was so before checks began.
	Since time.Time
	// Error is why the last check failed; empty where it succeeded, or there was none.
	Error string
}

// jitter is the part of an interval by which one check is earlier or later than it would be.
const jitter = 0.1

// target is one that is checked.
type target struct {
	State
	// streak is how many checks in a row contradicted Up.
	streak int
	// due is when it is to be checked next; while busy, when it was to be.
	due  time.Time
	busy bool
}

// Checker has the state of targets.
type Checker struct {
	targets map[Target]*target
	random  *rand.Rand
}

// New is a checker of targets. Those that the one before had (nil: none) keep their states and times, others begin as
// initial says: their first checks are spread over their interval.
func New(targets []Target, before *Checker, initial func(Target) State, seed uint64, now time.Time) *Checker {
	c := &Checker{targets: map[Target]*target{}, random: rand.New(rand.NewPCG(seed, 1))}
	for _, t := range targets {
		if before != nil && before.targets[t] != nil {
			c.targets[t] = before.targets[t]
			continue
		}
		if c.targets[t] == nil {
			c.targets[t] = &target{State: initial(t), due: now.Add(time.Duration(t.phase() * float64(t.Interval)))}
		}
	}
	return c
}

// phase is a part of 1, the same for a target each time.
func (t Target) phase() float64 {
	h := fnv.New32a()
	h.Write([]byte(t.At.String() + t.Path + t.Through + t.Zone))
	return float64(h.Sum32()) / (1 << 32)
}

// Why says why a target is down, of its state.
func (s State) Why() string {
	return cmp.Or(s.Error, "it answers again, though not yet as often as it has to")
}

// State is that of a target; false where it is not checked.
func (c *Checker) State(t Target) (State, bool) {
	if c == nil || c.targets[t] == nil {
		return State{}, false
	}
	return c.targets[t].State, true
}

// Len is the number of targets.
func (c *Checker) Len() int { return len(c.targets) }

// Down is how many hosts are down, of how many; those through which others are reached do not count.
func (c *Checker) Down() (down, of int) {
	for key, t := range c.targets {
		if key.Through == "" {
			if of++; !t.Up {
				down++
			}
		}
	}
	return down, of
}

// Next is when one is to be checked; zero where none waits for that.
func (c *Checker) Next() (next time.Time) {
	for _, t := range c.targets {
		if !t.busy && (next.IsZero() || t.due.Before(next)) {
			next = t.due
		}
	}
	return next
}

// Due are targets that are to be checked now, at most a number of them, those first that wait longest. Each has to be
// reported by Done, and is not due again before.
func (c *Checker) Due(now time.Time, most int) (due []Target) {
	for key, t := range c.targets {
		if !t.busy && !t.due.After(now) {
			due = append(due, key)
		}
	}
	slices.SortFunc(due, func(a, b Target) int { return c.targets[a].due.Compare(c.targets[b].due) })
	due = due[:min(len(due), max(0, most))]
	for _, key := range due {
		c.targets[key].busy = true
	}
	return due
}

// Done takes the result of a check, empty for success, and reports whether the target goes up or down by it. The next
// check comes an interval after this one was due, or, where that has passed, after now.
func (c *Checker) Done(key Target, failure string, now time.Time) (changed bool) {
	t := c.targets[key]
	if t == nil || !t.busy { // of a configuration before
		return false
	}
	t.busy = false
	from := t.due
	if t.due.Add(key.Interval).Before(now) {
		from = now
	}
	t.due = from.Add(time.Duration(float64(key.Interval) * (1 - jitter + 2*jitter*c.random.Float64())))
	t.Error = failure
	if (failure == "") == t.Up {
		t.streak = 0
		return false
	}
	t.streak++
	need := key.Fall
	if !t.Up {
		need = key.Rise
	}
	if t.streak < need {
		return false
	}
	t.State, t.streak = State{Up: !t.Up, Since: now, Error: failure}, 0
	return true
}
