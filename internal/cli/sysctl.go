//go:build linux

package cli

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
)

// sysctlSchema names the JSON form.
const sysctlSchema = "natkit.sysctl/1"

type sysctlVerb struct {
	env     *Env
	target  target
	changed bool
}

func newSysctl(env *Env) *cobra.Command {
	v := &sysctlVerb{env: env}
	cmd := &cobra.Command{
		Use:   "sysctl [NAME…]",
		Short: "explain the kernel's settings of connection tracking and NAT: now, default, who set them",
		Long: `Print every sysctl of connection tracking and those that NAT depends on: the value now,
the kernel's default, what it means, and what set it: files of sysctl.d, sysctl.conf and
modprobe.d, or a change by natkit. NAME is a name, the end of one, or a pattern:
nf_conntrack_max, '*timeout*'.

Needs no root, except for values that the kernel shows to root only; exits with 4 when one
could not be read. docs/sysctl.md has the table of all.`,
		Example: `  natkit sysctl
  natkit sysctl --changed
  natkit sysctl nf_conntrack_max '*udp*'
  sudo natkit sysctl --netns gateway --json`,
		RunE: func(cmd *cobra.Command, args []string) error { return v.run(cmd, args) },
		ValidArgsFunction: offer(func() (names []string) {
			for _, k := range tune.KnownSysctls {
				names = append(names, k.Name)
			}
			return names
		}),
	}
	v.target.addFlags(cmd)
	cmd.Flags().BoolVar(&v.changed, "changed", false, "only what differs from its default")
	env.addJSON(cmd, sysctlSchema)
	env.addCSV(cmd, "sysctl")
	return cmd
}

func (v *sysctlVerb) run(cmd *cobra.Command, patterns []string) error {
	for _, p := range patterns {
		if _, err := path.Match(p, ""); err != nil {
			return usagef("%q: %w", p, err)
		}
	}
	var doc report.Sysctls
	err := v.target.with(cmd, func(ns *netns.Handle) error {
		names := []string{"net.netfilter.*"}
		for _, k := range tune.KnownSysctls {
			if !strings.HasPrefix(k.Name, "net.netfilter.") {
				names = append(names, k.Name)
			}
		}
		s, err := collect.ReadSysctls(collect.Options{Netns: ns}, names)
		if err == nil {
			doc = v.document(s, ns, patterns)
		}
		return err
	})
	if err != nil {
		return err
	}
	if len(patterns) > 0 && len(doc.Sysctls)+len(doc.Unread) == 0 && !v.changed {
		var known []string
		for _, k := range tune.KnownSysctls {
			known = append(known, k.Name, k.Name[strings.LastIndex(k.Name, ".")+1:])
		}
		if slices.Contains(known, patterns[0]) {
			return fmt.Errorf("read sysctls: %s is not here: this kernel does not have it, or its module is not loaded (modprobe nf_conntrack)", patterns[0])
		}
		return fmt.Errorf("read sysctls: none here is named %s%s; 'natkit sysctl' lists them", strings.Join(patterns, ", "), document.Hint(patterns[0], known))
	}
	err = v.env.print(doc)
	for name, why := range doc.Unread {
		if !v.env.asJSON {
			fmt.Fprintf(v.env.Stderr, "not read: %s: %s\n", name, report.Clean(why))
		}
	}
	if err == nil && len(doc.Unread) > 0 {
		return errIncomplete
	}
	return err
}

// document has a row for each sysctl there is, in the order of the table.
func (v *sysctlVerb) document(s *snapshot.Snapshot, ns *netns.Handle, patterns []string) report.Sysctls {
	doc := report.Sysctls{Schema: sysctlSchema, Kernel: s.Kernel.Release, Sysctls: []report.Sysctl{}, Unread: map[string]string{}, Changed: v.changed}
	changes := v.changes(ns)
	for _, part := range s.Parts {
		known, found := tune.FindKnown(part.Name)
		if !found && !strings.HasPrefix(part.Name, "net.netfilter.nf_conntrack_") || !matches(part.Name, patterns) {
			continue
		}
		if part.Error != "" {
			doc.Unread[part.Name] = part.Error
			continue
		}
		now, there := s.Sysctls[part.Name]
		if !there {
			continue
		}
		row := v.row(known, part.Name, now, s)
		row.SetBy = append(row.SetBy, changes(part.Name, now)...)
		if row.Changed || !v.changed {
			doc.Sysctls = append(doc.Sysctls, row)
		}
	}
	return doc
}

func (v *sysctlVerb) row(known tune.Known, name, now string, s *snapshot.Snapshot) report.Sysctl {
	row := report.Sysctl{Known: known, Now: now, SetBy: []string{}}
	if usual, ok := known.DefaultFor(s); ok {
		row.Usual, row.Changed = &usual, !tune.SameValue(now, usual)
	}
	row.Name = name
	if v.target.args() == "" {
		row.SetBy = append(row.SetBy, apply.Setting("/", name)...)
	}
	return row
}

// matches reports whether a name is selected: whole, by its end, or by a pattern.
func matches(name string, patterns []string) bool {
	for _, p := range patterns {
		if ok, _ := path.Match(p, name); ok || name == p || strings.HasSuffix(name, "."+p) {
			return true
		}
	}
	return len(patterns) == 0
}

// changes returns which transactions of natkit set a value that holds here: none without
// root, which cannot read the journal.
func (v *sysctlVerb) changes(ns *netns.Handle) func(name, now string) []string {
	j, errJournal := v.env.journal()
	here, errHere := netns.IDOf(ns)
	boot, errBoot := journal.ReadBootID("/proc")
	var all []*journal.Transaction
	if errors.Join(errJournal, errHere, errBoot) == nil {
		all, _, _ = j.List()
	}
	return func(name, now string) (by []string) {
		for _, t := range all {
			if apply.Wrote(t, name, now, here, boot) {
				by = append(by, "natkit "+t.ID)
			}
		}
		return by
	}
}
