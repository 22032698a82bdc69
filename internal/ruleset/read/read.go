package read

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/snapshot"
)

// NAT returns the rules of a namespace (nil: this one) that translate addresses, in the
// order in which packets reach them. A rule that several hooks lead to is there for each.
// Requires CAP_NET_ADMIN in that namespace. It loads no module of iptables.
func NAT(ns *netns.Handle) (*snapshot.NATRules, error) {
	inode, err := netns.InodeOf(ns)
	if err != nil {
		return nil, fmt.Errorf("read NAT rules: %w", err)
	}
	budget := &ruleset.Budget{}
	tables, err := tables(ns, budget, (*ruleset.KernelChain).IsNAT, func(d *ruleset.Dump) (*ruleset.Table, *ruleset.Table) {
		d.Identify(inode)
		return nil, d.Table(budget)
	}, nil, "nat")
	if err != nil {
		return nil, fmt.Errorf("read NAT rules: %w", err)
	}
	var all []*ruleset.Table
	for _, t := range tables {
		all = append(all, t.bySet)
	}
	return ruleset.NATRules(all, budget), nil
}

// both is a table with a rule for each rule, and for each element of sets.
type both struct{ plain, bySet *ruleset.Table }

// tables reads the tables of nf_tables that have such a chain, as build makes them of
// what the kernel returns with these sets, and those of iptables-legacy.
func tables(ns *netns.Handle, budget *ruleset.Budget, such func(*ruleset.KernelChain) bool, build func(*ruleset.Dump) (plain, bySet *ruleset.Table), sets func(*ruleset.Dump) map[string]bool, legacyNames ...string) ([]both, error) {
	all, err := over(ns, func(c Conn) (all []both, err error) {
		var dumps []*ruleset.Dump
		_, _, err = c.Settled(func() (err error) {
			*budget = ruleset.Budget{}
			dumps, _, err = c.Dumps(such)
			for _, d := range dumps {
				if sets != nil && err == nil && !d.Key.IsGateway() {
					err = c.sets(d, sets(d), budget)
				}
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("nf_tables: %w", err)
		}
		for _, d := range dumps {
			plain, bySet := build(d)
			all = append(all, both{plain, bySet})
		}
		return all, nil
	})
	if err != nil {
		return nil, err
	}
	legacy, err := legacyTables(ns, legacyNames...)
	for _, t := range legacy {
		all = append(all, both{t, t})
	}
	return all, err
}

// Tables returns the tables of a namespace (nil: this one) that have chains of NAT, or
// rules that disable tracking or limit the MSS, with a rule for each element of the sets
// that such rules use. Requires CAP_NET_ADMIN there.
func Tables(ns *netns.Handle) (*ruleset.Ruleset, error) {
	budget := &ruleset.Budget{}
	all, err := tables(ns, budget, (*ruleset.KernelChain).AtIP, func(d *ruleset.Dump) (*ruleset.Table, *ruleset.Table) {
		return nil, d.ByDraw(budget)
	}, (*ruleset.Dump).SetsUsed, "raw", "mangle", "nat", "filter")
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	set := &ruleset.Ruleset{}
	for _, t := range all {
		if t.bySet.Concerns() {
			t.bySet.Describe()
			set.Tables = append(set.Tables, t.bySet)
		}
	}
	return set, nil
}

// BaseChains returns those of a namespace (nil: this one) except those of dormant tables
// and of natkit's own. Requires CAP_NET_ADMIN in that namespace. It loads no module of
// iptables.
func BaseChains(ns *netns.Handle) (all []ruleset.BaseChain, err error) {
	budget := &ruleset.Budget{}
	others := func(c *ruleset.KernelChain) bool { return c.IsBase() && !c.Key.IsGateway() }
	tables, err := tables(ns, budget, others, func(d *ruleset.Dump) (*ruleset.Table, *ruleset.Table) {
		return d.Plain(), d.BySet(budget)
	}, (*ruleset.Dump).SetsUsed)
	if err != nil {
		return nil, fmt.Errorf("read chains: %w", err)
	}
	for _, t := range tables {
		all = append(all, t.plain.BaseChains(t.bySet, budget)...)
	}
	return all, nil
}

// Judged returns all tables of a namespace (nil: this one) that have chains at hooks of IP, of
// interfaces or of bridges, for ruleset.Judge, those of the gateway without the elements of its sets. Requires CAP_NET_ADMIN
// there. It loads no module of iptables.
func Judged(ns *netns.Handle) (all []*ruleset.Table, err error) {
	budget := &ruleset.Budget{}
	tables, err := tables(ns, budget, (*ruleset.KernelChain).IsJudged, func(d *ruleset.Dump) (*ruleset.Table, *ruleset.Table) {
		return nil, d.Judged(budget)
	}, func(d *ruleset.Dump) map[string]bool {
		d.AtOnce = true
		return d.EverySet()
	})
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	readers, err := queueReaders(ns)
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	for _, t := range tables {
		t.bySet.Readers = readers
		all = append(all, t.bySet)
	}
	return all, nil
}

// queueReaders are the numbers of the queues that programs read (seq_show, nfnetlink_queue.c): none where
// that module is not loaded, nil where /proc cannot say.
func queueReaders(ns *netns.Handle) (readers map[uint16]bool, err error) {
	err = ns.Do(func() error {
		const dir = "/proc/thread-self/net/netfilter/"
		text, err := os.ReadFile(dir + "nfnetlink_queue")
		if errors.Is(err, fs.ErrNotExist) {
			if _, err := os.Stat(dir); err != nil {
				return nil
			}
			err = nil
		}
		readers = map[uint16]bool{}
		for line := range strings.Lines(string(text)) {
			var number uint16
			if _, err := fmt.Sscan(line, &number); err == nil {
				readers[number] = true
			}
		}
		return err
	})
	return readers, err
}
