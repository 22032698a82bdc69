package aggregate

import (
	"cmp"
	"slices"
	"strings"
)

func sortParts(parts []Part) {
	slices.SortStableFunc(parts, func(a, b Part) int { return cmp.Compare(b.Entries, a.Entries) })
}

// groupName names a group of one key by its value, and a service as people write it.
func groupName(a *Aggregator, g Group) string {
	if len(a.keys) == 1 {
		return g.Text(0)
	}
	proto, addr, port := g.Text(0), g.Text(1), g.Text(2)
	switch {
	case port == none:
		return proto + " " + addr
	case strings.Contains(addr, ":"):
		return proto + " [" + addr + "]:" + port
	}
	return proto + " " + addr + ":" + port
}
