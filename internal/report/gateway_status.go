package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/units"
)

// GatewayStatus is the state of a gateway.
type GatewayStatus struct {
	Schema  string    `json:"schema"`
	Version string    `json:"version"`
	At      time.Time `json:"taken_at"`
	// Source names the namespace, Args are the flags that select it.
	Source  string          `json:"source"`
	Gateway *observe.Status `json:"gateway"`
	Args    string          `json:"-"`
	// Enter is the command that runs others there; empty where that is the shell's own.
	Enter string `json:"-"`
	// Top bounds the rules that are shown; 0 is all.
	Top int `json:"-"`
	// Watch: others come after this one.
	Watch bool `json:"-"`
}

// verb quotes a command of natkit's for the namespace, command one of the system's.
func (v GatewayStatus) verb(words string) string { return "'natkit " + words + v.Args + "'" }

func (v GatewayStatus) command(words string) string {
	return "'" + strings.TrimPrefix(v.Enter+" "+words, " ") + "'"
}

// Text writes rules, pools, drops and what needs attention.
func (v GatewayStatus) Text(w io.Writer, style Style) error {
	s := v.Gateway
	p := &printer{w: w, style: style}
	p.gatewayHead(v, s)
	if !s.Present {
		p.gatewayNotes(s)
		return p.err
	}
	p.gatewayRules(v, s)
	p.gatewayHosts(v, s)
	p.gatewayLeases(s)
	p.gatewayPools(v, s)
	p.gatewayDrops(v, s)
	p.gatewayConcerns(v, s)
	p.gatewayNotes(s)
	return p.err
}

func (p *printer) gatewayHead(v GatewayStatus, s *observe.Status) {
	say := func(indent int, tone Tone, text string) { p.mark(indent, Cell{}, text, tone) }
	switch where := v.Source; {
	case s.Removed != "":
		say(0, Bad, "the gateway that natkit put in force in "+where+" was removed"+fmt.Sprintf(" (plan %.12s)", s.Removed))
		say(2, Plain, "as 'nft flush ruleset' does: "+v.verb("gateway apply")+" with its file puts it in force again")
	case !s.Present:
		say(0, Plain, where+" has no table of natkit's: no gateway is applied there")
	case s.Foreign:
		say(0, Bad, s.Name+" in "+where+" is not one that natkit made")
		say(2, Plain, "apply leaves it alone: if it is not needed, "+v.command(s.Removal))
	case s.Integrity == gateway.RulesChanged:
		say(0, Bad, "the gateway in "+where+" was changed since natkit wrote it")
		for _, c := range s.Changes {
			say(2, Plain, c)
		}
		say(2, Plain, v.verb("gateway apply --overwrite")+" with its file puts it right")
	case s.Integrity == gateway.RulesIntact:
		say(0, Bold, "the gateway in "+where+" is as natkit wrote it"+ofPlan(s))
	default:
		say(0, Bold, "a gateway is in force in "+where+ofPlan(s))
		say(2, Plain, "whether it was changed is unknown: the marks that natkit leaves in the table are missing")
	}
	p.gatewayUplinks(s)
	for _, z := range s.Zones {
		p.mark(2, Cell{}, fmt.Sprintf("zone %s by %s: %s%s from it", z.Zone, strings.Join(z.Interfaces, ", "), about(s), units.Plural(z.Flows, "connection", "connections")), Plain)
	}
	if len(s.NotForwarding) > 0 {
		say(0, Bad, "the host does not forward all that this gateway is for: "+strings.Join(s.NotForwarding, " and ")+map[bool]string{true: " is 0", false: " are 0"}[len(s.NotForwarding) == 1])
		say(2, Plain, "turn it on: "+v.command("sysctl -w "+strings.Join(s.NotForwarding, "=1 ")+"=1"))
	}
	switch c := s.Confirm; {
	case c == nil:
	case c.SecondsLeft > 0:
		say(0, Warn, "it waits for confirmation ("+c.ID+"): will be rolled back in "+units.Roughly(c.SecondsLeft)+" unless you run "+v.verb("gateway confirm"))
	case s.Integrity == gateway.RulesChanged:
		say(0, Warn, c.ID+" was not confirmed in time, and is not rolled back as the rules were changed: take that back, or remove the rules ("+v.command(s.Removal)+"), then "+v.verb("gateway undo"))
	default:
		say(0, Warn, c.ID+" was not confirmed in time: "+v.verb("gateway undo")+" rolls it back")
	}
	if s.PlanUnknown != "" {
		p.paragraph("its rules are known only by their counters: " + clean(s.PlanUnknown))
	}
}

// gatewayUplinks says by which of several WAN interfaces connections leave.
func (p *printer) gatewayUplinks(s *observe.Status) {
	for _, u := range s.Uplinks {
		text, tone := fmt.Sprintf("wan %s: %s of the hosts inside", u.Interface, units.Percent(u.Share)), Plain
		if u.Weight == 0 && u.Share == 0 {
			text = fmt.Sprintf("wan %s: standby", u.Interface)
		}
		switch {
		case u.Down != "" && u.Share > 0:
			text, tone = fmt.Sprintf("wan %s is down: %s; new connections of %s of the hosts inside leave by it all the same", u.Interface, clean(u.Down), units.Percent(u.Share)), Bad
		case u.Down != "":
			text, tone = fmt.Sprintf("wan %s is down: %s", u.Interface, clean(u.Down)), Bad
		case u.Out != "":
			text, tone = fmt.Sprintf("wan %s gets no new connections: %s", u.Interface, clean(u.Out)), Warn
		case u.Lacks != "":
			text, tone = text+"; "+clean(u.Lacks), Warn
		}
		p.mark(2, Cell{}, text+fmt.Sprintf("; %s%s", about(s), units.Plural(u.Flows, "connection", "connections")), tone)
	}
}

func ofPlan(s *observe.Status) string {
	if s.Plan == "" {
		return ""
	}
	return fmt.Sprintf(" (plan %.12s)", s.Plan)
}

// fewPools are shown; the others have more ports left.
const fewPools = 5

func (p *printer) gatewayPools(v GatewayStatus, s *observe.Status) {
	if len(s.Pools) == 0 {
		return
	}
	t := &Table{Columns: []Column{{Head: "ports left", Right: true}, {Head: "of", Right: true}, {Head: "range", Right: true}, {Head: "rule"}, {Head: "address > destination", Below: true}}}
	for i := range s.Pools[:min(fewPools, len(s.Pools))] {
		pool := &s.Pools[i]
		t.Cells(leftCell(pool.PortsLeft, s), Cell{Text: units.Count(pool.Size)}, Cell{Text: fmt.Sprintf("%d-%d", pool.FirstPort, pool.LastPort)},
			Cell{Text: pool.Rule.String()}, Cell{Text: p.style.poolText(&pool.PortPool)})
	}
	p.blank()
	p.table(t)
	if more := len(s.Pools) - fewPools; more > 0 {
		p.paragraph(fmt.Sprintf("… and %s with more ports left (%s shows them, with the chance that a connection fails)", units.Plural(more, "pool", "pools"), v.verb("ports")))
	}
}

// fewPrecedences are listed: a cluster has thousands.
const fewPrecedences = 5

// manyHosts is the number from which only the hosts that are down or out are shown.
const manyHosts = 20

// gatewayHosts prints the hosts that rules choose from.
func (p *printer) gatewayHosts(v GatewayStatus, s *observe.Status) {
	all := 0
	for i := range s.Rules {
		all += len(s.Rules[i].Hosts)
	}
	t := &Table{Columns: []Column{{Head: "host"}, {Head: "rule"}, {Head: "weight", Right: true}, {Head: "flows", Right: true}, {Head: "checks"}}}
	shown := 0
	for i := range s.Rules {
		for _, h := range s.Rules[i].Hosts {
			if all > manyHosts && h.Fine() {
				continue
			}
			shown++
			flows := units.None
			if s.Flows.Sampled > 0 || s.Flows.Complete {
				flows = about(s) + units.Count(h.Flows)
			}
			t.Cells(Cell{Text: h.Host}, Cell{Text: s.Rules[i].Rule.String()}, Cell{Text: units.Count(int64(h.Weight))}, Cell{Text: flows}, hostCell(h, v.At))
		}
	}
	if shown > 0 {
		p.blank()
		p.table(t)
	}
	if all > shown {
		p.line(fmt.Sprintf("… and %s that get new connections (--json shows all)", units.Plural(all-shown, "host", "hosts")))
	}
	if s.Unchecked {
		p.mark(0, Cell{}, "no host is checked: health checks run under 'natkit gateway run', which is not running here; hosts stay in or out as they are", Warn)
	}
}

// gatewayLeases shows the ports that hosts inside have opened.
func (p *printer) gatewayLeases(s *observe.Status) {
	if len(s.Leases) == 0 {
		return
	}
	t := &Table{Columns: []Column{{Head: "opened (pcp)"}, {Head: "to"}, {Head: "for", Right: true}, {Head: "flows", Right: true}}}
	for i, l := range s.Leases {
		if i == manyHosts {
			break
		}
		flows := units.None
		if s.Flows.Sampled > 0 || s.Flows.Complete {
			flows = about(s) + units.Count(l.Flows)
		}
		t.Cells(Cell{Text: l.Protocol + " " + l.External.String()}, Cell{Text: l.Internal.String()}, Cell{Text: units.Roughly(l.SecondsLeft)}, Cell{Text: flows})
	}
	p.blank()
	p.table(t)
	if more := len(s.Leases) - manyHosts; more > 0 {
		p.line(fmt.Sprintf("… and %s (--json shows all)", units.Plural(more, "port", "ports")))
	}
}

// hostCell is what checks found of a host, and what follows from it.
func hostCell(h observe.Host, now time.Time) Cell {
	c := Cell{}
	switch {
	case h.Up == nil && h.InUse != nil && !*h.InUse:
		c = Cell{Text: "out", Tone: Bad}
	case h.Up == nil:
		return c
	case *h.Up:
		c.Text = "up"
	default:
		c = Cell{Text: "down", Tone: Bad}
	}
	if h.Since != nil {
		c.Text += " for " + units.Roughly(max(0, now.Sub(*h.Since).Seconds()))
	}
	if h.Up != nil && h.InUse != nil && *h.InUse != *h.Up {
		c.Text += map[bool]string{true: ", still gets new connections", false: ", gets none yet"}[*h.InUse]
	}
	if h.LastError != "" {
		c.Text += ": " + h.LastError
	}
	return c
}

// gatewayConcerns prints what may need attention.
func (p *printer) gatewayConcerns(v GatewayStatus, s *observe.Status) {
	if s.Flows.Stranger > 0 {
		p.paragraph(fmt.Sprintf("%s%s translated by none of these rules: others' on this host, or of an earlier file", about(s), units.Plural(s.Flows.Stranger, "connection is", "connections are")))
	}
	if s.Flows.Related > 0 {
		p.paragraph(fmt.Sprintf("%s%s announced by others, and translated as those by a helper (helpers)", about(s), units.Plural(s.Flows.Related, "connection was", "connections were")))
	}
	warn := func(text string) { p.mark(0, Cell{}, text, Warn) }
	if s.Flows.Stale > 0 {
		warn(fmt.Sprintf("%s%s under an address that this host no longer has (%s): no answer arrives; %s deletes such entries",
			about(s), units.Plural(s.Flows.Stale, "connection leaves", "connections leave"), firstFew(s.Flows.StaleAddresses), v.verb("conntrack delete")))
	}
	if s.Flows.Untranslated > 0 {
		least := map[bool]string{true: "at least "}[s.Flows.UntranslatedAtLeast]
		warn(fmt.Sprintf("%s%s%s untranslated, begun before a rule was in force: the inside address leaves with every packet; %s deletes such entries",
			about(s), least, units.Plural(s.Flows.Untranslated, "connection passes", "connections pass"), v.verb("conntrack delete")))
	}
	for _, c := range s.CutHairpins {
		warn(fmt.Sprintf("a host behind %s does not reach itself by the address outside: the bridge takes what it carries through netfilter (bridge-nf-call-iptables), and %s send nothing back that came in by them; %s for the port of such a host",
			c.Bridge, firstFew(c.Ports), v.command("bridge link set dev PORT hairpin on")))
	}
	for _, c := range s.Precedences[:min(fewPrecedences, len(s.Precedences))] {
		warn(fmt.Sprintf("%s: %s; %s", c.Rule, c.Message, c.Advice))
	}
	if more := len(s.Precedences) - fewPrecedences; more > 0 {
		warn(fmt.Sprintf("… and %s of other programs that come first (%s with the file names them)", units.Plural(more, "rule", "rules"), v.verb("gateway check")))
	}
	if len(s.Missing) > 0 {
		warn("missing: " + strings.Join(s.Missing, ", ") + "; rules match once an interface exists")
	}
	for _, w := range s.Waiting {
		warn(fmt.Sprintf("%s waits for an address of %s ('natkit gateway run' applies it when it comes)", w.Rule, w.Interface))
	}
	p.gatewayOff(s.Off)
}

// firstFew names some of a list.
func firstFew(names []string) string {
	const few = 3
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}

func (p *printer) gatewayNotes(s *observe.Status) {
	for _, n := range s.Notes {
		p.mark(0, Cell{}, "note: "+n, Plain)
	}
}

func (p *printer) gatewayRules(v GatewayStatus, s *observe.Status) {
	rules, more := busiestRules(s.Rules, v.Top)
	if len(rules) == 0 {
		return
	}
	columns := statusColumns(s)
	t := &Table{}
	for _, c := range columns {
		t.Columns = append(t.Columns, c.Column)
	}
	for i := range rules {
		var row []Cell
		for _, c := range columns {
			row = append(row, c.cell(&rules[i]))
		}
		t.Cells(row...)
	}
	p.blank()
	p.table(t)
	if more > 0 {
		p.line("… and " + units.Count(more) + " more with fewer connections (--top 0 shows all)")
	}
	p.gatewayLegend(v, s)
}

// statusColumn is one of the table of rules.
type statusColumn struct {
	Column
	cell func(*observe.Rule) Cell
}

// statusColumns are those that there is something to say in.
func statusColumns(s *observe.Status) []statusColumn {
	columns := []statusColumn{{Column{Head: "rule"}, func(r *observe.Rule) Cell { return Cell{Text: r.Rule.String()} }}}
	number := func(head string, cell func(*observe.Rule) Cell) {
		columns = append(columns, statusColumn{Column{Head: head, Right: true}, cell})
	}
	// ofNow is a number that was counted in the connection table.
	ofNow := func(head string, text func(*observe.Rule) string) {
		number(head, func(r *observe.Rule) Cell {
			if s.Flows.Sampled == 0 && !s.Flows.Complete {
				return Cell{Text: units.None} // it was not read
			}
			return Cell{Text: about(s) + text(r)}
		})
	}
	number("new", func(r *observe.Rule) Cell { return Cell{Text: known(r.New)} })
	if slices.ContainsFunc(s.Rules, func(r observe.Rule) bool { return r.NewPerSecond != nil }) {
		number("new/s", func(r *observe.Rule) (c Cell) {
			if r.NewPerSecond != nil {
				c.Text = units.Rate(*r.NewPerSecond)
			}
			return c
		})
	}
	if slices.ContainsFunc(s.Rules, func(r observe.Rule) bool { return r.ByPrograms != nil }) {
		number("by programs", func(r *observe.Rule) Cell {
			switch by := r.ByPrograms; {
			case by == nil:
				return Cell{Text: units.None}
			case by.PacketsPerSecond != nil:
				return Cell{Text: units.Count(by.Packets) + ", " + units.Rate(*by.PacketsPerSecond) + "/s"}
			default:
				return Cell{Text: units.Count(by.Packets)}
			}
		})
		number("their bytes", func(r *observe.Rule) Cell {
			if r.ByPrograms == nil {
				return Cell{Text: units.None}
			}
			return Cell{Text: units.Bytes(r.ByPrograms.Bytes)}
		})
	}
	if s.Drops.ByRule != nil {
		number("dropped", func(r *observe.Rule) Cell {
			c := Cell{Text: known(r.Dropped)}
			if valueOf(r.DroppedPerSecond) > 0 {
				c.Tone = Warn // more are dropped now
			}
			return c
		})
	}
	ofNow("flows", func(r *observe.Rule) string { return units.Count(r.Flows) })
	if s.Accounting {
		ofNow("packets", func(r *observe.Rule) string { return units.Count(r.Packets) })
		ofNow("bytes", func(r *observe.Rule) string { return units.Bytes(r.Bytes) })
	}
	number("ports left", func(r *observe.Rule) Cell {
		if r.Ports == nil {
			return Cell{Text: units.None}
		}
		return leftCell(*r.Ports, s)
	})
	return append(columns, statusColumn{Column{Head: "what it does", Below: true}, func(r *observe.Rule) Cell {
		text := Truncate(r.Text, maxRuleText)
		if r.Rule.Note != "" {
			text += " (" + string(r.Rule.Note) + ")"
		}
		return Cell{Text: text}
	}})
}

// maxRuleText is how much of a rule is shown, which may have thousands of addresses.
const maxRuleText = 400

// gatewayLegend prints what the columns count, and since when.
func (p *printer) gatewayLegend(v GatewayStatus, s *observe.Status) {
	width := 9
	if len(s.Programs) > 0 {
		width = len("by programs") + 2
	}
	p.labelled(0, "new", width, "first packets since the last apply"+ago(s.Applied, v.At))
	if len(s.Programs) > 0 {
		p.labelled(0, "by programs", width, "packets that eBPF programs translated since the last apply, past netfilter, both directions")
	}
	if by := s.Drops.ByRule; by != nil {
		p.labelled(0, "dropped", width, "those that found no free port or clashed, since the watch began "+units.Roughly(by.Seconds)+" ago")
	}
	now := "flows, ports left; with 'accounting: on' in the file packets and bytes"
	if s.Accounting {
		now = "flows, packets, bytes, ports left: of the connections that there are"
	}
	p.labelled(0, "now", width, now)
	if len(s.Programs) == 0 {
		return
	}
	p.blank()
	p.line("eBPF programs")
	t := &Table{Columns: []Column{{Head: "interface"}, {Head: "attached at", Below: true}}}
	for _, name := range slices.Sorted(maps.Keys(s.Programs)) {
		t.Cells(Cell{Text: name}, Cell{Text: s.Programs[name]})
	}
	p.table(t)
}

// ago is empty where the time is not known.
func ago(then *time.Time, now time.Time) string {
	if then == nil {
		return ""
	}
	at := then.Local().Format("2006-01-02 15:04")
	if seconds := now.Sub(*then).Seconds(); seconds > 0 {
		return ", " + units.Roughly(seconds) + " ago (" + at + ")"
	}
	return ", " + at
}

// busiestRules are all in the file's order where that is not too many, else those
// with most connections.
func busiestRules(rules []observe.Rule, top int) (shown []observe.Rule, more int) {
	if top <= 0 || len(rules) <= top {
		return rules, 0
	}
	return observe.Busiest(rules, top), len(rules) - top
}

// about marks numbers that are scaled up from a sample.
func about(s *observe.Status) string {
	if s.Flows.Complete {
		return ""
	}
	return "~"
}

func known(n *uint64) string {
	if n == nil {
		return units.None
	}
	return units.Count(*n)
}

func leftCell(p observe.PortsLeft, s *observe.Status) Cell {
	return Cell{Text: about(s) + units.Count(p.Left), Tone: toneOf(p.InUse(), 0.9, 0.97)}
}

func (p *printer) gatewayDrops(v GatewayStatus, s *observe.Status) {
	p.blank()
	for _, c := range s.Counters {
		p.mark(0, Cell{}, counterText(c, counterWords[c.What]), Plain)
	}
	for _, c := range s.Drops.Counters {
		tone, words := Plain, dropWords[c.What]
		if words == "" {
			words = "dropped"
			if c.Packets > 0 {
				tone = Warn
			}
		}
		p.mark(0, Cell{}, counterText(c, words), tone)
	}
	p.gatewayLosses(v, &s.Drops)
	p.paragraph(tableUse(s))
}

// dropWords are the reasons of drops that every gateway has some of.
var dropWords = map[string]string{"untranslatable": "dropped, invalid to the connection tracker"}

// gatewayLosses separates two of the tracker's counters: every connection that
// found no port, or clashed, is in both.
func (p *printer) gatewayLosses(v GatewayStatus, d *observe.Drops) {
	drop, failed := valueOf(d.NoEntry), valueOf(d.InsertFailed)
	if drop > failed {
		p.loss(drop-failed, max(0, valueOf(d.NoEntryPerSecond)-valueOf(d.InsertFailedPerSecond)), d.NoEntryPerSecond != nil,
			"dropped as the connection table had no room (conntrack's drop without insert_failed", "")
	}
	if failed > 0 {
		p.loss(failed, valueOf(d.InsertFailedPerSecond), d.InsertFailedPerSecond != nil,
			"dropped as they clashed with another connection, or found no port (insert_failed", whose(v, d.ByRule))
	}
}

// whose returns further details of the connections that found no port.
func whose(v GatewayStatus, by *observe.DropsByRule) (text string) {
	switch {
	case by == nil && v.Watch: // a note has the reason
		return ""
	case by == nil:
		return "; 'natkit gateway status" + v.Args + " --watch' counts them by rule"
	}
	if by.NoRule > 0 {
		text += fmt.Sprintf("; %s in this watch of connections that none of these rules translated", units.Count(by.NoRule))
	}
	if by.Untold > 0 {
		text += fmt.Sprintf("; %s in this watch of unknown rules, as there were too many different connections", units.Count(by.Untold))
	}
	return text
}

// loss is a warning while it goes on, or where that is unknown.
func (p *printer) loss(packets uint64, rate float64, rated bool, why, more string) {
	text, tone := units.Plural(packets, "first packet", "first packets")+" "+why, Warn
	if text += ", of the whole namespace since it was made)"; rated {
		text += ", " + units.Rate(rate) + "/s now"
		if rate == 0 {
			tone = Plain
		}
	}
	p.mark(0, Cell{}, text+more, tone)
}

// valueOf is 0 for what is not known.
func valueOf[N uint64 | float64](n *N) (value N) {
	if n != nil {
		value = *n
	}
	return value
}

// counterWords describe what happened to the packets that a counter counts.
var counterWords = map[string]string{"mss": "(SYNs) bounded", "flowtable": "offered to the kernel's fast path"}

func counterText(c observe.Counter, became string) string {
	text := c.What + ": " + units.Plural(c.Packets, "packet", "packets")
	if became == "" { // it is said by what is counted: of eBPF programs
		text += ", " + units.Bytes(c.Bytes)
	} else {
		text += " " + became
	}
	if c.PacketsPerSecond != nil {
		text += ", " + units.Rate(*c.PacketsPerSecond) + "/s"
	}
	return text
}

func tableUse(s *observe.Status) string {
	text := "connection table: " + units.Plural(s.Flows.Table, "entry", "entries")
	if s.Flows.Max > 0 {
		text += fmt.Sprintf(" of %s (%s)", units.Count(s.Flows.Max), units.Percent(float64(s.Flows.Table)/float64(s.Flows.Max)))
	}
	if !s.Flows.Complete && s.Flows.Sampled > 0 {
		text += fmt.Sprintf("; %s of them read (--all reads all), ~ marks what is scaled up from these", units.Count(s.Flows.Sampled))
	}
	return text
}
