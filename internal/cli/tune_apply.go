package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/natrules"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
)

type applyFlags struct {
	changeFlags
	target
	dryRun, asJSON bool
}

func (t *tuner) applyCommand() *cobra.Command {
	var f applyFlags
	cmd := &cobra.Command{
		Use:   "apply NAME=VALUE...",
		Short: "change kernel values (sysctls) and options of NAT rules, with undo",
		Long: `Show what would change, what it costs and what it risks, and ask. With --yes, do it
without asking; with --dry-run, stop there. Where stdin is not a terminal, one of them
is needed: without, nothing is changed, and the exit code is 2.

NAME is a sysctl's dotted name as sysctl(8) takes it. Values under net.netfilter
that hold for the whole host (nf_conntrack_max, nf_conntrack_buckets) need root,
or CAP_NET_ADMIN in the initial network namespace; nothing is changed where one
of several changes is impossible.

The ports and options of a rule of nftables or iptables-nft that translates
sources are changed in its place: "TARGET=1024-65535 fully-random", where TARGET
is the rule's in nat_rules of 'natkit snapshot --json' ("netns 4026532290 ip nat
POSTROUTING 5f3a9c01"). What is left out is taken off the rule. Such a change needs
CAP_NET_ADMIN in the rule's network namespace, and cannot be persisted.

With --confirm the files of --persist are written at the confirmation only, so
that a reboot before it undoes everything.`,
		Example: `  natkit tune apply --dry-run net.netfilter.nf_conntrack_max=524288
  sudo natkit tune apply --yes net.netfilter.nf_conntrack_max=524288
  sudo natkit tune apply --yes --confirm 60s --persist net.ipv4.ip_local_port_range="1024 65535"
  sudo natkit tune apply --yes --netns gw net.netfilter.nf_conntrack_udp_timeout=60
  sudo natkit tune apply "netns 4026532290 ip nat POSTROUTING 5f3a9c01=fully-random"`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: t.completeSysctls,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(cmd); err != nil {
				return err
			}
			ns, err := f.open(cmd)
			if err != nil {
				return err
			}
			defer ns.Close()
			return within(ns, func() error { return t.apply(cmd.Context(), f, args) })
		},
	}
	f.changeFlags.addFlags(cmd, "")
	f.target.addFlags(cmd)
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "only show what would be changed")
	cmd.MarkFlagsMutuallyExclusive("yes", "dry-run")
	addJSON(cmd, &f.asJSON, tuneSchema)
	return cmd
}

func (t *tuner) apply(ctx context.Context, f applyFlags, args []string) error {
	opt, err := t.options()
	if err != nil {
		return err
	}
	f.fill(&opt)
	doc, err := t.plan(ctx, f, opt, args)
	if err != nil {
		return err
	}
	if len(doc.Plan.Changes) == 0 || f.dryRun || !f.yes && f.asJSON {
		return errors.Join(doc.print(t.env, f.asJSON, printPlan), f.unasked(len(doc.Plan.Changes)))
	}
	if !f.asJSON {
		if err := printPlan(t.env, doc); err != nil {
			return err
		}
	}
	if !f.yes {
		if agreed, err := t.env.askToApply(ctx, t.env.Stdout); err != nil || !agreed {
			return err
		}
	}
	applied, err := apply.Apply(ctx, *doc.Plan, opt)
	if err != nil {
		return err
	}
	tx := applied.Transaction()
	if !f.asJSON {
		return printApplied(t.env.Stdout, t.env.style(), &tx)
	}
	view, err := t.view()
	if err != nil {
		return err
	}
	doc.Applied = true
	doc.Transactions = []tuneTransaction{describeTransaction(&tx, view)}
	return doc.print(t.env, true, nil)
}

// unasked is the error of a plan as a document: who reads it cannot be asked.
func (f applyFlags) unasked(changes int) error {
	if changes == 0 || f.dryRun {
		return nil
	}
	return errJSONAsks
}

// within calls fn in a network namespace; nil is the one natkit runs in.
func within(ns *netns.Handle, fn func() error) error {
	if ns == nil {
		return fn()
	}
	return ns.Do(fn)
}

// plan reads the present values. A value that is there already is no change,
// unless it is to be persisted.
func (t *tuner) plan(ctx context.Context, f applyFlags, opt apply.Options, args []string) (tuneDocument, error) {
	doc := tuneDocument{Plan: &tune.Plan{Origin: "tune", Changes: []tune.Change{}}, Confirm: f.confirm.Seconds()}
	for _, arg := range args {
		change, err := t.wanted(arg)
		if err != nil {
			return doc, err
		}
		if tune.SameValue(change.Before, change.After) {
			change.Why = whyAgain(change, opt)
			if change.Why == "" && (!f.persist || change.Kind == tune.NATRule) {
				doc.Already = append(doc.Already, change.Target+" is "+report.ChangeValue(change, change.Before)+" already")
				continue
			}
		}
		doc.Plan.Changes = append(doc.Plan.Changes, change)
	}
	if len(doc.Plan.Changes) == 0 {
		return doc, nil
	}
	if err := doc.Plan.Validate(); err != nil {
		return doc, usageError{err}
	}
	doc.Plan.Changes = tune.Assess(doc.Plan.Changes, t.facts(ctx))
	if !f.persist {
		return doc, nil
	}
	var err error
	doc.Files, doc.Warnings, err = planFiles(*doc.Plan, opt)
	return doc, err
}

// wanted is the change that an argument asks for, with the present value. A NAT
// rule's Target begins with a word that no sysctl's name has.
func (t *tuner) wanted(arg string) (tune.Change, error) {
	if strings.HasPrefix(arg, "netns ") {
		target, o, err := tune.ParseNATAssignment(arg)
		if err != nil {
			return tune.Change{}, usageError{err}
		}
		now, err := natrules.Options(target)
		return tune.Change{Kind: tune.NATRule, Target: target, Before: now.String(), After: o.String()}, err
	}
	name, value, err := tune.ParseAssignment(arg)
	if err != nil {
		return tune.Change{}, usageError{err}
	}
	before, err := apply.ReadSysctl(t.host.procRoot, name)
	return tune.Change{Kind: tune.Sysctl, Target: name, Before: before, After: value}, err
}

// whyAgain says why a value that is there already has to be written down again;
// empty where it has not.
func whyAgain(c tune.Change, opt apply.Options) string {
	holder, err := apply.Temporary(c.Target, c.After, opt)
	if err != nil || holder == nil { // a journal that cannot be read stops what follows, where it counts
		return ""
	}
	return fmt.Sprintf("%s (%s) set it for a while; so it stays", holder.ID, holder.Origin)
}

// planFiles lists the lines that make a plan hold after a boot, and what keeps
// them from it.
func planFiles(plan tune.Plan, opt apply.Options) (files []tune.Change, warnings []string, err error) {
	if files, err = apply.PlanPersist(plan.Changes, opt); err != nil {
		return nil, nil, err
	}
	for _, c := range plan.Changes {
		for _, path := range apply.Overriding(cmp.Or(opt.Root, "/"), c.Target) {
			warnings = append(warnings, fmt.Sprintf("%s sets %s too and is read later at boot: it wins", path, c.Target))
		}
	}
	return files, warnings, nil
}

// facts are what costs and risks depend on; what cannot be read stays unknown.
func (t *tuner) facts(ctx context.Context) tune.Facts {
	now, err := collect.Read(ctx, collect.Options{Proc: t.host.procRoot, MaxEntries: 1})
	if err != nil { // ctx ended, and what follows will notice
		now = &snapshot.Snapshot{}
	}
	return tune.FactsOf(now)
}
