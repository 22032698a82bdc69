package iptables

const tooDeep = "the chains lead to each other too often to be followed to their end"

// strays are notes about the rules that packets were not followed to: those of tables and
// chains that are not NAT's, and those that no packet comes to. Where full is true, packets
// were not followed to their end, and those may be met after all.
func strays(set *Ruleset, entries []*entry, full bool) (all []Note) {
	met := map[*Rule]bool{}
	for _, e := range entries {
		met[e.rule] = true
	}
	for _, t := range set.Tables {
		for _, c := range t.Chains {
			for _, r := range c.Rules {
				if met[r] || r.Target.Name == unread {
					continue
				}
				if n, ok := t.stray(c, r); ok {
					if full && n.Kind == Unreachable {
						n.Kind, n.Reason = Untranslated, tooDeep
					}
					all = append(all, n)
				}
			}
		}
	}
	return together(all)
}

// stray is the note about a rule that is no entry; none where it only leads packets on.
func (t *Table) stray(c *Chain, r *Rule) (Note, bool) {
	n := Note{Line: r.Line, Text: r.Text, Kind: LeftAlone, Rules: 1}
	owner := t.ownerOf(c, r)
	switch k := r.Target.Kind; {
	case owner != "":
		n.Reason = "is " + possessive(owner)
	case !t.isNAT():
		n.Reason = notNAT(t.Name)
	case k == Accept || k == Return || k == Jump || k == Goto:
		return n, false
	default:
		n.Kind, n.Reason = Unreachable, "none comes to the chain "+c.Name+" that meets its conditions"
	}
	return n, true
}

// isNAT reports whether packets to be translated come to the table.
func (t *Table) isNAT() bool {
	for _, c := range t.Chains {
		if c.Hook != "" && !c.Filter {
			return true
		}
	}
	return t.Name == "nat"
}

func notNAT(table string) string {
	if chainsOf[table] == nil {
		return "is in a chain of filters, not of NAT"
	}
	return "is the table " + table + "'s, not NAT's"
}

// together makes one note of those that leave rules alone for the same reason.
func together(notes []Note) (all []Note) {
	first := map[string]int{}
	for _, n := range notes {
		at, seen := first[n.Reason]
		switch {
		case n.Kind != LeftAlone:
			all = append(all, n)
		case seen:
			all[at].Rules, all[at].Text = all[at].Rules+n.Rules, ""
		default:
			first[n.Reason] = len(all)
			all = append(all, n)
		}
	}
	return all
}
