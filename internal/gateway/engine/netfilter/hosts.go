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

// A rule by hash, or with health, chooses its host in a map of its own, from a place (nat.Action.Seats) to the host
// there. When a host goes or comes, elements of this map change and nothing else.

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

// InUse returns, for each rule of a plan whose hosts are checked, which of them new connections go to. A rule whose map
// is not as natkit would have it, whichever of them were out, is missing.
func (Engine) InUse(ns *netns.Handle, p *gateway.Plan) (map[gateway.Ref][]bool, error) {
	all := map[gateway.Ref][]bool{}
	for r, e := range p.Checked() {
		found, _, err := read.Map(ns, Family, Table, placesName(r, &e.Action))
		if err != nil {
			return nil, err
		}
		if used := inUse(r, &e.Action, found); used != nil {
			all[r] = used
		}
	}
	return all, nil
}

// inUse are the hosts that stand in a map of places; nil where that is not of natkit's making.
func inUse(r gateway.Ref, a *nat.Action, found map[string][]byte) []bool {
	if found == nil {
		return nil
	}
	out := make([]bool, len(a.Backends))
	stands := map[string]bool{}
	for _, data := range found {
		stands[string(data)] = true
	}
	s := newPlaces(r, &nat.Action{Backends: a.Backends[:1], Check: a.Check}, nil)
	for i, b := range a.Backends {
		out[i] = !stands[string(target{first: b.Address, firstPort: b.Port}.data(s, b.Port > 0))]
	}
	gone, come := newPlaces(r, a, out).differ(found)
	if len(gone)+len(come) > 0 || len(found) == 0 && a.AllDown != nat.AllDownReject {
		return nil
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
		if there && string(was) == string(e.data) {
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

// ErrOtherHosts: a map of hosts is not as natkit would have it, whichever of them were out.
var ErrOtherHosts = errors.New("the map of its hosts is not as natkit wrote it")

// Use changes which of some rules' hosts new connections go to: elements of their maps, by one transaction, and nothing
// else. Connections that exist stay where they are. The error wraps ErrOtherHosts where a map was changed by hand, or is
// of another plan.
func (Engine) Use(ns *netns.Handle, p *gateway.Plan, out map[gateway.Ref][]bool) error {
	checked := p.Checked()
	for range attempts {
		messages, generation, err := changesOf(ns, checked, out)
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

// changesOf are the messages that leave out these hosts, and the generation of the maps that they were made for.
func changesOf(ns *netns.Handle, checked map[gateway.Ref]*gateway.Entry, out map[gateway.Ref][]bool) (all []message, generation uint32, err error) {
	for i, r := range slices.SortedFunc(maps.Keys(out), gateway.Ref.Compare) {
		e := checked[r]
		if e == nil {
			return nil, 0, fmt.Errorf("choose the hosts of %s: the plan does not check them", r)
		}
		s := newPlaces(r, &e.Action, out[r])
		found, g, err := read.Map(ns, Family, Table, s.name)
		if err != nil {
			return nil, 0, err
		}
		if inUse(r, &e.Action, found) == nil {
			return nil, 0, fmt.Errorf("choose the hosts of %s: %w (map %s)", r, ErrOtherHosts, s.name)
		}
		if i == 0 { // a later one shows that rules have changed since: the kernel refuses the transaction then
			generation = g
		}
		gone, come := s.differ(found)
		all = append(append(all, s.changes(unix.NFT_MSG_DELSETELEM, gone)...), s.changes(unix.NFT_MSG_NEWSETELEM, come)...)
	}
	return all, generation, nil
}
