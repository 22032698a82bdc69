// Package edit changes ports and options of a NAT rule in place.
package edit

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/ruleset/read"
	"golang.org/x/sys/unix"
)

// Options returns the ports and options of the rule of an ID, in whatever network
// namespace it is. The error is fs.ErrNotExist if the namespace or the rule is gone.
func Options(id string) (o nat.Options, err error) {
	err = onRule(id, func(r *rule) error {
		o = r.edit.Options()
		return nil
	})
	if err != nil {
		return o, fmt.Errorf("read NAT rule %s: %w", id, err)
	}
	return o, nil
}

// Changeable returns why the rule cannot be changed, without changing it.
func Changeable(id string) error {
	if err := onRule(id, (*rule).writable); err != nil {
		return fmt.Errorf("change NAT rule %s: %w", id, err)
	}
	return nil
}

// Change gives the rule these ports and options, in its place: one transaction, in which
// every other expression, counters and comment are kept. It applies to new connections.
func Change(id string, o nat.Options) (err error) {
	for range read.Attempts {
		err = onRule(id, func(r *rule) error { return r.replace(o) })
		if !errors.Is(err, errConcurrent) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("change NAT rule %s to %q: %w", id, o, err)
	}
	return nil
}

// rule is the rule that an ID names.
type rule struct {
	c          read.Conn
	generation uint32
	owned      bool // one socket alone may change its table
	edit       *ruleset.Edit
}

// onRule finds the rule and calls fn with it.
func onRule(id string, fn func(*rule) error) error {
	at, err := nat.ParseRuleID(id)
	if err != nil {
		return err
	}
	ns, err := netns.OfInode(at.Netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	c, err := read.Dial(ns)
	if err != nil {
		return err
	}
	defer c.Close()
	var dumps []*ruleset.Dump
	var owned map[ruleset.TableKey]bool
	generation, _, err := c.Settled(func() (err error) {
		dumps, owned, err = c.Dumps((*ruleset.KernelChain).IsNAT)
		return err
	})
	if err != nil {
		return err
	}
	for _, d := range dumps {
		d.Identify(at.Netns)
		for r, name := range d.IDs {
			if name == id {
				return fn(&rule{c, generation, owned[d.Key], ruleset.Editable(r)})
			}
		}
	}
	return gone(fmt.Sprintf("no rule of %s translates sources like that one any more", at.Place))
}

// gone is fs.ErrNotExist in other words.
type gone string

func (g gone) Error() string        { return string(g) }
func (g gone) Is(target error) bool { return target == fs.ErrNotExist }

// writable: a table with an owner can be changed by that one only (NFT_TABLE_F_OWNER).
func (r *rule) writable() error {
	if r.owned {
		return fmt.Errorf("table %s has an owner, which alone may change it (firewalld's NftablesTableOwner): change the rule there", r.edit.Rule.Key)
	}
	return nil
}

func (r *rule) replace(o nat.Options) error {
	if err := r.writable(); err != nil {
		return err
	}
	if r.edit.Options() == o {
		return nil
	}
	key := r.edit.Rule.Key
	protocols, err := r.edit.Rule.Protocols(func(set string) ([]ruleset.Element, error) { return r.c.Elements(key, set) })
	if err != nil {
		return concurrent(err)
	}
	if err := r.edit.Accepts(o, protocols); err != nil {
		return err
	}
	sets, err := r.copySets()
	if err != nil {
		return concurrent(err)
	}
	t, lookups := transaction{}, map[string]func(netlink.Attrs) []byte{}
	t.begin(r.generation)
	for name, s := range sets {
		t.add(unix.NFT_MSG_NEWSET, key.Family, unix.NLM_F_CREATE, s.message)
		for _, elements := range s.elements {
			b := netlink.AppendText(netlink.AppendText(nil, unix.NFTA_SET_ELEM_LIST_TABLE, key.Name), unix.NFTA_SET_ELEM_LIST_SET, s.name)
			b = netlink.AppendU32(b, unix.NFTA_SET_ELEM_LIST_SET_ID, s.id)
			t.add(unix.NFT_MSG_NEWSETELEM, key.Family, unix.NLM_F_CREATE, netlink.AppendAttr(b, unix.NFTA_SET_ELEM_LIST_ELEMENTS|unix.NLA_F_NESTED, elements))
		}
		lookups[name] = s.lookup
	}
	message, err := r.edit.Message(o, lookups)
	if err != nil {
		return err
	}
	t.add(unix.NFT_MSG_NEWRULE, key.Family, unix.NLM_F_REPLACE|unix.NLM_F_ACK, message)
	return t.commit(r.c)
}

// concurrent: what was there when the rules were read is gone.
func concurrent(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return errConcurrent
	}
	return err
}

// newSet is a copy of an anonymous set for the rule that takes another's place: such a set
// belongs to one rule (nf_tables_bind_set: EBUSY).
type newSet struct {
	id       uint32
	name     string // "__set%d", from which the kernel makes a name
	message  []byte // of NFT_MSG_NEWSET
	elements [][]byte
}

// lookup is a lookup's data, in the new set.
func (s *newSet) lookup(a netlink.Attrs) []byte {
	const setID = 4 // NFTA_LOOKUP_SET_ID
	return netlink.AppendU32(ruleset.ReplaceAttr(a, unix.NFTA_LOOKUP_SET, append([]byte(s.name), 0)), setID, s.id)
}

// copySets prepares copies of the anonymous sets that the rule uses, by name.
func (r *rule) copySets() (map[string]*newSet, error) {
	sets := map[string]*newSet{}
	for _, x := range r.edit.Rule.Exprs {
		name := x.Data.Text(unix.NFTA_LOOKUP_SET)
		if x.Name != "lookup" || sets[name] != nil {
			continue
		}
		s, err := copySet(r.c, r.edit.Rule.Key, name, uint32(len(sets)+1))
		if err != nil {
			return nil, fmt.Errorf("copy set %s of table %s: %w", name, r.edit.Rule.Key.Name, err)
		}
		if s != nil {
			sets[name] = s
		}
	}
	return sets, nil
}

// copySet returns nil for a set with a name of its own, which rules share.
func copySet(c read.Conn, key ruleset.TableKey, name string, id uint32) (*newSet, error) {
	const handle, kind, count = 16, 19, 20 // NFTA_SET_HANDLE, NFTA_SET_TYPE, NFTA_SET_COUNT
	a, err := c.Set(key, name)
	if err != nil || a.U32(unix.NFTA_SET_FLAGS)&unix.NFT_SET_ANONYMOUS == 0 {
		return nil, err
	}
	s := &newSet{id: id, name: strings.TrimRight(name, "0123456789") + "%d"}
	for _, x := range a {
		switch x.Kind {
		case unix.NFTA_SET_NAME:
			s.message = netlink.AppendText(s.message, unix.NFTA_SET_NAME, s.name)
		case unix.NFTA_SET_ID, handle, kind, count:
		default:
			s.message = append(s.message, x.Raw...)
		}
	}
	s.message = netlink.AppendU32(s.message, unix.NFTA_SET_ID, id)
	s.elements, err = c.RawElements(key, name)
	return s, err
}

// transaction is a batch of messages to nf_tables.
type transaction []byte

// begin requires the rule set to be of that generation (NFNL_BATCH_GENID).
func (t *transaction) begin(generation uint32) {
	t.message(unix.NFNL_MSG_BATCH_BEGIN, unix.NLM_F_REQUEST, 0, unix.NFNL_SUBSYS_NFTABLES, netlink.AppendU32(nil, unix.NFNL_BATCH_GENID, generation))
}

func (t *transaction) add(msg int, family uint8, flags uint16, body []byte) {
	t.message(uint16(unix.NFNL_SUBSYS_NFTABLES<<8|msg), unix.NLM_F_REQUEST|flags, family, 0, body)
}

func (t *transaction) message(kind, flags uint16, family uint8, resource uint16, body []byte) {
	start := len(*t)
	b := netlink.AppendNetfilter(netlink.Begin(*t, kind, flags, 0), family, resource)
	*t = netlink.End(append(b, body...), start)
}

// errConcurrent: the rule set is no longer the one that the transaction was made for.
var errConcurrent = errors.New("another program changed the rules meanwhile")

// commit applies all of the transaction, or nothing.
func (t *transaction) commit(c read.Conn) error {
	t.message(unix.NFNL_MSG_BATCH_END, unix.NLM_F_REQUEST, 0, unix.NFNL_SUBSYS_NFTABLES, nil)
	refused, err := c.Transact(*t)
	if err != nil || len(refused) == 0 {
		return err
	}
	switch err := refused[0]; {
	case errors.Is(err, unix.ERESTART), errors.Is(err, unix.EAGAIN):
		return errConcurrent
	case errors.Is(err, unix.EPERM):
		return netns.Denied(unix.EPERM, netns.NetAdmin)
	default:
		return fmt.Errorf("the kernel refuses the rule: %w; change it with the program that made it", err)
	}
}

// Applier reads and writes ports and options of NAT rules for package tune/apply, each in
// the network namespace that its target names. A reboot resets them, as it does all rules.
type Applier struct{}

// Read returns a rule's ports and options as nat.Options writes them.
func (Applier) Read(target string) (string, error) {
	o, err := Options(target)
	return o.String(), err
}

// Writable is Changeable.
func (Applier) Writable(target string) error { return Changeable(target) }

// Write gives a rule other ports and options.
func (Applier) Write(target, value string) error {
	o, err := nat.ParseOptions(value)
	if err != nil {
		return err
	}
	return Change(target, o)
}

// Honours: the kernel changes nothing about them.
func (Applier) Honours(_, asked, got string) bool { return asked == got }

// Durable is false.
func (Applier) Durable() bool { return false }
