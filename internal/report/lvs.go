package report

import (
	"fmt"
	"io"

	"github.com/natkit/natkit/internal/ipvs"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// LVSView is what there is to say of IPVS besides its snapshot.
type LVSView struct {
	// Source says in words where it was read.
	Source string
	// Counted connections per second, by the kernel; CountedKnown is false for one reading.
	Counted      float64
	CountedKnown bool
	// Sysctls are those of the snapshot. Notes are what could not be had.
	Sysctls snapshot.Sysctls
	Notes   []string
}

// LVS writes services, real servers, and how clients use their ports.
func LVS(w io.Writer, style Style, v LVSView, d *snapshot.IPVS) error {
	p := &printer{w: w, style: style}
	p.line(style.Paint(Bold, lvsHead(v, d)))
	if v.CountedKnown {
		p.line("new connections that IPVS counted: " + units.Rate(v.Counted) + "/s")
	}
	if t := d.Timeouts; t != nil {
		p.line(fmt.Sprintf("timeouts: established TCP %d s, FIN_WAIT %d s, TIME_WAIT %d s, UDP %d s", t.TCP, t.TCPFin, ipvs.TimeWait, t.UDP))
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

func lvsHead(v LVSView, d *snapshot.IPVS) string {
	text := fmt.Sprintf("%s: IPVS with %s", clean(v.Source), units.Plural(int64(len(d.Services)), "service", "services"))
	c := d.Connections
	if c == nil {
		return text
	}
	text += ", " + units.Plural(c.Sampled, "connection", "connections")
	if !c.Complete {
		text += " read of more"
	}
	if c.Seconds > 0 {
		text += fmt.Sprintf(", compared over %s s", units.Fixed(c.Seconds, 1))
	}
	return text
}

// lvsReuse says what becomes of a connection on a used tuple.
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
	u := ipvs.UseOf(d, s)
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

// fewClients are told apart; of more only how many there are.
const fewClients = 3

func (p *printer) lvsClients(d *snapshot.IPVS, s *snapshot.IPVSService, u *snapshot.IPVSUse) {
	p.line("  from " + units.Plural(u.Clients, "client address", "client addresses") + reusedText(d, u))
	for i := range u.TopClients[:min(len(u.TopClients), fewClients)] {
		c := &u.TopClients[i]
		text := fmt.Sprintf("  %s: %s with an entry, of %d-%d", c.Address, units.Plural(c.Ports, "port", "ports"), c.FirstPort, c.LastPort)
		if seconds, ok := ipvs.ReuseInterval(c, d.Connections); ok {
			text += ", each used again after " + units.Roughly(seconds)
		}
		p.line(text)
	}
	if u.Protocol == "tcp" && len(u.TopClients) > 0 && !s.OnePacket {
		c := &u.TopClients[0]
		p.line(fmt.Sprintf("  %s ports / %d s that an entry stays: beyond %s/s of one address ports come again before that",
			units.Count(ipvs.Ports(c)), ipvs.Hold(d, s), units.Rate(ipvs.MostSessions(d, s, c))))
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
		if u := &d.Connections.Services[i]; ipvs.ServiceOf(d, u) == nil {
			t.Row(u.Protocol+" "+u.Address, units.Count(u.Entries), units.Count(u.Clients), units.Count(int64(len(u.Servers))))
		}
	}
	if len(t.rows) > 0 {
		p.blank()
		p.table(t)
	}
}
