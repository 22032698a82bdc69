package lab

import "slices"

// The sides of a NAT. Inside is where the addresses are that it hides: what is
// translated to another source comes from there, what is translated to another
// destination goes there.
const (
	Inside  = "inside"
	Outside = "outside"
)

// Vantage is where packets of a node are captured into one file: one side of a node
// that translates, else all of the node.
type Vantage struct {
	Node string
	// Side is Inside, Outside, or empty.
	Side       string
	Interfaces []string
}

// Vantages are those of all nodes. Which side an interface is on is the same in every
// stage, whatever NAT it has, so that stages can be compared.
func (s *Scenario) Vantages() []Vantage {
	var all []Vantage
	for _, n := range s.Topology.Nodes {
		sides := map[string]*Vantage{}
		var order []string
		for _, f := range s.faces(n.Name) {
			side := s.sideToward(n.Name, f.peer.Node)
			if sides[side] == nil {
				sides[side] = &Vantage{Node: n.Name, Side: side}
				order = append(order, side)
			}
			sides[side].Interfaces = append(sides[side].Interfaces, f.name)
		}
		for _, side := range order {
			all = append(all, *sides[side])
		}
	}
	return all
}

// sideToward returns the side of a node's NAT that a neighbour is on; empty where the
// node has none, or all neighbours are on one side.
func (s *Scenario) sideToward(node, neighbour string) string {
	outside := s.outside(node)
	mixed := false
	for _, f := range s.faces(node) {
		mixed = mixed || outside(f.peer.Node) != outside(neighbour)
	}
	switch {
	case !mixed:
		return ""
	case outside(neighbour):
		return Outside
	}
	return Inside
}

// outside reports which neighbours are outside: those toward which sources are
// translated; where none are, those that no translated destination is at.
func (s *Scenario) outside(node string) func(neighbour string) bool {
	var toward, targets []string
	for _, st := range s.Stages {
		c := s.Translations(node, st.NAT)
		for _, r := range slices.Concat(c.NAT, c.IPv6) {
			for _, f := range s.faces(node) {
				switch {
				case r.DNAT != nil && f.own.Address.Contains(r.DNAT.To[0].Address):
					targets = append(targets, f.peer.Node)
				case r.SNAT != nil && r.SNAT.Out[0] == f.name, r.Masquerade != nil && r.Masquerade.Out[0] == f.name:
					toward = append(toward, f.peer.Node)
				}
			}
		}
	}
	return func(neighbour string) bool {
		if len(toward) > 0 {
			return slices.Contains(toward, neighbour)
		}
		return len(targets) > 0 && !slices.Contains(targets, neighbour)
	}
}

// Capture is a file of packets that were captured while a stage ran.
type Capture struct {
	Stage string `json:"stage"`
	// Round counts how often the stage has run, from 1.
	Round      int      `json:"round"`
	Node       string   `json:"node"`
	Side       string   `json:"side,omitempty"` // of the node's NAT: Inside, Outside or none
	Interfaces []string `json:"interfaces"`
	File       string   `json:"file"`
	Packets    uint64   `json:"packets"` // in the file
	Bytes      int64    `json:"file_bytes"`
	// Dropped packets came while the kernel's ring was full, Cut ones when the file
	// had reached its bound. Neither are in the file.
	Dropped uint64 `json:"dropped_packets"`
	Cut     uint64 `json:"packets_after_bound"`
	// Error is why the file holds less than was captured; empty if it is complete.
	Error string `json:"error,omitempty"`
}

// Whole reports whether all packets are in the file.
func (c *Capture) Whole() bool { return c.Dropped == 0 && c.Cut == 0 && c.Error == "" }
