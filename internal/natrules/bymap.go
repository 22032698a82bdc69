package natrules

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/snapshot"
)

// GatewayFamily and GatewayTable name the table that natkit keeps for a gateway. Its
// rules are changed by the gateway's file, and by nothing else.
const (
	GatewayFamily = "inet"
	GatewayTable  = "natkit"
)

func (t tableKey) isGateway() bool { return t == tableKey{familyInet, GatewayTable} }

// mapUse is a translation of sources by what a map gives.
type mapUse struct {
	set string
	// Offsets of addresses and ports in an element's data; -1 where they are not of
	// the map.
	addrMin, addrMax, portMin, portMax int
	// key is what is looked up, where that is a source address of size bytes, whole or
	// its first bits; size is 0 where it is something else.
	size, bits int
	// partial is what the rule was before it asked the map.
	partial bool
}

// maxExpanded is how many elements of a map are told as rules of their own.
const maxExpanded = 256

// mapped loads the registers that a map's data go to.
func (m *machine) mapped(register uint32, set string, key content, partial bool) {
	m.load(register, content{}, 64)
	start := slot(register)
	for i := range uint32(16) {
		m.regs[start+i] = content{from: mapData, offset: 4 * i}
	}
	u := &mapUse{set: set, partial: partial}
	size, at := 4, uint32(12)
	if m.ipVersion() == 6 {
		size, at = 16, 8
	}
	if key.from == payload && key.base == payloadNetwork && key.offset == at && int(key.length) <= size && m.ipVersion() != 0 {
		u.size, u.bits = size, 8*int(key.length)
		if key.mask != nil {
			p := padded(make([]byte, size), key.mask, size)
			if u.bits = p.Bits(); !p.IsValid() {
				u.size = 0
			}
		}
	}
	m.asked = u
}

// byMap notes which parts of a translation of sources are of the map that was asked
// last.
func (m *machine) byMap(a attrs, n natAttrs) {
	if m.asked == nil || m.step.rule.Kind != snapshot.NATSource || m.step.prefix {
		return
	}
	u := *m.asked
	at := func(kind, otherwise uint16) int {
		if !a.has(kind) {
			kind = otherwise
		}
		if c := m.held(a.u32(kind)); a.has(kind) && c.from == mapData {
			return int(c.offset)
		}
		return -1
	}
	u.addrMin, u.addrMax = at(n.addrMin, n.addrMin), at(n.addrMax, n.addrMin)
	u.portMin, u.portMax = at(n.portMin, n.portMin), at(n.portMax, n.portMin)
	halves := u.addrMin >= 0 != (u.addrMax >= 0) || u.portMin >= 0 != (u.portMax >= 0)
	if !halves && (u.addrMin >= 0 || u.portMin >= 0) {
		m.step.byMap = &u
	}
}

// mapElement is an element of a map.
type mapElement struct {
	key, data []byte
	comment   string
}

// sourceMaps reads the maps by which rules of the table translate sources.
func (c conn) sourceMaps(t *kernelTable) error {
	m := machine{family: familyNames[t.key.family], verdicts: func(string) []string { return nil }}
	for _, r := range t.rules {
		u := m.readStep(r).byMap
		if u == nil || t.maps[u.set] != nil {
			continue
		}
		lists, err := c.copyElements(t.key, u.set)
		if err != nil {
			return err
		}
		t.maps[u.set] = mapElements(lists)
	}
	return nil
}

func mapElements(lists [][]byte) []mapElement {
	all := []mapElement{}
	for _, list := range lists {
		elems, _ := parseAttrs(list)
		for _, elem := range elems {
			a, _ := parseAttrs(elem.data)
			e := mapElement{a.nested(nftSetElemKey).get(nftDataValue), a.nested(nftSetElemData).get(nftDataValue), commentOf(a.get(nftElemUserdata))}
			if e.data != nil { // else the end of an interval
				all = append(all, e)
			}
		}
	}
	return all
}

// expand puts, in the place of each rule that translates by a map, one for each of
// the map's elements; or one for all of them, where they are too many.
func (t *kernelTable) expand(table *ruleTable, ways *budget) {
	for _, chain := range table.order {
		var steps []step
		for _, s := range chain.steps {
			steps = append(steps, t.elements(s, ways)...)
		}
		if chain.steps = steps; t.key.isGateway() {
			ofGateway(steps)
		}
	}
}

func (t *kernelTable) elements(s step, ways *budget) []step {
	if s.byMap == nil {
		return []step{s}
	}
	elements := t.maps[s.byMap.set]
	if len(elements) == 0 || len(elements) > maxExpanded || !ways.takes(len(elements)) {
		return []step{s.byMap.span(s, elements, familyNames[t.key.family])}
	}
	var all []step
	for _, e := range elements {
		one := s
		if !s.byMap.give(&one, e, familyNames[t.key.family]) {
			return []step{s}
		}
		all = append(all, one)
	}
	slices.SortStableFunc(all, func(a, b step) int { // the kernel tells them as they lie in its hash
		return cmp.Or(a.rule.FromSource.Addr().Compare(b.rule.FromSource.Addr()), a.rule.First.Compare(b.rule.First))
	})
	return all
}

// give makes the step what it is for one element; false where that is garbled.
func (u *mapUse) give(s *step, e mapElement, family string) bool {
	r := &s.rule
	if u.addrMin >= 0 {
		size := 4
		if s.version == 6 || family == "ip6" {
			size = 16
		}
		if max(u.addrMin, u.addrMax)+size > len(e.data) {
			return false
		}
		r.First, _ = netip.AddrFromSlice(e.data[u.addrMin : u.addrMin+size])
		r.Last, _ = netip.AddrFromSlice(e.data[u.addrMax : u.addrMax+size])
	}
	if u.portMin >= 0 {
		if max(u.portMin, u.portMax)+2 > len(e.data) {
			return false
		}
		r.FirstPort, r.LastPort, r.PortsFromMap = beUint16(e.data[u.portMin:]), beUint16(e.data[u.portMax:]), false
	}
	if u.size > 0 && u.size == len(e.key) {
		if from, clash := bothPrefixes(netip.PrefixFrom(addressOf(e.key), u.bits), r.FromSource, false); !clash {
			r.FromSource, r.Partial = from, u.partial
		}
	}
	if e.comment != "" {
		s.comment = e.comment
	}
	inner := ""
	if r.PortsFromMap {
		inner = "…"
	}
	r.Text = words(r, family, false, inner)
	return true
}

func addressOf(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}

// span makes the step one that gives any address between those of the elements.
func (u *mapUse) span(s step, elements []mapElement, family string) step {
	if u.addrMin < 0 {
		return s
	}
	r := s.rule
	for _, e := range elements {
		one := s
		if !u.give(&one, e, family) {
			return s
		}
		if !r.First.IsValid() || one.rule.First.Less(r.First) {
			r.First = one.rule.First
		}
		if !r.Last.IsValid() || r.Last.Less(one.rule.Last) {
			r.Last = one.rule.Last
		}
	}
	r.PortsFromMap = r.PortsFromMap || u.portMin >= 0
	s.rule = r
	return s
}

// isRef reports whether a comment names a rule of the file.
func isRef(comment string) bool {
	_, ok := gateway.ParseRef(comment)
	return ok
}

// ofGateway completes rules of natkit's own table: which rule of the file they are of,
// and which of two alike is for what the other is not for. The writer puts a rule
// without ports behind the one with ports, for protocols that have none.
func ofGateway(steps []step) {
	type place struct {
		gateway, out, in string
		from, to         netip.Prefix
		first, last      netip.Addr
	}
	withPorts := map[place]bool{}
	for i := range steps {
		r := &steps[i].rule
		if r.Target = ""; isRef(steps[i].comment) {
			r.Gateway = steps[i].comment
		}
		where := place{r.Gateway, r.OutInterface, r.InInterface, r.FromSource, r.ToDestination, r.First, r.Last}
		switch {
		case !steps[i].translates || !r.TranslatesSource():
		case r.FirstPort != 0 || r.PortsFromMap:
			withPorts[where] = true
		case r.Protocol == "" && withPorts[where]:
			r.Protocol = snapshot.OtherProtocols
		}
	}
}
