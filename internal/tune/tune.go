// Package tune describes changes to a host and their undoing as plain data. It
// touches nothing: internal/tune/apply does, and internal/tune/journal remembers.
package tune

import "strings"

// Kind says what sort of thing a Change changes.
type Kind string

// Sysctl changes one value under /proc/sys; Target is its dotted name.
const Sysctl Kind = "sysctl"

// NATRule changes the ports and the options of a NAT rule in place; Target is a
// snapshot.NATRule's, the value such as "1024-65535 fully-random".
const NATRule Kind = "nat-rule"

// Change is one value to be changed. It can be undone as long as the value is
// still After.
type Change struct {
	Kind   Kind   `json:"kind"`
	Target string `json:"target"`
	Before string `json:"before"`
	After  string `json:"after"`
	// Why, Cost and Risk are one sentence each, for the person who decides.
	Why  string `json:"why,omitempty"`
	Cost string `json:"cost,omitempty"`
	Risk string `json:"risk,omitempty"`
}

// Plan is an ordered list of changes that are applied, confirmed and undone
// together. Undo goes backwards.
type Plan struct {
	// Origin says who wants it: "doctor", "tune", "lab table-full".
	Origin  string   `json:"origin"`
	Changes []Change `json:"changes"`
}

// Netns is the network namespace (inode) that Target itself names; 0 where it names none.
func (c Change) Netns() uint64 {
	switch c.Kind {
	case NATRule:
		t, _ := ParseNATTarget(c.Target)
		return t.Netns
	case Gateway:
		inode, _ := ParseGatewayTarget(c.Target)
		return inode
	}
	return 0
}

// Shown is a value as people read it: the digests of gateways are cut short.
func (c Change) Shown(value string) string {
	const short = 12
	digest, rest, _ := strings.Cut(value, " ")
	if (c.Kind != Gateway && c.Kind != GatewayFile) || !IsDigest(digest) {
		return value
	}
	return strings.TrimSpace(digest[:short] + " " + rest)
}
