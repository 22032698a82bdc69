package read

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/mdlayher/netlink"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/privilege"
	"github.com/natkit/natkit/internal/tune"
	"golang.org/x/sys/unix"
)

// Options reads the ports and options of the rule that a Target names, in
// whatever network namespace it is. The error is fs.ErrNotExist where the
// namespace or the rule is no longer there.
func Options(target string) (tune.NATOptions, error) {
	var o tune.NATOptions
	err := onRule(target, func(_ conn, _ *ruleset, e edit) error {
		o = e.options()
		return nil
	})
	if err != nil {
		return o, fmt.Errorf("read NAT rule %s: %w", target, err)
	}
	return o, nil
}

// Changeable says why the rule cannot be changed, without changing it.
func Changeable(target string) error {
	err := onRule(target, func(_ conn, s *ruleset, e edit) error { return s.writable(e.rule) })
	if err != nil {
		return fmt.Errorf("change NAT rule %s: %w", target, err)
	}
	return nil
}

// Change gives the rule these ports and options, in its place: one transaction,
// in which every other expression, counters and comment are kept. It holds for
// connections to come.
func Change(target string, o tune.NATOptions) error {
	var err error
	for range attempts {
		err = onRule(target, func(c conn, s *ruleset, e edit) error { return c.replace(s, e, o) })
		if !errors.Is(err, errConcurrent) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("change NAT rule %s to %q: %w", target, o, err)
	}
	return nil
}

// onRule finds the rule and calls fn with it.
func onRule(target string, fn func(conn, *ruleset, edit) error) error {
	t, err := tune.ParseNATTarget(target)
	if err != nil {
		return err
	}
	ns, err := netns.OfInode(t.Netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	c, err := dial(ns)
	if err != nil {
		return err
	}
	defer c.Close()
	set, err := c.ruleset(nil)
	if err != nil {
		return err
	}
	set.identify(t.Netns)
	for _, table := range set.tables {
		for _, r := range table.rules {
			if table.targets[r] == target {
				e, _ := editable(r)
				return fn(c, set, e)
			}
		}
	}
	return gone(fmt.Sprintf("no rule of %s translates sources like that one any more", t.Place))
}

// gone is fs.ErrNotExist in other words.
type gone string

func (g gone) Error() string        { return string(g) }
func (g gone) Is(target error) bool { return target == fs.ErrNotExist }

// writable: a table with an owner obeys only that one (NFT_TABLE_F_OWNER).
func (s *ruleset) writable(r *kernelRule) error {
	for _, t := range s.tables {
		if t.key == (tableKey{r.family, r.table}) && t.owned {
			return fmt.Errorf("table %s has an owner, which alone may change it (firewalld's NftablesTableOwner): change the rule there", t.key)
		}
	}
	return nil
}

func (c conn) replace(s *ruleset, e edit, o tune.NATOptions) error {
	if err := s.writable(e.rule); err != nil {
		return err
	}
	if e.options() == o {
		return nil
	}
	key := tableKey{e.rule.family, e.rule.table}
	protocols, err := c.protocols(key, e.rule)
	if err != nil {
		return concurrent(err)
	}
	if err := e.accepts(o, protocols); err != nil {
		return err
	}
	sets, err := c.copySets(e.rule)
	if err != nil {
		return concurrent(err)
	}
	exprs, err := e.expressions(o, sets)
	if err != nil {
		return err
	}
	var batch []message
	for _, set := range sets {
		batch = append(batch, set.messages(key)...)
	}
	batch = append(batch, message{unix.NFT_MSG_NEWRULE, e.rule.family, netlink.Replace, e.message(exprs)})
	return explainChange(c.commit(s.generation, batch))
}

// concurrent: what was there when the rules were read is gone.
func concurrent(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return errConcurrent
	}
	return err
}

func explainChange(err error) error {
	var errno unix.Errno
	switch {
	case errors.Is(err, unix.EPERM):
		return privilege.Denied(unix.EPERM, privilege.NetAdmin)
	case errors.As(err, &errno):
		return fmt.Errorf("the kernel refuses the rule: %w; change it with the program that made it", errno)
	}
	return err
}

// message is the rule with other expressions, in its place.
func (e *edit) message(exprs []byte) []byte {
	var b []byte
	for _, a := range e.rule.attrs {
		switch a.kind {
		case nftRuleTable, nftRuleChain, nftRuleHandle, nftRuleUserdata:
			b = append(b, a.raw...)
		}
	}
	b = e.appendCompat(b)
	return appendAttr(b, nftRuleExprs|nlaNested, exprs)
}

// appendCompat tells the matches and targets of x_tables what protocol the rule is
// for, which the kernel asks for and does not tell (NFTA_RULE_COMPAT).
func (e *edit) appendCompat(b []byte) []byte {
	m := machine{family: familyNames[e.rule.family], verdicts: func(string) []string { return nil }}
	s := m.readStep(e.rule)
	xt := slices.ContainsFunc(e.rule.exprs, func(x kernelExpr) bool { return x.name == "match" || x.name == "target" })
	if !xt || s.proto == 0 {
		return b
	}
	flags := uint32(0)
	if s.protoNot {
		flags = nftCompatInverted
	}
	return appendAttr(b, nftRuleCompat|nlaNested, appendU32(appendU32(nil, nftCompatProto, uint32(s.proto)), nftCompatFlags, flags))
}

// edit is where a rule has the ports and options of its translation.
type edit struct {
	rule *kernelRule
	at   int // the expression that translates
	// portMin and portMax are the immediates that load the ports, -1 where there
	// are none; the same for a single port.
	portMin, portMax int
	// xt is the range of an x_tables target, blob its structure.
	xt   *natRange
	blob []byte
}

// editable finds them; false where a rule does not translate the source, or in a
// way in which natkit cannot change it: twice, or to ports that a map gives.
func editable(r *kernelRule) (edit, bool) {
	e := edit{rule: r, at: -1, portMin: -1, portMax: -1}
	for i, x := range r.exprs {
		if x.name == "target" && xtKinds[x.data.text(nftXtName)] == "" || x.name != "target" && natAttrsOf[x.name].flags == 0 {
			continue
		}
		if e.at >= 0 {
			return e, false
		}
		e.at = i
	}
	if e.at < 0 {
		return e, false
	}
	if x := r.exprs[e.at]; x.name == "target" {
		return e, e.findRange(x.data)
	}
	return e, e.findPorts()
}

// findRange: NETMAP and what translates the destination are left alone.
func (e *edit) findRange(a attrs) bool {
	name := a.text(nftXtName)
	if name != "MASQUERADE" && name != "SNAT" {
		return false
	}
	e.blob = a.get(nftXtInfo)
	n, ok := xtRange(name, a.u32(nftXtRevision), e.blob, e.rule.family == familyIP6)
	e.xt = &n
	return ok
}

func (e *edit) findPorts() bool {
	x := e.rule.exprs[e.at]
	n := natAttrsOf[x.name]
	if x.name == "redir" || x.name == "nat" && x.data.u32(1) != 0 { // NFT_NAT_SNAT
		return false
	}
	if x.data.u32(n.flags)&rangeNetmap != 0 {
		return false
	}
	if !x.data.has(n.portMin) {
		return true
	}
	e.portMin = e.loader(x.data.u32(n.portMin))
	e.portMax = e.portMin
	if x.data.has(n.portMax) {
		e.portMax = e.loader(x.data.u32(n.portMax))
	}
	return e.portMin >= 0 && e.portMax >= 0
}

// loader is the immediate that a register has its value from; -1 where it is not
// among those that stand right before the translation, which nothing else reads.
func (e *edit) loader(register uint32) int {
	for i := e.at - 1; i >= 0; i-- {
		x := e.rule.exprs[i]
		switch dreg := x.data.u32(nftImmediateDreg); {
		case x.name == "counter":
		case x.name != "immediate" || dreg == 0:
			return -1
		case slot(dreg) == slot(register):
			return i
		}
	}
	return -1
}

func (e *edit) portImmediate(i int) bool { return i >= 0 && (i == e.portMin || i == e.portMax) }

// portFlags are those that a change of options changes.
const portFlags = rangePorts | rangeRandom | rangeFullyRandom | rangePersistent

// masked is the expression that translates, without ports and options.
func (e *edit) masked() []byte {
	x := e.rule.exprs[e.at]
	if e.xt == nil {
		n := natAttrsOf[x.name]
		return binary.BigEndian.AppendUint32(without(x.data, n.portMin, n.portMax, n.flags), x.data.u32(n.flags)&rangeNetmap)
	}
	return append(without(x.data, nftXtInfo), e.withRange(0, 0, 0)...)
}

// withRange is the target's structure with other ports and options.
func (e *edit) withRange(flags uint32, first, last uint16) []byte {
	b := bytes.Clone(e.blob)
	binary.NativeEndian.PutUint32(b[e.xt.flagsAt:], e.xt.flags&^portFlags|flags)
	binary.BigEndian.PutUint16(b[e.xt.portsAt:], first)
	binary.BigEndian.PutUint16(b[e.xt.portsAt+2:], last)
	return b
}

// message is one of a transaction.
type message struct {
	kind   int // NFT_MSG_*
	family uint8
	flags  netlink.HeaderFlags
	body   []byte
}

// errConcurrent: the rule set is no longer the one that the transaction was made for.
var errConcurrent = errors.New("another program changed the rules meanwhile")

// commit makes all of a transaction, or nothing, and only while the rule set is
// still of that generation (NFNL_BATCH_GENID). The last message is acknowledged
// when the transaction is in force.
func (c conn) commit(generation uint32, messages []message) error {
	subsystem := binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, unix.NFNL_SUBSYS_NFTABLES)
	batch := []netlink.Message{{
		Header: netlink.Header{Type: unix.NFNL_MSG_BATCH_BEGIN, Flags: netlink.Request},
		Data:   appendU32(subsystem[:4:4], nfnlBatchGenID, generation),
	}}
	for i, m := range messages {
		flags := netlink.Request | m.flags
		if i == len(messages)-1 {
			flags |= netlink.Acknowledge
		}
		batch = append(batch, netlink.Message{
			Header: netlink.Header{Type: nftType(m.kind), Flags: flags},
			Data:   append(header(m.family), m.body...),
		})
	}
	batch = append(batch, netlink.Message{Header: netlink.Header{Type: unix.NFNL_MSG_BATCH_END, Flags: netlink.Request}, Data: subsystem})
	if _, err := c.SendMessages(batch); err != nil {
		return fmt.Errorf("send the transaction: %w", err)
	}
	_, err := c.Receive() // the acknowledgement, or what was refused
	if errors.Is(err, unix.ERESTART) || errors.Is(err, unix.EAGAIN) {
		return errConcurrent
	}
	return err
}
