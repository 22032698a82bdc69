package natrules

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/privilege"
	"github.com/natkit/natkit/internal/tune"
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
