//go:build linux

package cli

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/conntrack/aggregate"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/gateway/host"
	names "github.com/natkit/natkit/internal/names/read"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ports"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/table"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/spf13/cobra"
)

// onLinux is whether there is a host to read.
const onLinux = true

// needsLinux is nil on Linux.
func needsLinux(string, string) error { return nil }

// hideHost hides nothing on Linux.
func hideHost(*cobra.Command) {}

// gatewayFacts reads what a gateway's file is checked against.
func gatewayFacts(ctx context.Context, ns *netns.Handle, c *gateway.Config) (gateway.Facts, error) {
	facts, err := host.Read(ctx, ns, host.OptionsFor(c, os.Getpid()))
	if err == nil {
		engine.Standard.Facts(ns, c, &facts)
	}
	return facts, err
}

func gatewayFindings(file *gateway.File, facts *gateway.Facts) []gateway.Finding {
	return engine.Standard.Check(file, *facts)
}

// kernelRules reads the rules of a namespace.
func kernelRules(ns *netns.Handle) (*ruleset.Ruleset, error) { return read.Tables(ns) }

// readTimeouts has zeros for what cannot be read, as in a container without these files.
func readTimeouts(ns *netns.Handle) (t aggregate.Timeouts) {
	timeout := func(of string) uint32 {
		n, err := apply.ReadSysctlInt("/proc", "net.netfilter.nf_conntrack_tcp_timeout_"+of)
		if err != nil || n < 0 {
			return 0
		}
		return uint32(min(n, math.MaxUint32))
	}
	_ = ns.Do(func() error {
		t = aggregate.Timeouts{Established: timeout("established"), Short: max(timeout("unacknowledged"), timeout("max_retrans"))}
		return nil
	})
	return t
}

// describe adds what the rows of a table's entries say of the host: its kernel, the namespace, and how long entries had no packet.
func describe(ns *netns.Handle, rows *table.EntryRows) (err error) {
	if rows.Kernel, err = collect.Release(); err != nil {
		return err
	}
	rows.Idle = aggregate.IdleTime(classTimeouts(ns))
	rows.Netns, err = netnsName(ns)
	return err
}

// netnsName is how rows and records name a network namespace.
func netnsName(ns *netns.Handle) (name string, err error) {
	of := snapshot.Netns{}
	if ns != nil {
		of.Name = ns.Name()
	}
	of.Inode, err = netns.InodeOf(ns)
	return table.NetnsOf(of), err
}

// classTimeouts are the timeouts of a namespace; without those that cannot be read.
func classTimeouts(ns *netns.Handle) snapshot.Sysctls {
	all := snapshot.Sysctls{}
	_ = ns.Do(func() error {
		const folder = "/proc/sys/net/netfilter/"
		files, _ := filepath.Glob(folder + "nf_conntrack_*_timeout*")
		for _, file := range append(files, folder+"nf_conntrack_generic_timeout") {
			name := "net.netfilter." + filepath.Base(file)
			if value, err := apply.ReadSysctl("/proc", name); err == nil {
				all[name] = value
			}
		}
		return nil
	})
	return all
}

// addressesAge is how old what was read of addresses' names may be where it is needed again and again, and addressesShare the part
// of a CPU that this takes at most: with a thousand containers a reading takes some tenths of a second.
const (
	addressesAge   = 10 * time.Second
	addressesShare = 0.005
)

// hostNames returns what reads the names of addresses; nil with --numeric. What was read is kept for a while.
func (e *Env) hostNames(age time.Duration) func(context.Context, *netns.Handle) *snapshot.Names {
	if e.numeric {
		return nil
	}
	c := &names.Cache{For: age}
	if age >= addressesAge {
		c.Share = addressesShare
	}
	return c.Names
}

// readHost reads what is not in the table. Without it the ports are reported all the same.
func (p *portsVerb) readHost(cmd *cobra.Command, l *look) error {
	ns, err := p.entries.open(cmd)
	if err != nil {
		return err
	}
	defer ns.Close()
	if l.rules, err = read.NAT(ns); err != nil {
		p.notes = append(p.notes, fmt.Sprintf("the NAT rules are not known (%v): ranges are assumed to be the kernel's own", err))
	}
	if p.query.Release, err = collect.Release(); err != nil {
		return err
	}
	if p.names == nil {
		p.names = p.env.hostNames(addressesAge)
	}
	if p.names != nil {
		l.names = p.names(cmd.Context(), ns)
	}
	sockets, err := collect.Sockets(ns)
	l.shared = func(pools []snapshot.PortPool) ([]snapshot.SharedAddress, error) {
		return ports.SharedWith(pools, sockets), err
	}
	return nil
}
