package cli

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/bpf/pktgen"
	"github.com/natkit/natkit/internal/netns"
)

// ways are the flags that say where packets leave and where they are counted.
type ways struct {
	env  *Env
	lab  string
	node string
	target
	dev, nextMAC string

	sinkNode string
	sinkAt   target
	sink     string
}

func (w *ways) addFlags(cmd *cobra.Command, env *Env) {
	w.env, w.sinkAt.prefix = env, "sink-"
	f := cmd.Flags()
	w.target.addFlags(cmd)
	f.StringVar(&w.node, "node", "", "send from this `NODE` of a lab that is up")
	f.StringVar(&w.dev, "dev", "", "send by this interface (`IF`; default: the one of the route)")
	f.StringVar(&w.nextMAC, "next-mac", "", "frames go to this Ethernet address (`MAC`; default: the neighbour's)")
	f.StringVar(&w.sink, "sink", "", "count what arrives at this interface (`IF`), and take it away there")
	f.StringVar(&w.sinkAt.netns, "sink-netns", "", "the sink lies in the network namespace `NAME`")
	f.IntVar(&w.sinkAt.pid, "sink-pid", 0, "the sink lies in the network namespace of process `PID`, for instance a container's")
	f.StringVar(&w.sinkNode, "sink-node", "", "the sink lies in this `NODE` of a lab that is up")
	f.StringVar(&w.lab, "lab", "", "`NAME` of the lab, where several are up")
	cmd.MarkFlagsMutuallyExclusive("netns", "pid", "node")
	cmd.MarkFlagsMutuallyExclusive("sink-netns", "sink-pid", "sink-node")
	completeFlags(cmd, map[string]cobra.CompletionFunc{
		"dev": w.completeInterfaces(w.from), "sink": w.completeInterfaces(w.to),
		"node": w.completeNodes, "sink-node": w.completeNodes,
		"sink-netns": completeNetns,
	})
}

func (w *ways) check(cmd *cobra.Command) error {
	if cmd.Flags().Changed("lab") && w.node == "" && w.sinkNode == "" {
		return usagef("--lab goes with --node or --sink-node")
	}
	return w.checkNextMAC()
}

// checkNextMAC refuses group addresses: a bridge copies frames for one to all its
// ports, and every host there takes them.
func (w *ways) checkNextMAC() error {
	if w.nextMAC == "" {
		return nil
	}
	mac, err := net.ParseMAC(w.nextMAC)
	switch {
	case err != nil || len(mac) != 6:
		return usagef("--next-mac %q: must be an Ethernet address such as 02:00:00:00:00:01", w.nextMAC)
	case mac[0]&1 != 0:
		return usagef("--next-mac %q: a broadcast or multicast address, whose frames reach everybody on the link: give that of one host", w.nextMAC)
	case bytes.Equal(mac, make([]byte, len(mac))):
		return usagef("--next-mac %q: no host has that address", w.nextMAC)
	}
	return nil
}

// counts reports whether there is to be a sink.
func (w *ways) counts(cmd *cobra.Command) bool {
	f := cmd.Flags()
	return f.Changed("sink") || f.Changed("sink-netns") || f.Changed("sink-pid") || f.Changed("sink-node")
}

// places are the opened ends of a run.
type places struct {
	way  pktgen.Way
	sink *pktgen.Port // nil for none
	lab  *attachedLab // keeps nodes open; may be nil
	own  []*netns.Handle
}

func (p *places) close() {
	netns.CloseAll(p.own)
	if p.lab != nil {
		p.lab.Close()
	}
}

func (w *ways) open(cmd *cobra.Command) (p *places, err error) {
	p = &places{}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if w.nextMAC != "" {
		if p.way.NextMAC, err = net.ParseMAC(w.nextMAC); err != nil {
			return p, err
		}
	}
	p.way.Interface = w.dev
	if p.way.Netns, err = w.from(cmd, p); err != nil || !w.counts(cmd) {
		return p, err
	}
	p.sink = &pktgen.Port{Interface: w.sink}
	if p.sink.Netns, err = w.to(cmd, p); err != nil || w.sink != "" {
		return p, err
	}
	p.sink.Interface, err = onlyInterface(p.sink.Netns)
	return p, err
}

// from opens the sender's namespace.
func (w *ways) from(cmd *cobra.Command, p *places) (*netns.Handle, error) {
	return w.place(cmd, p, &w.target, w.node)
}

// to opens the receiver's namespace.
func (w *ways) to(cmd *cobra.Command, p *places) (*netns.Handle, error) {
	return w.place(cmd, p, &w.sinkAt, w.sinkNode)
}

func (w *ways) place(cmd *cobra.Command, p *places, at *target, node string) (*netns.Handle, error) {
	if node != "" {
		return w.labNode(p, node)
	}
	ns, err := at.open(cmd)
	if ns != nil {
		p.own = append(p.own, ns)
	}
	return ns, err
}

func (w *ways) labNode(p *places, name string) (_ *netns.Handle, err error) {
	if p.lab == nil {
		if p.lab, err = attachLab(w.env, w.lab); err != nil {
			return nil, err
		}
	}
	node, err := p.lab.node(name)
	if err != nil {
		return nil, err
	}
	return node.Netns, nil
}

// interfaces are the names of those in a namespace that are not loopback; nil is the
// one that natkit runs in.
func interfaces(ns *netns.Handle) (names []string, err error) {
	list := func() error {
		all, err := net.Interfaces()
		for _, i := range all {
			if i.Flags&net.FlagLoopback == 0 {
				names = append(names, i.Name)
			}
		}
		return err
	}
	if ns == nil {
		return names, list()
	}
	err = ns.Do(list)
	return names, err
}

func onlyInterface(ns *netns.Handle) (string, error) {
	names, err := interfaces(ns)
	switch {
	case err != nil:
		return "", fmt.Errorf("list the interfaces where packets are to arrive: %w", err)
	case len(names) == 0:
		return "", errors.New("there is no interface where packets are to arrive")
	case len(names) > 1:
		return "", usagef("packets may arrive at one of %s: choose it by --sink", strings.Join(names, ", "))
	}
	return names[0], nil
}

// completeInterfaces offers the interfaces of a namespace, for the shell.
func (w *ways) completeInterfaces(open func(*cobra.Command, *places) (*netns.Handle, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		p := &places{}
		defer p.close()
		ns, err := open(cmd, p)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names, _ := interfaces(ns)
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeNodes offers the nodes of a lab that is up.
func (w *ways) completeNodes(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	state, err := chooseLab(w.env.Getenv(runDirEnv), w.lab)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, n := range state.Nodes {
		names = append(names, n.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
