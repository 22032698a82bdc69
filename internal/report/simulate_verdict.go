package report

import (
	"fmt"
	"math"
	"time"

	"github.com/natkit/natkit/internal/simulate"
	"github.com/natkit/natkit/internal/units"
)

// simulationVerdict says in sentences what happens, the most important first.
func simulationVerdict(r *simulate.Result) []Cell {
	said := simulationRejects(r)
	if i := firstIncident(r, simulate.IncidentPorts); i != nil {
		noPort := Cell{fmt.Sprintf("The NAT had no port for %s SYNs, %s.", units.Count(r.Totals.NoPort), onset(r, i)), Bad}
		if r.Totals.Rejects() == 0 {
			said[0].Tone = Plain
			said = append([]Cell{noPort}, said...)
		} else {
			said = append(said, noPort)
		}
	}
	said = append(said, simulationWaits(r)...)
	if i := firstIncident(r, simulate.IncidentSessions); i != nil {
		said = append(said, Cell{fmt.Sprintf("The balancer knows the ports of most connections again %s: it made %s new sessions for %s connections, and sends the others where their port was before.",
			onset(r, i), units.Count(r.Totals.Sessions), units.Count(r.Totals.Connections)), Warn})
	}
	if i := firstIncident(r, simulate.IncidentOverflow); i != nil {
		said = append(said, Cell{fmt.Sprintf("%s closed connections found no place in TIME_WAIT (tcp_max_tw_buckets), %s.",
			units.Count(r.Totals.TimeWaitOverflow), onset(r, i)), Warn})
	}
	return append(said, addressesNeeded(r)...)
}

func firstIncident(r *simulate.Result, kind string) *simulate.Incident {
	for i := range r.Incidents {
		if r.Incidents[i].Kind == kind {
			return &r.Incidents[i]
		}
	}
	return nil
}

// onset tells when something began and was over, and at which rate where rates were
// given.
func onset(r *simulate.Result, i *simulate.Incident) string {
	if r.Config.Arrivals == nil && i.StartSeconds == 0 {
		return "from the beginning on"
	} else if r.Config.Arrivals == nil {
		return "first after " + units.Roughly(i.StartSeconds)
	}
	end := i.EndSeconds
	for _, other := range r.Incidents {
		if other.Kind == i.Kind {
			end = max(end, other.EndSeconds)
		}
	}
	when := "after " + simulationTime(r, i.StartSeconds)
	if hasTimeOfDay(r) {
		when = "at " + simulationTime(r, i.StartSeconds)
	} else if i.StartSeconds == 0 {
		when = "at once" // that is, within the first interval
	}
	if end+r.IntervalSeconds < r.Config.Duration.Seconds() {
		when += ", until " + simulationTime(r, end)
	}
	return fmt.Sprintf("from %s new connections/s on (%s)", units.Fixed(rateAt(r, i.StartSeconds), 0), when)
}

// rateAt is the configured rate of new connections: what came in an interval may be
// more or less by chance.
func rateAt(r *simulate.Result, seconds float64) float64 {
	at := time.Duration(seconds * float64(time.Second))
	return r.Config.Arrivals.At(r.Config.Start.Duration, at) / float64(max(r.Config.Connection.Requests, 1))
}

func simulationRejects(r *simulate.Result) []Cell {
	t := &r.Totals
	if t.Connections == 0 {
		return []Cell{{"There were no connections.", Warn}}
	}
	i := firstIncident(r, simulate.IncidentRejects)
	if t.Rejects() == 0 || i == nil {
		text := fmt.Sprintf("No SYN is refused: of %s none met a TIME_WAIT that would not have it.", units.Count(t.SYNs))
		if t.Reused > 0 {
			text += fmt.Sprintf(" %s met one and took its place.", units.Count(t.Reused))
		}
		return []Cell{{text + room(r), Good}}
	}
	share := units.Percent(float64(t.Rejects()) / float64(t.SYNs))
	text := fmt.Sprintf("SYNs meet the TIME_WAIT of a former connection and are refused %s: %s of %s SYNs (%s)", onset(r, i), units.Count(t.Rejects()), units.Count(t.SYNs), share)
	if t.SYNs != t.Connections {
		text += fmt.Sprintf(", %s for 100 connections", per100(t))
	}
	said := []Cell{{text + ".", Bad}}
	why := fmt.Sprintf("The timestamp had gone back in %s of them, the sequence number in %s; %s SYNs met a TIME_WAIT and took its place.",
		units.Count(t.PAWSRejects), units.Count(t.SequenceRejects), units.Count(t.Reused))
	return append(said, Cell{why, Plain})
}

// timeWaitLimit is the lowest rate at which ports in turn come again to a TIME_WAIT, 0
// where there is none.
func timeWaitLimit(r *simulate.Result) (lowest float64) {
	for _, l := range limitsOf(r) {
		if l.timeWait && (lowest == 0 || l.Rate() < lowest) {
			lowest = l.Rate()
		}
	}
	return lowest
}

// highestRate is that of new connections as configured, 0 with batches.
func highestRate(r *simulate.Result) (highest float64) {
	if r.Config.Arrivals == nil {
		return 0
	}
	for _, p := range simulationCourse(r) {
		highest = max(highest, rateAt(r, p.StartSeconds), rateAt(r, min(p.StartSeconds+r.IntervalSeconds, r.Config.Duration.Seconds())))
	}
	return highest
}

// addressesNeeded says how many NAT addresses it takes, where that is arithmetic: for SYNs
// that are refused where ports are given in turn, and for SYNs without a port where
// the NAT holds ports down and gives none of these away.
func addressesNeeded(r *simulate.Result) []Cell {
	c := &r.Config
	limit, until := 0.0, ""
	if r.Totals.Rejects() > 0 && c.NAT.Strategy == simulate.StrategyRoundRobin {
		limit, until = timeWaitLimit(r), "ports in turn come again only after TIME_WAIT"
	}
	hold, evicts := c.NAT.HoldDown, c.NAT.Strategy == simulate.StrategyKernel && (c.NAT.Evicts == nil || *c.NAT.Evicts)
	if r.Totals.NoPort > 0 && hold != nil && hold.Duration > 0 && !evicts {
		if least := tuplesOf(c) / hold.Seconds(); limit == 0 || least < limit {
			limit, until = least, "there is a port for each connection"
		}
	}
	highest, have := highestRate(r), max(c.NAT.Addresses, 1)
	if limit == 0 || highest <= limit {
		return nil
	}
	need := int(math.Ceil(float64(have) * highest / limit))
	return []Cell{{fmt.Sprintf("At %s/s it takes %s NAT addresses in place of %s, each with its part of the clients, until %s; more addresses for clients to call help as much.",
		units.Fixed(highest, 0), units.Count(need), units.Count(have), until), Plain}}
}

// room compares the highest rate with the lowest at which a port comes again to a
// TIME_WAIT.
func room(r *simulate.Result) string {
	lowest, highest := timeWaitLimit(r), highestRate(r)
	if lowest == 0 || r.Config.Arrivals == nil {
		return ""
	}
	return fmt.Sprintf(" The rate was %s/s at most; ports in turn come again to a TIME_WAIT at %s/s.", units.Fixed(highest, 0), units.Fixed(lowest, 0))
}

func simulationWaits(r *simulate.Result) []Cell {
	t := &r.Totals
	of := func(n int64, what string) string {
		return fmt.Sprintf("%s of %s connections (%s) %s", units.Count(n), units.Count(t.Connections), units.Percent(float64(n)/float64(max(t.Connections, 1))), what)
	}
	var said []Cell
	if t.Failed > 0 {
		said = append(said, Cell{of(t.Failed, "failed: the client gave up."), Bad})
	}
	if t.Delayed > 0 {
		said = append(said, Cell{of(t.Delayed, "came only after a repeated SYN; the longest wait was "+units.Roughly(r.ConnectDelay.MaxSeconds)+"."), Warn})
	}
	return said
}
