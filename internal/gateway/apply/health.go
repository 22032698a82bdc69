package apply

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/health"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/units"
)

const (
	// mostProbes is how many checks are under way at once.
	mostProbes = 512
	// leastWake is the least time between two looks for checks that are due.
	leastWake = 10 * time.Millisecond
)

// hosts checks those of the plan in force, and takes the ones that are down out of the choice of their rules.
type hosts struct {
	probe   func(context.Context, health.Target) error
	checker *health.Checker
	plan    *gateway.Plan
	timer   *time.Timer
	results chan probed
	working sync.WaitGroup
	// probing is how many checks are under way.
	probing int
	// out are the hosts of each rule that are left out, as last put in force.
	out map[gateway.Ref][]bool
	// stale: the report is not as it was written. refused is the last error of a change of hosts, as logged; retry is
	// true where one has to be tried again.
	stale, retry bool
	refused      string
}

// probed is the result of a check.
type probed struct {
	target health.Target
	err    error
}

func newHosts(h Host) *hosts {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &hosts{probe: h.probe, timer: t, results: make(chan probed, mostProbes)}
}

// targetsOf are those of a plan, of each rule in the order of its hosts.
func targetsOf(p *gateway.Plan) map[gateway.Ref][]health.Target {
	all := map[gateway.Ref][]health.Target{}
	for r, e := range p.Checked() {
		for _, b := range e.Action.Backends {
			t := health.TargetOf(&e.Action, b)
			if z := p.ZoneNamed(e.Action.Zone); z != nil {
				t.Mark, t.VRF = z.Mark, z.VRF
			}
			all[r] = append(all[r], t)
		}
	}
	return all
}

// prepare finds the states of the hosts of a plan that is to be put in force, and has it begin without those that are
// down. Hosts that are not known are as the rules in force have them; those that these have not are up.
func (h *hosts) prepare(k *keeper, r *Ready) *health.Checker {
	targets, through := targetsOf(r.Gateway), slices.Collect(maps.Values(throughUplinks(r.Gateway, &r.Facts)))
	if len(targets)+len(through) == 0 {
		return nil
	}
	var known map[health.Target]health.State
	var before health.Report // of the same hosts, checked in another way
	switch {
	case h.checker != nil:
		before = h.checker.Report()
	case r.InForce != nil:
		known = k.statesInForce(r.InForce)
	}
	id, _ := k.Host.id()
	reported := health.ParseReport(k.Host.store().Health(id))
	initial := func(t health.Target) health.State {
		s, ok := known[t]
		if t.Through != "" { // as a service before this one found it, unless its rules are gone
			if r.InForce != nil {
				s, ok = reported.State(t)
			}
		} else if !ok {
			s, ok = before.State(t)
		}
		s.Up = s.Up || !ok
		return s
	}
	all := through
	for _, list := range targets {
		all = append(all, list...)
	}
	checker := health.New(all, h.checker, initial, rand.Uint64(), time.Now())
	r.Gateway.Out = outOf(r.Gateway, checker)
	r.Facts.Down = downUplinks(r.Gateway, &r.Facts, checker)
	return checker
}

// statesInForce are the states of hosts by the rules in force; since when, a service before this one has left.
func (k *keeper) statesInForce(p *gateway.Plan) map[health.Target]health.State {
	used, err := k.Host.Engines.InUse(k.Host.Netns, p)
	if err != nil {
		k.log("read which hosts are in use: %v", err)
		return nil
	}
	id, _ := k.Host.id()
	reported := health.ParseReport(k.Host.store().Health(id))
	known := map[health.Target]health.State{}
	for r, targets := range targetsOf(p) {
		for i, t := range targets {
			if used[r] == nil {
				continue
			}
			s := health.State{Up: used[r][i]}
			if was, ok := reported.State(t); ok && was.Up == s.Up {
				s = was
			}
			if !known[t].Up { // up by one rule is up
				known[t] = s
			}
		}
	}
	return known
}

// outOf are the hosts of each rule that are down. A rule that keeps the last ones has all where none is up.
func outOf(p *gateway.Plan, c *health.Checker) map[gateway.Ref][]bool {
	all := map[gateway.Ref][]bool{}
	checked := p.Checked()
	for r, targets := range targetsOf(p) {
		out := make([]bool, len(targets))
		for i, t := range targets {
			s, ok := c.State(t)
			out[i] = ok && !s.Up
		}
		if slices.Contains(out, false) || checked[r].Action.AllDown == nat.AllDownReject {
			all[r] = out
		}
	}
	return all
}

// begin checks the hosts of a plan that is in force.
func (h *hosts) begin(k *keeper, p *gateway.Plan, c *health.Checker) {
	began := h.checker == nil && c != nil
	h.plan, h.checker, h.out, h.refused, h.stale = p, c, map[gateway.Ref][]bool{}, "", true
	if began {
		k.log("checking %s", checkedWords(c))
	}
	h.report(k)
	if c != nil {
		h.use(k)
	}
	h.wake(time.Now())
}

// checkedWords are how many hosts and WANs are checked.
func checkedWords(c *health.Checker) string {
	var words []string
	_, hosts := c.Down()
	if hosts > 0 {
		words = append(words, units.Plural(hosts, "host", "hosts"))
	}
	if wans := c.Len() - hosts; wans > 0 {
		words = append(words, units.Plural(wans, "WAN", "WANs"))
	}
	return strings.Join(words, " and ")
}

// wake sets the timer to the next check.
func (h *hosts) wake(now time.Time) {
	h.timer.Stop()
	if h.checker == nil || h.probing >= mostProbes {
		return
	}
	if next := h.checker.Next(); !next.IsZero() {
		h.timer.Reset(max(leastWake, next.Sub(now)))
	}
}

// start begins the checks that are due.
func (h *hosts) start(ctx context.Context, now time.Time) {
	if h.checker == nil {
		return
	}
	for _, t := range h.checker.Due(now, mostProbes-h.probing) {
		h.probing++
		h.working.Go(func() { h.results <- probed{t, h.probe(ctx, t)} })
	}
	h.wake(now)
}

// done takes results: the one at hand and those that have come meanwhile, so that hosts that fail together go together.
func (h *hosts) done(ctx context.Context, k *keeper, r probed, now time.Time) {
	var changed []health.Target
	for more := true; more; {
		if h.take(ctx, k, r, now) {
			changed = append(changed, r.target)
		}
		select {
		case r = <-h.results:
		default:
			more = false
		}
	}
	if len(changed) > 0 {
		h.log(k, changed)
	}
	if h.retry {
		h.report(k) // first: a service that follows a kill knows since when
		h.use(k)
	}
	h.wake(now)
}

// take reports whether a host went or came.
func (h *hosts) take(ctx context.Context, k *keeper, r probed, now time.Time) bool {
	h.probing--
	if h.checker == nil {
		return false
	}
	failure := ""
	if r.err != nil {
		failure = r.err.Error()
	}
	was, _ := h.checker.State(r.target)
	changed := h.checker.Done(r.target, failure, now)
	h.stale = h.stale || changed || was.Error != failure
	switch {
	case changed && r.target.Through != "":
		k.uplinks.facts.Down = downUplinks(k.uplinks.plan, k.uplinks.facts, h.checker)
		k.uplinks.steer(ctx, k)
		h.report(k)
	case changed:
		h.retry = true
		return true
	}
	return false
}

// log says which hosts went or came, and what follows for their rules.
func (h *hosts) log(k *keeper, changed []health.Target) {
	targets, concerned := targetsOf(h.plan), map[gateway.Ref]bool{}
	last := h.allDown(targets)
	for _, t := range changed {
		var rules, still []string
		for r, list := range targets {
			if !slices.Contains(list, t) {
				continue
			}
			if concerned[r] = true; slices.Contains(last[r], t) {
				still = append(still, r.String())
			} else {
				rules = append(rules, r.String())
			}
		}
		s, _ := h.checker.State(t)
		k.log("host %s is %s", t, hostWords(s, rules, still))
	}
	for _, r := range slices.SortedFunc(maps.Keys(concerned), gateway.Ref.Compare) {
		switch hosts, is := last[r]; {
		case is && len(hosts) == 0:
			k.log("%s: all hosts are down: new connections are rejected", r)
		case is:
			k.log("%s: all hosts are down: new connections still go to %s", r, strings.Join(namesOf(hosts), ", "))
		}
	}
}

// hostWords are the state of a host, what that means for the rules that follow it, and for those that have no other host
// either.
func hostWords(s health.State, rules, still []string) string {
	parts := []string{"up: it gets new connections"}
	if !s.Up {
		parts = []string{"down: " + s.Error}
	}
	if !s.Up && len(rules) > 0 {
		parts = append(parts, "it gets no new connections")
	}
	if len(rules) > 0 {
		slices.Sort(rules)
		parts = append(parts, strings.Join(rules, ", "))
	}
	if len(still) > 0 {
		slices.Sort(still)
		parts = append(parts, "it still gets new connections, as no other host is up", strings.Join(still, ", "))
	}
	return strings.Join(parts, "; ")
}

// allDown are the rules of which no host is up, with the hosts that new connections go to all the same; none where they
// are rejected.
func (h *hosts) allDown(targets map[gateway.Ref][]health.Target) map[gateway.Ref][]health.Target {
	last, checked := map[gateway.Ref][]health.Target{}, h.plan.Checked()
	for r, list := range targets {
		if slices.ContainsFunc(list, func(t health.Target) bool { s, _ := h.checker.State(t); return s.Up }) {
			continue
		}
		last[r] = nil
		for i, t := range list {
			if checked[r].Action.AllDown != nat.AllDownReject && (h.out[r] == nil || !h.out[r][i]) {
				last[r] = append(last[r], t)
			}
		}
	}
	return last
}

func namesOf(targets []health.Target) (names []string) {
	for _, t := range targets {
		names = append(names, t.String())
	}
	return names
}

// use has new connections go to the hosts that are up. What fails is tried again with the periodic check.
func (h *hosts) use(k *keeper) {
	if h.checker == nil || k.suspended {
		return
	}
	changed := outOf(h.plan, h.checker)
	maps.DeleteFunc(changed, func(r gateway.Ref, out []bool) bool { return slices.Equal(out, h.out[r]) })
	err := k.Host.Engines.Use(k.Host.Netns, h.plan, changed)
	if h.retry = err != nil; err == nil {
		maps.Copy(h.out, changed)
		h.refused = ""
		return
	}
	if text := err.Error(); text != h.refused {
		h.refused = text
		k.log("%s; the hosts stay as they are until the next change or %s", text, k.runner.Reload())
	}
}

// status is about hosts that are down; empty where none is.
func (h *hosts) status() string {
	if h.checker == nil {
		return ""
	}
	down, of := h.checker.Down()
	if down == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %s down", down, units.Plural(of, "host", "hosts"))
}

// report leaves for 'natkit gateway status' what has changed since it was last written.
func (h *hosts) report(k *keeper) {
	if !h.stale {
		return
	}
	h.stale = false
	id, err := k.Host.id()
	if err == nil {
		var text []byte
		if h.checker != nil {
			text, err = json.Marshal(h.checker.Report())
		}
		if err == nil {
			err = k.Host.store().PutHealth(id, text)
		}
	}
	if err != nil {
		k.log("keep the states of hosts: %v", err)
	}
}

// end waits for the checks that are under way, whose context has ended.
func (h *hosts) end() {
	h.timer.Stop()
	go func() {
		h.working.Wait()
		close(h.results)
	}()
	for range h.results {
	}
}

// Checks says that the hosts of a plan are checked by the service alone; empty where none is to be.
func Checks(p *gateway.Plan) string {
	n := 0
	for _, e := range p.Checked() {
		n += len(e.Action.Backends)
	}
	var parts []string
	if n > 0 {
		parts = append(parts, fmt.Sprintf("%s of health: checks run under 'natkit gateway run'; without it all of them get new connections", units.Plural(n, "host", "hosts")))
	}
	if n := len(p.Uplinks); n > 0 {
		parts = append(parts, fmt.Sprintf("%d wan interfaces: whether they answer is asked under 'natkit gateway run'; without it only one that is down, has no carrier or leads nowhere gets no new connections", n))
	}
	if p.PCP != nil {
		parts = append(parts, "pcp: hosts that ask for ports are answered under 'natkit gateway run'; without it ports that are open stay so for their time, and no others are opened")
	}
	return strings.Join(parts, "; ")
}
