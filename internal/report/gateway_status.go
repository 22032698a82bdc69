package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/units"
)

// GatewayView is what there is to say of a gateway's status besides it.
type GatewayView struct {
	// Source says in words which namespace it is, Args the flags that choose it again.
	Source, Args string
	// Top bounds the rules that are shown; 0 is all.
	Top int
}

// GatewayStatus writes how a gateway fares.
func GatewayStatus(w io.Writer, style Style, v GatewayView, s *gateway.Status) error {
	p := &printer{w: w, style: style}
	p.gatewayHead(v, s)
	if !s.Present {
		p.gatewayNotes(s)
		return p.err
	}
	p.gatewayRules(v, s)
	p.gatewayPools(s)
	p.gatewayDrops(s)
	p.gatewayConcerns(s)
	p.gatewayNotes(s)
	return p.err
}

func (p *printer) gatewayHead(v GatewayView, s *gateway.Status) {
	switch where := clean(v.Source); {
	case s.Removed != "":
		p.line(p.style.Paint(Bad, "somebody removed the gateway that natkit put in force in "+where+fmt.Sprintf(" (plan %.12s)", s.Removed)))
		p.line("  as 'nft flush ruleset' does: 'natkit gateway apply' with its file puts it in force again")
	case !s.Present:
		p.line(where + " has no table of natkit's: no gateway is applied there")
	case s.Integrity == gateway.TableChanged:
		p.line(p.style.Paint(Bad, "the gateway in "+where+" was changed by somebody since natkit wrote it"))
		for _, c := range s.Changes {
			p.line("  " + clean(c))
		}
		p.line("  'natkit gateway apply' with its file puts it right")
	case s.Integrity == gateway.TableIntact:
		p.line(p.style.Paint(Bold, "the gateway in "+where+" is as natkit wrote it"+ofPlan(s)))
	default:
		p.line(p.style.Paint(Bold, "a gateway is in force in "+where+ofPlan(s)))
		p.line("  whether somebody changed it cannot be told: what natkit leaves in the table to compare with is not there")
	}
	if c := s.Confirm; c != nil {
		left := "it is overdue, and undone by the next natkit that looks ('natkit tune list')"
		if c.SecondsLeft > 0 {
			left = "undone by itself in " + units.Roughly(c.SecondsLeft) + ", unless 'natkit gateway confirm' comes"
		}
		p.line(p.style.Paint(Warn, "it waits for confirmation ("+clean(c.ID)+"): "+left))
	}
	if s.PlanUnknown != "" {
		p.paragraph("its rules are known only by their counters: " + clean(s.PlanUnknown))
	}
}

func ofPlan(s *gateway.Status) string {
	if s.Plan == "" {
		return ""
	}
	return fmt.Sprintf(" (plan %.12s)", s.Plan)
}

func (p *printer) gatewayRules(v GatewayView, s *gateway.Status) {
	rules, more := busiestRules(s.Rules, v.Top)
	if len(rules) == 0 {
		return
	}
	rates := false
	for i := range rules {
		rates = rates || rules[i].NewPerSecond != nil
	}
	t := &Table{Columns: []Column{{Head: "rule"}, {Head: "new", Right: true}, {Head: "new/s", Right: true}, {Head: "flows", Right: true},
		{Head: "packets", Right: true}, {Head: "bytes", Right: true}, {Head: "ports left", Right: true}, {Head: "what it does", Below: true}}}
	if !rates {
		t.Columns[2].Head = ""
	}
	for i := range rules {
		t.Cells(gatewayRule(&rules[i], s)...)
	}
	p.blank()
	p.table(t)
	if more > 0 {
		p.line("… and " + units.Count(more) + " more with fewer connections (--top 0 shows all)")
	}
}

// busiestRules are all in the file's order where that is not too many, else those
// with most connections.
func busiestRules(rules []gateway.RuleStatus, top int) (shown []gateway.RuleStatus, more int) {
	if top <= 0 || len(rules) <= top {
		return rules, 0
	}
	return gateway.Busiest(rules, top), len(rules) - top
}

func gatewayRule(r *gateway.RuleStatus, s *gateway.Status) []Cell {
	flows, packets, bytes := units.None, units.None, units.None
	if read := s.Flows.Sampled > 0 || s.Flows.Complete; read {
		flows = about(s) + units.Count(r.Flows)
		if s.Accounting {
			packets, bytes = about(s)+units.Count(r.Packets), about(s)+units.Bytes(r.Bytes)
		}
	}
	text := r.Text
	if r.More > 0 {
		text += fmt.Sprintf(" (and %s)", units.Plural(r.More, "more entry", "more entries"))
	}
	rate := ""
	if r.NewPerSecond != nil {
		rate = units.Rate(*r.NewPerSecond)
	}
	left := fullestPool(r.Rule, s)
	return []Cell{{Text: r.Rule.String()}, {Text: known(r.New)}, {Text: rate}, {Text: flows}, {Text: packets}, {Text: bytes}, left, {Text: text}}
}

// about marks numbers that are scaled up from a sample.
func about(s *gateway.Status) string {
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

// fullestPool is what is left of the pool of the rule that has least.
func fullestPool(r gateway.Ref, s *gateway.Status) Cell {
	for i := range s.Pools {
		if pool := &s.Pools[i]; pool.Rule != nil && *pool.Rule == r {
			return leftCell(pool, s)
		}
	}
	return Cell{Text: units.None}
}

func leftCell(pool *gateway.PoolStatus, s *gateway.Status) Cell {
	return Cell{Text: about(s) + units.Count(pool.Left), Tone: toneOf(pool.Share, 0.9, 0.97)}
}

// fewPools are shown; the others have more ports left.
const fewPools = 5

func (p *printer) gatewayPools(s *gateway.Status) {
	if len(s.Pools) == 0 {
		return
	}
	t := &Table{Columns: []Column{{Head: "ports left", Right: true}, {Head: "of", Right: true}, {Head: "range", Right: true}, {Head: "rule"}, {Head: "address > destination", Below: true}}}
	for i := range s.Pools[:min(fewPools, len(s.Pools))] {
		pool := &s.Pools[i]
		t.Cells(leftCell(pool, s), Cell{Text: units.Count(pool.Size)}, Cell{Text: fmt.Sprintf("%d-%d", pool.FirstPort, pool.LastPort)},
			Cell{Text: pool.Rule.String()}, Cell{Text: poolText(&pool.PortPool)})
	}
	p.blank()
	p.table(t)
	if more := len(s.Pools) - fewPools; more > 0 {
		p.line(fmt.Sprintf("… and %s with more ports left ('natkit ports' shows them, with the chance that a connection fails)", units.Plural(more, "pool", "pools")))
	}
}

func (p *printer) gatewayDrops(s *gateway.Status) {
	p.blank()
	for _, c := range s.Counters {
		p.line(counterText(c, counterWords[c.What]))
	}
	for _, c := range s.Drops.Counters {
		tone, words := Plain, dropWords[c.What]
		if words == "" {
			words = "dropped"
			if c.Packets > 0 {
				tone = Warn
			}
		}
		p.line(p.style.Paint(tone, counterText(c, words)))
	}
	p.gatewayLosses(&s.Drops)
	p.paragraph(tableUse(s))
}

// dropWords say why packets are dropped that every gateway gets some of.
var dropWords = map[string]string{"untranslatable": "dropped, invalid to the connection tracker"}

// gatewayLosses tells those two of the tracker's counters apart: every connection that
// found no port, or clashed, is in both.
func (p *printer) gatewayLosses(d *gateway.Drops) {
	drop, failed := valueOf(d.NoEntry), valueOf(d.InsertFailed)
	if drop > failed {
		p.loss(drop-failed, max(0, valueOf(d.NoEntryPerSecond)-valueOf(d.InsertFailedPerSecond)), d.NoEntryPerSecond != nil,
			"dropped as the connection table had no room (conntrack's drop without insert_failed")
	}
	if failed > 0 {
		p.loss(failed, valueOf(d.InsertFailedPerSecond), d.InsertFailedPerSecond != nil,
			"dropped as they clashed with another connection, or found no port (insert_failed")
	}
}

// loss is a warning while it goes on, or where nobody knows whether it does.
func (p *printer) loss(packets uint64, rate float64, rated bool, why string) {
	text, tone := units.Plural(packets, "first packet", "first packets")+" "+why, Warn
	if text += ", of the whole namespace since it was made)"; rated {
		text += ", " + units.Rate(rate) + "/s now"
		if rate == 0 {
			tone = Plain
		}
	}
	p.line(p.style.Paint(tone, text))
}

// valueOf is 0 for what is not known.
func valueOf[N uint64 | float64](n *N) (value N) {
	if n != nil {
		value = *n
	}
	return value
}

// counterWords say what became of the packets that a counter counts.
var counterWords = map[string]string{"mss": "(SYNs) bounded", "flowtable": "offered to the kernel's fast path"}

func counterText(c gateway.Counter, became string) string {
	text := fmt.Sprintf("%s: %s %s", clean(c.What), units.Plural(c.Packets, "packet", "packets"), became)
	if c.PacketsPerSecond != nil {
		text += ", " + units.Rate(*c.PacketsPerSecond) + "/s"
	}
	return text
}

func tableUse(s *gateway.Status) string {
	text := "connection table: " + units.Plural(s.Flows.Table, "entry", "entries")
	if s.Flows.Max > 0 {
		text += fmt.Sprintf(" of %s (%s)", units.Count(s.Flows.Max), units.Percent(float64(s.Flows.Table)/float64(s.Flows.Max)))
	}
	if !s.Flows.Complete && s.Flows.Sampled > 0 {
		text += fmt.Sprintf("; %s of them looked at (--all looks at all), and ~ marks what is scaled up from these", units.Count(s.Flows.Sampled))
	}
	return text
}

// gatewayConcerns is what somebody may have to see to.
func (p *printer) gatewayConcerns(s *gateway.Status) {
	if s.Flows.Stranger > 0 {
		p.line(fmt.Sprintf("%s%s translated by none of these rules: others' on this host, or of an earlier file", about(s), units.Plural(s.Flows.Stranger, "connection is", "connections are")))
	}
	if s.Flows.Stale > 0 {
		p.line(p.style.Paint(Warn, fmt.Sprintf("%s%s under an address that is gone (%s): nothing comes back for them ('natkit conntrack delete' ends them)",
			about(s), units.Plural(s.Flows.Stale, "connection leaves", "connections leave"), clean(firstFew(s.Flows.StaleAddresses)))))
	}
	if len(s.Missing) > 0 {
		p.line(p.style.Paint(Warn, "not there: "+clean(strings.Join(s.Missing, ", "))+"; rules for an interface hold when it comes"))
	}
	for _, w := range s.Waiting {
		p.line(p.style.Paint(Warn, fmt.Sprintf("%s waits for an address of %s ('natkit gateway run' applies it when it comes)", w.Rule, clean(w.Interface))))
	}
}

// firstFew names some of a list.
func firstFew(names []string) string {
	const few = 3
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}

func (p *printer) gatewayNotes(s *gateway.Status) {
	if s.Present && !s.Accounting {
		p.paragraph("packets and bytes are not counted: 'accounting: on' in the file counts those of connections from then on (net.netfilter.nf_conntrack_acct)")
	}
	for _, n := range s.Notes {
		p.line("note: " + clean(n))
	}
}
