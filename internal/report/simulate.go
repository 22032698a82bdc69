package report

import (
	"fmt"
	"io"
	"math"
	"time"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/simulate"
	"github.com/natkit/natkit/internal/units"
)

// simulationOnly is printed on every form of the result.
const simulationOnly = "This is a simulation: nothing was measured."

// Simulation is the outcome of a simulation.
type Simulation struct {
	Schema string `json:"schema"`
	*simulate.Result
}

// Presets are the simulations that natkit has built in.
type Presets struct {
	Schema  string   `json:"schema"`
	Presets []Preset `json:"presets"`
}

// Preset is one of them.
type Preset struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	About string `json:"about"`
}

// Text writes a line for each.
func (d Presets) Text(w io.Writer, style Style) error {
	t := &Table{Columns: []Column{{Head: "preset"}, {Head: "what it simulates", Wrap: true}}}
	for _, p := range d.Presets {
		t.Row(p.Name, p.Title)
	}
	return t.Write(w, style)
}

// Text writes what happens, what limits, and the curves.
func (d Simulation) Text(w io.Writer, style Style) error {
	p, r := &printer{w: w, style: style}, d.Result
	p.line(style.Paint(Bold, simulationHead(r)))
	p.line(style.Paint(Dim, fmt.Sprintf("%s Seed %d.", simulationOnly, r.Config.Seed)))
	p.blank()
	for _, s := range simulationVerdict(r) {
		for i, part := range wrap(clean(s.Text), style.columns()-2) {
			margin := "  "
			if i == 0 {
				margin = "* "
			}
			p.line(margin + style.Paint(s.Tone, part))
		}
	}
	for _, t := range []*Table{simulationLimits(r), simulationServers(r), simulationBatches(r), simulationCurveTable(r)} {
		if len(t.rows) > 0 {
			p.gap()
			p.table(t)
		}
	}
	return p.err
}

func limitsTitle(r *simulate.Result) string {
	if s := r.Config.NAT.Strategy; s == simulate.StrategyRoundRobin || s == "" {
		return "What limits"
	}
	return "What limits (ports not chosen in turn come again earlier)"
}

func simulationHead(r *simulate.Result) string {
	name := r.Config.Name
	if r.Config.Title != "" {
		name += ": " + r.Config.Title
	}
	if name == "" {
		name = "simulation"
	}
	return clean(name)
}

// simulationSpan describes the curves' columns.
func simulationSpan(r *simulate.Result) string {
	points := len(simulationCourse(r))
	if points == 0 {
		return "none"
	}
	seconds := r.IntervalSeconds * float64(points)
	column := seconds / float64(min(points, simulationColumns))
	from := "over " + units.Roughly(seconds)
	if hasTimeOfDay(r) {
		from = "from " + simulationTime(r, 0) + " on " + from
	}
	return from + ", a column each " + units.Roughly(column)
}

// hasTimeOfDay reports whether the configuration sets the time of day at which it begins.
func hasTimeOfDay(r *simulate.Result) bool {
	a := r.Config.Arrivals
	return r.Config.Start.Duration > 0 || a != nil && (len(a.Hours) > 0 || a.Daily != nil)
}

// simulationTime is a time of day where there is one, else the time since the
// beginning.
func simulationTime(r *simulate.Result, seconds float64) string {
	since := time.Duration(seconds * float64(time.Second))
	if hasTimeOfDay(r) {
		return time.Time{}.Add(r.Config.Start.Duration + since).Format("15:04")
	}
	return units.Roughly(seconds)
}

func simulationServers(r *simulate.Result) *Table {
	t := &Table{Title: "Servers", Indent: 2, Columns: []Column{{Head: "group"}, {Head: "TIME_WAIT by"}, {Head: "servers", Right: true}, {Head: "connections", Right: true},
		{Head: "refused SYNs", Right: true}, {Head: "TIME_WAIT ran out after, s", Right: true}}}
	for i, s := range r.Servers {
		life := units.None
		if s.Life.Count > 0 {
			life = fmt.Sprintf("%s to %s", units.Fixed(s.Life.MinSeconds, 1), units.Fixed(s.Life.MaxSeconds, 1))
		}
		t.Cells(Cell{Text: s.Name}, Cell{Text: s.Kernel}, Cell{Text: units.Count(r.Config.Servers[i].Count)},
			Cell{Text: units.Count(accepted(&s.Totals))}, countCell(s.Totals.Rejects()), Cell{Text: life})
	}
	return t
}

// accepted are the connections that there were.
func accepted(c *simulate.Counts) int64 { return c.Accepted + c.Delayed }

func countCell(bad int64) Cell {
	c := Cell{Text: units.Count(bad)}
	if bad > 0 {
		c.Tone = Bad
	}
	return c
}

func simulationBatches(r *simulate.Result) *Table {
	t := &Table{Title: "Batches", Indent: 2, Columns: []Column{{Head: "batch"}, {Head: "connections", Right: true}, {Head: "refused SYNs", Right: true},
		{Head: "for 100", Right: true}, {Head: "delayed", Right: true}, {Head: "failed", Right: true}, {Head: "longest wait", Right: true}}}
	for i, b := range r.Batches {
		name := b.Name
		if name == "" {
			name = fmt.Sprint(i + 1)
		}
		t.Cells(Cell{Text: name}, Cell{Text: units.Count(b.Counts.Connections)}, countCell(b.Counts.Rejects()),
			Cell{Text: per100(&b.Counts)}, Cell{Text: units.Count(b.Counts.Delayed)},
			countCell(b.Counts.Failed), Cell{Text: units.Roughly(b.ConnectDelay.MaxSeconds)})
	}
	return t
}

// per100 are the refused SYNs for 100 connections.
func per100(c *simulate.Counts) string {
	if c.Connections == 0 {
		return units.None
	}
	return units.Fixed(100*float64(c.Rejects())/float64(c.Connections), 1)
}

// SimulateProgress is the line shown while a simulation runs.
func SimulateProgress(p simulate.Progress) string {
	text := "simulated " + units.Roughly(p.Seconds)
	if p.Total > 0 {
		text += " of " + units.Roughly(p.Total)
	}
	return fmt.Sprintf("%s: %s connections, %s SYNs refused", text, units.Count(p.Connections), units.Count(p.Rejects))
}

// simulationLimit is a rate above which tuples come again too early.
type simulationLimit struct {
	// What comes again, and the seconds for which a tuple is in use.
	What    string
	Seconds float64
	// Tuples are ports times addresses times destinations.
	Tuples   float64
	timeWait bool
}

// Rate is in connections per second.
func (l simulationLimit) Rate() float64 { return l.Tuples / l.Seconds }

func (l simulationLimit) arithmetic() string {
	return fmt.Sprintf("%s ports / %s s", units.Fixed(l.Tuples, 0), trimZero(units.Fixed(l.Seconds, 1)))
}

func trimZero(number string) string {
	if n := len(number); n > 2 && number[n-2:] == ".0" {
		return number[:n-2]
	}
	return number
}

// timeWaitSeconds returns how long a TIME_WAIT of a group can stand, 0 where there are none.
// The observed ones do not show it where ports come again sooner than that,
// so that the longest never end by themselves.
func timeWaitSeconds(r *simulate.Result, group int) float64 {
	c := &r.Config
	if c.Connection.ClosesFirst == simulate.CloseClient || group >= len(c.Servers) {
		return 0
	}
	weights := 0
	for _, s := range c.Servers {
		weights += s.Count * s.Weight
	}
	s := &c.Servers[group]
	if most := s.MaxTimeWait; most != nil && *most == 0 {
		return 0
	}
	perServer := highestRate(r) * float64(s.Weight) / float64(max(weights, 1))
	return max(r.Servers[group].Life.MaxSeconds, capacity.LongestTimeWait(s.Kernel, perServer).Seconds())
}

// tuplesOf is ports times addresses times what clients call.
func tuplesOf(c *simulate.Config) float64 {
	nat, whole := float64(int(c.NAT.Ports[1])-int(c.NAT.Ports[0])+1)*float64(c.NAT.Addresses), 0
	for _, s := range c.Servers {
		whole += s.Count * s.Addresses
	}
	if c.Balancer != nil {
		whole = c.Balancer.Addresses
	}
	return nat * float64(whole)
}

// limitsOf are those of the NAT's ports; each is a rate at which ports in turn come
// again after just the time for which the former connection is remembered.
func limitsOf(r *simulate.Result) []simulationLimit {
	c := &r.Config
	tuples := tuplesOf(c)
	var all []simulationLimit
	if hold := c.NAT.HoldDown; hold != nil && hold.Duration > 0 {
		all = append(all, simulationLimit{"the NAT holds ports down", hold.Seconds(), tuples, false})
	}
	if c.Balancer != nil {
		all = append(all, simulationLimit{"the balancer knows the session", c.Balancer.Timeout.Seconds(), tuples, false})
	}
	for i, s := range r.Servers {
		if life := timeWaitSeconds(r, i); life > 0 {
			all = append(all, simulationLimit{"TIME_WAIT stands, group " + s.Name, life, tuples, true})
		}
	}
	return all
}

func simulationLimits(r *simulate.Result) *Table {
	t := &Table{Title: limitsTitle(r), Indent: 2, Columns: []Column{{Head: "while"}, {Head: "ports in turn come again at", Right: true}, {Head: "that is", Right: true}}}
	highest := highestRate(r)
	for _, l := range limitsOf(r) {
		rate := Cell{Text: units.Fixed(l.Rate(), 0) + "/s"}
		if highest > l.Rate() {
			rate.Tone = Warn
		}
		t.Cells(Cell{Text: l.What}, Cell{Text: l.arithmetic()}, rate)
	}
	return t
}

// simulationVerdict describes the result in sentences, the most important first.
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

// onset is when something began and was over, and at which rate where rates were
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

// addressesNeeded returns how many NAT addresses it takes, where that is arithmetic: for SYNs
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
