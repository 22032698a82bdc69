// Package plan works out what a load of connections needs of a machine: entries, memory, ports and limits.
// The arithmetic is that of package capacity; here each number gets its formula and its inputs.
package plan

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// Schema names the JSON form.
const Schema = "natkit.plan/1"

// What Load.Protocol may be.
const (
	TCP = "tcp"
	UDP = "udp"
)

// Load is what is to be carried.
type Load struct {
	Protocol string `json:"protocol"`
	// PerSecond are new connections, each open for DurationSeconds; Open is how many are open at one time.
	PerSecond       float64 `json:"new_per_second"`
	DurationSeconds float64 `json:"duration_s"`
	Open            int64   `json:"open_connections"`
	// Unanswered is the share of new connections that get no answer.
	Unanswered float64 `json:"unanswered_share"`
	RTTSeconds float64 `json:"rtt_s"`
	// Observed is true where it was counted and not given; Growth is by what it was multiplied then.
	Observed bool    `json:"observed"`
	Growth   float64 `json:"growth,omitempty"`
}

// Bounds of what may be asked, so that no product leaves an int64.
const (
	MostPerSecond   = 1e9
	MostConnections = 1_000_000_000_000
	MostSeconds     = 10 * 365 * 86400
	MostAddresses   = 1 << 24
	MostGrowth      = 1e6
	// mostEntries is the greatest nf_conntrack_max (an int in the kernel).
	mostEntries = math.MaxInt32
)

// Request is what a plan is made for.
type Request struct {
	Load Load
	// On is what is known of the machine: kernel, memory, sysctls, sizes of the kernel's objects.
	On *snapshot.Snapshot
	// Seen has the load where Load.Observed.
	Seen *snapshot.Recording
	// Source says where On is from.
	Source string
	// Ports are those of an address of the NAT; connections are spread over Addresses of them and over
	// Destinations (address, port).
	Ports                   nat.Ports
	Addresses, Destinations int64
	// Holds are further times for which something keeps a port, in seconds.
	Holds []float64
	// OpenFiles is the greatest RLIMIT_NOFILE that programs may have here; 0 where it is not known.
	OpenFiles int64
	Roles     []Role
}

// Plan is the answer.
type Plan struct {
	Schema  string `json:"schema"`
	Version string `json:"version"`
	// Source is where the machine's facts are from.
	Source      string `json:"source"`
	Kernel      string `json:"kernel"`
	MemoryBytes uint64 `json:"memory_bytes"`
	Load        Load   `json:"load"`
	// Entries of the connection table, by the state they are in.
	Entries []Entries `json:"entries"`
	Table   Table     `json:"table"`
	Ports   Ports     `json:"ports"`
	// Timeouts are those that the numbers follow from.
	Timeouts []Timeout `json:"timeouts"`
	// Limits are what each role needs, and whether this machine has it.
	Limits []Limit `json:"limits"`
	// Numbers have the formula and the inputs of each.
	Numbers []Number `json:"numbers"`
	Notes   []string `json:"notes"`
	// Roles are those that Ready, and files, are for.
	Roles []Role `json:"roles"`
	Ready Answer `json:"ready"`
}

// Entries are those in a state, or of a class.
type Entries struct {
	State   string `json:"state"`
	Entries int64  `json:"entries"`
}

// Table is the connection table.
type Table struct {
	Entries    int64 `json:"entries"`
	Max        int64 `json:"max"`
	MaxNow     int64 `json:"max_now"`
	Buckets    int64 `json:"buckets"`
	BucketsNow int64 `json:"buckets_now"`
	// NowIsDefault is true where what there is now is not known, but what the kernel gives itself.
	NowIsDefault bool `json:"now_is_default"`
	// ChainLength is the mean one with the entries that are expected, FullChainLength that of a full table.
	ChainLength     float64 `json:"chain_length"`
	FullChainLength float64 `json:"chain_length_full"`
	// Losses are what new connections are refused of with each cap that this kernel may have.
	Losses []Loss `json:"chain_losses"`
	// CapUnsure is why there are several.
	CapUnsure string `json:"chain_cap_unsure,omitempty"`
	// Bytes is the memory of the expected entries, of those that the table holds, FullBytes of a full one, with its buckets.
	Bytes          int64   `json:"memory_bytes"`
	FullBytes      int64   `json:"memory_full_bytes"`
	ObjectBytes    int64   `json:"object_bytes"`
	ExtensionBytes int64   `json:"extension_bytes"`
	BucketBytes    int64   `json:"bucket_bytes"`
	SizeSource     string  `json:"size_source"`
	MemoryBound    bool    `json:"memory_bound"`
	StallSeconds   float64 `json:"resize_stall_s"`
}

// Loss is the share of new connections that a chain's cap refuses, with the entries that are expected and with a
// full table.
type Loss struct {
	Cap  capacity.Cap `json:"cap"`
	Loss float64      `json:"loss_share"`
	Full float64      `json:"loss_share_full"`
	// Alone is that of a full table where the limit is raised and the buckets are left as they are.
	Alone float64 `json:"loss_share_full_with_buckets_now"`
}

// Ports are what the NAT gives.
type Ports struct {
	PerAddress   int64 `json:"per_address"`
	Addresses    int64 `json:"addresses"`
	Destinations int64 `json:"destinations"`
	// Needed are the ports in use toward one destination, AddressesNeeded what they take.
	Needed          int64  `json:"needed_per_destination"`
	AddressesNeeded int64  `json:"addresses_needed"`
	Wraps           []Wrap `json:"wraps"`
}

// Wrap is the rate from which ports that are given in turn come again while something still holds them.
type Wrap struct {
	By          string  `json:"held_by"`
	HoldSeconds float64 `json:"hold_s"`
	PerSecond   float64 `json:"per_second"`
	// Reached is true where the load is at least that.
	Reached bool `json:"reached"`
}

// Timeout is a sysctl that decides how long entries stay.
type Timeout struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	// Default is true where the machine's own value is not known.
	Default bool `json:"default"`
	// Entries are those that wait for it.
	Entries int64 `json:"entries"`
}

// Number is one number of a plan, with how it came about.
type Number struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit,omitempty"`
	// Formula is an expression in the names of the inputs.
	Formula string  `json:"formula"`
	Inputs  []Input `json:"inputs"`
}

// Input is a value that a formula uses.
type Input struct {
	Name   string  `json:"name"`
	Value  float64 `json:"value"`
	Unit   string  `json:"unit,omitempty"`
	Source string  `json:"source"`
}

// Check refuses what is no load, or more than can be counted.
func (r *Request) Check() error {
	l := r.Load
	bounded := func(v, most float64) bool { return v >= 0 && v <= most } // NaN is not
	switch {
	case !bounded(l.PerSecond, MostPerSecond):
		return fmt.Errorf("rate %g: must be from 0 to %s per second", l.PerSecond, units.Count(int64(MostPerSecond)))
	case !bounded(l.DurationSeconds, MostSeconds):
		return fmt.Errorf("duration %g s: must be from 0 to 10 years", l.DurationSeconds)
	case l.Open < 0 || l.Open > MostConnections:
		return fmt.Errorf("%d connections: must be from 0 to %s", l.Open, units.Count(int64(MostConnections)))
	case !bounded(l.Unanswered, 1):
		return fmt.Errorf("unanswered share %g: must be from 0 to 1", l.Unanswered)
	case !bounded(l.RTTSeconds, MostSeconds):
		return fmt.Errorf("round trip %g s: must be from 0 to 10 years", l.RTTSeconds)
	case l.Protocol != TCP && l.Protocol != UDP:
		return fmt.Errorf("protocol %q: must be tcp or udp", l.Protocol)
	case r.Ports.Len() == 0:
		return errors.New("ports: the range is empty")
	case r.Addresses < 1 || r.Addresses > MostAddresses || r.Destinations < 1 || r.Destinations > MostAddresses:
		return fmt.Errorf("%d addresses, %d destinations: must be from 1 to %s", r.Addresses, r.Destinations, units.Count(int64(MostAddresses)))
	case slices.ContainsFunc(r.Holds, func(s float64) bool { return !(s > 0 && s <= MostSeconds) }):
		return errors.New("hold times: must be more than 0, and at most 10 years")
	case !bounded(l.Growth, MostGrowth):
		return fmt.Errorf("growth %g: must be from 0 to %s", l.Growth, units.Count(int64(MostGrowth)))
	case !l.Observed && l.PerSecond == 0 && l.Open == 0:
		return errors.New("no load: rate or connections must be more than 0")
	case l.Observed && r.Seen == nil:
		return errors.New("no load: nothing was observed")
	}
	return nil
}

// New makes a plan.
func New(r Request) (*Plan, error) {
	if err := r.Check(); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	m := &maker{r: r, load: r.Load, table: capacity.TableOf(r.On)}
	// A bundle may be anybody's.
	m.table.Max, m.table.Buckets = max(m.table.Max, 0), max(m.table.Buckets, 0)
	m.table.OtherEntries = min(max(m.table.OtherEntries, 0), MostConnections)
	m.release, _ = capacity.ParseRelease(r.On.Kernel.Release)
	if r.On.ConntrackSize == nil {
		m.table.Cost = m.release.Cost()
	}
	m.p = &Plan{Schema: Schema, Source: r.Source, Kernel: r.On.Kernel.Release, MemoryBytes: m.table.MemoryBytes, Roles: r.Roles,
		Notes: []string{}, Limits: []Limit{}}
	if err := m.entries(); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	if err := m.size(); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	m.ports()
	m.limits()
	m.p.Load = m.load
	m.p.Ready = m.p.readiness()
	return m.p, nil
}

// maker makes one plan.
type maker struct {
	r       Request
	p       *Plan
	load    Load
	release capacity.Release
	table   capacity.Table
	// held are entries that stay as they are, arriving those that follow from the rate.
	held     int64
	arriving float64
}

func (m *maker) note(format string, args ...any) {
	m.p.Notes = append(m.p.Notes, fmt.Sprintf(format, args...))
}

// number keeps how a number came about, and returns it.
func (m *maker) number(name string, value float64, unit, formula string, inputs ...Input) float64 {
	m.p.Numbers = append(m.p.Numbers, Number{name, value, unit, formula, inputs})
	return value
}

const (
	given    = "given"
	constant = "natkit"
)

// rate, duration and open are the load as inputs.
func (m *maker) rate() Input { return Input{"rate", m.load.PerSecond, "/s", m.loadSource()} }
func (m *maker) open() Input {
	return Input{"open", float64(m.load.Open), "connections", m.loadSource()}
}

func (m *maker) loadSource() string {
	if m.load.Observed {
		return "observed"
	}
	return given
}

// timeout is how long an entry stays in a class, as an input; it is listed with how many entries wait for it.
func (m *maker) timeout(class string) Input {
	name := snapshot.TimeoutOf(class)
	source := name
	seconds := capacity.Lifetime(class, m.r.On.Sysctls)
	own := m.r.On.Sysctls.ClassTimeout(class) > 0
	if !own {
		source = "the kernel's default"
		// 120 s since 5.0; 4.19 has 180 s (nf_conntrack_proto_udp.c: udp_timeouts).
		if class == "udp/stream" && m.release.Before(5, 0) && m.release != (capacity.Release{}) {
			seconds = 180
		}
	}
	if !slices.ContainsFunc(m.p.Timeouts, func(t Timeout) bool { return t.Name == name }) {
		m.p.Timeouts = append(m.p.Timeouts, Timeout{Name: name, Seconds: seconds, Default: !own})
	}
	return Input{"timeout", seconds, "s", source}
}

// waiting adds entries to those of a timeout.
func (m *maker) waiting(class string, entries int64) {
	for i := range m.p.Timeouts {
		if m.p.Timeouts[i].Name == snapshot.TimeoutOf(class) {
			m.p.Timeouts[i].Entries += entries
		}
	}
}

// state adds the entries of one state, which follow from the rate.
func (m *maker) state(state string, formula string, value float64, inputs ...Input) int64 {
	value = m.number("entries in "+state, value, "entries", formula, inputs...)
	n := capacity.Steady([]capacity.Class{{PerSecond: value, LifetimeSeconds: 1}}, 0)
	m.p.Entries = append(m.p.Entries, Entries{state, n})
	return n
}

// entries are those of the load, by state.
func (m *maker) entries() error {
	l := &m.load
	switch {
	case l.Observed:
		return m.observed()
	case l.Open == 0:
		answered := Input{"answered", 1 - l.Unanswered, "", given}
		l.Open = capacity.Steady([]capacity.Class{{PerSecond: l.PerSecond * answered.Value, LifetimeSeconds: l.DurationSeconds}}, 0)
		m.number("open connections", l.PerSecond*answered.Value*l.DurationSeconds, "connections", "rate * answered * duration", m.rate(), answered, Input{"duration", l.DurationSeconds, "s", given})
	case l.PerSecond == 0:
		m.note("the rate of new connections is not given: what has just ended, such as TIME_WAIT, is missing; give --rate or --duration as well")
	}
	if l.Protocol == UDP {
		m.udp()
	} else {
		m.tcp()
	}
	return nil
}

func (m *maker) tcp() {
	l := m.load
	m.held = m.state("ESTABLISHED", "open", float64(l.Open), m.open())
	if l.PerSecond == 0 {
		return
	}
	answered, unanswered := Input{"answered", 1 - l.Unanswered, "", given}, Input{"unanswered", l.Unanswered, "", given}
	rtt := Input{"rtt", l.RTTSeconds, "s", given}
	add := func(class, state, formula string, value float64, inputs ...Input) {
		n := m.state(state, formula, value, append([]Input{m.rate()}, inputs...)...)
		m.arriving += value
		if class != "" {
			m.waiting(class, n)
		}
	}
	wait := m.timeout(capacity.TimeWaitClass)
	add(capacity.TimeWaitClass, "TIME_WAIT", "rate * answered * timeout", l.PerSecond*answered.Value*wait.Value, answered, wait)
	if l.Unanswered > 0 {
		wait := m.timeout("tcp/SYN_SENT")
		add("tcp/SYN_SENT", "SYN_SENT, unanswered", "rate * unanswered * timeout", l.PerSecond*unanswered.Value*wait.Value, unanswered, wait)
	}
	if l.RTTSeconds > 0 { // one round trip of the handshake, one of the FINs
		add("", "SYN_SENT, SYN_RECV", "rate * answered * rtt", l.PerSecond*answered.Value*rtt.Value, answered, rtt)
		add("", "FIN_WAIT, LAST_ACK", "rate * answered * rtt", l.PerSecond*answered.Value*rtt.Value, answered, rtt)
	}
	m.silence()
}

// establishedTimeout is for how long the kernel remembers a silent open connection, by default: 5 days
// (nf_conntrack_proto_tcp.c: tcp_timeouts).
const establishedTimeout = 432_000

// silence lists the timeout that holds for a connection whose end is not seen.
func (m *maker) silence() {
	const class = "tcp/ESTABLISHED"
	own := m.r.On.Sysctls.ClassTimeout(class)
	m.p.Timeouts = append(m.p.Timeouts, Timeout{Name: snapshot.TimeoutOf(class), Seconds: float64(cmp.Or(own, establishedTimeout)), Default: own == 0})
	if l := m.load; l.PerSecond > 0 {
		m.note("connections whose end is not seen stay for %s: where it is one of a thousand, %s entries come on top", units.Roughly(float64(cmp.Or(own, establishedTimeout))),
			units.Count(capacity.Steady([]capacity.Class{{PerSecond: l.PerSecond / 1000, LifetimeSeconds: float64(cmp.Or(own, establishedTimeout))}}, 0)))
	}
}

// streamAfter is how long packets must go both ways until the kernel gives an entry of UDP the timeout of a stream
// (nf_conntrack_udp_packet: 2 s).
const streamAfter = 2

// udp: an entry stays for a timeout after the last packet.
func (m *maker) udp() {
	l := m.load
	class := "udp/unreplied"
	if l.DurationSeconds > streamAfter || l.PerSecond == 0 {
		class = "udp/stream"
	}
	wait := m.timeout(class)
	m.held = m.state("in use", "open", float64(l.Open), m.open())
	if l.PerSecond == 0 {
		return
	}
	answered, unanswered := Input{"answered", 1 - l.Unanswered, "", given}, Input{"unanswered", l.Unanswered, "", given}
	value := l.PerSecond * answered.Value * wait.Value
	m.waiting(class, m.state("silent, "+class, "rate * answered * timeout", value, m.rate(), answered, wait))
	m.arriving += value
	if l.Unanswered > 0 {
		wait := m.timeout("udp/unreplied")
		value := l.PerSecond * unanswered.Value * wait.Value
		m.waiting("udp/unreplied", m.state("unanswered", "rate * unanswered * timeout", value, m.rate(), unanswered, wait))
		m.arriving += value
	}
}

// observed takes the load of a recording.
func (m *maker) observed() error {
	rec, l := m.r.Seen, &m.load
	count, ok := rec.Last().Sysctls.Int(snapshot.ConntrackCount)
	switch {
	case !ok:
		return errors.New("the load is not known: no connection table was read; give --rate and --duration, or --connections")
	case count < 0:
		return fmt.Errorf("the load is not known: %s is %d", snapshot.ConntrackCount, count)
	case count == 0:
		return errors.New("the load is not known: no connection is tracked; give --rate and --duration, or --connections")
	}
	if l.Growth == 0 {
		l.Growth = 1
	}
	growth := Input{"growth", l.Growth, "", given}
	held := capacity.Held(rec, count)
	m.held = m.state("open", "held * growth", float64(held)*l.Growth, Input{"held", float64(held), "entries", "connection table"}, growth)
	l.Open = m.held
	if rec.Flows == nil {
		m.note("the rate of new connections is not known: two readings of the table are needed; what has just ended is missing")
		return nil
	}
	classes := capacity.ClassesOf(rec)
	slices.SortFunc(classes, func(a, b capacity.Class) int { return cmp.Compare(a.Name, b.Name) })
	for _, c := range classes {
		if !(c.PerSecond >= 0 && c.PerSecond <= MostPerSecond) {
			return fmt.Errorf("the load is not known: %g new connections of %s per second", c.PerSecond, c.Name)
		}
		wait := m.timeout(c.Name)
		rate := Input{"rate", c.PerSecond, "/s", "two dumps"}
		n := m.state(c.Name, "rate * growth * timeout", c.PerSecond*l.Growth*wait.Value, rate, growth, wait)
		m.waiting(c.Name, n)
		l.PerSecond += c.PerSecond * l.Growth
	}
	if groups := capacity.Groups(rec, count); groups > 0 {
		m.note("bounded by the ports of the %s (source, service) pairs that were seen", units.Count(groups))
	}
	m.arriving = float64(capacity.Arriving(rec, count)) * l.Growth
	return nil
}
