//go:build linux

package cli

import (
	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/plan"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// fromHost reads this host: its settings, and the load where none is given.
func (v *planVerb) fromHost(cmd *cobra.Command) error {
	r := &v.request
	r.Source = "this host"
	if name := v.target.args(); name != "" {
		r.Source = v.target.name()
	}
	// Go has raised the soft limit already; programs may do the same, up to the hard one.
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err == nil {
		r.OpenFiles = int64(min(files.Max, 1<<62))
	}
	return v.target.with(cmd, func(ns *netns.Handle) error {
		if r.Load.Observed {
			return v.observe(cmd, ns)
		}
		names := append([]string{"net.netfilter.*"}, plan.Sysctls...)
		s, err := collect.ReadSysctls(collect.Options{Netns: ns}, names, "conntrack_size")
		r.On = s
		return err
	})
}

// observe samples the host twice.
func (v *planVerb) observe(cmd *cobra.Command, ns *netns.Handle) error {
	progress := v.env.progress()
	rec, err := collect.Record(cmd.Context(), collect.RecordOptions{Options: collect.Options{Netns: ns}, For: v.window, Progress: progress.Show})
	progress.Clear()
	if err != nil {
		return err
	}
	more, err := collect.ReadSysctls(collect.Options{Netns: ns}, plan.Sysctls)
	if err != nil {
		return err
	}
	on := *rec.Last()
	on.Sysctls = snapshot.Sysctls{}
	for _, all := range []snapshot.Sysctls{more.Sysctls, rec.Last().Sysctls} {
		for name, value := range all {
			on.Sysctls[name] = value
		}
	}
	v.request.On, v.request.Seen = &on, rec
	return nil
}
