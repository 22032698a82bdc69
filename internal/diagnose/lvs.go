package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

const (
	// fewestReused are the connections on used tuples, within a recording, from which
	// something can be said of them.
	fewestReused = 20

	connSource  = "/proc/net/ip_vs_conn, twice"
	ipvsSource  = "/proc/net/ip_vs"
	statsSource = "/proc/net/ip_vs_stats"
)

// balancer is what a recording has of IPVS.
type balancer struct {
	rec  *snapshot.Recording
	ipvs *snapshot.IPVS
}

// readBalancer gives the check that ends a rule where there is nothing to examine.
func readBalancer(rec *snapshot.Recording) (*balancer, Check) {
	last := rec.Last()
	switch v := last.IPVS; {
	case v == nil && last.PartError("ipvs") != "":
		return nil, Check{State: NotChecked, Why: last.PartError("ipvs")}
	case v == nil:
		return nil, Check{State: OK, Why: "no IPVS here", Absent: true}
	case len(v.Services) == 0:
		return nil, Check{State: OK, Why: "IPVS has no service", Absent: true}
	case v.Connections == nil:
		return nil, Check{State: NotChecked, Why: "the connections of IPVS could not be read: " + last.PartError("ipvs_connections")}
	case v.Connections.Seconds <= 0:
		return nil, Check{State: NotChecked, Why: "the connections of IPVS were read once only: there is nothing to compare with"}
	}
	return &balancer{rec: rec, ipvs: last.IPVS}, Check{}
}

func (b *balancer) service(u *snapshot.IPVSUse) *snapshot.IPVSService {
	return b.ipvs.ServiceOf(u)
}

func (b *balancer) hold(s *snapshot.IPVSService) int64 { return b.ipvs.Hold(s) }

// byAddress are the schedulers that keep a client, or what it asks for, on one server.
var byAddress = []string{"sh", "dh", "mh", "lblc", "lblcr"}

// wanted returns why connections of a client stay on one server on purpose; empty where
// nothing speaks for it.
func (b *balancer) wanted(s *snapshot.IPVSService) string {
	switch {
	case s == nil && slices.ContainsFunc(b.ipvs.Services, func(s snapshot.IPVSService) bool {
		return strings.HasPrefix(s.Address, "fwmark") && b.wanted(&s) != ""
	}):
		return "a service by firewall mark keeps clients on their server"
	case s == nil:
		return ""
	case s.Persistent:
		return "persistence is configured"
	case slices.Contains(byAddress, s.Scheduler):
		return "the scheduler " + s.Scheduler + " chooses by address"
	}
	return ""
}

// reuseMode is net.ipv4.vs.conn_reuse_mode; false where the kernel has none, which then
// behaves as with 0.
func (b *balancer) reuseMode() (int64, bool) {
	return b.rec.Last().Sysctls.Int(snapshot.IPVSReuse)
}

// sessions returns the number of connections counted by the balancer between the two readings.
func (b *balancer) sessions() (int64, bool) {
	first := b.rec.First().IPVS
	if first == nil || first.Stats == nil || b.ipvs.Stats == nil || b.ipvs.Stats.Connections < first.Stats.Connections {
		return 0, false
	}
	return int64(b.ipvs.Stats.Connections - first.Stats.Connections), true
}

// span is the time between the two readings, for evidence.
func (b *balancer) span() string { return fmt.Sprintf("in %.1f s", b.ipvs.Connections.Seconds) }

func useName(u *snapshot.IPVSUse) string { return u.Protocol + " " + u.Address }

// clientEvidence shows from how few addresses the connections come, and what that allows.
func (b *balancer) clientEvidence(u *snapshot.IPVSUse, s *snapshot.IPVSService) []Evidence {
	e := []Evidence{{What: "client addresses", Value: u.Clients, Source: "/proc/net/ip_vs_conn"}}
	if len(u.TopClients) == 0 {
		return e
	}
	c := &u.TopClients[0]
	e = append(e, Evidence{What: "ports of " + c.Address + " with an entry", Value: c.Ports,
		Unit: fmt.Sprintf("from %d to %d", c.FirstPort, c.LastPort), Source: "/proc/net/ip_vs_conn"})
	if seconds, ok := b.ipvs.Connections.ReuseInterval(c); ok {
		e = append(e, Evidence{What: "a port is used again after", Value: round1(seconds), Unit: "s, about", Source: "ports / connections per second"})
	}
	return append(e, Evidence{What: "new sessions at most", Value: round1(b.ipvs.MostSessions(s, c)),
		Unit: "/s per client address", Source: fmt.Sprintf("%s ports / %d s that an entry stays", units.Count(c.Span()), b.hold(s))})
}

const (
	// notByChance is how much of what chance leaves open must have stayed on its server.
	notByChance = 0.8
	// someReused is the share of connections on used tuples that distorts a balance.
	someReused = 0.1
	// mostReused is the share from which hardly anything is balanced.
	mostReused = 0.5
)

// checkAffinity: new connections come on tuples whose entries of closed connections are
// there still. IPVS hands them to the server of the former connection, without asking the
// scheduler and without counting them (ip_vs_in, net/netfilter/ipvs/ip_vs_core.c).
func (b *balancer) checkAffinity() (*Finding, Check) {
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
	return passed(seen + why)
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

// balanced returns why the tuples that were used again are no fault; empty where they are.
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

// countedOnSame returns how many connections the balancer counted that were neither on new
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

// newOf returns the number of connections on new tuples. Where the table was read in part,
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

// sameByChance returns how often a scheduler that goes by weights alone draws the same server
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
	f := worded("lvs-affinity", append(b.affinityEvidence(u), b.clientEvidence(u, s)...), b.affinityRemedies(u, s),
		units.Percent(b.reusedShare(u)), useName(u), b.affinityCause(u, s))
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

// got returns the number of connections to a server between the two readings.
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
	case s.PassesBy():
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
	return strings.Join(most(states), ", ")
}

// checkConnReuse: what IPVS does with a new connection on a tuple that has an entry still
// goes wrong in one of two ways. Where it schedules it anew and uses connection tracking,
// kernels before 5.9 drop the first SYN (ip_vs_conn_uses_conntrack). Where it does not,
// connections go to servers that were taken out.
func (b *balancer) checkConnReuse() (*Finding, Check) {
	for i := range b.ipvs.Connections.Services {
		u := &b.ipvs.Connections.Services[i]
		if out := b.takenOut(u); len(out) > 0 {
			return b.deadServers(u, out), Check{Why: b.seen()}
		}
	}
	if u := b.delayed(); u != nil {
		return b.delay(u), Check{Why: b.seen()}
	}
	return passed(b.seen())
}

// delaysReuse reports whether this kernel drops the first SYN of a connection that it
// schedules anew, going by its release; stable kernels got the fix, too, some of them.
func (b *balancer) delaysReuse() bool {
	tracks, _ := b.rec.Last().Sysctls.Int(snapshot.IPVSConntrack)
	return tracks == 1 && b.rec.Last().Kernel.Before(5, 9)
}

// delayed is a service whose tuples are used again, and scheduled anew, on such a kernel.
func (b *balancer) delayed() *snapshot.IPVSUse {
	mode, known := b.reuseMode()
	if !known || mode == 0 || !b.delaysReuse() {
		return nil
	}
	for i := range b.ipvs.Connections.Services {
		u := &b.ipvs.Connections.Services[i]
		s := b.service(u)
		if s != nil && s.Persistent {
			continue // entries of persistence are not let go
		}
		if chance, ok := sameByChance(s); u.UsedAgain >= fewestReused &&
			(!ok || float64(u.SameServer) < (chance+notByChance*(1-chance))*float64(u.UsedAgain)) {
			return u
		}
	}
	return nil
}

func (b *balancer) delay(u *snapshot.IPVSUse) *Finding {
	return worded("lvs-conn-reuse delay",
		append([]Evidence{
			{What: "connections on tuples that had an entry", Value: u.UsedAgain, Unit: b.span(), Source: connSource},
			{What: snapshot.IPVSReuse, Value: b.rec.Last().Sysctls[snapshot.IPVSReuse], Source: "sysctl"},
			{What: snapshot.IPVSConntrack, Value: b.rec.Last().Sysctls[snapshot.IPVSConntrack], Source: "sysctl"},
			{What: "kernel", Value: b.rec.Last().Kernel.Release, Source: "/proc/sys/kernel/osrelease"},
		}, b.clientEvidence(u, b.service(u))...),
		[]Remedy{
			advice("lvs-newer-kernel"),
			advice("lvs-no-reuse", snapshot.IPVSReuse),
			advice("lvs-no-conntrack", snapshot.IPVSConntrack),
			advice("lvs-use-again"),
		},
		useName(u))
}

// server is one that was taken out and is still given connections.
type takenOutServer struct {
	snapshot.IPVSServerUse
	removed bool
}

// takenOut are the servers of weight 0 that got connections on used tuples, and the
// removed ones that entries lead to while tuples of the service are used again.
func (b *balancer) takenOut(u *snapshot.IPVSUse) []takenOutServer {
	s := b.service(u)
	if s == nil || u.UsedAgain < fewestReused {
		return nil
	}
	heals, _ := b.rec.Last().Sysctls.Int(snapshot.IPVSExpireNoDest)
	weight := map[string]int64{}
	for _, r := range s.Servers {
		weight[r.Address] = r.Weight
	}
	var out []takenOutServer
	for _, r := range u.Servers {
		w, there := weight[r.Address]
		switch {
		case there && w == 0 && r.UsedAgain > 0:
			out = append(out, takenOutServer{r, false})
		case !there && heals == 0 && r.Entries > 0 && u.SameServer == u.UsedAgain:
			out = append(out, takenOutServer{r, true})
		}
	}
	return out
}

func (b *balancer) deadServers(u *snapshot.IPVSUse, out []takenOutServer) *Finding {
	var names []string
	evidence := []Evidence{{What: "connections on tuples that had an entry", Value: u.UsedAgain, Unit: b.span(), Source: connSource}}
	for _, r := range out {
		names = append(names, r.Address)
		if r.removed {
			evidence = append(evidence, Evidence{What: "entries to " + r.Address + ", which was removed", Value: r.Entries,
				Unit: fmt.Sprintf("of %s", units.Count(u.Entries)), Source: "/proc/net/ip_vs_conn against " + ipvsSource})
			continue
		}
		evidence = append(evidence, Evidence{What: "new connections to " + r.Address + ", whose weight is 0", Value: r.UsedAgain, Unit: b.span(), Source: connSource})
	}
	f := worded("lvs-conn-reuse", append(evidence, b.clientEvidence(u, b.service(u))...), b.deadRemedies(),
		strings.Join(names, ", "), map[bool]string{true: "was", false: "were"}[len(names) == 1], useName(u), b.affinityCause(u, b.service(u)))
	if out[0].removed {
		f.Confidence = "likely"
	}
	return f
}

func (b *balancer) deadRemedies() []Remedy {
	var r []Remedy
	if mode, known := b.reuseMode(); known && mode == 0 {
		r = append(r, advice("lvs-reuse", snapshot.IPVSReuse, snapshot.IPVSConntrack))
	}
	if n, known := b.rec.Last().Sysctls.Int(snapshot.IPVSExpireNoDest); known && n == 0 {
		r = append(r, advice("lvs-expire-nodest", snapshot.IPVSExpireNoDest, snapshot.IPVSReuse))
	}
	return append(r, advice("lvs-drain"))
}

// affinityRemedies are advice: each changes how connections are spread, or needs others.
func (b *balancer) affinityRemedies(u *snapshot.IPVSUse, s *snapshot.IPVSService) []Remedy {
	var r []Remedy
	r = append(r, b.reuseRemedy(s)...)
	if s.PassesBy() && b.hold(s) > 60 {
		r = append(r, advice("lvs-shorten-fin", b.hold(s), units.Rate(float64(fullRange)/60)))
	}
	return append(r,
		advice("lvs-more-addresses"),
		advice("lvs-keep-alive"),
		advice("lvs-no-more-servers"))
}

// reuseRemedy has the kernel schedule such connections anew; none where it cannot, or does:
// any mode but 0 is for TIME_WAIT, and its bit 1 for FIN_WAIT as well (is_new_conn_expected,
// net/netfilter/ipvs/ip_vs_core.c).
func (b *balancer) reuseRemedy(s *snapshot.IPVSService) []Remedy {
	mode, known := b.reuseMode()
	want := int64(1)
	if s.PassesBy() {
		want = 3
	}
	if !known || mode&2 != 0 || want == 1 && mode != 0 {
		return nil
	}
	risk := "a client that went to the same server by chance of its port no longer does"
	if b.delaysReuse() {
		risk = "this kernel, unless the fix was backported, drops the first SYN of each such connection as IPVS uses connection tracking (" + snapshot.IPVSConntrack + " is 1): 1 s of delay, see lvs-conn-reuse; " + risk
	}
	return []Remedy{advice("lvs-schedule-anew", snapshot.IPVSReuse, want|mode, mode, risk)}
}
