package nft

import (
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/natrules"
)

// Compare adds to Changes which rules of the file are missing where, and how many of
// the rules and elements are not natkit's, as far as comments tell it. p is the plan
// that the table was written for.
func (s *State) Compare(p *gateway.Plan) {
	made := written(build(p, host{netmap: true}))
	for i, change := range s.Changes {
		key, _, _ := strings.Cut(change, ":")
		if !slices.Contains(s.changed, key) || made[key] == nil {
			continue
		}
		if which := details(made[key], s.comments[key]); which != "" {
			s.Changes[i] += " (" + which + ")"
		}
	}
}

func details(written, found []string) string {
	var parts []string
	if gone := missing(written, found); len(gone) > 0 {
		parts = append(parts, listed(gone)+map[bool]string{true: " is missing", false: " are missing"}[len(gone) == 1])
	}
	if n := len(missingEach(found, written)); n > 0 {
		parts = append(parts, fmt.Sprintf("%d of them not natkit's", n))
	}
	return strings.Join(parts, "; ")
}

// missing are the comments that were written and of which none is left, each once.
func missing(written, found []string) []string {
	gone := missingEach(written, found)
	slices.Sort(gone)
	return slices.Compact(gone)
}

// missingEach are those of all that are not among the others.
func missingEach(all, others []string) []string {
	known := map[string]bool{}
	for _, c := range others {
		known[c] = true
	}
	var out []string
	for _, c := range all {
		if !known[c] {
			out = append(out, c)
		}
	}
	return out
}

// listed names a few of many.
func listed(names []string) string {
	const few = 5
	switch n := len(names); {
	case n == 1:
		return names[0]
	case n <= few:
		return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	default:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), n-few)
	}
}

// written are the comments of what the writer makes for a plan, by object.
func written(t *table) map[string][]string {
	all := map[string][]string{}
	for _, r := range t.rules {
		key := object{kind: "chain", name: r.chain}.key()
		all[key] = append(all[key], r.comment)
	}
	for _, s := range t.sets {
		key := object{kind: "set", name: s.name}.key()
		for _, e := range s.elements {
			all[key] = append(all[key], e.comment)
		}
	}
	return all
}

// commentsOf are those of a table that is there.
func commentsOf(t *natrules.Table) map[string][]string {
	all := map[string][]string{}
	for _, r := range t.Rules {
		key := object{kind: "chain", name: r.Chain}.key()
		all[key] = append(all[key], r.Comment)
	}
	for _, s := range t.Sets {
		key := object{kind: "set", name: s.Name}.key()
		for _, e := range s.Elements {
			all[key] = append(all[key], e.Comment)
		}
	}
	return all
}
