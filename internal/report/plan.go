package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/plan"
	"github.com/natkit/natkit/internal/units"
)

// Plan is what a load needs.
type Plan struct {
	*plan.Plan
	// Explain adds formula and inputs of each number; Check is the comparison with the machine alone.
	Explain bool `json:"-"`
	Check   bool `json:"-"`
}

// Text writes the numbers, and where they differ from what the machine has.
func (d Plan) Text(w io.Writer, style Style) error {
	p := &printer{w: w, style: style}
	p.line(style.Paint(Bold, clean(d.Load.String())))
	p.line(style.Paint(Dim, clean("for "+planMachine(d.Plan))))
	if d.Check {
		p.planLimits(d.Plan, d.Roles)
		if len(d.Notes) > 0 {
			p.blank()
		}
		p.portNotes(d.Notes)
		p.planVerdict(d.Plan)
		return p.err
	}
	p.planEntries(d.Plan)
	p.planTable(d.Plan)
	p.planPorts(d.Plan)
	p.planTimeouts(d.Plan)
	p.planLimits(d.Plan, plan.AllRoles)
	if len(d.Notes) > 0 {
		p.blank()
	}
	p.portNotes(d.Notes)
	if d.Explain {
		p.planNumbers(d.Numbers)
	}
	return p.err
}

// planMachine is what the plan is for.
func planMachine(d *plan.Plan) string {
	text := d.Source
	if d.Kernel != "" && !strings.Contains(text, d.Kernel) {
		text += ", Linux " + d.Kernel
	}
	if d.MemoryBytes > 0 {
		text += ", " + units.Bytes(d.MemoryBytes) + " of memory"
	}
	return text
}

func (p *printer) planEntries(d *plan.Plan) {
	p.blank()
	t := &Table{Title: "Entries of the connection table", Indent: 2, Columns: []Column{{}, {Right: true}}}
	for _, e := range d.Entries {
		t.Row(e.State, units.Count(e.Entries))
	}
	t.Row("in all", units.Count(d.Table.Entries))
	p.table(t)
}

// fromTo is what a value becomes.
func fromTo(now, then int64, isDefault bool) string {
	switch {
	case now == then && isDefault:
		return units.Count(then) + ", the kernel's default"
	case now == then:
		return units.Count(then) + ", as it is"
	case now == 0:
		return units.Count(then)
	case isDefault:
		return fmt.Sprintf("%s (the kernel's default is %s)", units.Count(then), units.Count(now))
	}
	return fmt.Sprintf("%s (now %s)", units.Count(then), units.Count(now))
}

func (p *printer) planTable(d *plan.Plan) {
	t := d.Table
	p.blank()
	out := &Table{Title: "Connection table", Indent: 2, Columns: []Column{{}, {Wrap: true}}}
	out.Row("nf_conntrack_max", fromTo(t.MaxNow, t.Max, t.NowIsDefault))
	out.Row("nf_conntrack_buckets", fromTo(t.BucketsNow, t.Buckets, t.NowIsDefault))
	out.Row("mean hash chain", fmt.Sprintf("%s entries, %s with a full table", units.Fixed(t.ChainLength, 2), units.Fixed(t.FullChainLength, 2)))
	for _, l := range t.Losses {
		out.Row("refused for long chains", lossText(l, t.BucketsNow > 0 && t.Buckets != t.BucketsNow))
	}
	if t.CapUnsure != "" {
		out.Row("", t.CapUnsure)
	}
	out.Row("memory", fmt.Sprintf("%s, %s with a full table", units.Bytes(t.Bytes), units.Bytes(t.FullBytes)))
	out.Row("", fmt.Sprintf("an entry has %d B and %d B of extensions (%s), a bucket %d B", t.ObjectBytes, t.ExtensionBytes, t.SizeSource, t.BucketBytes))
	if t.StallSeconds > capacity.AutomaticStall {
		out.Row("resize", fmt.Sprintf("all packets wait for %s while the entries of now are rehashed; at boot they do not (hashsize=)", units.Roughly(t.StallSeconds)))
	}
	p.table(out)
}

func lossText(l plan.Loss, bucketsChange bool) string {
	if l.Cap == (capacity.Cap{}) {
		return "none: this kernel has no bound, long chains only cost CPU time"
	}
	text := fmt.Sprintf("%s of new connections, %s with a full table", chanceText(l.Loss), chanceText(l.Full))
	if bucketsChange {
		text += fmt.Sprintf(" (%s if the buckets are left)", chanceText(l.Alone))
	}
	return text + fmt.Sprintf(", where chains of %d to %d are too long", l.Cap.Least+2, l.Cap.Most+2)
}

func (p *printer) planPorts(d *plan.Plan) {
	ports := d.Ports
	p.blank()
	p.line(p.style.Paint(Bold, "Ports of the NAT"))
	p.labelled(2, "", 0, fmt.Sprintf("%s in use toward one destination, of %s on each address: %s", units.Plural(ports.Needed, "port", "ports"), units.Count(ports.PerAddress),
		units.Plural(ports.AddressesNeeded, "address", "addresses")+needOf(ports.Addresses, ports.AddressesNeeded)))
	p.blank()
	t := &Table{Title: fmt.Sprintf("Ports in turn come again from so many new connections/s on (%s, %s)", units.Plural(ports.Addresses, "address", "addresses"),
		units.Plural(ports.Destinations, "destination", "destinations")), Indent: 2, Columns: []Column{{Head: "new/s", Right: true}, {Head: "held for", Right: true}, {Head: "by", Wrap: true}}}
	for _, w := range ports.Wraps {
		tone := Tone("")
		if w.Reached {
			tone = Warn
		}
		t.Cells(Cell{Text: units.Rate(w.PerSecond), Tone: tone}, Cell{Text: units.Fixed(w.HoldSeconds, 1) + " s"}, Cell{Text: w.By})
	}
	p.table(t)
}

func needOf(have, need int64) string {
	if have >= need {
		return ""
	}
	return fmt.Sprintf(", and there are %s", units.Count(have))
}

func (p *printer) planTimeouts(d *plan.Plan) {
	if len(d.Timeouts) == 0 {
		return
	}
	p.blank()
	t := &Table{Title: "Timeouts", Indent: 2, Columns: []Column{{}, {Right: true}, {Right: true}, {}}}
	for _, o := range d.Timeouts {
		source, entries := "", units.None
		if o.Default {
			source = "the kernel's default"
		}
		if o.Entries > 0 {
			entries = units.Plural(o.Entries, "entry", "entries")
		}
		t.Row(o.Name, units.Fixed(o.Seconds, 0)+" s", entries, source)
	}
	p.table(t)
}

// roleTitles head the limits of a role.
var roleTitles = map[plan.Role]string{
	plan.Gateway: "A gateway needs",
	plan.Server:  "A server that accepts all of them needs",
	plan.Client:  "A load client that opens all of them needs",
}

func (p *printer) planLimits(d *plan.Plan, roles []plan.Role) {
	for _, role := range roles {
		t := &Table{Title: roleTitles[role], Indent: 2, Columns: []Column{{}, {Right: true}, {Head: "here", Right: true}, {Head: "enough"}, {Wrap: true}}}
		for _, l := range d.Limits {
			if l.Role == role {
				t.Cells(Cell{Text: l.Name}, Cell{Text: l.Need}, Cell{Text: cmp.Or(l.Now, units.None)}, enough(l.Enough), Cell{Text: l.Why})
			}
		}
		if len(t.rows) > 0 {
			p.blank()
			p.table(t)
		}
	}
}

func enough(a plan.Answer) Cell {
	switch a {
	case plan.Yes:
		return Cell{"yes", Good}
	case plan.No:
		return Cell{"no", Bad}
	}
	return Cell{units.None, Dim}
}

func (p *printer) planVerdict(d *plan.Plan) {
	var short, unknown []string
	add := func(names *[]string, name string) { // two roles may need the same
		if !slices.Contains(*names, name) {
			*names = append(*names, name)
		}
	}
	for _, l := range d.Limits {
		switch {
		case !slices.Contains(d.Roles, l.Role):
		case l.Enough == plan.No:
			add(&short, l.Name)
		case l.Enough == plan.Unknown:
			add(&unknown, l.Name)
		}
	}
	p.blank()
	switch {
	case len(short) > 0:
		p.line(p.style.Paint(Bad, "not ready") + ": " + strings.Join(short, ", "))
	case len(unknown) == 0:
		p.line(p.style.Paint(Good, "ready"))
	}
	if len(unknown) > 0 {
		p.line("not known: " + strings.Join(unknown, ", "))
	}
}

// planNumbers writes each number with its formula and what went into it.
func (p *printer) planNumbers(all []plan.Number) {
	p.blank()
	p.line(p.style.Paint(Bold, "How the numbers came about"))
	for _, n := range all {
		p.labelled(2, "", 0, n.Name+" = "+quantity(n.Value, n.Unit)+" = "+n.Formula)
		for _, in := range n.Inputs {
			p.labelled(6, "", 0, fmt.Sprintf("%s = %s (%s)", in.Name, quantity(in.Value, in.Unit), in.Source))
		}
	}
}

// quantity writes a value with its unit.
func quantity(v float64, unit string) string {
	text := strings.TrimSuffix(strings.TrimRight(units.Fixed(v, 4), "0"), ".")
	switch {
	case unit == "":
		return text
	case unit == "/s":
		return text + unit
	}
	return text + " " + unit
}
