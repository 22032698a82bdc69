package gateway

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/units"
)

// Diff is what changes between two plans, by the rules of the file.
type Diff struct {
	// Before and After are digests; empty where there is no plan.
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
	// Rules are in the order of the new file, removed ones last.
	Rules []RuleDiff `json:"rules,omitempty"`
	// Sets are those whose elements change, that come or go, by their names.
	Sets     []SetDiff     `json:"sets,omitempty"`
	Settings []SettingDiff `json:"settings,omitempty"`
	// Unchanged is the number of rules that stay as they are, Renumbered how many of
	// them have another place in the file.
	Unchanged  int `json:"unchanged_rules"`
	Renumbered int `json:"renumbered_rules,omitempty"`
}

// Change is what happens to a rule.
type Change string

const (
	Added   Change = "added"
	Removed Change = "removed"
	Changed Change = "changed"
)

// RuleDiff is a rule that comes, goes or changes.
type RuleDiff struct {
	Change Change `json:"change"`
	// Rule is its place in the new file; of a removed one in the old one.
	Rule Ref `json:"rule"`
	// Was is its place in the old file, of a changed rule.
	Was    Ref    `json:"was,omitzero"`
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
	// Connections says what it does to those that exist.
	Connections string `json:"connections"`
}

// SetDiff is a set that comes, goes, or has other elements.
type SetDiff struct {
	Change Change `json:"change"`
	Set    string `json:"set"`
	// Elements is how many there are then, of a set that goes how many there were.
	Elements int `json:"elements"`
	Added    int `json:"added_elements,omitempty"`
	Removed  int `json:"removed_elements,omitempty"`
	// Pairs: the elements are pairs.
	Pairs bool `json:"pairs,omitempty"`
	// Connections says what it does to those that exist.
	Connections string `json:"connections,omitempty"`
}

// SettingDiff is a setting of the whole gateway that changes; a value is empty
// where there was or is none.
type SettingDiff struct {
	Setting     string `json:"setting"`
	Before      string `json:"before,omitempty"`
	After       string `json:"after,omitempty"`
	Connections string `json:"connections,omitempty"`
}

// Same reports whether both plans do the same.
func (d *Diff) Same() bool { return d.Before == d.After }

// DiffOf returns what changes when one plan replaces another; nil is no plan.
func DiffOf(old, new *Plan) Diff {
	d := Diff{Before: digestOf(old), After: digestOf(new)}
	before, after, alike := RulesThatDiffer(old, new)
	d.Unchanged = alike
	pairs := pairRules(before, after)
	for i, r := range after {
		d.rule(r, pairs.before[i], before)
	}
	for i, r := range before {
		if !pairs.used[i] {
			d.removed(r, new)
		}
	}
	d.Sets = diffSets(old, new)
	d.Settings = diffSettings(old, new)
	return d
}

// setEffect is what other elements of a set do to connections that exist.
const setEffect = "connections to come; those that exist keep the translation that they have, or none"

// pairsEffect is what other pairs do.
const pairsEffect = setEffect + "; of stateless rules, and of those that eBPF programs carry out, every packet at once"

func diffSets(old, new *Plan) (all []SetDiff) {
	before, after := setsOf(old), setsOf(new)
	names := slices.Sorted(maps.Keys(before))
	for name := range after {
		if before[name] == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		was, is := before[name], after[name]
		switch {
		case was == nil:
			all = append(all, SetDiff{Change: Added, Set: name, Elements: is.Len(), Pairs: is.HasPairs()})
		case is == nil:
			all = append(all, SetDiff{Change: Removed, Set: name, Elements: was.Len(), Pairs: was.HasPairs()})
		case was.Digest() != is.Digest():
			added, removed := nat.SetChange(was, is)
			d := SetDiff{Changed, name, is.Len(), added, removed, is.HasPairs() || was.HasPairs(), setEffect}
			if d.Pairs {
				d.Connections = pairsEffect
			}
			all = append(all, d)
		}
	}
	return all
}

func setsOf(p *Plan) map[string]*nat.Set {
	all := map[string]*nat.Set{}
	for _, s := range cmp.Or(p, &Plan{}).Sets {
		all[s.Name] = s
	}
	return all
}

func (d *Diff) removed(r RuleText, new *Plan) {
	does := effect(Removed, r.Rule.Kind, r.Stateless)
	if does == trackedEffects[Removed] && !translates(new) {
		does = untranslated
	}
	d.Rules = append(d.Rules, RuleDiff{Change: Removed, Rule: r.Rule, Before: r.Text, Connections: does})
}

// translates reports whether a plan has anything for the tracker's NAT.
func translates(p *Plan) bool {
	return p != nil && len(p.Sources)+len(p.Destinations) > 0
}

func digestOf(p *Plan) string {
	if p == nil {
		return ""
	}
	return Digest(p)
}

// rule compares a rule with the one that it takes the place of, if any.
func (d *Diff) rule(r RuleText, at int, before []RuleText) {
	if at < 0 {
		d.Rules = append(d.Rules, RuleDiff{Change: Added, Rule: r.Rule, After: r.Text, Connections: effect(Added, r.Rule.Kind, r.Stateless)})
		return
	}
	was := before[at]
	if same(was, r) && was.Text == r.Text && was.Rule.Name == r.Rule.Name && was.Rule.Note == r.Rule.Note {
		d.Unchanged++
		if was.Rule != r.Rule {
			d.Renumbered++
		}
		return
	}
	does := effect(Changed, r.Rule.Kind, r.Stateless || was.Stateless)
	switch {
	case !same(was, r):
	case was.health != r.health:
		does = checkedAnew
	default:
		does = reportedAnew
	}
	d.Rules = append(d.Rules, RuleDiff{Change: Changed, Rule: r.Rule, Was: was.Rule, Before: was.Text, After: r.Text, Connections: does})
}

// reportedAnew is about a change of name, note and log.
const reportedAnew = "none changes: only what is reported and logged of them"

// checkedAnew is about a change of health and all-down.
const checkedAnew = "those that exist stay; the hosts that connections to come go to are checked in another way"

// same reports whether two rules do the same to packets.
func same(r, o RuleText) bool {
	return r.does() == o.does() && r.Rule.Kind == o.Rule.Kind && r.Rule.List == o.Rule.List
}

// does is what the rule does to packets, without how that is logged and its hosts are checked.
func (r RuleText) does() string {
	text := strings.TrimSpace(strings.TrimSuffix(r.Text, r.log))
	if r.health != "" {
		text = strings.Replace(text, " "+r.health, "", 1)
	}
	return text
}

// rulePairs maps each new rule to the old one that it replaces; -1: none.
type rulePairs struct {
	before []int
	used   []bool
}

// pairRules searches for a rule of the same text, then for one about the same, then for
// one of the same kind at the same place of the file.
func pairRules(before, after []RuleText) rulePairs {
	pairs := rulePairs{before: slices.Repeat([]int{-1}, len(after)), used: make([]bool, len(before))}
	pairs.by(before, after, func(r RuleText) any { return [3]string{r.Rule.List, r.Rule.Kind, r.Text} })
	pairs.by(before, after, func(r RuleText) any { return [2]string{r.Rule.List, r.About} })
	pairs.by(before, after, func(r RuleText) any { return Ref{List: r.Rule.List, Index: r.Rule.Index, Kind: r.Rule.Kind} })
	return pairs
}

func (p *rulePairs) by(before, after []RuleText, key func(RuleText) any) {
	free := map[any][]int{}
	for i, r := range before {
		if !p.used[i] {
			free[key(r)] = append(free[key(r)], i)
		}
	}
	for i, r := range after {
		if list := free[key(r)]; p.before[i] < 0 && len(list) > 0 {
			p.before[i], p.used[list[0]] = list[0], true
			free[key(r)] = list[1:]
		}
	}
}

// effect says what a change of a rule does to existing connections. A connection's
// first packet decides its translation, which lies in its entry (nf_nat_setup_info);
// what is not tracked has no entry.
func effect(c Change, kind string, stateless bool) string {
	switch {
	case kind == "notrack":
		return untrackedEffects[c]
	case stateless:
		return statelessEffects[c]
	}
	return trackedEffects[c]
}

var trackedEffects = map[Change]string{
	Added:   "connections to come; those that exist keep what they have",
	Removed: "those that exist stay translated until they end; connections to come are not",
	Changed: "those that exist keep the old translation until they end; connections to come get the new one",
}

// untranslated: with the last nat chain of the namespace the kernel's NAT goes, also for
// connections that have a translation (nf_nat_unregister_fn).
const untranslated = "those that exist are translated only as long as some other program has a nat chain; without one they break"

var statelessEffects = map[Change]string{
	Added:   "at once, packet by packet: connections that exist under another address break",
	Removed: "at once: connections that exist lose their address and break",
	Changed: "at once, packet by packet: connections that exist break where their address changes",
}

var untrackedEffects = map[Change]string{
	Added:   "at once: connections that exist are not tracked any more, and those that are translated break",
	Removed: "at once: those that exist are tracked from their next packet on, as connections begun in the middle",
	Changed: "at once, for what is added and what is left out",
}

// aspect is a value of the whole gateway, and what its change does to connections;
// empty if it has no effect on them alone. off is that of its end where it differs.
type aspect struct {
	name   string
	value  func(*Plan) string
	effect string
	off    string
}

const settingEngine = "engine"

var aspects = []aspect{
	{settingEngine, func(p *Plan) string { return string(p.Word()) }, "those that exist keep their translation; to netfilter alone: unless a host inside sends first, by a dnat, which then begins a connection of its own", ""},
	{"wan", uplinksString, "", ""},
	{"lan", func(p *Plan) string { return strings.Join(p.LAN, ", ") }, "", ""},
	{"zones", zonesString, "those of hosts that enter or leave a zone are deleted, and begin anew with their next packets", ""},
	{"mss", func(p *Plan) string { return mssText(p.MSS) }, "connections to come: the size is in the SYN", ""},
	{"flowtable", func(p *Plan) string { return strings.Join(p.Flowtable, ", ") }, "those that exist enter or leave the fast path with their next packets", ""},
	{"connections-per-source", func(p *Plan) string { return countOrNone(p.ConnectionsPerSource) }, "none is cut: a source that has as many gets no new ones", "no source is bounded any more"},
	{"helpers", func(p *Plan) string { return strings.Trim(fmt.Sprint(p.Helpers), "[]") }, "connections to come: what they announce is let in and translated", "those that have a helper keep it"},
	{"ttl", func(p *Plan) string { return countOrNone(int64(p.TTL)) }, "all packets that leave by wan", ""},
	{"pcp", func(p *Plan) string { return p.PCP.String() }, "connections to come, to ports that hosts inside open", "connections to come: ports that hosts inside have open are closed"},
	{"accounting", func(p *Plan) string { return onOff(p.Accounting) }, "connections to come; those that exist have no counters and get none", "connections to come; those that exist continue to be counted"},
	{"expected flows", func(p *Plan) string { return countOrNone(int64(p.Expect.Flows)) }, "", ""},
	{"expected rate", func(p *Plan) string { return rateOrNone(float64(p.Expect.Rate)) }, "", ""},
	{"IPv4 forwarding", func(p *Plan) string { return onOff(p.IPv4) }, "all packets that pass through", ""},
	{"IPv6 forwarding", func(p *Plan) string { return onOff(p.IPv6) }, "all packets that pass through", ""},
}

func diffSettings(old, new *Plan) (out []SettingDiff) {
	value := func(s aspect, p *Plan) string {
		if p == nil {
			return ""
		}
		return s.value(p)
	}
	for _, s := range aspects {
		before, after := value(s, old), value(s, new)
		if before == after {
			continue
		}
		change := SettingDiff{Setting: s.name, Before: before, After: after, Connections: s.effect}
		if s.name == settingEngine && (before == "" || after == "") {
			change.Connections = "" // the rules say it
		}
		if after == "" {
			change.Connections = cmp.Or(s.off, change.Connections)
		}
		out = append(out, change)
	}
	return out
}

func mssText(m MSS) string {
	switch {
	case m.Clamp:
		return "clamp"
	case m.Bytes > 0:
		return fmt.Sprintf("%d bytes", m.Bytes)
	}
	return ""
}

func countOrNone(n int64) string {
	if n == 0 {
		return ""
	}
	return units.Count(n)
}

func rateOrNone(r float64) string {
	if r == 0 {
		return ""
	}
	return units.Rate(r) + "/s"
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return ""
}
