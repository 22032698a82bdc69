// Package run makes a gateway plan hold on a host: as changes that are journaled,
// confirmed and undone like all others, and, for the service, again whenever the
// configuration or an address changes.
package run

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/units"
)

// Origins of transactions, in the journal.
const (
	// Origin is `natkit gateway apply`'s, OriginService `natkit gateway run`'s.
	Origin        = "gateway"
	OriginService = "gateway run"
)

// Names of sysctls that a gateway needs.
const (
	Forward4   = gateway.Forward4
	Forward6   = gateway.Forward6
	Accounting = "net.netfilter.nf_conntrack_acct"
	timeWait   = "net.netfilter.nf_conntrack_tcp_timeout_time_wait"
)

// Sysctls are those that Plan looks at.
var Sysctls = []string{Forward4, Forward6, Accounting, snapshot.ConntrackMax, snapshot.ConntrackBuckets, timeWait}

// Present is the state of a namespace that a plan is to change.
type Present struct {
	// Netns is its inode; Initial is true for the host's own.
	Netns   uint64
	Initial bool
	// Value is what is in force (tune.Gateway's values).
	Value string
	// Sysctls has those of Sysctls that exist. Held are those of them that natkit
	// wrote and may take back: the plan has to name them to keep them.
	Sysctls snapshot.Sysctls
	Held    map[string]bool
	// Advertised are the sysctls accept_ra of interfaces that the plan has to look at.
	Advertised []string
	// Original has what switches among them were before gateways set them.
	Original map[string]string
	// Facts are what the costs and risks of changes depend on.
	Facts tune.Facts
	// SlabKnown: the entries of all namespaces are known, and so the time that a
	// resize of the hash takes.
	SlabKnown bool
}

// Prepared is what has to be changed for a plan, and what somebody should know of it.
type Prepared struct {
	Plan tune.Plan
	// Already are values that need no change, Notes what is not done and why.
	Already, Notes []string
	// lasting are the changes that files keep over a boot.
	lasting []tune.Change
}

// Plan makes the changes that put a gateway plan, of a digest, in force: the connection table
// first, so that its size and counters are there when connections come; then the
// rules in one transaction; forwarding last: a packet that is forwarded before its
// rules are there is tracked without a translation, and so its connection stays.
// An undo goes backwards. There is no change where all is as it should be.
func Plan(p *gateway.Plan, digest string, now Present, origin string) (Prepared, error) {
	c := collector{now: now}
	c.turn(Accounting, on, p.Accounting, "packets and bytes are counted for each connection, from its start")
	c.sizing(p.Expect)
	if err := c.rules(p, digest); err != nil {
		return Prepared{}, err
	}
	c.turn(Forward4, on, p.IPv4, "the host forwards IPv4 packets")
	if p.IPv6 {
		c.advertisements(true)
	}
	c.turn(Forward6, on, p.IPv6, "the host forwards IPv6 packets")
	if !p.IPv6 {
		c.advertisements(false)
	}
	c.out.lasting = lasting(c.all)
	c.out.Plan = tune.Plan{Origin: origin, Changes: tune.Assess(c.changes(), now.Facts)}
	return c.out, nil
}

// collector gathers the changes of a plan. held are those whose value is there
// already and has to be held: with nothing else to do, there is no reason to.
type collector struct {
	now     Present
	out     Prepared
	all     []tune.Change
	differs bool
}

func (c *collector) changes() []tune.Change {
	if !c.differs {
		return nil
	}
	return c.all
}

func (c *collector) add(change tune.Change) {
	c.all = append(c.all, change)
	c.differs = c.differs || change.Before != change.After
}

// on is the value of most switches.
const on = "1"

// turn sets a switch that the plan needs. One that only the gateway before needed
// becomes what it was; the limits of the table do not: natkit lowers none by itself.
func (c *collector) turn(name, value string, needed bool, why string) {
	original, set := c.now.Original[name]
	switch {
	case needed:
		c.sysctl(name, value, why)
	case set:
		c.sysctl(name, original, "the gateway before needed it, this one does not")
	}
}

// sysctl gives a sysctl a value.
func (c *collector) sysctl(name, value, why string) {
	before, ok := c.now.Sysctls[name]
	switch {
	case !ok:
		c.out.Notes = append(c.out.Notes, fmt.Sprintf("%s does not exist here: this kernel does not have it, or its module is not loaded", name))
	case !tune.SameValue(before, value):
		c.add(tune.Change{Kind: tune.Sysctl, Target: name, Before: before, After: value, Why: why})
	case c.now.Held[name]:
		c.add(tune.Change{Kind: tune.Sysctl, Target: name, Before: before, After: before,
			Why: "an earlier change of natkit's set it; so it stays when that one is undone"})
	default:
		c.out.Already = append(c.out.Already, name+" is "+before+" already")
	}
}

// number raises a sysctl that is a number.
func (c *collector) number(name string, value int64, why string) {
	c.sysctl(name, strconv.FormatInt(value, 10), why)
}

// rules puts the plan in the place of what is in force.
func (c *collector) rules(p *gateway.Plan, after string) error {
	target := tune.GatewayTarget(c.now.Netns)
	change := tune.Change{Kind: tune.Gateway, Target: target, Before: c.now.Value, After: after,
		Why:  summary(p) + ", in one transaction: all of it or nothing",
		Risk: "connections that are tracked keep the translation that they have"}
	if c.now.Value == tune.GatewayNone && translates(p) {
		change.Risk += "; those that have none and that a rule is for are deleted: they begin anew, translated"
	}
	if c.now.Value != tune.GatewayNone && !translates(p) {
		change.Risk = "connections that the gateway translates now are cut, unless there are other rules of NAT on this host"
	}
	switch {
	case c.now.Value == tune.GatewayForeign:
		return fmt.Errorf("gateway plan: what is in force %w", apply.ErrForeign)
	case c.now.Value == after:
		c.out.Already = append(c.out.Already, "the rules of this plan are in force already")
		change.Why = "in force already"
	}
	if err := change.Validate(); err != nil {
		return err
	}
	c.add(change)
	return nil
}

// summary says how much a plan does.
func summary(p *gateway.Plan) string {
	var parts []string
	add := func(n int, one, many string) {
		if n > 0 {
			parts = append(parts, units.Plural(n, one, many))
		}
	}
	add(len(p.Destinations), "translation of destinations", "translations of destinations")
	add(len(p.Sources), "translation of sources", "translations of sources")
	add(len(p.Stateless), "stateless pair", "stateless pairs")
	add(len(p.Untracked), "untracked address", "untracked addresses")
	if len(parts) == 0 {
		return "no translation"
	}
	return strings.Join(parts, ", ")
}
