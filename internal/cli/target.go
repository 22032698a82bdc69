package cli

import (
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/filter"
	"github.com/natkit/natkit/internal/netns"
)

// target is the network namespace that a verb looks at, chosen by flags.
type target struct {
	// prefix is put before the flags' names, where a verb looks at more than one.
	prefix string
	netns  string
	pid    int
}

// addFlags adds --netns and --pid.
func (t *target) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&t.netns, "netns", "", "in the network namespace `NAME` (of 'ip netns list')")
	cmd.Flags().IntVar(&t.pid, "pid", 0, "in the network namespace of process `PID`, for instance a container's")
	cmd.MarkFlagsMutuallyExclusive("netns", "pid")
	completeFlags(cmd, map[string]cobra.CompletionFunc{"netns": completeNetns})
}

// completeNetns offers the names of network namespaces, for the shell.
func completeNetns(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return netns.Names(), cobra.ShellCompDirectiveNoFileComp
}

// chosenNetns is the namespace that the flags of cmd choose, in words.
func chosenNetns(cmd *cobra.Command) string {
	for _, name := range []string{"netns", "pid"} {
		if f := cmd.Flags().Lookup(name); f.Changed {
			return name + " " + f.Value.String()
		}
	}
	return "the one natkit runs in"
}

// args are the flags that choose the same namespace again.
func (t *target) args() string {
	switch {
	case t.netns != "":
		return " --netns " + t.netns
	case t.pid != 0:
		return fmt.Sprintf(" --pid %d", t.pid)
	}
	return ""
}

// name says in words which namespace it is.
func (t *target) name() string {
	switch {
	case t.netns != "":
		return "network namespace " + t.netns
	case t.pid != 0:
		return fmt.Sprintf("the network namespace of process %d", t.pid)
	}
	return "this network namespace"
}

// open returns the chosen namespace; nil, without an error, for the one natkit
// runs in. The caller closes it, nil too.
func (t *target) open(cmd *cobra.Command) (*netns.Handle, error) {
	name, pid := t.prefix+"netns", t.prefix+"pid"
	switch {
	case cmd.Flags().Changed(name):
		return netns.Named(t.netns)
	case cmd.Flags().Changed(pid):
		if t.pid <= 0 {
			return nil, usagef("--%s %d: must be the number of a process", pid, t.pid)
		}
		return netns.OfPID(t.pid)
	default:
		return nil, nil
	}
}

// inode is that of the chosen namespace; 0 where none is chosen.
func (t *target) inode(cmd *cobra.Command) (uint64, error) {
	ns, err := t.open(cmd)
	if ns == nil || err != nil {
		return 0, err
	}
	defer ns.Close()
	return ns.Inode(), nil
}

// checkInterface refuses an empty --iface, which a script gives whose variable is not
// set: all interfaces are not what it asks for.
func checkInterface(cmd *cobra.Command, name string) error {
	if name == "" && cmd.Flags().Changed("iface") {
		return usagef("--iface \"\": the name of an interface is missing")
	}
	return nil
}

// completeInterface offers the interfaces here, for the shell.
func completeInterface(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	links, err := net.Interfaces()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, l := range links {
		names = append(names, l.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeFilter offers the words of a filter, for the shell.
func completeFilter(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return filter.Words(), cobra.ShellCompDirectiveNoFileComp
}

// completeFlags has the shell complete flags; which there are is known where it is called.
func completeFlags(cmd *cobra.Command, flags map[string]cobra.CompletionFunc) {
	for name, complete := range flags {
		if err := cmd.RegisterFlagCompletionFunc(name, complete); err != nil {
			panic(err) // there is no such flag
		}
	}
}
