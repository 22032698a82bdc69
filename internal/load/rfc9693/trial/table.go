package trial

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"golang.org/x/sys/unix"
)

// Table is the gateway's connection tracking table.
type Table interface {
	// Empty deletes all entries, and returns how long that took.
	Empty(context.Context) (time.Duration, error)
}

// Namespace is the kernel's table of a network namespace (nil: this one).
type Namespace struct{ Netns *netns.Handle }

// emptied bounds how long the kernel may take to release entries that packets still refer to.
const emptied = 10 * time.Second

// Empty flushes the table, and waits until it has no entry.
func (n Namespace) Empty(ctx context.Context) (time.Duration, error) {
	for start := time.Now(); ; {
		if err := dump.Flush(n.Netns); err != nil {
			return 0, err
		}
		u, err := dump.Count(n.Netns)
		took := time.Since(start)
		switch {
		case err != nil:
			return 0, err
		case u.Entries == 0:
			return took, nil
		case took > emptied:
			return 0, fmt.Errorf("it has %d entries again and again: keep other traffic away from the gateway", u.Entries)
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// Command is a table that a command for a shell empties.
type Command string

// commandLimit bounds one run of a Command.
const commandLimit = 5 * time.Minute

// Empty runs the command.
func (c Command) Empty(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, commandLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", string(c))
	var stderr bytes.Buffer
	cmd.Stderr, cmd.WaitDelay = &stderr, time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the shell's children end with it
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	start := time.Now()
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return 0, fmt.Errorf("run %q: %w: %s", string(c), err, strings.TrimSpace(stderr.String()))
	}
	return time.Since(start), nil
}

// Timeout is a table that is empty when nothing was sent for so long.
type Timeout time.Duration

// Empty waits.
func (t Timeout) Empty(ctx context.Context) (time.Duration, error) {
	select {
	case <-time.After(time.Duration(t)):
		return time.Duration(t), nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// UDPTimeout is how many seconds an entry of UDP lasts without a reply.
const UDPTimeout = "net.netfilter.nf_conntrack_udp_timeout"

// settings are what a trial in the kernel depends on.
var settings = []string{
	snapshot.ConntrackMax, snapshot.ConntrackBuckets, UDPTimeout,
	"net.netfilter.nf_conntrack_udp_timeout_stream", "net.core.netdev_max_backlog",
}

// Settings are the sysctls of a gateway that trials depend on; those that its kernel lacks are left out.
func Settings(ns *netns.Handle) map[string]string {
	values := map[string]string{}
	for _, name := range settings {
		if v, err := netns.Sysctl(ns, name); err == nil {
			values[name] = v
		}
	}
	return values
}
