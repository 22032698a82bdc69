package run

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/host"
	"github.com/natkit/natkit/internal/gateway/store"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
)

// Host is where a gateway is made: a network namespace (nil: this one) of a machine.
type Host struct {
	Netns *netns.Handle
	// Apply says where the journal and the files are. Its fields Confirm, Persist,
	// Lifeline and Guarded are not looked at.
	Apply apply.Options
}

func (h Host) store() *store.Store { return store.Beside(h.Apply.Journal.Dir()) }

func (h Host) proc() string {
	if h.Apply.ProcRoot == "" {
		return "/proc"
	}
	return h.Apply.ProcRoot
}

// do runs fn in the namespace.
func (h Host) do(fn func() error) error {
	if h.Netns == nil {
		return fn()
	}
	return h.Netns.Do(fn)
}

// Inode is the namespace's.
func (h Host) Inode() (uint64, error) { return netns.InodeOf(h.Netns) }

func (h Host) id() (netns.ID, error) { return netns.IDOf(h.Netns) }

// facts are what Check and Compile need for a file; pid is the process whose session
// must not be cut, 0 for none.
func (h Host) facts(ctx context.Context, file *gateway.File, pid int) (gateway.Facts, error) {
	return host.Read(ctx, h.Netns, host.Options{PID: pid, Targets: file.Config.Targets(), Flowtable: h.Apply.Engines.Flowtable(&file.Config)})
}

// State is what is in force, with the rules of the file that somebody changed.
func (h Host) State() (*gateway.State, error) { return h.Apply.Engines.Read(h.Netns, h.stored) }

// present reads what a plan is to change.
func (h Host) present(ctx context.Context, p *gateway.Plan) (Present, *gateway.State, error) {
	state, err := h.State()
	if err != nil {
		return Present{}, nil, err
	}
	now := Present{Value: apply.GatewayValue(state), Sysctls: snapshot.Sysctls{}}
	if now.Netns, err = h.Inode(); err != nil {
		return now, nil, err
	}
	// The tracker's module is loaded by the first question, and with it the values
	// under net.netfilter come.
	_, _ = dump.Count(h.Netns)
	err = h.do(func() error {
		now.Initial = apply.IsInitialNetns(now.Netns, h.proc())
		return host.ReadSysctls(h.proc(), Sysctls, now.Sysctls)
	})
	if err != nil {
		return now, nil, err
	}
	if p.Expect.Flows > 0 || p.Expect.Rate > 0 {
		s, err := collect.Read(ctx, collect.Options{Netns: h.Netns, Proc: h.proc(), MaxEntries: 1})
		if err != nil {
			return now, nil, err
		}
		now.Facts = tune.FactsOf(s)
		now.SlabKnown = s.ConntrackSize != nil && s.ConntrackSize.SlabBytes > 0
	}
	if err := h.held(&now); err != nil {
		return now, nil, err
	}
	return now, state, h.advertised(&now, p)
}

// held finds the sysctls of a namespace that open transactions of this boot wrote, and
// what they were before gateways did.
func (h Host) held(now *Present) error {
	here, err := h.id()
	if err != nil {
		return err
	}
	open, err := h.open(here)
	now.Held, now.Original = map[string]bool{}, map[string]string{}
	for _, tx := range open {
		ours := changesGateway(tx, here)
		for _, c := range tx.Changes {
			if !c.Open() || c.Kind != tune.Sysctl {
				continue
			}
			now.Held[c.Target] = true
			if _, known := now.Original[c.Target]; ours && !known {
				now.Original[c.Target] = c.Before
			}
		}
	}
	return err
}

// open are the transactions of this boot that changed a namespace and are not undone,
// oldest first.
func (h Host) open(here netns.ID) ([]*journal.Transaction, error) {
	all, _, err := h.Apply.Journal.List()
	if err != nil || len(all) == 0 {
		return nil, err
	}
	boot, err := journal.ReadBootID(h.proc())
	if err != nil {
		return nil, err
	}
	var open []*journal.Transaction
	for _, tx := range all {
		if (tx.Made().Is(here) || changesGateway(tx, here)) && tx.BootID == boot && !tx.Finished() {
			open = append(open, tx)
		}
	}
	return open, nil
}

// Transactions are those of this boot that changed the gateway of the namespace and
// are not undone, oldest first.
func (h Host) Transactions() ([]*journal.Transaction, error) {
	here, err := h.id()
	if err != nil {
		return nil, err
	}
	open, err := h.open(here)
	var ours []*journal.Transaction
	for _, tx := range open {
		if changesGateway(tx, here) {
			ours = append(ours, tx)
		}
	}
	return ours, err
}

// Expired is the newest transaction of this boot that changed the gateway of the namespace,
// where it was undone because nobody confirmed it; nil otherwise.
func (h Host) Expired() (*journal.Transaction, error) {
	here, err := h.id()
	if err != nil {
		return nil, err
	}
	all, _, err := h.Apply.Journal.List()
	if err != nil || len(all) == 0 {
		return nil, err
	}
	boot, err := journal.ReadBootID(h.proc())
	for _, tx := range slices.Backward(all) {
		ours := slices.ContainsFunc(tx.Changes, func(c journal.Change) bool { return c.Kind == tune.Gateway && tx.In(c).Is(here) })
		if !ours || tx.BootID != boot {
			continue
		}
		if tx.Confirm == nil || !tx.Confirm.Expired || !tx.Finished() {
			tx = nil
		}
		return tx, err
	}
	return nil, err
}

// changesGateway reports whether a transaction has an open change of the namespace's
// rules, or of the configuration that they have after a boot.
func changesGateway(tx *journal.Transaction, here netns.ID) bool {
	return slices.ContainsFunc(tx.Changes, func(c journal.Change) bool {
		rules := c.Kind == tune.Gateway && tx.In(c).Is(here)
		return c.Open() && (rules || c.Kind == tune.GatewayFile && tx.Made().Is(here))
	})
}

// ReadFile reads a configuration's text; of one that is too long for gateway.Parse,
// what shows that.
func ReadFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read gateway file: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, gateway.MaxSource+1))
	if err != nil {
		return nil, fmt.Errorf("read gateway file: %w", err)
	}
	return text, nil
}

// InForce is the plan that natkit's table was made for; nil where there is none, or
// where the store does not have it, whole and in this version's form.
func (h Host) InForce() (*gateway.Plan, error) {
	state, err := h.State()
	if err != nil {
		return nil, err
	}
	return h.stored(state.Digest), nil
}

// Former is the plan that the newest transaction replaced; nil as for InForce.
func (h Host) Former() (*gateway.Plan, error) {
	inode, err := h.Inode()
	if err != nil {
		return nil, err
	}
	open, err := h.Transactions()
	for _, tx := range slices.Backward(open) {
		for _, c := range tx.Changes {
			if c.Open() && c.Kind == tune.Gateway && c.Target == tune.GatewayTarget(inode) {
				return h.stored(c.Before), err
			}
		}
	}
	return nil, err
}

// stored is the plan of a digest; nil where the store does not have it. Who wants to
// know why: kept, status.
func (h Host) stored(digest string) *gateway.Plan {
	if !tune.IsDigest(digest) {
		return nil
	}
	p, err := h.store().Get(digest)
	if err != nil {
		return nil
	}
	return p
}

// Service is the `natkit gateway run` that keeps a file in force in the namespace; empty
// where none does.
func (h Host) Service() string {
	inode, err := h.Inode()
	if err != nil {
		return ""
	}
	return h.store().Claimant(inode)
}
