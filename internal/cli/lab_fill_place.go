package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/fill"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/units"
)

// place is the network namespace that is filled: a lab's node, or any other.
type place struct {
	target
	lab       string
	thisNetns bool

	ns    *netns.Handle
	where string
	// ofLab: no real connection is in it. initial: it is the host's own.
	ofLab, initial bool
	attached       *attachedLab
}

func (p *place) addFlags(cmd *cobra.Command) {
	p.target.addFlags(cmd)
	cmd.Flags().StringVar(&p.lab, "lab", "", "`NAME` of the lab, where several are up")
	cmd.Flags().BoolVar(&p.thisNetns, "this-netns", false, "in the network namespace that natkit runs in, also where it is the host's own")
}

// open finds the namespace. close lets go of it.
func (p *place) open(env *Env, cmd *cobra.Command, args []string) (err error) {
	other := cmd.Flags().Changed("netns") || cmd.Flags().Changed("pid")
	switch {
	case p.lab != "" && len(args) == 0:
		return usagef("--lab %s: which node of it? give its name", p.lab)
	case len(args) > 0 && (other || p.thisNetns), other && p.thisNetns:
		return usagef("expected one network namespace: NODE, --netns, --pid or --this-netns")
	case len(args) > 0:
		return p.openNode(env, args[0])
	}
	if p.ns, err = p.target.open(cmd); err != nil {
		return err
	}
	switch {
	case p.ns == nil:
		p.where = "this network namespace"
		p.ns, err = netns.Current()
	case p.netns != "":
		p.where = "network namespace " + p.netns
	default:
		p.where = fmt.Sprintf("the network namespace of pid %d", p.pid)
	}
	if err != nil {
		return err
	}
	// From inside: the kernel may have to be asked about the namespace of the thread.
	err = p.ns.Do(func() error {
		p.initial = apply.IsInitialNetns(p.ns.Inode(), "/proc")
		return nil
	})
	if err != nil {
		p.close()
	}
	return err
}

// mayFill refuses the host's own namespace where nobody asked for it.
func (p *place) mayFill() error {
	if p.initial && !p.thisNetns {
		return usagef("%s is the host's own, where a fill takes the places of real connections: name another (NODE, --netns, --pid), or say --this-netns", p.where)
	}
	return nil
}

func (p *place) openNode(env *Env, node string) (err error) {
	if p.attached, err = attachLab(env, p.lab); err != nil {
		return err
	}
	n, err := p.attached.node(node)
	if err != nil {
		p.close()
		return err
	}
	p.ns, p.ofLab, p.where = n.Netns, true, fmt.Sprintf("%s of lab %s", node, p.attached.name)
	return nil
}

func (p *place) close() {
	if p.attached != nil {
		_ = p.attached.Close() // only lets go of it
		return
	}
	_ = p.ns.Close()
}

// plan is how many entries the table is to hold; 0 where the person at the
// terminal does not want it.
func (f *labFill) plan(ctx context.Context, mix *lab.Mix, amount lab.Amount) (limit, target int64, err error) {
	usage, err := dump.Count(f.ns)
	if err != nil {
		return 0, 0, fmt.Errorf("fill the connection table of %s: %w", f.where, err)
	}
	if limit, err = fill.Max(); err != nil {
		return 0, 0, err
	}
	if target, err = amount.Target(limit); err != nil {
		return 0, 0, err
	}
	available, err := collect.AvailableMemory()
	if err != nil {
		return 0, 0, err
	}
	if err := lab.CheckFill(target-usage.Entries, available); err != nil {
		return 0, 0, err
	}
	risks := f.risks(mix, usage.Entries, limit, target)
	if len(risks) == 0 || f.yes {
		return limit, target, nil
	}
	for _, risk := range risks {
		fmt.Fprintln(f.env.Stderr, risk)
	}
	if agreed, err := f.env.askToApply(ctx, f.env.Stderr); err != nil || !agreed {
		return 0, 0, err
	}
	return limit, target, nil
}

// fewPlaces is the share of nf_conntrack_max below which what is left for real
// connections may be gone at once.
const fewPlaces = 0.1

// risks are why the person must agree. In a lab there are none.
func (f *labFill) risks(mix *lab.Mix, used, limit, target int64) (risks []string) {
	if f.ofLab {
		return nil
	}
	left := limit - target
	if limit > 0 && float64(left) < fewPlaces*float64(limit) && (used > 0 || f.initial) {
		risks = append(risks, fmt.Sprintf("%s tracks %s now; the fill leaves %s of %s places, and once these are taken the kernel drops every packet that needs a new entry",
			f.where, units.Plural(used, "connection", "connections"), units.Count(left), units.Count(limit)))
	}
	if foreign := mix.Foreign(); len(foreign) > 0 {
		risks = append(risks, fmt.Sprintf("mix %s has addresses that somebody may really have (%s): packets of such connections would meet its entries, and be translated by them", mix.Name, foreign[0]))
	}
	return risks
}

// removeLeft removes the fills that no running natkit keeps up.
func (f *labFill) removeLeft(cmd *cobra.Command, args []string) error {
	var inode uint64
	if len(args) > 0 || cmd.Flags().Changed("netns") || cmd.Flags().Changed("pid") || f.thisNetns || f.lab != "" {
		if err := f.place.open(f.env, cmd, args); err != nil {
			return err
		}
		defer f.place.close()
		inode = f.ns.Inode()
	}
	removed, held, err := fill.Clean(cmd.Context(), f.env.Getenv(runDirEnv), inode)
	if err != nil && len(removed)+len(held) == 0 && !f.json { // "no fill was left" would not be true
		return err
	}
	return errors.Join(err, describeRemoved(removed, held).print(f.env, f.json))
}
