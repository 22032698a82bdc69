package diagnose

import (
	"fmt"
	"strings"

	"github.com/natkit/natkit/internal/ipvs"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

const (
	// notByChance is how much of what chance leaves open must have stayed on its server.
	notByChance = 0.8
	// someReused is the share of connections on used tuples that distorts a balance.
	someReused = 0.1
	// mostReused is the share from which hardly anything is balanced.
	mostReused = 0.5
)

// lvsAffinity: new connections come on tuples whose entries of closed connections are
// there still. IPVS hands them to the server of the former connection, without asking the
// scheduler and without counting them (ip_vs_in, net/netfilter/ipvs/ip_vs_core.c).
var lvsAffinity = Rule{
	ID:    "lvs-affinity",
	Title: "connections bound to a server by entries of former ones",
	Check: checkAffinity,
}

func checkAffinity(rec *snapshot.Recording) (*Finding, Check) {
	b, check := readBalancer(rec)
	if b == nil {
		return nil, check
	}
	seen, why := b.seen(), ""
	for i := range b.ipvs.Connections.Services {
		u := &b.ipvs.Connections.Services[i]
		if u.UsedAgain < fewestReused {
			continue
		}
		switch reason := b.balanced(u); {
		case reason == "":
			return b.affinity(u), Check{Why: seen}
		case why == "":
			why = "; " + useName(u) + ": " + reason
		}
	}
	return nil, Check{State: OK, Why: seen + why}
}

// seen is for the line of a check.
func (b *balancer) seen() string {
	var again, same int64
	for i := range b.ipvs.Connections.Services {
		again += b.ipvs.Connections.Services[i].UsedAgain
		same += b.ipvs.Connections.Services[i].SameServer
	}
	if again == 0 {
		return fmt.Sprintf("no tuple of %s was used again %s", units.Plural(b.ipvs.Connections.Compared, "entry", "entries"), b.span())
	}
	return fmt.Sprintf("%s used again %s, %s of them on the same server",
		units.Plural(again, "tuple was", "tuples were"), b.span(), units.Count(same))
}

// balanced says why the tuples that were used again are no fault; empty where they are.
func (b *balancer) balanced(u *snapshot.IPVSUse) string {
	s := b.service(u)
	if why := b.wanted(s); why != "" {
		return why
	}
	chance, ok := sameByChance(s)
	switch stayed := float64(u.SameServer) / float64(u.UsedAgain); {
	case !ok:
		return "fewer than two servers take connections"
	case stayed < chance+notByChance*(1-chance):
		return "they were scheduled anew"
	case b.countedOnSame() >= notByChance*float64(u.SameServer):
		return "they were counted, so scheduled anew, if to the same server"
	case b.reusedShare(u) < someReused:
		return units.Percent(b.reusedShare(u)) + " of the connections, too few to matter"
	}
	return ""
}

// countedOnSame is how many connections the balancer counted that were neither on new
// tuples nor moved to another server: a scheduler that takes turns can draw the same one
// for a client that takes its ports in turn. The counter is one of all services.
func (b *balancer) countedOnSame() float64 {
	counted, ok := b.sessions()
	if !ok || !b.ipvs.Connections.NewKnown {
		return 0
	}
	for i := range b.ipvs.Connections.Services {
		u := &b.ipvs.Connections.Services[i]
		counted -= u.New + u.UsedAgain - u.SameServer
	}
	return float64(max(0, counted))
}

// reusedShare is the share of connections that came on used tuples.
func (b *balancer) reusedShare(u *snapshot.IPVSUse) float64 {
	return float64(u.UsedAgain) / float64(max(1, u.UsedAgain+b.newOf(u)))
}

// newOf is how many connections came on new tuples. Where the table was read in part,
// that is not seen, and at most what the balancer counted for all services.
func (b *balancer) newOf(u *snapshot.IPVSUse) int64 {
	counted, ok := b.sessions()
	if b.ipvs.Connections.NewKnown || !ok {
		return u.New
	}
	var all int64
	for _, s := range b.ipvs.Services {
		for _, r := range s.Servers {
			all += r.Active + r.Inactive
		}
	}
	return int64(float64(counted) * min(1, float64(b.ipvs.Connections.Sampled)/float64(max(1, all))))
}

// sameByChance is how often a scheduler that goes by weights alone draws the same server
// twice; false where there are not two to draw from.
func sameByChance(s *snapshot.IPVSService) (float64, bool) {
	if s == nil {
		return 0.5, true
	}
	var sum, squares float64
	servers := 0
	for _, r := range s.Servers {
		if r.Weight > 0 {
			w := float64(r.Weight)
			sum, squares, servers = sum+w, squares+w*w, servers+1
		}
	}
	if servers < 2 {
		return 1, false
	}
	return squares / (sum * sum), true
}

func (b *balancer) affinity(u *snapshot.IPVSUse) *Finding {
	s := b.service(u)
	f := &Finding{
		Severity:    Notice,
		Confidence:  "certain",
		Title:       fmt.Sprintf("%s of new connections stay on the server of a former one (%s)", units.Percent(b.reusedShare(u)), useName(u)),
		Evidence:    append(b.affinityEvidence(u), b.clientEvidence(u, s)...),
		Cause:       b.affinityCause(u, s),
		Consequence: "the balancer neither counts nor spreads these connections: its curve of new ones falls though the load does not, weights and new servers have no effect on them, and a port that comes to the same server again may meet its TIME_WAIT there (see tw-paws-reject on the servers)",
		Remedies:    b.affinityRemedies(u, s),
	}
	if b.reusedShare(u) >= mostReused {
		f.Severity = Warning
	}
	return f
}

func (b *balancer) affinityEvidence(u *snapshot.IPVSUse) []Evidence {
	e := []Evidence{
		{What: "connections on tuples that had an entry", Value: u.UsedAgain, Unit: b.span(), Source: connSource},
		{What: "of them on the server of the former one", Value: u.SameServer, Unit: b.span(), Source: connSource},
	}
	if b.ipvs.Connections.NewKnown {
		e = append(e, Evidence{What: "connections on new tuples", Value: u.New, Unit: b.span(), Source: connSource})
	}
	if n, ok := b.sessions(); ok {
		e = append(e, Evidence{What: "connections that IPVS counted, all services", Value: n, Unit: b.span(), Source: statsSource})
	}
	return append(e, b.shares(u)...)
}

// shares compares what servers got with their weights.
func (b *balancer) shares(u *snapshot.IPVSUse) []Evidence {
	s := b.service(u)
	if s == nil {
		return nil
	}
	var weights int64
	for _, r := range s.Servers {
		weights += r.Weight
	}
	var e []Evidence
	for _, r := range s.Servers {
		if weights == 0 || len(e) == mostShown {
			break
		}
		e = append(e, Evidence{What: "connections to " + r.Address, Value: round1(100 * float64(got(u, r.Address)) / float64(max(1, u.UsedAgain+u.New))),
			Unit: fmt.Sprintf("%%, %s by weight", units.Percent(float64(r.Weight)/float64(weights))), Source: connSource})
	}
	return e
}

// got is how many connections came to a server between the two readings.
func got(u *snapshot.IPVSUse, server string) int64 {
	for _, s := range u.Servers {
		if s.Address == server {
			return s.New + s.UsedAgain
		}
	}
	return 0
}

func (b *balancer) affinityCause(u *snapshot.IPVSUse, s *snapshot.IPVSService) string {
	cause := fmt.Sprintf("clients, or a NAT before them, use a port again while IPVS holds the entry of its former connection (%d s), ", b.hold(s))
	mode, known := b.reuseMode()
	switch {
	case !known:
		cause += "which this kernel hands on to the same server (it has no " + snapshot.IPVSReuse + ")"
	case mode == 0:
		cause += "and " + snapshot.IPVSReuse + " is 0: the entry decides, not the scheduler"
	case ipvs.PassesBy(s):
		cause += fmt.Sprintf("in FIN_WAIT, as answers do not pass the balancer; %s is %d, and only its bit 1 (value 2) lets such an entry go", snapshot.IPVSReuse, mode)
	default:
		cause += "in a state in which the kernel does not let it go (" + b.endedStates() + ")"
	}
	if u.Clients <= 4 {
		cause += fmt.Sprintf("; all come from %s", units.Plural(u.Clients, "address", "addresses"))
	}
	return cause
}

// endedStates lists the states of closed connections, the most frequent first.
func (b *balancer) endedStates() string {
	states := map[string]int64{}
	for _, name := range []string{"TIME_WAIT", "FIN_WAIT", "CLOSE", "CLOSE_WAIT", "LAST_ACK"} {
		if n := b.ipvs.Connections.ByState["tcp/"+name]; n > 0 {
			states[name] = n
		}
	}
	return strings.Join(byCount(states, 3), ", ")
}
