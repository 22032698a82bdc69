package report

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/units"
)

// GatewayCheck is what is wrong with a gateway file.
type GatewayCheck struct {
	Schema string `json:"schema"`
	File   string `json:"file"`
	// Rules is how many there are.
	Rules int `json:"rules"`
	// Offline: the host was not read. Unknown could not be read of it.
	Offline  bool              `json:"offline"`
	Unknown  []string          `json:"unknown"`
	Refused  int               `json:"refused"`
	Warned   int               `json:"warned"`
	Noticed  int               `json:"noticed"`
	Findings []gateway.Finding `json:"findings"`
}

// Text writes the findings and ends with their number.
func (d GatewayCheck) Text(w io.Writer, style Style) error {
	p := &printer{w: w, style: style}
	if len(d.Unknown) > 0 {
		p.unfinished("parts of this host could not be read (--offline checks the file alone)", d.Unknown)
	}
	p.gatewayFindings(d.File, d.Findings)
	result := units.Count(d.Refused) + " refused, " + units.Plural(d.Warned, "warning", "warnings")
	if d.Noticed > 0 {
		result += ", " + units.Plural(d.Noticed, "notice", "notices")
	}
	switch {
	case len(d.Findings) > 0:
	case d.Offline:
		result = "no findings; this host was not read"
	default:
		result = "no findings on this host"
	}
	p.line(clean(d.File) + ": " + units.Plural(d.Rules, "rule", "rules") + ", " + result)
	return p.err
}

// GatewayFindings writes the findings about a file.
func GatewayFindings(w io.Writer, style Style, file string, all []gateway.Finding) error {
	p := &printer{w: w, style: style}
	p.gatewayFindings(file, all)
	return p.err
}

// manyFindings bounds those of one kind that are written: a file of thousands of rules can
// have as many.
const manyFindings = 20

// gatewayFindings writes findings with their place in the file, its text, and advice.
func (p *printer) gatewayFindings(file string, all []gateway.Finding) {
	written := map[string]int{}
	for _, f := range all {
		if written[f.ID]++; written[f.ID] <= manyFindings {
			p.gatewayFinding(clean(file), f)
		}
	}
	for _, f := range all {
		if more := written[f.ID] - manyFindings; more > 0 {
			p.line(fmt.Sprintf("%s: %s more are not shown; --json has them [%s]", clean(file), units.Count(more), f.ID))
		}
		written[f.ID] = 0
	}
}

func (p *printer) gatewayFinding(place string, f gateway.Finding) {
	if f.File != "" {
		place = clean(f.File)
	}
	if f.Line > 0 {
		place = fmt.Sprintf("%s:%d:%d", place, f.Line, f.Column)
	}
	tone := map[gateway.Severity]Tone{gateway.Refuse: Bad, gateway.Notice: Dim}[f.Severity]
	if f.Severity == gateway.Warn {
		tone = Warn
	}
	p.line(fmt.Sprintf("%s: %s: %s [%s]", place, p.style.Paint(tone, string(f.Severity)), clean(f.Message), f.ID))
	if f.Excerpt != "" && p.err == nil { // not broken: a caret points into it
		_, p.err = io.WriteString(p.w, f.Excerpt+"\n")
	}
	for line := range strings.Lines(f.Advice) {
		p.line("        " + clean(strings.TrimSuffix(line, "\n")))
	}
}

// GatewayPacket is the way of a packet.
type GatewayPacket struct{ *observe.Trace }

// Text writes the way of a packet and of its answer.
func (e GatewayPacket) Text(w io.Writer, style Style) error {
	p := &printer{w: w, style: style}
	came := ", of a program on the gateway"
	if e.Packet.In != "" {
		came = ", in by " + e.Packet.In
	}
	if at := e.Packet.At; !at.IsZero() {
		came += at.UTC().Format(", Mon 2006-01-02 15:04 UTC")
	}
	p.line(style.Paint(Bold, e.Packet.String()) + clean(came))
	p.blank()
	p.gatewaySteps(e.Steps)
	p.blank()
	p.gatewayFate(e.Trace)
	if len(e.Reply) > 0 {
		p.heading("The answer")
		p.gatewaySteps(e.Reply)
	}
	if e.ReplyLost != "" {
		p.mark(2, Cell{"lost: ", Bad}, e.ReplyLost, Plain)
	}
	if len(e.Near) > 0 {
		p.heading("Rules about these addresses that do nothing to it")
	}
	for _, n := range e.Near {
		p.mark(2, Cell{n.Rule.Label() + ": ", Plain}, strings.Join(n.Why, "; "), Plain)
	}
	if e.NearMore > 0 {
		p.line(fmt.Sprintf("  … and %d more", e.NearMore))
	}
	for _, n := range e.Notes {
		p.mark(0, Cell{"note: ", Dim}, n, Plain)
	}
	return p.err
}

func (p *printer) gatewaySteps(steps []observe.Step) {
	t := &Table{Indent: 2, Columns: []Column{{}, {Right: true}, {}, {Wrap: true}}}
	for _, s := range steps {
		priority, chain, does := fmt.Sprint(s.Priority), s.Chain, Cell{Text: s.Does}
		if s.Priority == math.MaxInt32 || s.Chain == "" && s.Priority == 0 { // the end, or no chain
			priority = ""
		}
		if s.Owner != "" {
			chain += " (" + s.Owner + ")"
		}
		if s.Rule != nil {
			does = Cell{s.Rule.Label() + ": " + s.Does, Bold}
		}
		if s.Unsure {
			does.Tone = Warn
		}
		t.Cells(Cell{s.Hook, Dim}, Cell{priority, Dim}, Cell{Text: chain}, does)
	}
	p.table(t)
}

func (p *printer) gatewayFate(e *observe.Trace) {
	flow := p.style.Paint(Bold, clean(fmt.Sprintf("%s %s -> %s", nat.ProtocolName(e.Packet.Protocol), e.Source, e.Destination)))
	certain := ""
	if len(e.Unless) > 0 { // other programs' rules may do something else
		certain = "not certain: "
	}
	switch e.Fate {
	case observe.Forwarded:
		p.line(certain + "becomes " + flow + ", leaves by " + clean(e.Out))
	case observe.Local:
		p.line(certain + "stays here as " + flow)
	case observe.Unreachable, observe.Dropped:
		p.line(p.style.Paint(Bad, "goes nowhere"))
	}
	for _, u := range e.Unless {
		p.mark(2, Cell{"unless ", Warn}, u, Plain)
	}
}

// GatewayPlan is what a gateway file would change on a host, and what it could hold.
type GatewayPlan struct {
	Schema string `json:"schema"`
	File   string `json:"file"`
	// Digest is of the plan that the file becomes, Before what is in force ("none", a
	// digest). Known is false where natkit does not have the plan of that.
	Digest string `json:"digest"`
	Before string `json:"before"`
	Known  bool   `json:"before_known"`
	// Refused: apply would not do it.
	Refused    bool              `json:"refused"`
	Obstacles  []string          `json:"obstacles"`
	Findings   []gateway.Finding `json:"findings"`
	Difference gateway.Diff      `json:"difference"`
	Changes    []tune.Change     `json:"changes"`
	Already    []string          `json:"already"`
	Notes      []string          `json:"notes"`
	// Carriers are the engines of rules, where there are several; Bypassed is what programs pass by.
	Carriers []gateway.Carrier  `json:"engines"`
	Bypassed []gateway.Bypassed `json:"bypassed"`

	Pools []gateway.PoolCapacity `json:"pools"`
	// TimeWaitSeconds is what the pools' rates are for.
	TimeWaitSeconds float64           `json:"time_wait_seconds"`
	Table           *GatewayTable     `json:"connection_table,omitempty"`
	Missing         []string          `json:"missing_interfaces"`
	Waiting         []gateway.Waiting `json:"waiting"`
	// Off are rules of the file that are not enabled.
	Off []gateway.Off `json:"off"`
	// Unknown could not be read of the host.
	Unknown []string `json:"unknown"`
	// FilesWait: files are written at the confirmation only.
	FilesWait bool `json:"-"`
}

// GatewayTable is what the connection table needs for what the file expects.
type GatewayTable struct {
	Entries   int64 `json:"entries"`
	Max       int64 `json:"max"`
	MaxAfter  int64 `json:"max_after"`
	Buckets   int64 `json:"buckets_after"`
	FullBytes int64 `json:"full_bytes_after"`
}

// Text writes the findings, and the plan where there is one.
func (g GatewayPlan) Text(w io.Writer, style Style) error {
	p := &printer{w: w, style: style}
	p.gatewayFindings(g.File, g.Findings)
	if g.Digest == "" {
		return p.err
	}
	p.gatewayDifference(&g)
	p.gatewayEngines(&g)
	p.blank()
	p.planned(g.planned())
	p.gatewayCapacity(&g)
	for _, name := range g.Missing {
		p.mark(0, Cell{"missing: ", Warn}, "interface "+name+": its rules match once it exists", Plain)
	}
	for _, w := range g.Waiting {
		p.mark(0, Cell{"missing: ", Warn}, fmt.Sprintf("an address of %s for %s: 'natkit gateway run' waits for it", w.Interface, w.Rule), Plain)
	}
	p.gatewayOff(g.Off)
	for _, o := range g.Obstacles {
		p.mark(0, Cell{"apply would refuse: ", Bad}, o, Plain)
	}
	return p.err
}

// gatewayOff writes rules that are not enabled, as many as a glance takes in.
func (p *printer) gatewayOff(all []gateway.Off) {
	const few = 5
	for _, o := range all[:min(few, len(all))] {
		p.mark(0, Cell{"off: ", Dim}, o.Rule.Label()+": "+o.Text, Plain)
	}
	if more := len(all) - few; more > 0 {
		p.line(fmt.Sprintf("off: %s more (--json has them all)", units.Count(more)))
	}
}

// planned separates files and what stays as it is from the other changes.
func (g *GatewayPlan) planned() Planned {
	d := Planned{Already: slices.Clone(g.Already), Warnings: g.Notes, FilesWait: g.FilesWait}
	for _, c := range g.Changes {
		switch {
		case tune.ConfPath(c.Kind) != "":
			d.Files = append(d.Files, c)
		case c.Before != c.After, c.Kind == tune.Gateway && c.Risk != "": // rules that stay, and are used otherwise
			d.Changes = append(d.Changes, c)
		case c.Kind == tune.Sysctl:
			d.Already = append(d.Already, fmt.Sprintf("%s is %s already: %s", c.Target, c.Before, c.Why))
		}
	}
	return d
}

// manyRules bounds how many rules that change are shown.
const manyRules = 40

func (p *printer) gatewayDifference(g *GatewayPlan) {
	d := &g.Difference
	p.line(p.style.Paint(Bold, "Rules"))
	switch {
	case !g.Known:
		p.line("  natkit does not have the plan of what is in force; all of these would be new:")
	case d.Same():
		p.line("  nothing changes: this plan is in force")
		return
	}
	// All changes may do the same to connections: once is enough then.
	differ := slices.ContainsFunc(d.Rules, func(r gateway.RuleDiff) bool { return r.Connections != d.Rules[0].Connections })
	for i, r := range d.Rules {
		if i == manyRules {
			p.line(fmt.Sprintf("  … and %s more (--json has them all)", units.Count(len(d.Rules)-i)))
			break
		}
		p.gatewayChange(r, differ)
	}
	if !differ && len(d.Rules) > 0 {
		p.labelled(2, "connections", labelWidth, d.Rules[0].Connections)
	}
	if d.Unchanged > 0 {
		text := units.Plural(d.Unchanged, "rule stays as it is", "rules stay as they are")
		if d.Renumbered > 0 {
			text += fmt.Sprintf(", %s at another place of the file", units.Count(d.Renumbered))
		}
		p.line("  " + text)
	}
	for _, s := range d.Sets {
		p.gatewaySet(s)
	}
	for _, s := range d.Settings {
		p.labelled(2, "", 0, fmt.Sprintf("%s: %s → %s", s.Setting, orNone(s.Before), orNone(s.After)))
		p.labelled(4, "connections", labelWidth, s.Connections)
	}
}

// gatewayEngines writes which engine has which rule, and what is passed by.
func (p *printer) gatewayEngines(g *GatewayPlan) {
	if len(g.Carriers) == 0 {
		return
	}
	p.heading("Engines")
	p.table(carriers(g.Carriers[:min(manyRules, len(g.Carriers))]))
	if more := len(g.Carriers) - manyRules; more > 0 {
		p.line(fmt.Sprintf("  … and %s more (--json has them all)", units.Count(more)))
	}
	for _, b := range g.Bypassed {
		p.mark(2, Cell{"passed by: ", Warn}, b.What, Plain)
	}
}

// carriers has the engine of each rule, and why it is not another one.
func carriers(all []gateway.Carrier) *Table {
	t := &Table{Indent: 2, Columns: []Column{{}, {}, {Wrap: true}}}
	for _, c := range all {
		var why []string
		for _, n := range c.Notes {
			why = append(why, fmt.Sprintf("not %s: %s", n.Engine, n.Because))
		}
		t.Cells(Cell{Text: c.Rule.Label()}, Cell{string(c.Engine), Bold}, Cell{Text: strings.Join(why, "; ")})
	}
	return t
}

// gatewaySet writes a set that comes, goes, or changes.
func (p *printer) gatewaySet(s gateway.SetDiff) {
	word := "element"
	if s.Pairs {
		word = "pair"
	}
	elements := units.Plural(int64(s.Elements), word, word+"s")
	switch s.Change {
	case gateway.Added:
		p.mark(2, Cell{"+ set " + s.Set + ": ", Good}, elements, Plain)
	case gateway.Removed:
		p.mark(2, Cell{"- set " + s.Set + ": ", Bad}, elements, Plain)
	default:
		p.labelled(2, "", 0, fmt.Sprintf("set %s: +%s -%s %ss, then %s", s.Set, units.Count(int64(s.Added)), units.Count(int64(s.Removed)), word, units.Count(int64(s.Elements))))
		p.labelled(4, "connections", labelWidth, s.Connections)
	}
}

// gatewayChange writes a rule with + for what comes and - for what goes.
func (p *printer) gatewayChange(r gateway.RuleDiff, effect bool) {
	was := r.Rule
	if r.Change == gateway.Changed {
		was = r.Was
	}
	if r.Before != "" {
		p.mark(2, Cell{"- " + clean(was.Label()) + ": ", Bad}, r.Before, Plain)
	}
	if r.After != "" {
		p.mark(2, Cell{"+ " + clean(r.Rule.Label()) + ": ", Good}, r.After, Plain)
	}
	if effect {
		p.labelled(4, "connections", labelWidth, r.Connections)
	}
}

// manyPools bounds the table of pools.
const manyPools = 20

func (p *printer) gatewayCapacity(g *GatewayPlan) {
	if len(g.Pools) == 0 && g.Table == nil {
		return
	}
	p.heading("Capacity")
	if s := g.Table; s != nil {
		text := fmt.Sprintf("the connection table needs %s, with those that have just ended; it holds %s", units.Plural(s.Entries, "entry", "entries"), units.Count(s.Max))
		if s.MaxAfter > s.Max {
			text += fmt.Sprintf(", and %s give room (up to %s of memory)", units.Count(s.MaxAfter), units.Bytes(s.FullBytes))
		}
		p.labelled(2, "", 0, text)
	}
	t := &Table{Indent: 2, Columns: []Column{{Head: "rule"}, {Head: "addresses", Right: true}, {Head: "ports each", Right: true},
		{Head: "at once", Right: true}, {Head: "new/s", Right: true}, {Below: true}}}
	for _, c := range g.Pools {
		if c.OneForOne || len(t.rows) == manyPools {
			continue
		}
		note := ""
		switch {
		case c.Addresses == 0:
			note = "the interface has no address yet"
		case len(c.SharedWith) > 0:
			note = "shared with " + refs(c.SharedWith)
		}
		t.Row(c.Rule.String(), many(c.Addresses), units.Count(c.Ports), many(c.AtOnce), units.Rate(c.PerSecond), note)
	}
	if len(t.rows) == 0 {
		return
	}
	p.table(t)
	p.labelled(2, "", 0, fmt.Sprintf("at once: connections of all hosts to one destination (address, port, protocol); a host has the ports of one address. new/s: short TCP connections to one destination for which there is always a free port: the entry of an ended one holds it for %s.", units.Seconds(g.TimeWaitSeconds)))
}

// many writes a count of addresses: IPv6 prefixes have more than can be used.
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

// Planned is the information shown before changes are made.
type Planned struct {
	Changes []tune.Change
	// Already are values that need no change, as sentences.
	Already []string
	// Files are the lines in files that make the changes hold after a boot; with
	// FilesWait they are written at the confirmation only.
	Files     []tune.Change
	FilesWait bool
	// Warnings are reasons why the changes may have no effect.
	Warnings []string
}

// Text writes what would be changed, with the cost and the risk of each change.
func (d Planned) Text(w io.Writer, style Style) error {
	p := &printer{w: w, style: style}
	p.planned(d)
	return p.err
}

func (p *printer) planned(d Planned) {
	p.line(p.style.Paint(Bold, "Plan"))
	for _, already := range d.Already {
		p.labelled(2, "", 0, already)
	}
	if len(d.Changes) == 0 {
		p.line("  nothing to change")
	}
	p.changes(2, d.Changes, func(c tune.Change) {
		p.labelled(4, "why", 6, c.Why)
		p.labelled(4, "cost", 6, c.Cost)
		p.labelled(4, "risk", 6, c.Risk)
	})
	p.files(d)
	for _, warning := range d.Warnings {
		p.mark(2, Cell{"warning: ", Warn}, warning, Plain)
	}
}

func (p *printer) files(d Planned) {
	if len(d.Files) == 0 {
		return
	}
	when := "  to hold after a boot:"
	if d.FilesWait {
		when = "  to hold after a boot, written when you confirm:"
	}
	p.line(when)
	t := &Table{Indent: 4, Columns: []Column{{}, {}, {}}}
	for _, c := range d.Files {
		line, note := c.Target+" = "+c.Shown(c.After), ""
		if c.Kind == tune.ModulesLoad {
			line = c.Target
		}
		switch {
		case tune.SameValue(c.Before, c.After):
			note = "(is there)"
		case c.Before != "":
			note = "(was " + c.Shown(c.Before) + ")"
		}
		t.Cells(Cell{"/" + tune.ConfPath(c.Kind), Dim}, Cell{line, Bold}, Cell{Text: note})
	}
	t.each(p, func(i int) { p.labelled(6, "risk", 6, d.Files[i].Risk) })
}

// changes writes "target  before → after" in columns, each followed by what
// after writes, unless it is nil.
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
	shown := c.Shown(value)
	switch {
	case c.Kind == tune.NATRule && value == "":
		return "(no options)"
	case shown == "":
		return "(unset)"
	}
	return shown
}
