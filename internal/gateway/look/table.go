package look

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/gateway/host"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
)

// table adds what natkit's table records, with the plan that it was written for.
func (v *view) table() {
	v.Plan, v.Integrity = v.state.Digest, v.state.Integrity
	if p := v.planOf(v.Plan); p != nil {
		v.Engine, v.Rules, v.Waiting, v.Off = p.Word(), observe.RulesOf(p), p.Waiting, p.Off
	}
	v.Changes = v.state.Changes
	v.Foreign = !tune.IsDigest(v.Plan)
	v.counts()
	v.Accounting = v.settings.Sysctls["net.netfilter.nf_conntrack_acct"] == "1"
}

// keptOf is the store, with plans as the view finds them.
type keptOf struct {
	*engine.Store
	view *view
}

func (k keptOf) Plan(digest string) *gateway.Plan { return k.view.planOf(digest) }

// planOf is the plan of a digest; nil where it cannot be had, and PlanUnknown says why.
func (v *view) planOf(digest string) *gateway.Plan {
	if v.plan == nil || v.digest != digest {
		v.plan, v.digest = v.stored(digest), digest
	}
	return v.plan
}

func (v *view) stored(digest string) *gateway.Plan {
	switch {
	case digest == "":
		v.PlanUnknown = "the table does not say for which plan it was written: another program made or changed it"
		return nil
	case v.o.Store == nil:
		v.PlanUnknown = "natkit's store of plans was not read"
		return nil
	}
	p, err := v.o.Store.Get(digest)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		v.PlanUnknown = fmt.Sprintf("plan %.12s is not in %s: it was applied with another NATKIT_STATE_DIR, or on another machine", digest, v.o.Store.Dir())
	case err != nil:
		v.PlanUnknown = err.Error()
	}
	return p
}

// counts sorts the table's counters: by the rules of the file that they are of, and
// what else they count.
func (v *view) counts() {
	sums := map[gateway.Ref]uint64{}
	each := map[gateway.Ref]*observe.Translated{}
	for _, c := range v.state.Counts {
		switch {
		case c.Rule != nil && c.Each:
			each[*c.Rule] = &observe.Translated{Packets: c.Packets, Bytes: c.Bytes}
		case c.Rule != nil:
			sums[*c.Rule] += c.Packets
		case c.Dropped:
			v.Drops.Counters = counted(v.Drops.Counters, c)
		default:
			v.Counters = counted(v.Counters, c)
		}
	}
	for i := range v.Rules {
		if n, counted := sums[v.Rules[i].Rule]; counted {
			v.Rules[i].New = &n
			delete(sums, v.Rules[i].Rule)
		}
		v.Rules[i].ByPrograms = each[v.Rules[i].Rule]
	}
	v.Programs = v.state.Modes
	for ref, n := range sums {
		v.Rules = append(v.Rules, observe.Rule{Rule: ref, New: &n})
	}
	observe.SortRules(v.Rules)
}

// counted adds a counter to others of the same.
func counted(all []observe.Counter, c gateway.Counted) []observe.Counter {
	i := slices.IndexFunc(all, func(o observe.Counter) bool { return o.What == c.What })
	if i < 0 {
		i, all = len(all), append(all, observe.Counter{What: c.What})
	}
	all[i].Packets += c.Packets
	all[i].Bytes += c.Bytes
	return all
}

// confirmation finds the transaction that waits, of this namespace.
func (v *view) confirmation() {
	if v.o.Journal == nil {
		return
	}
	here, err := netns.IDOf(v.o.Netns)
	if err != nil {
		v.note("what waits for confirmation is not known: %v", err)
		return
	}
	all, _, err := v.o.Journal.List()
	if err == nil && len(all) > 0 {
		err = v.pending(all, here)
	}
	if err != nil {
		v.note("what waits for confirmation is not known: %v", err)
	}
}

func (v *view) pending(all []*journal.Transaction, here netns.ID) error {
	at, err := journal.NewView(v.o.proc(), journal.SystemClock{})
	if err != nil {
		return err
	}
	for _, t := range all {
		s := at.Status(t)
		waits := s == journal.StatusPending || s == journal.StatusOverdue
		if !waits && s != journal.StatusApplied {
			continue
		}
		first := true
		for _, c := range t.Changes {
			if c.Kind != tune.Gateway || !t.In(c).Is(here) || !c.Open() {
				continue
			}
			if first { // the others of a transaction are other engines'
				v.Removed, v.Confirm, first = "", nil, false // what it replaced stays replaced
			}
			if !v.Present && tune.IsDigest(c.After) {
				v.Removed = c.After
			}
			if v.Present && c.After == v.state.Digest {
				v.Applied = &t.CreatedAt
			}
			if waits {
				v.Confirm = &observe.Confirmation{ID: t.ID, SecondsLeft: at.Remaining(t).Seconds()}
			}
		}
	}
	return nil
}

// doubt: before Linux 5.14 the journal knows a namespace by its number alone, which a
// later one may get.
func (v *view) doubt() {
	if v.Removed == "" {
		return
	}
	if here, err := netns.IDOf(v.o.Netns); err == nil && here.Cookie != 0 {
		return
	}
	if initial, err := host.Initial(v.o.Netns); err != nil || !initial {
		v.note("where this network namespace is a new one that got the number of one that ended, nothing was removed")
	}
}

// interfaces reports which of the plan's do not exist.
func (v *view) interfaces() {
	var err error
	if v.host, err = host.Interfaces(v.o.Netns); err != nil {
		v.note("the interfaces are not known: %v", err)
		return
	}
	if v.plan == nil {
		return
	}
	facts := gateway.Facts{Interfaces: v.host, Sysctls: v.settings.Sysctls, Enter: v.o.Enter}
	if err := host.Forwarding(v.o.Netns, &facts); err != nil {
		v.note("whether the host forwards is not known: %v", err)
	}
	if facts.Foreign, err = v.others.read(v.o.Netns, v.at); err != nil {
		v.note("whether other programs' rules come first is not known: %v", err)
	}
	v.NotForwarding, v.CutHairpins, v.Precedences = facts.NotForwarding(v.plan), cutHairpins(v.plan.On(&facts), v.host), facts.Precedences(v.plan)
	if v.Zones = observe.ZonesOf(v.plan); len(v.plan.Uplinks)+len(v.Zones) > 0 {
		v.policies(&facts)
	}
	for _, name := range v.plan.Interfaces() {
		if len(facts.Named(name)) == 0 {
			v.Missing = append(v.Missing, name)
		}
	}
}

// policies reports what depends on policy routing.
func (v *view) policies(facts *gateway.Facts) {
	facts.Known = true
	if err := host.Policies(v.o.Netns, facts, v.plan.Zoned()); err != nil {
		v.note("by which interfaces connections leave is not known: %v", err)
		return
	}
	if len(v.plan.Uplinks) > 0 {
		v.uplinks(facts)
	}
	v.routing(facts)
}

// uplinks reports by which of them new connections leave.
func (v *view) uplinks(facts *gateway.Facts) {
	if id, e := netns.IDOf(v.o.Netns); e == nil {
		facts.Down = v.o.Store.Down(id)
		if v.o.Store.Claimant(id.Inode) == "" {
			v.note("no 'natkit gateway run' watches the wan interfaces: connections go on by one that is dead")
		}
	}
	var err error
	if facts.Steering, err = v.o.Engines.Steering(v.o.Netns, v.o.Store, v.plan); err != nil {
		v.note("by which wan interfaces connections leave is not known: %v", err)
		return
	}
	v.Uplinks = observe.UplinksOf(v.plan, facts)
}

// routing compares rules and routes of policy routing with what the plan needs on this host.
func (v *view) routing(facts *gateway.Facts) {
	err := v.o.Netns.Do(func() error {
		for _, step := range v.plan.Routing(facts) {
			now, err := host.Routing(step.Target)
			switch {
			case err != nil:
				return err
			case now == step.Value || v.leadsToDown(step.Target, facts):
				continue
			case now == "":
				now = "nothing"
			}
			v.Integrity = gateway.RulesChanged
			v.Changes = append(v.Changes, fmt.Sprintf("%s: is %s instead of %s", step.Target, now, step.Value))
		}
		return nil
	})
	if err != nil {
		v.note("whether policy routing is as natkit wrote it is not known: %v", err)
	}
}

// leadsToDown reports whether a target is the table of a WAN that is down, whose routes the kernel may have removed.
func (v *view) leadsToDown(target string, facts *gateway.Facts) bool {
	t, err := tune.ParseRoutingTarget(target)
	i := slices.IndexFunc(v.plan.Uplinks, func(u gateway.Uplink) bool { return t.Table && u.Table == t.Number })
	return err == nil && i >= 0 && facts.UplinkDown(&v.plan.Uplinks[i], v.plan, t.V6)
}

// others are other programs' chains, which are thousands of rules on some hosts: they are
// read again when nf_tables has another generation of rules, and otherwise every
// othersEvery, as those of iptables-legacy have none.
type others struct {
	chains     []gateway.Foreign
	generation uint32
	at         time.Time
}

const othersEvery = 30 * time.Second

func (o *others) read(ns *netns.Handle, at time.Time) ([]gateway.Foreign, error) {
	generation, err := read.Generation(ns)
	if err == nil && generation == o.generation && !o.at.IsZero() && at.Sub(o.at) < othersEvery {
		return o.chains, nil
	}
	chains, err := host.Foreign(ns)
	*o = others{}
	if err == nil {
		*o = others{chains: chains, generation: generation, at: at}
	}
	return chains, err
}

// losses are the tracker's own counters.
func (v *view) losses() {
	for name, into := range map[string]**uint64{"drop": &v.Drops.NoEntry, "insert_failed": &v.Drops.InsertFailed} {
		if n, ok := v.settings.ConntrackStat.Total(name); ok {
			*into = &n
		}
	}
	v.Flows.Table, _ = v.settings.Sysctls.Int(snapshot.ConntrackCount)
	v.Flows.Max, _ = v.settings.Sysctls.Int(snapshot.ConntrackMax)
}

// cutHairpins are the bridges inside that keep a host from itself.
func cutHairpins(p *gateway.Plan, interfaces []gateway.Interface) (all []observe.CutHairpin) {
	for _, i := range interfaces {
		cuts := func(s gateway.Entry) bool {
			return s.IsHairpin() && i.Bridge.Cuts(s.Rule.BitLen() == 128)
		}
		if p.Inside(i.Name) && slices.ContainsFunc(p.Sources, cuts) {
			all = append(all, observe.CutHairpin{Bridge: i.Name, Ports: i.Bridge.OneWay})
		}
	}
	return all
}
