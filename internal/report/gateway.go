package report

import (
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/units"
)

// GatewayExplain writes the way of a packet and of its answer.
func GatewayExplain(w io.Writer, style Style, e *observe.Trace) error {
	p := &printer{w: w, style: style}
	p.line(style.Paint(Bold, e.Packet.String()) + clean(cameBy(e)))
	p.blank()
	p.gatewaySteps(e.Steps)
	p.blank()
	p.gatewayFate(e)
	if len(e.Reply) > 0 {
		p.blank()
		p.line(style.Paint(Bold, "The answer"))
		p.gatewaySteps(e.Reply)
	}
	if e.ReplyLost != "" {
		p.mark(2, Cell{"lost: ", Bad}, e.ReplyLost, Plain)
	}
	p.gatewayNear(e)
	for _, n := range e.Notes {
		p.mark(0, Cell{"note: ", Dim}, n, Plain)
	}
	return p.err
}

func cameBy(e *observe.Trace) string {
	if e.Packet.In == "" {
		return ", of a program on the gateway"
	}
	return ", in by " + e.Packet.In
}

func (p *printer) gatewaySteps(steps []observe.Step) {
	t := &Table{Indent: 2, Columns: []Column{{}, {Right: true}, {}, {Wrap: true}}}
	for _, s := range steps {
		t.Cells(Cell{s.Hook, Dim}, Cell{priority(s), Dim}, Cell{Text: chainText(s)}, doesCell(s))
	}
	p.table(t)
}

// priority is not told of what is no chain, nor of the very end.
func priority(s observe.Step) string {
	if s.Priority == math.MaxInt32 || s.Chain == "" && s.Priority == 0 {
		return ""
	}
	return fmt.Sprint(s.Priority)
}

func chainText(s observe.Step) string {
	if s.Owner != "" {
		return s.Chain + " (" + s.Owner + ")"
	}
	return s.Chain
}

func doesCell(s observe.Step) Cell {
	c := Cell{Text: s.Does}
	if s.Rule != nil {
		c = Cell{s.Rule.String() + ": " + s.Does, Bold}
	}
	if s.Unsure {
		c.Tone = Warn
	}
	return c
}

func (p *printer) gatewayFate(e *observe.Trace) {
	flow := fmt.Sprintf("%s %s -> %s", nat.ProtocolName(e.Packet.Protocol), e.Source, e.Destination)
	switch e.Fate {
	case observe.Forwarded:
		p.line(howCertain(e, "becomes ") + p.style.Paint(Bold, clean(flow)) + ", leaves by " + clean(e.Out))
	case observe.Local:
		p.line(howCertain(e, "stays here as ") + p.style.Paint(Bold, clean(flow)))
	case observe.Unreachable, observe.Dropped:
		p.line(p.style.Paint(Bad, "goes nowhere"))
	}
	for _, u := range e.Unless {
		p.mark(2, Cell{"unless ", Warn}, u, Plain)
	}
}

// howCertain is what is said of the fate: where other programs' rules may make something else of
// the packet, it is not certain.
func howCertain(e *observe.Trace, does string) string {
	if len(e.Unless) > 0 {
		return "not certain: " + does
	}
	return does
}

func (p *printer) gatewayNear(e *observe.Trace) {
	if len(e.Near) == 0 {
		return
	}
	p.blank()
	p.line(p.style.Paint(Bold, "Rules about these addresses that do nothing to it"))
	for _, n := range e.Near {
		p.mark(2, Cell{n.Rule.String() + ": ", Plain}, strings.Join(n.Why, "; "), Plain)
	}
	if e.NearMore > 0 {
		p.line(fmt.Sprintf("  … and %d more", e.NearMore))
	}
}

// GatewayPlan is what would become of a host.
type GatewayPlan struct {
	// Known is false where rules are in force whose plan natkit does not have: what
	// changes cannot be told then.
	Known      bool
	Difference gateway.Diff
	Planned    Planned
	Pools      []gateway.PoolCapacity
	// TimeWaitSeconds is what the pools' rates are for.
	TimeWaitSeconds float64
	Sizing          *capacity.Sizing
	Table           tune.Facts
	Missing         []string
	Waiting         []gateway.Waiting
	Obstacles       []string
}

// WriteGatewayPlan writes it for people.
func WriteGatewayPlan(w io.Writer, style Style, g *GatewayPlan) error {
	p := &printer{w: w, style: style}
	p.gatewayDifference(g)
	p.blank()
	if p.err == nil {
		p.err = Plan(w, style, g.Planned)
	}
	p.gatewayCapacity(g)
	p.gatewayAbsent(g)
	for _, o := range g.Obstacles {
		p.mark(0, Cell{"apply would refuse: ", Bad}, o, Plain)
	}
	return p.err
}

// manyRules bounds how many rules that change are shown.
const manyRules = 40

func (p *printer) gatewayDifference(g *GatewayPlan) {
	d := &g.Difference
	p.line(p.style.Paint(Bold, "Rules"))
	switch {
	case !g.Known:
		p.line("  what is in force was not made from a plan that natkit has; all of these would be new:")
	case d.Same():
		p.line("  nothing changes: this plan is in force")
		return
	}
	same := sameEffect(d.Rules)
	for i, r := range d.Rules {
		if i == manyRules {
			p.line(fmt.Sprintf("  … and %s more (--json has them all)", units.Count(len(d.Rules)-i)))
			break
		}
		p.gatewayChange(r, !same)
	}
	if same && len(d.Rules) > 0 {
		p.labelled(2, "connections", 13, d.Rules[0].Connections)
	}
	if d.Unchanged > 0 {
		p.line("  " + unchangedWords(d))
	}
	for _, s := range d.Settings {
		p.labelled(2, "", 0, fmt.Sprintf("%s: %s → %s", s.Setting, orNone(s.Before), orNone(s.After)))
		p.labelled(4, "connections", 13, s.Connections)
	}
}

// sameEffect reports whether all changes do the same to connections: once is enough then.
func sameEffect(all []gateway.RuleDiff) bool {
	for _, r := range all {
		if r.Connections != all[0].Connections {
			return false
		}
	}
	return true
}

func unchangedWords(d *gateway.Diff) string {
	text := units.Plural(d.Unchanged, "rule stays as it is", "rules stay as they are")
	if d.Renumbered > 0 {
		text += fmt.Sprintf(", %s at another place of the file", units.Count(d.Renumbered))
	}
	return text
}

// gatewayChange writes a rule with + for what comes and - for what goes.
func (p *printer) gatewayChange(r gateway.RuleDiff, effect bool) {
	was := r.Rule
	if r.Change == gateway.Changed {
		was = r.Was
	}
	if r.Before != "" {
		p.mark(2, Cell{"- " + clean(was.String()) + ": ", Bad}, r.Before, Plain)
	}
	if r.After != "" {
		p.mark(2, Cell{"+ " + clean(r.Rule.String()) + ": ", Good}, r.After, Plain)
	}
	if effect {
		p.labelled(4, "connections", 13, r.Connections)
	}
}

// manyPools bounds the table of pools.
const manyPools = 20

func (p *printer) gatewayCapacity(g *GatewayPlan) {
	if len(g.Pools) == 0 && g.Sizing == nil {
		return
	}
	p.blank()
	p.line(p.style.Paint(Bold, "Capacity"))
	if s := g.Sizing; s != nil {
		p.labelled(2, "", 0, sizingWords(s, g.Table))
	}
	t := &Table{Indent: 2, Columns: []Column{{Head: "rule"}, {Head: "addresses", Right: true}, {Head: "ports each", Right: true},
		{Head: "at once", Right: true}, {Head: "new/s", Right: true}, {Below: true}}}
	shown := 0
	for i := range g.Pools {
		if c := &g.Pools[i]; !c.OneForOne && shown < manyPools {
			t.Cells(poolCells(c)...)
			shown++
		}
	}
	if shown == 0 {
		return
	}
	p.table(t)
	p.labelled(2, "", 0, fmt.Sprintf("at once: connections of all hosts to one destination (address, port, protocol); a host has the ports of one address. new/s: short TCP connections to one destination for which there is always a free port: the entry of an ended one holds it for %s.", units.Seconds(g.TimeWaitSeconds)))
}

func poolCells(c *gateway.PoolCapacity) []Cell {
	note := ""
	switch {
	case c.Addresses == 0:
		note = "the interface has no address yet"
	case len(c.SharedWith) > 0:
		note = "shared with " + refs(c.SharedWith)
	}
	return []Cell{{Text: c.Rule.String()}, {Text: many(c.Addresses)}, {Text: units.Count(c.Ports)}, {Text: many(c.AtOnce)}, {Text: units.Rate(c.PerSecond)}, {Text: note}}
}

// many is a count of addresses: those of IPv6 prefixes are more than somebody can use.
func many(n int64) string {
	if n > math.MaxInt64/2 {
		return "no limit"
	}
	return units.Count(n)
}

// refs names a few rules.
func refs(list []gateway.Ref) string {
	const few = 3
	var texts []string
	for _, r := range list[:min(few, len(list))] {
		texts = append(texts, r.String())
	}
	if len(list) > few {
		texts = append(texts, "others")
	}
	return strings.Join(texts, ", ")
}

func sizingWords(s *capacity.Sizing, now tune.Facts) string {
	text := fmt.Sprintf("the connection table needs %s entries, with those that have just ended", units.Count(s.Entries))
	if s.Max > now.Max {
		return text + fmt.Sprintf("; it holds %s, and %s give room (up to %s of memory)", units.Count(now.Max), units.Count(s.Max), units.Bytes(s.FullBytes))
	}
	return text + fmt.Sprintf("; it holds %s", units.Count(now.Max))
}

func (p *printer) gatewayAbsent(g *GatewayPlan) {
	for _, name := range g.Missing {
		p.mark(0, Cell{"not there: ", Warn}, name+": rules for it hold when it comes", Plain)
	}
	for _, w := range g.Waiting {
		p.mark(0, Cell{"not there: ", Warn}, fmt.Sprintf("an address of %s, which %s is about: 'natkit gateway run' waits for it", w.Interface, w.Rule), Plain)
	}
}

// Planned is what somebody should know before changes are made.
type Planned struct {
	Changes []tune.Change
	// Already are values that need no change, as sentences.
	Already []string
	// Files are the lines in files that make the changes hold after a boot; with
	// FilesWait they are written at the confirmation only.
	Files     []tune.Change
	FilesWait bool
	// Warnings say what may keep the changes from their effect.
	Warnings []string
}

// Plan writes what would be changed, with the cost and the risk of each change.
func Plan(w io.Writer, style Style, plan Planned) error {
	p := &printer{w: w, style: style}
	p.line(style.Paint(Bold, "Plan"))
	for _, already := range plan.Already {
		p.labelled(2, "", 0, already)
	}
	if len(plan.Changes) == 0 {
		p.line("  nothing to change")
	}
	p.changes(2, plan.Changes, func(c tune.Change) {
		p.labelled(4, "why", 6, c.Why)
		p.labelled(4, "cost", 6, c.Cost)
		p.labelled(4, "risk", 6, c.Risk)
	})
	p.files(plan)
	for _, warning := range plan.Warnings {
		p.mark(2, Cell{"warning: ", Warn}, warning, Plain)
	}
	return p.err
}

func (p *printer) files(plan Planned) {
	if len(plan.Files) == 0 {
		return
	}
	when := "  to hold after a boot:"
	if plan.FilesWait {
		when = "  to hold after a boot, written when you confirm:"
	}
	p.line(when)
	t := &Table{Indent: 4, Columns: []Column{{}, {}, {}}}
	for _, c := range plan.Files {
		t.Cells(Cell{"/" + tune.ConfPath(c.Kind), Dim}, Cell{fileLine(c), Bold}, Cell{Text: fileNote(c)})
	}
	t.each(p, func(i int) { p.labelled(6, "risk", 6, plan.Files[i].Risk) })
}

func fileLine(c tune.Change) string {
	if c.Kind == tune.ModulesLoad {
		return c.Target
	}
	return c.Target + " = " + c.Shown(c.After)
}

func fileNote(c tune.Change) string {
	switch {
	case tune.SameValue(c.Before, c.After):
		return "(is there)"
	case c.Before != "":
		return "(was " + c.Shown(c.Before) + ")"
	}
	return ""
}

// changes writes "target  before → after" in columns, each followed by what
// after writes.
func (p *printer) changes(indent int, changes []tune.Change, after func(tune.Change)) {
	t := &Table{Indent: indent, Columns: []Column{{}, {Right: true}, {}, {}}}
	for _, c := range changes {
		t.Cells(Cell{Text: c.Target}, Cell{Text: ChangeValue(c, c.Before)}, Cell{"→", Dim}, Cell{ChangeValue(c, c.After), Bold})
	}
	t.each(p, func(i int) {
		if after != nil {
			after(changes[i])
		}
	})
}

// ChangeValue is a value of a change, for people.
func ChangeValue(c tune.Change, value string) string {
	if c.Kind == tune.NATRule && value == "" {
		return "(no options)"
	}
	return orUnset(c.Shown(value))
}

// orUnset makes an empty value visible.
func orUnset(value string) string {
	if value == "" {
		return "(unset)"
	}
	return value
}
