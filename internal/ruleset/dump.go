package ruleset

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/unix"
)

// Dump is a table as nf_tables returns it.
type Dump struct {
	Key    TableKey
	Chains []KernelChain
	Rules  []*KernelRule
	// Elements are those of the verdict maps and of the maps that give new sources, by
	// name; NeededMaps names them.
	Elements map[string][]Element
	// Links are the names of interfaces by index.
	Links map[uint32]string
	// AtOnce is true where elements that expire count as long as they are there.
	AtOnce bool
	// IDs name the rules whose options natkit can change.
	IDs map[*KernelRule]string

	sets    map[string][]interval
	concern map[*KernelRule]bool
}

// maxExpanded is how many elements of a map become rules of their own.
const maxExpanded = 256

// mostPicked is how many rules the elements of its sets make of one.
const mostPicked = 16 << 10

// verdicts are the chains that verdict maps lead to, sorted: the kernel returns the
// elements of a hash in no order.
func (d *Dump) verdicts() map[string][]string {
	all := map[string][]string{}
	for name, elements := range d.Elements {
		for _, e := range elements {
			if _, chain := verdict(e.data); chain != "" {
				all[name] = append(all[name], chain)
			}
		}
		slices.Sort(all[name])
	}
	return all
}

// NeededMaps names the maps whose Elements Table and BySet need.
func (d *Dump) NeededMaps() (names []string) {
	m := &machine{family: familyNames[d.Key.Family]}
	for _, r := range d.Rules {
		for _, e := range r.Exprs {
			if e.Name == "lookup" && e.Data.Has(unix.NFTA_LOOKUP_DREG) && e.Data.U32(unix.NFTA_LOOKUP_DREG) == 0 {
				names = append(names, e.Data.Text(unix.NFTA_LOOKUP_SET))
			}
		}
		if m.read(r); m.fromMap != nil {
			names = append(names, m.fromMap.set)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Plain returns the table with a rule for each rule of the kernel.
func (d *Dump) Plain() *Table {
	plain := *d
	plain.sets = nil
	return plain.build(func(m *machine, r *KernelRule) []*Rule { return []*Rule{m.read(r)} }, &Budget{})
}

// Table returns the table with a rule for each rule of the kernel, or for each element of
// a map that gives new sources.
func (d *Dump) Table(budget *Budget) *Table {
	return d.build(func(m *machine, r *KernelRule) []*Rule { return m.byMap(r, d.Elements, budget) }, budget)
}

// Judged returns the table with a rule for each rule of the kernel, for Judge: sets that are
// known are among their conditions.
func (d *Dump) Judged(budget *Budget) *Table {
	return d.build(func(m *machine, r *KernelRule) []*Rule {
		m.judged = true
		return []*Rule{m.read(r)}
	}, budget)
}

// BySet returns the table with a rule for each element of the sets that rules use, if the
// rules concern NAT. Filters may have sets of any size.
func (d *Dump) BySet(budget *Budget) *Table { return d.bySet(budget, false) }

// ByDraw is BySet with one rule for a destination that is drawn from a map, with all that may be drawn.
func (d *Dump) ByDraw(budget *Budget) *Table { return d.bySet(budget, true) }

func (d *Dump) bySet(budget *Budget, drawing bool) *Table {
	concerning := d.concerning()
	return d.build(func(m *machine, r *KernelRule) []*Rule {
		m.drawing = drawing
		if concerning[r] {
			return m.readAll(r)
		}
		return []*Rule{m.read(r)}
	}, budget)
}

func (d *Dump) build(read func(*machine, *KernelRule) []*Rule, budget *Budget) *Table {
	t := &Table{Source: "nftables", Family: familyNames[d.Key.Family], Name: d.Key.Name}
	for _, c := range d.Chains {
		chain := t.Chain(c.Name)
		if c.Hook >= 0 {
			chain.Hook, chain.Type, chain.Priority, chain.Policy = cmp.Or(c.hook(), HookIngress), c.Type, c.Priority, c.Policy
			chain.Packets, chain.Counted, chain.Devices = c.Packets, c.Counted, c.Devices
		}
	}
	m := &machine{family: t.Family, links: d.Links, verdicts: d.verdicts(), sets: d.sets, budget: budget}
	for _, r := range d.Rules {
		c := t.Chain(r.Chain)
		rules := read(m, r)
		for _, rule := range rules {
			rule.ID = d.IDs[r]
		}
		c.Rules = append(c.Rules, rules...)
	}
	t.Short = budget.short
	return t
}

// concerning are the rules that matter to NAT: those that packets to be translated reach,
// and those that disable tracking or limit the MSS.
func (d *Dump) concerning() map[*KernelRule]bool {
	if d.concern != nil {
		return d.concern
	}
	t := d.Plain()
	onPath, place := map[string]bool{}, map[string]int{}
	for _, c := range t.Chains {
		if c.Type == "nat" {
			_, names := t.reach(c)
			for _, name := range append(names, c.Name) {
				onPath[name] = true
			}
		}
	}
	d.concern = map[*KernelRule]bool{}
	for _, r := range d.Rules {
		d.concern[r] = onPath[r.Chain] || t.Find(r.Chain).Rules[place[r.Chain]].Target.Outside()
		place[r.Chain]++
	}
	return d.concern
}

// SetsUsed names the sets and maps of rules that matter to NAT, which BySet can expand.
func (d *Dump) SetsUsed() map[string]bool {
	concerning := d.concerning()
	return d.setsOf(func(r *KernelRule) bool { return concerning[r] })
}

// EverySet names those of all rules.
func (d *Dump) EverySet() map[string]bool { return d.setsOf(func(*KernelRule) bool { return true }) }

func (d *Dump) setsOf(such func(*KernelRule) bool) map[string]bool {
	names := map[string]bool{}
	for _, r := range d.Rules {
		for _, e := range r.Exprs {
			if e.Name == "lookup" && such(r) {
				names[e.Data.Text(unix.NFTA_LOOKUP_SET)] = true
			}
		}
	}
	return names
}

// Reads reports whether a set's elements can be expanded, by what NFT_MSG_NEWSET says of it: they
// are not too many, and stay. Of those that do not the number must be known.
func (d *Dump) Reads(set netlink.Attrs, budget *Budget) bool {
	const count = 20 // NFTA_SET_COUNT, since Linux 6.16
	n := int(set.U32(count))
	stays := set.U32(unix.NFTA_SET_FLAGS)&(unix.NFT_SET_EVAL|unix.NFT_SET_TIMEOUT) == 0
	return (stays || d.AtOnce && set.Has(count)) && n <= mostPicked && budget.Elements(max(n, 1))
}

// AddSet makes a set known to BySet, unless it has too many elements, or one for all else.
func (d *Dump) AddSet(set netlink.Attrs, elements []Element, budget *Budget) {
	if slices.ContainsFunc(elements, Element.isCatchall) {
		return
	}
	if d.sets == nil {
		d.sets = map[string][]interval{}
	}
	all := intervals(elements, set.U32(unix.NFTA_SET_FLAGS)&unix.NFT_SET_INTERVAL != 0, true)
	if len(all) <= mostPicked && budget.Elements(len(all)) {
		d.sets[set.Text(unix.NFTA_SET_NAME)] = all
	}
}

// readAll returns what a rule means, once for each element of the sets and maps that it
// uses: as if it compared with that one, and had its value.
func (m *machine) readAll(r *KernelRule) []*Rule {
	paths := []map[int]interval{nil}
	for i := range r.Exprs {
		if i > 0 && r.Exprs[i-1].Name == "byteorder" { // hours, which are no addresses
			continue
		}
		elements := m.elementsOf(r.Exprs[i:])
		if len(elements) == 0 || m.drawing && m.draws(r, i) || len(elements)*len(paths) > mostPicked || !m.budget.Elements(len(elements)*len(paths)) {
			continue
		}
		var next []map[int]interval
		for _, path := range paths {
			for _, x := range elements {
				picked := maps.Clone(path)
				if picked == nil {
					picked = map[int]interval{}
				}
				picked[i] = x
				if r.Exprs[i].Name == "cmp" {
					picked[i+1] = interval{} // the other end of the range, which adds nothing
				}
				next = append(next, picked)
			}
		}
		paths = next
	}
	all := make([]*Rule, len(paths))
	for i, path := range paths {
		m.picked = path
		all[i] = m.read(r)
	}
	m.picked = nil
	return all
}

// elementsOf are those of the set that the first expression looks into; of a range, which
// is two comparisons, the prefixes that it consists of.
func (m *machine) elementsOf(rest []KernelExpr) []interval {
	a := rest[0].Data
	if rest[0].Name == "lookup" && a.U32(unix.NFTA_LOOKUP_FLAGS) == 0 {
		return m.sets[a.Text(unix.NFTA_LOOKUP_SET)]
	}
	if len(rest) < 2 || rest[0].Name != "cmp" || rest[1].Name != "cmp" {
		return nil
	}
	b := rest[1].Data
	if a.U32(unix.NFTA_CMP_OP) != unix.NFT_CMP_GTE || b.U32(unix.NFTA_CMP_OP) != unix.NFT_CMP_LTE || a.U32(unix.NFTA_CMP_SREG) != b.U32(unix.NFTA_CMP_SREG) {
		return nil
	}
	return addressIntervals(interval{first: a.Nested(unix.NFTA_CMP_DATA).Get(unix.NFTA_DATA_VALUE), last: b.Nested(unix.NFTA_CMP_DATA).Get(unix.NFTA_DATA_VALUE)})
}

// byMap returns what a rule means, once for each element of the map that its translation of
// sources takes values from; one rule for all of them if they are too many, which gives any
// address between theirs, and one without addresses if the map was not read.
func (m *machine) byMap(r *KernelRule, elements map[string][]Element, budget *Budget) (all []*Rule) {
	rule := m.read(r)
	of := m.fromMap
	if of == nil {
		return []*Rule{rule}
	}
	known, isRead := elements[of.set]
	if !isRead {
		return []*Rule{rule}
	}
	values := 0
	for i := range known {
		if !known[i].isEnd() {
			values++
		}
	}
	if values > maxExpanded {
		return []*Rule{of.span(rule, known)}
	}
	keyed, others := slices.Clone(known), []Element(nil)
	if i := slices.IndexFunc(keyed, Element.isCatchall); i >= 0 {
		others, keyed = keyed[i:i+1:i+1], slices.Concat(keyed[:i], keyed[i+1:])
	}
	list := intervals(keyed, slices.ContainsFunc(keyed, Element.isEnd), of.address)
	for _, e := range others {
		list = append(list, interval{value: e.data, comment: e.comment})
	}
	if len(list) > maxExpanded || !budget.Elements(len(list)) {
		return []*Rule{of.span(rule, known)}
	}
	for _, e := range list {
		m.picked = map[int]interval{of.at: e}
		one := m.read(r)
		m.picked = nil
		if one.Target.AddrsVary == rule.Target.AddrsVary && one.Target.PortsVary == rule.Target.PortsVary {
			return []*Rule{rule} // the value is not what the rule takes
		}
		if len(e.first) == 0 { // for all else
			one.Match.unknown(inSet)
		}
		one.Comment = cmp.Or(e.comment, one.Comment)
		all = append(all, one)
	}
	if len(all) == 0 {
		return []*Rule{rule}
	}
	slices.SortStableFunc(all[:len(all)-len(others)], func(a, b *Rule) int {
		return cmp.Or(a.Match.Source().Addr().Compare(b.Match.Source().Addr()), a.Target.First.Compare(b.Target.First))
	})
	return all
}

// span returns the rule as one that gives any address between those of a map's elements,
// or as it is if they have none.
func (of *lookup) span(rule *Rule, elements []Element) *Rule {
	all := *rule
	t := &all.Target
	for i := range elements {
		if elements[i].isEnd() {
			continue
		}
		value := elements[i].data.Get(unix.NFTA_DATA_VALUE)
		if of.size == 0 || max(of.first, of.last)+of.size > len(value) {
			return rule
		}
		first, _ := netip.AddrFromSlice(value[of.first : of.first+of.size])
		last, _ := netip.AddrFromSlice(value[of.last : of.last+of.size])
		if !t.First.IsValid() || first.Less(t.First) {
			t.First = first
		}
		if !t.Last.IsValid() || t.Last.Less(last) {
			t.Last = last
		}
	}
	return &all
}
