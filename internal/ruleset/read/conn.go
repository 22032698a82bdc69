// Package read reads the rules of netfilter in a network namespace by the kernel's own
// interfaces: nf_tables (nftables and iptables-nft) and iptables-legacy.
package read

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset"
	"golang.org/x/sys/unix"
)

// Attempts bounds how often rules are read again while others change them.
const Attempts = 10

const tableOwner = 2 // NFT_TABLE_F_OWNER

// Conn queries nf_tables in one namespace.
type Conn struct {
	*socket.Conn
	links map[uint32]string
}

// Dial opens a Conn in a namespace; nil is the calling thread's.
func Dial(ns *netns.Handle) (Conn, error) {
	c := Conn{links: map[uint32]string{}}
	err := ns.Do(func() error {
		all, err := net.Interfaces()
		for _, l := range all {
			c.links[uint32(l.Index)] = l.Name
		}
		return err
	})
	if err != nil {
		return c, fmt.Errorf("list interfaces: %w", err)
	}
	c.Conn, err = socket.Dial(ns, unix.NETLINK_NETFILTER)
	return c, err
}

// over reads by a connection of its own, and nothing if the kernel has no nfnetlink.
func over[T any](ns *netns.Handle, read func(Conn) (T, error)) (nothing T, err error) {
	c, err := Dial(ns)
	if err != nil {
		return nothing, unless(err, unix.EPROTONOSUPPORT)
	}
	defer c.Close()
	return read(c)
}

// errAbsent: the kernel has no nf_tables, and so no rules of it.
var errAbsent = errors.New("this kernel has no nf_tables")

// explain adds what to do about the kernel's refusal.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return netns.Denied(err, netns.NetAdmin)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT):
		// nfnetlink_rcv_msg does not know the subsystem.
		return errAbsent
	}
	return err
}

// unless is err if it is not that one.
func unless(err, that error) error {
	if errors.Is(err, that) {
		return nil
	}
	return err
}

// ask sends a request (unix.NFT_MSG_GET*) and returns the bodies of the answers.
func (c Conn) ask(msg int, family uint8, flags uint16, request []byte) (bodies [][]byte, err error) {
	answers, err := c.Ask(uint16(unix.NFNL_SUBSYS_NFTABLES<<8|msg), flags, append(netlink.AppendNetfilter(nil, family, 0), request...))
	for _, m := range answers {
		bodies = append(bodies, m.Body)
	}
	return bodies, err
}

// dump asks for all of a kind and parses the bodies of the answers.
func dump[T any](c Conn, msg int, family uint8, request []byte, parse func(body []byte) (T, error)) (all []T, err error) {
	bodies, err := c.ask(msg, family, unix.NLM_F_DUMP, request)
	if err != nil {
		return nil, err
	}
	for _, b := range bodies {
		one, err := parse(b)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// of asks for the attributes of all of a kind that belong to a table; kernels that do not
// filter return more. Attribute 1 is the table's name in all of these messages.
func (c Conn) of(key ruleset.TableKey, msg int, request []byte) (all []netlink.Attrs, err error) {
	if request == nil {
		request = netlink.AppendText(nil, 1, key.Name)
	}
	_, err = dump(c, msg, key.Family, request, func(b []byte) (none struct{}, err error) {
		family, a, err := ruleset.Body(b)
		if err == nil && family == key.Family && a.Text(1) == key.Name {
			all = append(all, a)
		}
		return none, err
	})
	return all, err
}

// Generation is the package's, asked by an open Conn.
func (c Conn) Generation() (uint32, error) {
	answers, err := c.ask(unix.NFT_MSG_GETGEN, unix.AF_UNSPEC, 0, nil)
	if err != nil {
		return 0, err
	}
	for _, b := range answers {
		if _, a, err := ruleset.Body(b); err == nil && a.Has(unix.NFTA_GEN_ID) {
			return a.U32(unix.NFTA_GEN_ID), nil
		}
	}
	return 0, errors.New("the kernel returns no generation of its rules")
}

// Generation counts the transactions on the rule set of a namespace (nil: this one); 0 if
// the kernel has no nf_tables. Each one that changes something adds 1 (nf_tables_commit).
// Requires CAP_NET_ADMIN in that namespace.
func Generation(ns *netns.Handle) (uint32, error) {
	return over(ns, func(c Conn) (uint32, error) {
		generation, err := c.Generation()
		return generation, unless(explain(err), errAbsent)
	})
}

// Settled repeats read until the rules did not change meanwhile, and returns their
// generation; there is false if the kernel has no nf_tables.
func (c Conn) Settled(read func() error) (generation uint32, there bool, err error) {
	for range Attempts {
		before, err := c.Generation()
		if err = explain(err); err != nil {
			return 0, false, unless(err, errAbsent)
		}
		readErr := read()
		after, err := c.Generation()
		switch {
		case err != nil:
			return 0, false, explain(err)
		case before == after:
			return before, true, explain(readErr)
		}
	}
	return 0, false, fmt.Errorf("another program changed the rules %d times while they were read: try again when it has ended", Attempts)
}

// tables are the flags of all tables.
func (c Conn) tables() (map[ruleset.TableKey]uint32, error) {
	flags := map[ruleset.TableKey]uint32{}
	_, err := dump(c, unix.NFT_MSG_GETTABLE, unix.AF_UNSPEC, nil, func(b []byte) (none struct{}, err error) {
		family, a, err := ruleset.Body(b)
		const name, bits = 1, 2 // NFTA_TABLE_NAME, NFTA_TABLE_FLAGS
		flags[ruleset.TableKey{Family: family, Name: a.Text(name)}] = a.U32(bits)
		return none, err
	})
	return flags, err
}

// Dumps reads the tables that have such a chain, in the order of these, with the elements
// of the maps that they need; owned is whether one socket alone may change a table.
func (c Conn) Dumps(such func(*ruleset.KernelChain) bool) (all []*ruleset.Dump, owned map[ruleset.TableKey]bool, err error) {
	chains, err := dump(c, unix.NFT_MSG_GETCHAIN, unix.AF_UNSPEC, nil, ruleset.ParseChain)
	if err != nil {
		return nil, nil, err
	}
	flags, err := c.tables()
	if err != nil {
		return nil, nil, err
	}
	owned = map[ruleset.TableKey]bool{}
	for i := range chains {
		key := chains[i].Key
		if !such(&chains[i]) || flags[key]&unix.NFT_TABLE_F_DORMANT != 0 || slices.ContainsFunc(all, func(d *ruleset.Dump) bool { return d.Key == key }) {
			continue // chains of dormant tables are at no hook
		}
		d, err := c.table(key, chains)
		if err != nil {
			return nil, nil, err
		}
		all, owned[key] = append(all, d), flags[key]&tableOwner != 0
	}
	return all, owned, nil
}

func (c Conn) table(key ruleset.TableKey, chains []ruleset.KernelChain) (*ruleset.Dump, error) {
	d := &ruleset.Dump{Key: key, Links: c.links, Elements: map[string][]ruleset.Element{}}
	for _, chain := range chains {
		if chain.Key == key {
			d.Chains = append(d.Chains, chain)
		}
	}
	rules, err := dump(c, unix.NFT_MSG_GETRULE, key.Family, netlink.AppendText(nil, unix.NFTA_RULE_TABLE, key.Name), ruleset.ParseRule)
	if err != nil {
		return nil, fmt.Errorf("read rules of table %s: %w", key, err)
	}
	d.Rules = slices.DeleteFunc(rules, func(r *ruleset.KernelRule) bool { return r.Key != key })
	for _, name := range d.NeededMaps() {
		if key.IsGateway() && ruleset.IsGatewaySet(name) {
			continue // pairs, of which there may be a million
		}
		if d.Elements[name], err = c.Elements(key, name); err != nil {
			return nil, fmt.Errorf("read map %s of table %s: %w", name, key, err)
		}
	}
	return d, nil
}

// sets reads the sets and maps that are used, except those whose elements expire, those that
// have one for all else, and those that are too large.
func (c Conn) sets(d *ruleset.Dump, used map[string]bool, budget *ruleset.Budget) error {
	if len(used) == 0 {
		return nil
	}
	sets, err := c.of(d.Key, unix.NFT_MSG_GETSET, nil)
	if err != nil {
		return fmt.Errorf("read sets of table %s: %w", d.Key, err)
	}
	for _, a := range sets {
		name := a.Text(unix.NFTA_SET_NAME)
		if !used[name] || !d.Reads(a, budget) {
			continue
		}
		elements, err := c.Elements(d.Key, name)
		if err != nil {
			return fmt.Errorf("read set %s of table %s: %w", name, d.Key, err)
		}
		d.AddSet(a, elements, budget)
	}
	return nil
}

// Elements reads the elements of a set or map.
func (c Conn) Elements(key ruleset.TableKey, set string) (all []ruleset.Element, err error) {
	lists, err := c.RawElements(key, set)
	for _, list := range lists {
		some, err := ruleset.ParseElements(list)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, err
}

// RawElements reads the elements of a set: NFTA_SET_ELEM_LIST_ELEMENTS of each message.
func (c Conn) RawElements(key ruleset.TableKey, set string) (all [][]byte, err error) {
	request := netlink.AppendText(netlink.AppendText(nil, unix.NFTA_SET_ELEM_LIST_TABLE, key.Name), unix.NFTA_SET_ELEM_LIST_SET, set)
	bodies, err := c.of(key, unix.NFT_MSG_GETSETELEM, request)
	for _, a := range bodies {
		all = append(all, a.Get(unix.NFTA_SET_ELEM_LIST_ELEMENTS))
	}
	return all, err
}

// Set reads what the kernel returns of one set.
func (c Conn) Set(key ruleset.TableKey, name string) (netlink.Attrs, error) {
	answers, err := c.ask(unix.NFT_MSG_GETSET, key.Family, 0, netlink.AppendText(netlink.AppendText(nil, unix.NFTA_SET_TABLE, key.Name), unix.NFTA_SET_NAME, name))
	if err != nil {
		return nil, err
	}
	if len(answers) == 0 {
		return nil, unix.ENOENT
	}
	_, a, err := ruleset.Body(answers[0])
	return a, err
}
