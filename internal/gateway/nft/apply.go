// Package nft carries out a gateway.Plan by nftables: it writes, reads and removes
// the table "inet natkit", and touches no other.
package nft

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/natrules"
	"github.com/natkit/natkit/internal/netns"
)

// Apply puts a plan in force in a namespace (nil: this one): one transaction takes the
// place of all of natkit's table, so that packets meet the old rules or the new ones.
// Connections stay as they were translated. Needs CAP_NET_ADMIN in that namespace. With
// ErrUnsealed it is in force all the same.
func Apply(ns *netns.Handle, p *gateway.Plan) error {
	return sealed(ns, func() error { return apply(ns, p) })
}

func apply(ns *netns.Handle, p *gateway.Plan) error {
	there, err := present(ns, p.Flowtable)
	if err != nil {
		return err
	}
	return write(p, there, func(t *table) error { return commit(ns, t) })
}

// write makes the table of a plan as this kernel can have it, with a flowtable over some
// interfaces, by a function that hands it to the kernel.
func write(p *gateway.Plan, flowtable []string, hand func(*table) error) error {
	if err := valid(p); err != nil {
		return err
	}
	if err := old(p); err != nil {
		return err
	}
	h := host{flowtable: flowtable, netmap: true, flowCounts: p.Accounting}
	err := hand(build(p, h))
	for h.without(err) {
		err = hand(build(p, h))
	}
	return err
}

// without notes what the kernel lacks and the table can be written without; false
// where it is something else, or nothing.
func (h *host) without(err error) bool {
	var m *Missing
	switch {
	case !errors.As(err, &m):
		return false
	case m.What == "nat prefix" && h.netmap:
		h.netmap = false
	case m.What == "flowtable" && h.flowCounts:
		h.flowCounts = false
	default:
		return false
	}
	return true
}

// present are the interfaces that there are in the namespace.
func present(ns *netns.Handle, names []string) (there []string, err error) {
	if len(names) == 0 {
		return nil, nil
	}
	look := func() error {
		all, err := net.Interfaces()
		for _, i := range all {
			if slices.Contains(names, i.Name) {
				there = append(there, i.Name)
			}
		}
		return err
	}
	if ns == nil {
		err = look()
	} else {
		err = ns.Do(look)
	}
	if err != nil {
		return nil, fmt.Errorf("list interfaces for the flowtable: %w", err)
	}
	slices.Sort(there)
	return there, nil
}

// attempts is how often an apply that keeps something, or is to be sealed, begins again as
// others change rules meanwhile.
const attempts = 5

func commit(ns *netns.Handle, t *table) error {
	for range attempts {
		was, err := t.keeps(ns)
		if err != nil {
			return err
		}
		err = transact(ns, t, was)
		if was == nil || err == nil {
			return err
		}
		if !errors.Is(err, unix.ERESTART) {
			break // then without what was to be kept
		}
	}
	for _, s := range t.sets {
		s.there = false
	}
	return transact(ns, t, nil)
}

func transact(ns *netns.Handle, t *table, was *natrules.Table) error {
	messages, err := t.messages(was)
	if err != nil {
		return err
	}
	generation := uint32(0)
	if was != nil {
		generation = was.Generation
	}
	return transaction(ns, messages, generation)
}

// transaction carries messages out, all of them or none; of a generation other than 0
// see batchOf.
func transaction(ns *netns.Handle, messages []message, generation uint32) error {
	s, err := dial(ns)
	if err != nil {
		return err
	}
	defer s.close()
	refused, err := s.send(batchOf(messages, generation, true), len(messages))
	if err != nil {
		return err
	}
	return inWords(ns, messages, refused)
}

// Remove takes natkit's table away; nothing where there is none. Connections that it
// translated stay translated only where another table has a rule of NAT: with the last
// one the kernel stops translating (nf_nat_unregister_fn) or tracking
// (nf_ct_netns_put) altogether.
func Remove(ns *netns.Handle) error {
	err := transaction(ns, []message{tableMessage(unix.NFT_MSG_DELTABLE)}, 0)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove the gateway's rules: %w", err)
	}
	return nil
}
