package gateway

// State is what an engine finds of its own in a network namespace.
type State struct {
	// Present is false where there is nothing; the rest is then empty.
	Present bool
	// Name is what an administrator knows it by: "table inet natkit". ByHand is the
	// command that removes it without natkit.
	Name, ByHand string
	// Digest is that of the plan that it was written for; empty where nothing says so.
	Digest string
	// Sealed tells that its writer left behind how it was, Intact that it is so now.
	// Without a seal nobody knows whether it is intact.
	Sealed, Intact bool
	// Changes says what is not as it was written: "chain prerouting: 3 rules instead of
	// 2".
	Changes []string
	// Owned: another program alone may change it.
	Owned bool
	// Counts are what counts by itself, in an order of the engine's. A rule of the file
	// may have several.
	Counts []Counted
}

// Counted is what something in force has counted since it was written.
type Counted struct {
	// Rule is what it was made for; nil for what else the engine counts, which What names.
	Rule *Ref
	What string
	// Dropped tells that what it counts was dropped.
	Dropped bool
	// Packets of a rule that translates are new connections: their first packets.
	Packets, Bytes uint64
}
