package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/nftables"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset/read"
	"golang.org/x/sys/unix"
)

// placing is a map from a place (nat.Choice) to who is there: to hosts, of a rule by hash or with health, or to the chains
// of uplinks. When one goes or comes, elements of this map change and nothing else.
type placing struct {
	// of says whose it is.
	of string
	// without makes the map, those left out that are out, and what else changes with it.
	without func(out []bool) []*set
	// out are those that these sets leave out.
	out func(found []map[string][]byte) []bool
	// mayBeEmpty: where all are out the map has no elements.
	mayBeEmpty bool
}

// checkedPrefix begins the names of maps whose hosts are checked, hostsPrefix those of others.
const (
	checkedPrefix = "checked-"
	hostsPrefix   = "hosts-"
)

// AllDownComment is that of rules that reject what no host is up for.
const AllDownComment = "all-down"

func placesName(r gateway.Ref, a *nat.Action) string {
	prefix := hostsPrefix
	if a.Check != nil {
		prefix = checkedPrefix
	}
	return fmt.Sprintf("%s%s-%d", prefix, r.List, r.Index)
}

// placesOf is the map of a group's rule, which all groups of the rule share.
func (t *table) placesOf(g *group) *set {
	r := g.entries[0].rule
	name := placesName(r, g.does)
	if t.hosts[name] == nil {
		if t.hosts == nil {
			t.hosts = map[string]*set{}
		}
		if t.made[name] == nil {
			t.made[name] = newPlaces(r, g.does, t.out[r])
		}
		t.hosts[name] = t.add(t.made[name])
	}
	return t.hosts[name]
}

// newPlaces is the map of a rule, without the hosts that are out.
func newPlaces(r gateway.Ref, a *nat.Action, out []bool) *set {
	f, toPort := familyOf(a.Backends[0].Address), a.Backends[0].Port > 0
	s := &set{name: placesName(r, a), key: nftables.TypeInteger, data: f.address, flags: unix.NFT_SET_MAP, size: uint32(a.Places()), places: true, about: r.Label()}
	if toPort {
		s.data = concat(f.address, nftables.TypeInetService)
	}
	data, keys := make([][]byte, len(a.Backends)), make([]byte, 0, 4*s.size)
	s.elements = make([]element, 0, s.size)
	for i, b := range a.Backends {
		data[i] = target{first: b.Address, firstPort: b.Port}.data(s, toPort)
	}
	for place, i := range a.Seats(out) {
		if keys = binary.NativeEndian.AppendUint32(keys, uint32(place)); i != nat.Nobody {
			s.elements = append(s.elements, element{key: keys[4*place : 4*place+4], data: data[i]})
		}
	}
	return s
}

// placingOf is that of a rule whose hosts are checked.
func placingOf(r gateway.Ref, a *nat.Action) *placing {
	var values [][]byte
	one := newPlaces(r, &nat.Action{Backends: a.Backends[:1], Check: a.Check}, nil)
	for _, b := range a.Backends {
		values = append(values, target{first: b.Address, firstPort: b.Port}.data(one, b.Port > 0))
	}
	return &placing{of: r.String(), mayBeEmpty: a.AllDown == nat.AllDownReject,
		without: func(out []bool) []*set { return []*set{newPlaces(r, a, out)} },
		out: func(found []map[string][]byte) []bool {
			stands, out := map[string]bool{}, make([]bool, len(values))
			for _, data := range found[0] {
				stands[string(data)] = true
			}
			for i, value := range values {
				out[i] = !stands[string(value)]
			}
			return out
		}}
}

// InUse returns, for each rule of a plan whose hosts are checked, which of them new connections go to. A rule whose map
// is not as natkit would have it, whichever of them were out, is missing.
func (Engine) InUse(ns *netns.Handle, p *gateway.Plan) (map[gateway.Ref][]bool, error) {
	all := map[gateway.Ref][]bool{}
	for r, e := range p.Checked() {
		used, err := placingOf(r, &e.Action).used(ns)
		if err != nil {
			return nil, err
		}
		if used != nil {
			all[r] = used
		}
	}
	return all, nil
}

// used are those that are not left out; nil where the map is not of natkit's making.
func (c *placing) used(ns *netns.Handle) ([]bool, error) {
	found, _, err := c.read(ns)
	if err != nil {
		return nil, err
	}
	return c.usedOf(found), nil
}

// read returns the elements of the map, and of what else changes with it, and the generation of the first.
func (c *placing) read(ns *netns.Handle) (found []map[string][]byte, generation uint32, err error) {
	for i, s := range c.without(nil) {
		one, g, err := read.Map(ns, Family, Table, s.name)
		if err != nil {
			return nil, 0, err
		}
		if found = append(found, one); i == 0 {
			generation = g
		}
	}
	return found, generation, nil
}

// usedOf is used, of what was read.
func (c *placing) usedOf(found []map[string][]byte) []bool {
	if len(found[0]) == 0 && (found[0] == nil || !c.mayBeEmpty) {
		return nil
	}
	out := c.out(found)
	for i, s := range c.without(out) {
		if gone, come := s.differ(found[i]); found[i] == nil || len(gone)+len(come) > 0 {
			return nil
		}
	}
	for i := range out {
		out[i] = !out[i]
	}
	return out
}

// differ are the elements that a map has and s has not, or with another value, and the other way round.
func (s *set) differ(found map[string][]byte) (gone, come []element) {
	wanted := map[string]bool{}
	for _, e := range s.elements {
		was, there := found[string(e.key)]
		wanted[string(e.key)] = true
		if there && string(was) == string(e.value()) {
			continue
		}
		if come = append(come, e); there {
			gone = append(gone, element{key: e.key})
		}
	}
	for key := range found {
		if !wanted[key] {
			gone = append(gone, element{key: []byte(key)})
		}
	}
	return gone, come
}

// value is what read.Map returns of an element.
func (e *element) value() []byte {
	if e.chain != "" {
		return []byte(read.Jump(e.chain))
	}
	return e.data
}

// ErrOtherHosts: a map of places is not as natkit would have it, whichever of those in it were out.
var ErrOtherHosts = errors.New("the map of its hosts is not as natkit wrote it")

// Use changes which of some rules' hosts new connections go to: elements of their maps, by one transaction, and nothing
// else. Connections that exist stay where they are. The error wraps ErrOtherHosts where a map was changed by hand, or is
// of another plan.
func (Engine) Use(ns *netns.Handle, p *gateway.Plan, out map[gateway.Ref][]bool) error {
	checked := p.Checked()
	var all []chosen
	for _, r := range slices.SortedFunc(maps.Keys(out), gateway.Ref.Compare) {
		e := checked[r]
		if e == nil {
			return fmt.Errorf("choose the hosts of %s: the plan does not check them", r)
		}
		all = append(all, chosen{placingOf(r, &e.Action), out[r]})
	}
	return choose(ns, all)
}

// chosen is a map of places, and who is to be left out.
type chosen struct {
	*placing
	leave []bool
}

// choose leaves some out of choices, by one transaction.
func choose(ns *netns.Handle, all []chosen) error {
	for range attempts {
		messages, generation, err := changesOf(ns, all)
		if err != nil || len(messages) == 0 {
			return err
		}
		err = transaction(ns, messages, generation)
		if errors.Is(err, unix.ERESTART) {
			continue
		}
		if err == nil {
			advance(ns, generation)
		}
		return err
	}
	return fmt.Errorf("choose hosts: other programs changed rules %d times meanwhile: %w", attempts, unix.ERESTART)
}

// changesOf are the messages that leave these out, and the generation of the maps that they were made for.
func changesOf(ns *netns.Handle, all []chosen) (messages []message, generation uint32, err error) {
	for i, c := range all {
		found, g, err := c.read(ns)
		if err != nil {
			return nil, 0, err
		}
		sets := c.without(c.leave)
		if c.usedOf(found) == nil {
			return nil, 0, fmt.Errorf("choose the hosts of %s: %w (map %s)", c.of, ErrOtherHosts, sets[0].name)
		}
		if i == 0 { // a later one shows that rules have changed since: the kernel refuses the transaction then
			generation = g
		}
		for i, s := range sets {
			gone, come := s.differ(found[i])
			messages = append(append(messages, s.changes(unix.NFT_MSG_DELSETELEM, gone)...), s.changes(unix.NFT_MSG_NEWSETELEM, come)...)
		}
	}
	return messages, generation, nil
}
