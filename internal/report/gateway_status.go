package report

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/gateway/status"
	"github.com/natkit/natkit/internal/units"
)

// GatewayView is what there is to say of a gateway's status besides it.
type GatewayView struct {
	// Source says in words which namespace it is, Args the flags that choose it again.
	Source, Args string
	// Top bounds the rules that are shown; 0 is all.
	Top int
	// At is when it was looked.
	At time.Time
	// Watch: others come after this one.
	Watch bool
}

// GatewayStatus writes how a gateway fares.
func GatewayStatus(w io.Writer, style Style, v GatewayView, s *status.Gateway) error {
	p := &printer{w: w, style: style}
	p.gatewayHead(v, s)
	if !s.Present {
		p.gatewayNotes(s)
		return p.err
	}
	p.gatewayRules(v, s)
	p.gatewayPools(s)
	p.gatewayDrops(v, s)
	p.gatewayConcerns(s)
	p.gatewayNotes(s)
	return p.err
}

func (p *printer) gatewayHead(v GatewayView, s *status.Gateway) {
	say := func(indent int, tone Tone, text string) { p.mark(indent, Cell{}, text, tone) }
	switch where := v.Source; {
	case s.Removed != "":
		say(0, Bad, "somebody removed the gateway that natkit put in force in "+where+fmt.Sprintf(" (plan %.12s)", s.Removed))
		say(2, Plain, "as 'nft flush ruleset' does: 'natkit gateway apply' with its file puts it in force again")
	case !s.Present:
		say(0, Plain, where+" has no table of natkit's: no gateway is applied there")
	case s.Integrity == status.Changed:
		say(0, Bad, "the gateway in "+where+" was changed by somebody since natkit wrote it")
		for _, c := range s.Changes {
			say(2, Plain, c)
		}
		say(2, Plain, "'natkit gateway apply --overwrite' with its file puts it right")
	case s.Integrity == status.Intact:
		say(0, Bold, "the gateway in "+where+" is as natkit wrote it"+ofPlan(s))
	default:
		say(0, Bold, "a gateway is in force in "+where+ofPlan(s))
		say(2, Plain, "whether somebody changed it cannot be told: what natkit leaves in the table to compare with is not there")
	}
	if len(s.NotForwarding) > 0 {
		say(0, Bad, "the host does not forward all that this gateway is for: "+strings.Join(s.NotForwarding, " and ")+map[bool]string{true: " is 0", false: " are 0"}[len(s.NotForwarding) == 1])
		say(2, Plain, "turn it on: 'sysctl -w "+strings.Join(s.NotForwarding, "=1 ")+"=1'")
	}
	if c := s.Confirm; c != nil {
		left := "it is overdue, and undone by the next natkit that looks ('natkit tune list')"
		if c.SecondsLeft > 0 {
			left = "will be rolled back in " + units.Roughly(c.SecondsLeft) + " unless you run 'natkit gateway confirm'"
		}
		say(0, Warn, "it waits for confirmation ("+c.ID+"): "+left)
	}
	if s.PlanUnknown != "" {
		p.paragraph("its rules are known only by their counters: " + clean(s.PlanUnknown))
	}
}

func ofPlan(s *status.Gateway) string {
	if s.Plan == "" {
		return ""
	}
	return fmt.Sprintf(" (plan %.12s)", s.Plan)
}

// fewPools are shown; the others have more ports left.
const fewPools = 5

func (p *printer) gatewayPools(s *status.Gateway) {
	if len(s.Pools) == 0 {
		return
	}
	t := &Table{Columns: []Column{{Head: "ports left", Right: true}, {Head: "of", Right: true}, {Head: "range", Right: true}, {Head: "rule"}, {Head: "address > destination", Below: true}}}
	for i := range s.Pools[:min(fewPools, len(s.Pools))] {
		pool := &s.Pools[i]
		t.Cells(leftCell(pool.PortsLeft, s), Cell{Text: units.Count(pool.Size)}, Cell{Text: fmt.Sprintf("%d-%d", pool.FirstPort, pool.LastPort)},
			Cell{Text: pool.Rule.String()}, Cell{Text: poolText(&pool.PortPool)})
	}
	p.blank()
	p.table(t)
	if more := len(s.Pools) - fewPools; more > 0 {
		p.paragraph(fmt.Sprintf("… and %s with more ports left ('natkit ports' shows them, with the chance that a connection fails)", units.Plural(more, "pool", "pools")))
	}
}

// fewPrecedences are told: a cluster has thousands.
const fewPrecedences = 5

// gatewayConcerns is what somebody may have to see to.
func (p *printer) gatewayConcerns(s *status.Gateway) {
	if s.Flows.Stranger > 0 {
		p.paragraph(fmt.Sprintf("%s%s translated by none of these rules: others' on this host, or of an earlier file", about(s), units.Plural(s.Flows.Stranger, "connection is", "connections are")))
	}
	warn := func(text string) { p.mark(0, Cell{}, text, Warn) }
	if s.Flows.Stale > 0 {
		warn(fmt.Sprintf("%s%s under an address that is gone (%s): nothing comes back for them ('natkit conntrack delete' ends them)",
			about(s), units.Plural(s.Flows.Stale, "connection leaves", "connections leave"), firstFew(s.Flows.StaleAddresses)))
	}
	if s.Flows.Untranslated > 0 {
		least := map[bool]string{true: "at least "}[s.Flows.UntranslatedAtLeast]
		warn(fmt.Sprintf("%s%s%s untranslated: begun before the rule for them was in force, and with the inside address until they end ('natkit conntrack delete' ends them)",
			about(s), least, units.Plural(s.Flows.Untranslated, "connection passes", "connections pass")))
	}
	for _, c := range s.CutHairpins {
		warn(fmt.Sprintf("a host behind %s does not reach itself by the address outside: the bridge takes what it carries through netfilter (bridge-nf-call-iptables), and %s send nothing back that came in by them; 'bridge link set dev PORT hairpin on' for the port of such a host",
			c.Bridge, firstFew(c.Ports)))
	}
	for _, c := range s.Precedences[:min(fewPrecedences, len(s.Precedences))] {
		warn(fmt.Sprintf("%s: %s; %s", c.Rule, c.Message, c.Advice))
	}
	if more := len(s.Precedences) - fewPrecedences; more > 0 {
		warn(fmt.Sprintf("… and %s of other programs that come first ('natkit gateway check' with the file names them)", units.Plural(more, "rule", "rules")))
	}
	if len(s.Missing) > 0 {
		warn("not there: " + strings.Join(s.Missing, ", ") + "; rules for an interface hold when it comes")
	}
	for _, w := range s.Waiting {
		warn(fmt.Sprintf("%s waits for an address of %s ('natkit gateway run' applies it when it comes)", w.Rule, w.Interface))
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

func (p *printer) gatewayNotes(s *status.Gateway) {
	for _, n := range s.Notes {
		p.mark(0, Cell{}, "note: "+n, Plain)
	}
}
