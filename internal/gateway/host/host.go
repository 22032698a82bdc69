// Package host reads what the gateway has to know of a machine: interfaces, the
// administrator's own session, other programs' rules, the connection table, routes.
// It changes nothing.
package host

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
)

// Options say what to look at.
type Options struct {
	// Proc is the root of procfs; empty means /proc.
	Proc string
	// PID is the process whose session is looked for, by it and its parents; 0 means
	// none. A program gives its own.
	PID int
	// Targets are hosts of which is asked by which interface they are reached.
	Targets []netip.Addr
	// Flowtable, where not nil, asks whether the engine can have a flowtable. A module
	// that it needs may be loaded by it, and stays.
	Flowtable func(*netns.Handle) gateway.Support
}

func (o Options) proc() string {
	if o.Proc == "" {
		return "/proc"
	}
	return o.Proc
}

// Read tells the facts of a namespace (nil: this one). What cannot be read is missing
// in them, and Unknown says why; an error means that there are none.
func Read(ctx context.Context, ns *netns.Handle, o Options) (gateway.Facts, error) {
	f := gateway.Facts{Known: true}
	var err error
	if f.Interfaces, err = Interfaces(ns); err != nil {
		return gateway.Facts{}, fmt.Errorf("look at the host: %w", err)
	}
	if f.Initial, err = initial(ns, o.proc()); err != nil {
		unknown(&f, "whether this is the initial network namespace", err)
	}
	if o.PID != 0 {
		f.Sessions = ofHost(sessions(o.proc(), o.PID), f.Interfaces)
	}
	if f.Foreign, err = Foreign(ns); err != nil {
		unknown(&f, "other programs' rules", err)
	}
	settings(&f, collect.ReadSettings(ctx, collect.Options{Netns: ns}))
	if err := Forwarding(ns, &f); err != nil {
		unknown(&f, "forwarding", err)
	}
	if f.Ways, err = ways(ns, &f, o.Targets); err != nil {
		unknown(&f, "routes", err)
	}
	if o.Flowtable != nil {
		if f.Flowtable = o.Flowtable(ns); f.Flowtable.Unknown {
			f.Unknown = append(f.Unknown, "flowtables: "+f.Flowtable.Reason)
		}
	}
	return f, ctx.Err()
}

func unknown(f *gateway.Facts, what string, err error) {
	f.Unknown = append(f.Unknown, fmt.Sprintf("%s: %v", what, err))
}

func settings(f *gateway.Facts, s *snapshot.Snapshot) {
	f.Kernel, f.Conntrack, f.Sysctls = s.Kernel, s.ConntrackSize, s.Sysctls
	for _, part := range []string{"conntrack_size", "sysctls"} {
		if why := s.PartError(part); why != "" {
			f.Unknown = append(f.Unknown, why)
		}
	}
}
