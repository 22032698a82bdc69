package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// Ports are the pools of ports that NAT gives.
type Ports struct {
	Schema  string `json:"schema"`
	Version string `json:"version"`
	// Read is how the entries were read, Source where from.
	Read   any    `json:"read"`
	Source string `json:"-"`
	Kernel string `json:"kernel,omitempty"`
	// Notes are what is missing.
	Notes []string           `json:"notes,omitempty"`
	Ports *snapshot.Ports    `json:"ports"`
	Rules *snapshot.NATRules `json:"nat_rules,omitempty"`
	// Shared are addresses that sockets use, too.
	Shared []snapshot.SharedAddress `json:"shared_with_sockets,omitempty"`
	// At is written before the pools, where it is one of several readings.
	At string `json:"-"`
}

// CSV writes a line for each pool.
func (v Ports) CSV(w io.Writer) error { return CSV(w, v.Ports.Pools) }

// fewAdvised pools have their alternatives listed; those of more would be much the same.
const fewAdvised = 3

// Text writes the pools, and what they mean.
func (v Ports) Text(w io.Writer, style Style) error {
	p, d := &printer{w: w, style: style}, v.Ports
	if v.At != "" {
		p.line(v.At)
	}
	if d.Translated == 0 {
		p.line("no connection of " + clean(v.Source) + " has a translated source")
		p.portNotes(v.Notes)
		return p.err
	}
	head := fmt.Sprintf("%s: %s with a translated source, of %s", clean(v.Source), units.Plural(d.Translated, "connection", "connections"), units.Count(d.Sampled))
	p.line(style.Paint(Bold, head+comparedOver(d.Seconds)))
	p.blank()
	p.table(style.portPools(d))
	if more := d.Total - int64(len(d.Pools)); more > 0 {
		p.line("… and " + units.Count(more) + " more with less of their range in use (--top 0 shows all)")
	}
	p.blank()
	p.portsExplained(d)
	advised := 0
	for i := range d.Pools {
		if len(d.Pools[i].Alternatives) > 0 && advised < fewAdvised {
			p.portAlternatives(&d.Pools[i])
			advised++
		}
	}
	p.sharedAddresses(v.Shared)
	p.portNotes(v.Notes)
	return p.err
}

func comparedOver(seconds float64) string {
	if seconds <= 0 {
		return ""
	}
	return fmt.Sprintf(", compared over %s s", units.Fixed(seconds, 1))
}

func (style Style) portPools(d *snapshot.Ports) *Table {
	t := &Table{Columns: []Column{{Head: "used", Right: true}, {Head: "of ports", Right: true}, {Head: "share", Right: true},
		{Head: "TIME_WAIT", Right: true}, {Head: "new/s", Right: true}, {Head: "used up in", Right: true},
		{Head: "if taken", Right: true}, {Head: "fails", Right: true}, {Head: "address > destination, top user"}}}
	for i := range d.Pools {
		pool := &d.Pools[i]
		t.Cells(Cell{Text: units.Count(pool.Used)}, Cell{Text: fmt.Sprintf("%d-%d", pool.FirstPort, pool.LastPort)},
			shareCell(pool), Cell{Text: timeWait(pool)},
			Cell{Text: knownRate(pool)}, Cell{Text: usedUpIn(d, pool)},
			chanceCell(pool, pool.FailsIfTaken), chanceCell(pool, pool.Fails), Cell{Text: style.poolText(pool)})
	}
	return t
}

// shareCell is no alarm for the ports of one program: all of them in use is what they are for.
func shareCell(pool *snapshot.PortPool) Cell {
	c := Cell{Text: units.Percent(pool.Share)}
	if !pool.IsMapping() {
		c.Tone = toneOf(pool.Share, 0.9, 0.97)
	}
	return c
}

func toneOf(value, warn, bad float64) Tone {
	switch {
	case value >= bad:
		return Bad
	case value >= warn:
		return Warn
	}
	return ""
}

func timeWait(pool *snapshot.PortPool) string {
	if pool.Protocol != "tcp" {
		return units.None
	}
	return units.Count(pool.TimeWait)
}

func knownRate(pool *snapshot.PortPool) string {
	if !pool.RateKnown {
		return units.None
	}
	return units.Rate(pool.NewPerSecond)
}

// usedUpIn needs two dumps: one does not show how many connections ended.
func usedUpIn(d *snapshot.Ports, pool *snapshot.PortPool) string {
	switch {
	case !pool.RateKnown:
		return units.None
	case pool.Share >= 1:
		return "now"
	case d.Seconds == 0:
		return units.None
	case pool.SecondsLeft < 0:
		return "never"
	}
	return units.Roughly(pool.SecondsLeft)
}

func chanceCell(pool *snapshot.PortPool, chance float64) Cell {
	if !pool.Known {
		return Cell{Text: units.None}
	}
	return Cell{Text: chanceText(chance), Tone: toneOf(chance, 0.001, 0.05)}
}

// chanceText writes a chance; what is too small to distinguish from 0 is 0.
func chanceText(chance float64) string {
	if chance < 1e-9 {
		return "0 %"
	}
	return units.Percent(chance)
}

func (style Style) poolText(pool *snapshot.PortPool) string {
	text := fmt.Sprintf("%s > %s %s", style.named("", pool.Address), style.named(pool.Protocol, pool.Destination), pool.Protocol)
	if pool.Zone != 0 {
		text += fmt.Sprintf(" zone %d", pool.Zone)
	}
	if pool.Class != "" {
		text += ", " + pool.Class + " ports"
	}
	if len(pool.Users) > 0 && pool.Used > 0 {
		text += fmt.Sprintf(", %s %s", style.named("", pool.Users[0].Who), units.Percent(min(1, float64(pool.Users[0].Entries)/float64(pool.Used))))
	}
	return text
}

// portsExplained defines the two chances.
func (p *printer) portsExplained(d *snapshot.Ports) {
	how := "This kernel tries 128, 64, 32, 16 and 8 consecutive ports from random starts and then drops the packet: the distribution of the used ports matters."
	if d.Probing == snapshot.PortProbeAll {
		how = "This kernel tries the whole range, so that a connection fails only where all ports are used; vendor kernels of this age may try 248 ports only, as newer ones do."
	}
	p.paragraph(`"if taken" is the chance that a new connection finds no port whose own is taken by another, "fails" that of any new one. ` + how)
	if most, ok := keptMost(d); ok {
		p.paragraph("Of TCP the chance is that of a connection past the sequence numbers of all that have ended, whose ports this kernel then takes (Linux 6.6); for one past none it is " + most + ".")
	}
}

// keptMost is the greatest chance without eviction, where that matters.
func keptMost(d *snapshot.Ports) (string, bool) {
	most := 0.0
	for _, pool := range d.Pools {
		if pool.FailsIfKept > pool.FailsIfTaken {
			most = max(most, pool.FailsIfKept)
		}
	}
	return "up to " + chanceText(most), most > 1e-4
}

var alternativeNames = map[string]string{
	snapshot.PortsFullyRandom:    "a random port for every connection (fully-random)",
	snapshot.PortsLongerRange:    "the whole range 1024-65535",
	snapshot.PortsAnotherAddress: "one more address, to share the connections",
}

func (p *printer) portAlternatives(pool *snapshot.PortPool) {
	p.blank()
	t := &Table{Title: fmt.Sprintf("what would change for %s > %s %s (range from %s)", pool.Address, pool.Destination, pool.Protocol, pool.RangeSource),
		Columns: []Column{{Head: "with"}, {Head: "fails at once", Right: true}, {Head: "once ports lie by chance", Right: true}}}
	// Ports that clients keep do not come to lie by chance.
	asIs := Cell{Text: units.None}
	if pool.Draws {
		asIs.Text = chanceText(pool.TakenShare * pool.FailsScattered)
	}
	t.Cells(Cell{Text: "the rule as it is"}, Cell{Text: chanceText(pool.Fails)}, asIs)
	for _, a := range pool.Alternatives {
		name := alternativeNames[a.What]
		if name == "" {
			name = a.What
		}
		t.Row(name, chanceText(a.FailsNow), chanceText(a.FailsLater))
	}
	p.table(t)
}

func (p *printer) sharedAddresses(shared []snapshot.SharedAddress) {
	for _, s := range shared {
		if s.Connected+s.Listening == 0 {
			continue // all of the machine's addresses have these, that is no news
		}
		p.blank()
		p.paragraph(fmt.Sprintf("warning: %s sockets of this machine use %s, too: %s connected, %s bound to it, %s bound to all addresses. Their ports come out of net.ipv4.ip_local_port_range, and NAT does not know that they are taken unless the connection is tracked.",
			s.Protocol, s.Address, units.Count(s.Connected), units.Count(s.Listening), units.Count(s.Wildcard)))
	}
}

func (p *printer) portNotes(notes []string) {
	for _, n := range notes {
		p.paragraph("note: " + clean(n))
	}
}

// paragraph writes text in lines of the report's width.
func (p *printer) paragraph(text string) {
	p.line(strings.Join(wrap(text, p.style.columns()), "\n"))
}

// LVS is the kernel's load balancer.
type LVS struct {
	Schema  string `json:"schema"`
	Version string `json:"version"`
	Source  string `json:"source"`
	Kernel  string `json:"kernel"`
	// CountedPerSecond are new connections by the counter of IPVS; nil for one reading.
	CountedPerSecond *float64         `json:"counted_per_second,omitempty"`
	Sysctls          snapshot.Sysctls `json:"sysctls,omitempty"`
	Notes            []string         `json:"notes,omitempty"`
	IPVS             *snapshot.IPVS   `json:"ipvs"`
}

// Text writes services, real servers, and how clients use their ports.
func (v LVS) Text(w io.Writer, style Style) error {
	p, d := &printer{w: w, style: style}, v.IPVS
	head := fmt.Sprintf("%s: IPVS with %s", clean(v.Source), units.Plural(len(d.Services), "service", "services"))
	if c := d.Connections; c != nil {
		head += ", " + units.Plural(c.Sampled, "connection", "connections")
		if !c.Complete {
			head += " (not all read)"
		}
		head += comparedOver(c.Seconds)
	}
	p.line(style.Paint(Bold, head))
	if v.CountedPerSecond != nil {
		p.line("new connections counted by IPVS: " + units.Rate(*v.CountedPerSecond) + "/s")
	}
	if t := d.Timeouts; t != nil {
		p.line(fmt.Sprintf("timeouts: established TCP %d s, FIN_WAIT %d s, TIME_WAIT %d s, UDP %d s", t.TCP, t.TCPFin, snapshot.IPVSTimeWait, t.UDP))
	}
	p.line(lvsReuse(v.Sysctls))
	for i := range d.Services {
		p.blank()
		p.lvsService(d, &d.Services[i])
	}
	p.lvsOthers(d)
	p.portNotes(v.Notes)
	return p.err
}

// lvsReuse returns what IPVS does with a connection on a used tuple.
func lvsReuse(s snapshot.Sysctls) string {
	mode, ok := s.Int(snapshot.IPVSReuse)
	switch {
	case !ok:
		return "a connection on a tuple that has an entry stays on its server (this kernel has no " + snapshot.IPVSReuse + ")"
	case mode == 0:
		return "a connection on a tuple that has an entry stays on its server (" + snapshot.IPVSReuse + " is 0)"
	case mode&2 == 0:
		return fmt.Sprintf("a connection on a tuple in TIME_WAIT is scheduled anew, one in FIN_WAIT stays on its server (%s is %d)", snapshot.IPVSReuse, mode)
	}
	return fmt.Sprintf("a connection on a tuple in TIME_WAIT or FIN_WAIT is scheduled anew (%s is %d)", snapshot.IPVSReuse, mode)
}

func (p *printer) lvsService(d *snapshot.IPVS, s *snapshot.IPVSService) {
	u := d.UseOf(s)
	t := &Table{Title: lvsTitle(s), Columns: []Column{{Head: "real server"}, {Head: "forward"}, {Head: "weight", Right: true},
		{Head: "active", Right: true}, {Head: "inactive", Right: true}, {Head: "new/s", Right: true}, {Head: "reused/s", Right: true},
		{Head: "share", Right: true}, {Head: "by weight", Right: true}}}
	for _, r := range s.Servers {
		isNew, again, share := lvsRates(d, u, r.Address)
		t.Row(r.Address, clean(r.Forward), units.Count(r.Weight), units.Count(r.Active), units.Count(r.Inactive), isNew, again, share, lvsWeight(s, r.Weight))
	}
	p.table(t)
	if u != nil {
		p.lvsClients(d, s, u)
	}
}

func lvsTitle(s *snapshot.IPVSService) string {
	text := clean(s.Protocol + " " + s.Address + ", " + s.Scheduler)
	if s.Protocol == "" {
		text = clean(s.Address + ", " + s.Scheduler)
	}
	if s.Persistent {
		text += ", persistent"
	}
	if s.OnePacket {
		text += ", one packet"
	}
	return text
}

// lvsRates are those of one server; "–" where they are not known.
func lvsRates(d *snapshot.IPVS, u *snapshot.IPVSUse, server string) (isNew, again, share string) {
	isNew, again, share = units.None, units.None, units.None
	if u == nil || d.Connections.Seconds <= 0 {
		return isNew, again, share
	}
	seconds, got := d.Connections.Seconds, snapshot.IPVSServerUse{}
	for _, s := range u.Servers {
		if s.Address == server {
			got = s
		}
	}
	again = units.Rate(float64(got.UsedAgain) / seconds)
	if d.Connections.NewKnown {
		isNew = units.Rate(float64(got.New) / seconds)
	}
	if all := u.New + u.UsedAgain; all > 0 {
		share = units.Percent(float64(got.New+got.UsedAgain) / float64(all))
	}
	return isNew, again, share
}

func lvsWeight(s *snapshot.IPVSService, weight int64) string {
	var sum int64
	for _, r := range s.Servers {
		sum += r.Weight
	}
	if sum == 0 {
		return units.None
	}
	return units.Percent(float64(weight) / float64(sum))
}

// fewClients are listed; of more only the number.
const fewClients = 3

func (p *printer) lvsClients(d *snapshot.IPVS, s *snapshot.IPVSService, u *snapshot.IPVSUse) {
	p.line("  from " + units.Plural(u.Clients, "client address", "client addresses") + reusedText(d, u))
	for i := range u.TopClients[:min(len(u.TopClients), fewClients)] {
		c := &u.TopClients[i]
		text := fmt.Sprintf("  %s: %s with an entry, of %d-%d", c.Address, units.Plural(c.Ports, "port", "ports"), c.FirstPort, c.LastPort)
		if seconds, ok := d.Connections.ReuseInterval(c); ok {
			text += ", each used again after " + units.Roughly(seconds)
		}
		p.line(text)
	}
	if u.Protocol == "tcp" && len(u.TopClients) > 0 && !s.OnePacket {
		c := &u.TopClients[0]
		p.line(fmt.Sprintf("  %s ports / %d s that an entry stays: beyond %s/s of one address ports come again before that",
			units.Count(c.Span()), d.Hold(s), units.Rate(d.MostSessions(s, c))))
	}
}

func reusedText(d *snapshot.IPVS, u *snapshot.IPVSUse) string {
	if d.Connections.Seconds <= 0 || u.UsedAgain == 0 {
		return ""
	}
	return fmt.Sprintf("; %s used again, %s of them on the same server",
		units.Plural(u.UsedAgain, "tuple", "tuples"), units.Count(u.SameServer))
}

// lvsOthers are services that are in the table of connections only.
func (p *printer) lvsOthers(d *snapshot.IPVS) {
	if d.Connections == nil {
		return
	}
	t := &Table{Title: "chosen by a firewall mark, or removed", Columns: []Column{{Head: "service"}, {Head: "entries", Right: true}, {Head: "clients", Right: true}, {Head: "servers", Right: true}}}
	for i := range d.Connections.Services {
		if u := &d.Connections.Services[i]; d.ServiceOf(u) == nil {
			t.Row(u.Protocol+" "+u.Address, units.Count(u.Entries), units.Count(u.Clients), units.Count(int64(len(u.Servers))))
		}
	}
	if len(t.rows) > 0 {
		p.blank()
		p.table(t)
	}
}
