// Package diff says what changes between two plans of a gateway, and what that does to
// connections that exist.
package diff

import (
	"slices"

	"github.com/natkit/natkit/internal/gateway"
)

// Plans is what changes between two plans, by the rules of the file.
type Plans struct {
	// Before and After are digests; empty where there is no plan.
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
	// Rules are in the order of the new file, removed ones last.
	Rules    []Rule    `json:"rules,omitempty"`
	Settings []Setting `json:"settings,omitempty"`
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

// Rule is a rule that comes, goes or changes.
type Rule struct {
	Change Change `json:"change"`
	// Rule is its place in the new file; of a removed one in the old one.
	Rule gateway.Ref `json:"rule"`
	// Was is its place in the old file, of a changed rule.
	Was    gateway.Ref `json:"was,omitzero"`
	Before string      `json:"before,omitempty"`
	After  string      `json:"after,omitempty"`
	// Connections says what it does to those that exist.
	Connections string `json:"connections"`
}

// Setting is a setting of the whole gateway that changes; a value is empty
// where there was or is none.
type Setting struct {
	Setting     string `json:"setting"`
	Before      string `json:"before,omitempty"`
	After       string `json:"after,omitempty"`
	Connections string `json:"connections,omitempty"`
}

// Same reports whether both plans do the same.
func (d *Plans) Same() bool { return d.Before == d.After }

// Between tells what changes when one plan takes the place of another; nil is no plan.
func Between(old, new *gateway.Plan) Plans {
	d := Plans{Before: digestOf(old), After: digestOf(new)}
	before, after, alike := gateway.RulesThatDiffer(old, new)
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
	d.Settings = diffSettings(old, new)
	return d
}

func (d *Plans) removed(r gateway.RuleText, new *gateway.Plan) {
	does := effect(Removed, r.Rule.Kind, r.Stateless)
	if does == trackedEffects[Removed] && !translates(new) {
		does = untranslated
	}
	d.Rules = append(d.Rules, Rule{Change: Removed, Rule: r.Rule, Before: r.Text, Connections: does})
}

// translates reports whether a plan has anything for the tracker's NAT.
func translates(p *gateway.Plan) bool {
	return p != nil && len(p.Sources)+len(p.Destinations) > 0
}

func digestOf(p *gateway.Plan) string {
	if p == nil {
		return ""
	}
	return gateway.Digest(p)
}

// rule compares a rule with the one that it takes the place of, if any.
func (d *Plans) rule(r gateway.RuleText, at int, before []gateway.RuleText) {
	if at < 0 {
		d.Rules = append(d.Rules, Rule{Change: Added, Rule: r.Rule, After: r.Text, Connections: effect(Added, r.Rule.Kind, r.Stateless)})
		return
	}
	was := before[at]
	if same(was, r) {
		d.Unchanged++
		if was.Rule != r.Rule {
			d.Renumbered++
		}
		return
	}
	d.Rules = append(d.Rules, Rule{Change: Changed, Rule: r.Rule, Was: was.Rule, Before: was.Text, After: r.Text,
		Connections: effect(Changed, r.Rule.Kind, r.Stateless || was.Stateless)})
}

func same(r, o gateway.RuleText) bool {
	return r.Text == o.Text && r.Rule.Kind == o.Rule.Kind && r.Rule.List == o.Rule.List
}

// rulePairs tell which old rule each new one takes the place of; -1: none.
type rulePairs struct {
	before []int
	used   []bool
}

// pairRules looks for a rule that says the same, then for one about the same, then for
// one of the same kind at the same place of the file.
func pairRules(before, after []gateway.RuleText) rulePairs {
	pairs := rulePairs{before: slices.Repeat([]int{-1}, len(after)), used: make([]bool, len(before))}
	pairs.by(before, after, func(r gateway.RuleText) any { return [3]string{r.Rule.List, r.Rule.Kind, r.Text} })
	pairs.by(before, after, func(r gateway.RuleText) any { return [2]string{r.Rule.List, r.About} })
	pairs.by(before, after, func(r gateway.RuleText) any { return r.Rule })
	return pairs
}

func (p *rulePairs) by(before, after []gateway.RuleText, key func(gateway.RuleText) any) {
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
