package apply

import (
	"context"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/gateway/host"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
	"github.com/vishvananda/netlink"
)

// Host is where a gateway is made: a network namespace (nil: this one) of a machine.
type Host struct {
	Netns *netns.Handle
	// Apply says where the journal and the files are. Its fields Appliers, Confirm,
	// Persist, Lifeline and Guarded are not used.
	Apply apply.Options
	// Engines put gateways in force; nil stands for those of this version.
	Engines engine.Set
}

func (h Host) store() *engine.Store { return engine.StoreBeside(h.Apply.Journal.Dir()) }

func (h Host) proc() string {
	if h.Apply.ProcRoot == "" {
		return "/proc"
	}
	return h.Apply.ProcRoot
}

// Inode is the namespace's.
func (h Host) Inode() (uint64, error) { return netns.InodeOf(h.Netns) }

func (h Host) id() (netns.ID, error) { return netns.IDOf(h.Netns) }

// facts are what Check and Compile need for a file; pid is the process whose session
// must not be cut, 0 for none.
func (h Host) facts(ctx context.Context, file *gateway.File, pid int) (gateway.Facts, error) {
	f, err := host.Read(ctx, h.Netns, host.OptionsFor(&file.Config, pid))
	if err == nil {
		h.Engines.Facts(h.Netns, &file.Config, &f)
		f.Down, err = h.Down()
	}
	return f, err
}

// Down are the uplinks that a service which runs has found to be down, and why.
func (h Host) Down() (map[string]string, error) {
	id, err := h.id()
	if err != nil {
		return nil, err
	}
	return h.store().Down(id), nil
}

// State returns what is in force, with the rules of the file that were changed.
func (h Host) State() (*gateway.State, error) { return h.Engines.Read(h.Netns, h.store(), true) }

// present reads what a plan is to change.
func (h Host) present(ctx context.Context, p *gateway.Plan, facts *gateway.Facts, state *gateway.State) (now Present, err error) {
	now = Present{Values: map[gateway.Engine]string{}, Sysctls: snapshot.Sysctls{}}
	for name, one := range state.Engines {
		now.Values[name] = Value(one)
	}
	if now.Netns, err = h.Inode(); err != nil {
		return now, err
	}
	// The tracker's module is loaded by the first question, and with it the values
	// under net.netfilter come.
	_, _ = dump.Count(h.Netns)
	err = h.Netns.Do(func() error {
		now.Initial = apply.IsInitialNetns(now.Netns, h.proc())
		return host.ReadSysctls(h.proc(), Sysctls, now.Sysctls)
	})
	if err != nil {
		return now, err
	}
	if p.Expect.Flows > 0 || p.Expect.Rate > 0 {
		s, err := collect.Read(ctx, collect.Options{Netns: h.Netns, Proc: h.proc(), MaxEntries: 1})
		if err != nil {
			return now, err
		}
		now.Facts = capacity.TableOf(s)
		now.SlabKnown = s.ConntrackSize != nil && s.ConntrackSize.SlabBytes > 0
	}
	if err := h.held(&now); err != nil {
		return now, err
	}
	if err := h.uplinks(&now, p, facts); err != nil {
		return now, err
	}
	return now, h.advertised(&now, p)
}

// held finds the sysctls, rules and routes of a namespace that open transactions of this boot wrote, and
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
			if !c.Open() || c.Kind != tune.Sysctl && c.Kind != tune.Routing {
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

// Expired returns the newest transaction of this boot that changed the gateway of the
// namespace, if it was rolled back for lack of confirmation; nil otherwise.
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
	text, err := disk.ReadPlain(path, gateway.MaxSource)
	if err != nil {
		return nil, fmt.Errorf("read gateway file %s: %w", document.Shown(path), disk.Cause(err))
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
	return h.store().Plan(state.Digest), nil
}

// InForceSince is when the rules that are in force were applied; zero where no transaction of this boot says it.
func (h Host) InForceSince() (time.Time, error) {
	state, err := h.State()
	if err != nil {
		return time.Time{}, err
	}
	open, err := h.Transactions()
	for _, tx := range slices.Backward(open) {
		if slices.ContainsFunc(tx.Changes, func(c journal.Change) bool { return c.Open() && c.Kind == tune.Gateway && c.After == state.Digest }) {
			return tx.CreatedAt, err
		}
	}
	return time.Time{}, err
}

// Out are the hosts of a plan in force that new connections do not go to.
func (h Host) Out(p *gateway.Plan) (map[gateway.Ref][]bool, error) {
	all, err := h.Engines.InUse(h.Netns, p)
	for _, hosts := range all {
		for i := range hosts {
			hosts[i] = !hosts[i]
		}
	}
	return all, err
}

// Steering is how a plan in force divides new connections among uplinks; nil where it does not.
func (h Host) Steering(p *gateway.Plan) (*gateway.Steering, error) {
	return h.Engines.Steering(h.Netns, h.store(), p)
}

// Former is the plan that the newest transaction replaced; nil as for InForce.
func (h Host) Former() (*gateway.Plan, error) {
	open, err := h.Transactions()
	for _, tx := range slices.Backward(open) {
		for _, c := range tx.Changes {
			if p := h.store().Plan(c.Before); c.Open() && c.Kind == tune.Gateway && p != nil {
				return p, err
			}
		}
		if slices.ContainsFunc(tx.Changes, func(c journal.Change) bool { return c.Open() && c.Kind == tune.Gateway }) {
			break
		}
	}
	return nil, err
}

// Service is the `natkit gateway run` that keeps a file in force in the namespace; false
// where none does.
func (h Host) Service() (Runner, bool) {
	inode, err := h.Inode()
	if err != nil {
		return Runner{}, false
	}
	text := h.store().Claimant(inode)
	return parseRunner(text), text != ""
}

// addresses are all that the host has, also those that IPv6 still asks about whether
// another one has them (tentative): after a link was down for a moment that begins
// anew, and they have not gone.
func (h Host) addresses() (set map[netip.Addr]bool, err error) {
	set = map[netip.Addr]bool{}
	err = h.Netns.Do(func() error {
		all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
		for _, a := range all {
			if ip, ok := netip.AddrFromSlice(a.IP); ok {
				set[ip.Unmap()] = true
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	return set, nil
}

// gone are the addresses of before that no interface has any more.
func gone(before, now map[netip.Addr]bool) []netip.Addr {
	var out []netip.Addr
	for a := range before {
		if !now[a] {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

func addressWords(all []netip.Addr) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(all), " ", ", "), "[]")
}

// quiet has its timer go off when events have ceased for a while, or have gone on for
// too long.
type quiet struct {
	timer *time.Timer
	begun time.Time
}

func newQuiet() *quiet {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &quiet{timer: t}
}

func (q *quiet) event(now time.Time) {
	if q.begun.IsZero() {
		q.begun = now
	}
	q.timer.Reset(max(0, min(settle, settleMax-now.Sub(q.begun))))
}

// Values of accept_ra (Documentation/networking/ip-sysctl.rst). With the usual one a
// router takes no router advertisements, and a host that becomes a router loses the
// routes that it has by them at once (ipv6_accept_ra, rt6_purge_dflt_routers).
const (
	acceptAsHost   = "1"
	acceptAsRouter = "2"
)

// isAccept reports whether a sysctl is accept_ra of an interface.
func isAccept(name string) bool {
	return strings.HasPrefix(name, "net.ipv6.conf.") && strings.HasSuffix(name, ".accept_ra")
}

// advertised finds the interfaces that have to go on taking router advertisements where
// the plan makes a router of the host, and those that natkit has set so.
func (h Host) advertised(now *Present, p *gateway.Plan) error {
	names, err := h.becomeRouters(now, p)
	if err != nil {
		return err
	}
	for name := range now.Held {
		if isAccept(name) {
			names = append(names, name)
		}
	}
	if err := h.Netns.Do(func() error { return host.ReadSysctls(h.proc(), names, now.Sysctls) }); err != nil {
		return err
	}
	slices.Sort(names)
	now.Advertised = slices.DeleteFunc(slices.Compact(names), func(name string) bool {
		value, there := now.Sysctls[name]
		return !there || !now.Held[name] && value != acceptAsHost
	})
	return nil
}

// becomeRouters are the names of accept_ra of interfaces that have, or may come to have,
// something by router advertisements; none where the host is a router without natkit.
func (h Host) becomeRouters(now *Present, p *gateway.Plan) (names []string, err error) {
	if !p.IPv6 || now.Sysctls[Forward6] != "0" && !now.Held[Forward6] {
		return nil, nil
	}
	interfaces, err := host.Advertised(h.Netns, p.WAN)
	for _, i := range interfaces {
		// An interface whose name is no part of a sysctl's is left as it is.
		if name, err := tune.SysctlName("net/ipv6/conf/" + i + "/accept_ra"); err == nil {
			names = append(names, name)
		}
	}
	return names, err
}

// advertisements lets interfaces take router advertisements as before; where the host
// is no router any more, as its administrator had it.
func (c *collector) advertisements(router bool) {
	for _, name := range c.now.Advertised {
		file, _ := tune.SysctlPath(name) // one that was read
		c.turn(name, acceptAsRouter, router, path.Base(path.Dir(file))+" goes on taking its IPv6 routes and addresses from router advertisements, as routers do with 2 only")
	}
}
