package iptables

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// judge says what is to become of an entry instead of a rule of the file; kind is
// empty where it can be one.
func (t *translator) judge(i int) (kind, reason string) {
	e := t.entries[i]
	if left, reason := e.leftAlone(); left {
		return LeftAlone, reason
	}
	switch {
	case e.rule.Target.Kind == Drop:
		return Untranslated, "drops packets; natkit translates them, and leaves it to a firewall to drop some"
	case t.refused[e] != "":
		return Untranslated, t.refused[e]
	}
	if by := t.coveredBy(i); by != nil {
		return Unreachable, where(by) + " takes all its packets first"
	}
	if d := t.hairpinOf(e); d != nil {
		reason = t.expressHairpin(e, d)
	} else {
		reason = e.express(t.wan)
	}
	if reason != "" {
		if by := t.doneBy(i); by != nil {
			return Redundant, where(by) + " does the same to its packets"
		}
		return Untranslated, reason
	}
	if reason := t.inTheWay(i); reason != "" {
		return Untranslated, reason
	}
	return "", ""
}

// leftAlone says why an entry is none of a gateway's.
func (e *entry) leftAlone() (left bool, reason string) {
	switch k := e.rule.Target.Kind; {
	case e.owner != "":
		return true, "is " + possessive(e.owner)
	case k == Pass:
		return true, "does not translate"
	case e.filter && k != Notrack && k != MSS:
		return true, notNAT(e.table)
	}
	return false, ""
}

func possessive(name string) string {
	if strings.HasSuffix(name, "s") {
		return name + "'"
	}
	return name + "'s"
}

// coveredBy is a rule after which nothing is left for the entry.
func (t *translator) coveredBy(i int) *Rule {
	e := t.entries[i]
	for _, x := range e.except {
		if covers(&x.match, &e.match) {
			return x.rule
		}
	}
	if !e.translates {
		return nil
	}
	for _, b := range t.entries[:i] {
		if b.side == e.side && !rivals(b, e) && b.rule.Target.Kind != Ends && len(b.except) == 0 && covers(&b.match, &e.match) {
			return b.rule
		}
	}
	return nil
}

// doneBy is a later rule that does to all packets of the entry what it does.
func (t *translator) doneBy(i int) *Rule {
	e := t.entries[i]
	for _, b := range t.entries[i+1:] {
		switch {
		case b.side != e.side || disjoint(&b.match, &e.match):
		case rivals(b, e) || b.owner != "" || !givesSame(&b.rule.Target, &e.rule.Target):
			return nil
		case covers(&b.match, &e.match) && !slices.ContainsFunc(b.except, func(x *exception) bool { return !disjoint(&x.match, &e.match) }):
			return b.rule
		}
	}
	return nil
}

// rivalry is a place where chains of several tables may be.
type rivalry struct {
	hook     string
	version  int
	priority int32
}

// rivals reports whether nobody knows which of two chains comes first, as of
// iptables-nft and iptables-legacy.
func rivals(a, b *entry) bool {
	return a.base != b.base && a.priority == b.priority && a.owner == "" && b.owner == ""
}

// findRivals are the entries of places where several chains are.
func (t *translator) findRivals() map[rivalry][]*entry {
	all := map[rivalry][]*entry{}
	for _, e := range t.entries {
		if e.translates && !e.filter {
			place := rivalry{e.hook, e.version, e.priority}
			all[place] = append(all[place], e)
		}
	}
	maps.DeleteFunc(all, func(_ rivalry, list []*entry) bool {
		return !slices.ContainsFunc(list, func(e *entry) bool { return rivals(list[0], e) })
	})
	return all
}

// inTheWay says which rule that is not in the file changes what this one gets.
func (t *translator) inTheWay(i int) string {
	e := t.entries[i]
	if !e.translates {
		return ""
	}
	meets := func(b *entry) bool { return b != e && b.side == e.side && !disjoint(&b.match, &e.match) }
	for _, b := range t.untranslated {
		if meets(b) && !givesSame(&b.rule.Target, &e.rule.Target) {
			return fmt.Sprintf("%s, which is not translated, gets some of its packets first", where(b.rule))
		}
	}
	for _, b := range t.rivals[rivalry{e.hook, e.version, e.priority}] {
		if rivals(b, e) && meets(b) {
			return fmt.Sprintf("%s is at the same hook and priority in another table: which of the two comes first the kernel does not tell", where(b.rule))
		}
	}
	for _, b := range t.entries[i+1:] {
		if b.owner != "" && meets(b) {
			return fmt.Sprintf("%s, which is %s, would get some of its packets first: natkit's rules come after those of other programs", where(b.rule), possessive(b.owner))
		}
	}
	return ""
}

// givesSame reports whether it makes no difference which of two rules a packet meets.
func givesSame(a, b *Target) bool {
	return sameTarget(a, b) && a.translates() && a.Kind != Ends && a.Prefix == b.Prefix && len(a.Unknown)+len(b.Unknown) == 0 &&
		a.Random == b.Random && a.RandomFully == b.RandomFully && a.Persistent == b.Persistent
}
