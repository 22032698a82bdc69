package lab

import (
	"net/netip"
	"slices"
)

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
			side := s.sideToward(n.Name, f.neighbour)
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

// face is an interface that carries an address of a node.
type face struct{ name, neighbour string }

func (s *Scenario) faces(node string) (all []face) {
	for _, l := range s.Topology.Links {
		for j, e := range l {
			if e.Node != node {
				continue
			}
			f := face{ethernet(len(all)), l[1-j].Node}
			if s.UseBridge && s.bridged(l) && s.Topology.Bridge.Node == node {
				f.name = bridgeName
			}
			all = append(all, f)
		}
	}
	return all
}

// sideToward tells on which side of a node's NAT a neighbour is; empty where the node
// has none, or all neighbours would be on one side.
func (s *Scenario) sideToward(node, neighbour string) string {
	outside := s.outsideOf(node)
	mixed := false
	for _, f := range s.faces(node) {
		mixed = mixed || outside(f.neighbour) != outside(neighbour)
	}
	switch {
	case !mixed:
		return ""
	case outside(neighbour):
		return Outside
	}
	return Inside
}

// outsideOf tells which neighbours are outside: those toward which sources are
// translated; where none are, those that no translated destination is at.
func (s *Scenario) outsideOf(node string) func(neighbour string) bool {
	var toward, targets []string
	for _, st := range s.Stages {
		for _, rule := range st.NAT {
			switch {
			case rule.Node != node || !rule.Translates():
			case rule.DNAT != nil:
				targets = append(targets, s.neighbourFor(node, rule.DNAT.To.Addr()))
			default:
				toward = append(toward, rule.toward())
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

// neighbourFor is the neighbour on the link that has an address; empty where it is
// farther away.
func (s *Scenario) neighbourFor(node string, addr netip.Addr) string {
	for _, l := range s.Topology.Links {
		for j, e := range l {
			if e.Node == node && e.Address.Contains(addr) {
				return l[1-j].Node
			}
		}
	}
	return ""
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
	// Error says why the file holds less than was captured; empty where all is well.
	Error string `json:"error,omitempty"`
}

// Whole reports whether all packets are in the file.
func (c *Capture) Whole() bool { return c.Dropped == 0 && c.Cut == 0 && c.Error == "" }
