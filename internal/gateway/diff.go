package gateway

import "slices"

// Difference is what changes between two plans, by the rules of the file.
type Difference struct {
	// Before and After are digests; empty where there is no plan.
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
	// Rules are in the order of the new file, removed ones last.
	Rules    []RuleChange    `json:"rules,omitempty"`
	Settings []SettingChange `json:"settings,omitempty"`
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

// RuleChange is a rule that comes, goes or changes.
type RuleChange struct {
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

// SettingChange is a setting of the whole gateway that changes; a value is empty
// where there was or is none.
type SettingChange struct {
	Setting     string `json:"setting"`
	Before      string `json:"before,omitempty"`
	After       string `json:"after,omitempty"`
	Connections string `json:"connections,omitempty"`
}

// Same tells whether both plans do the same.
func (d *Difference) Same() bool { return d.Before == d.After }

// Diff tells what changes when one plan takes the place of another; nil is no plan.
func Diff(old, new *Plan) Difference {
	d := Difference{Before: digestOf(old), After: digestOf(new)}
	before, after := RulesOf(old), RulesOf(new)
	pairs := pairRules(before, after)
	for i, r := range after {
		d.rule(r, pairs.before[i], before)
	}
	for i, r := range before {
		if !pairs.used[i] {
			d.removed(r, new)
		}
	}
	d.Settings = diffSettings(old, new)
	return d
}

func (d *Difference) removed(r RuleText, new *Plan) {
	does := effect(Removed, r.Rule.Kind, r.stateless)
	if does == trackedEffects[Removed] && !new.translates() {
		does = untranslated
	}
	d.Rules = append(d.Rules, RuleChange{Change: Removed, Rule: r.Rule, Before: r.Text, Connections: does})
}

// translates tells whether a plan has anything for the tracker's NAT.
func (p *Plan) translates() bool {
	return p != nil && len(p.Sources)+len(p.Destinations) > 0
}

func digestOf(p *Plan) string {
	if p == nil {
		return ""
	}
	return Digest(p)
}

// rule compares a rule with the one that it takes the place of, if any.
func (d *Difference) rule(r RuleText, at int, before []RuleText) {
	if at < 0 {
		d.Rules = append(d.Rules, RuleChange{Change: Added, Rule: r.Rule, After: r.Text, Connections: effect(Added, r.Rule.Kind, r.stateless)})
		return
	}
	was := before[at]
	if was.same(r) {
		d.Unchanged++
		if was.Rule != r.Rule {
			d.Renumbered++
		}
		return
	}
	d.Rules = append(d.Rules, RuleChange{Change: Changed, Rule: r.Rule, Was: was.Rule, Before: was.Text, After: r.Text,
		Connections: effect(Changed, r.Rule.Kind, r.stateless || was.stateless)})
}

func (r RuleText) same(o RuleText) bool {
	return r.Text == o.Text && r.Rule.Kind == o.Rule.Kind && r.Rule.List == o.Rule.List
}

// rulePairs tell which old rule each new one takes the place of; -1: none.
type rulePairs struct {
	before []int
	used   []bool
}

// pairRules looks for a rule that says the same, then for one about the same, then for
// one of the same kind at the same place of the file.
func pairRules(before, after []RuleText) rulePairs {
	pairs := rulePairs{before: slices.Repeat([]int{-1}, len(after)), used: make([]bool, len(before))}
	pairs.by(before, after, func(r RuleText) any { return [3]string{r.Rule.List, r.Rule.Kind, r.Text} })
	pairs.by(before, after, func(r RuleText) any { return [2]string{r.Rule.List, r.key} })
	pairs.by(before, after, func(r RuleText) any { return r.Rule })
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
