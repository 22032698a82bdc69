package cli

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/ports"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// portsSchema names the JSON form.
const portsSchema = "natkit.ports/1"

// portsVerb is the verb ports.
type portsVerb struct {
	env     *Env
	entries entries
	top     int
	address string
	proto   string
	window  time.Duration
	watch   time.Duration
	asJSON  bool
	asCSV   bool
	lvs     bool
	query   ports.Query
	notes   []string
}

func newPorts(env *Env) *cobra.Command {
	p := &portsVerb{env: env}
	cmd := &cobra.Command{
		Use:   "ports",
		Short: "see which NAT address runs out of ports, and how likely a new connection is to fail",
		Long: `Two connections to one destination that leave through one address may not have the
same port. For each address that NAT gives, protocol and destination, this tells how
many ports are in use of those that the rule (or the kernel) allows, how fast new
ones come and when they will be used up, who uses them, and the chance that a new
connection fails now: given that its own port is taken, and overall.

The chance is computed from the used ports as they lie. Since Linux 5.0 the kernel
looks at 128, 64, 32, 16 and 8 consecutive ports from random starts and then gives
up: one block of used ports that fills half of the range fails 3 % of the connections
whose port is taken, one of 93 % fails 70 %, ports that lie scattered over 93 % none.

It reads the whole connection table, twice for rates (--for 0 reads it once; rates are
then told where entries have their age: net.netfilter.nf_conntrack_timestamp), and
needs CAP_NET_ADMIN. With --from a list of entries is enough; there the rules are not
known, and the range is taken to be the kernel's own.

It takes 64 MiB for each look at most; beyond that small pools are left out, and it
says so. Connections that came and went between the two looks are not in the rate. "never"
means: at the present rate the number in use does not reach the range, or it does not
grow by more than chance explains.

With --lvs it tells of the kernel's load balancer (IPVS) instead: services and their
real servers, what each gets against its weight, from how few client addresses
connections come, how soon a client's port comes again, and how many of such
connections stayed on the server of the former one. It reads the table of connections
for a second and 6 MiB (some 90,000) at most, needs root for the timeouts only, and
with --from takes a bundle of 'natkit snapshot'. Its JSON form is ` + lvsSchema + `.`,
		Example: `  sudo natkit ports
  sudo natkit ports --netns gateway --top 5 --for 10
  sudo natkit ports --proto udp --watch
  conntrack -L | natkit ports --from -
  sudo natkit ports --json --for 0
  sudo natkit ports --lvs --netns director --for 10`,
		Args:              noArgsButFlags,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return p.run(cmd) },
	}
	p.addFlags(cmd)
	return cmd
}

// noArgsButFlags says how a value is given to a flag that may do without one.
func noArgsButFlags(cmd *cobra.Command, args []string) error {
	if len(args) > 0 && cmd.Flags().Changed("watch") {
		return usagef("unexpected %q: a time for --watch is written --watch=5", args[0])
	}
	return cobra.NoArgs(cmd, args)
}

// Bounds of --watch and its usual value.
const (
	usualWatch = "2s"
	minWatch   = 500 * time.Millisecond
)

func (p *portsVerb) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	p.entries.addFlags(cmd)
	f.IntVar(&p.top, "top", 20, "show the `N` most pressed, 0 for all")
	f.StringVar(&p.address, "address", "", "only ports of the address `ADDR` that NAT gives")
	f.StringVar(&p.proto, "proto", "", "only the protocol `NAME`: tcp, udp, icmp, …")
	addWindow(cmd, &p.window, time.Second)
	f.Var((*seconds)(&p.watch), "watch", "go on, and look every so many `SECONDS`, until Ctrl-C")
	f.Lookup("watch").NoOptDefVal = usualWatch
	f.BoolVar(&p.lvs, "lvs", false, "tell of IPVS, the kernel's load balancer: services, real servers, reuse of clients' ports")
	addJSON(cmd, &p.asJSON, portsSchema)
	addCSV(cmd, &p.asCSV, "address, protocol and destination")
	cmd.MarkFlagsMutuallyExclusive("watch", "json")
	cmd.MarkFlagsMutuallyExclusive("watch", "csv")
	cmd.MarkFlagsMutuallyExclusive("lvs", "csv")
	cmd.MarkFlagsMutuallyExclusive("watch", "for", "from")
	cmd.MarkFlagsMutuallyExclusive("lvs", "address")
	cmd.MarkFlagsMutuallyExclusive("lvs", "proto")
	cmd.MarkFlagsMutuallyExclusive("lvs", "watch")
	cmd.MarkFlagsMutuallyExclusive("lvs", "top")
	completeFlags(cmd, map[string]cobra.CompletionFunc{"top": cobra.NoFileCompletions, "address": cobra.NoFileCompletions,
		"proto": cobra.FixedCompletions(portProtocols, cobra.ShellCompDirectiveNoFileComp),
		"for":   cobra.NoFileCompletions, "watch": cobra.NoFileCompletions})
}

// portProtocols are those in which the kernel gives another port.
var portProtocols = []string{"tcp", "udp", "icmp", "icmpv6", "sctp", "dccp", "udplite"}

var portProtocolNumbers = []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6,
	unix.IPPROTO_SCTP, unix.IPPROTO_DCCP, unix.IPPROTO_UDPLITE}

func (p *portsVerb) check(cmd *cobra.Command) error {
	changed := cmd.Flags().Changed
	if p.entries.fromText(cmd) {
		p.window = 0
	}
	switch {
	case p.top < 0:
		return usagef("--top %d: must not be negative", p.top)
	case changed("watch") && (p.watch < minWatch || p.watch > maxWindow):
		return usagef("--watch %s: must be from %s to %s", p.watch, minWatch, maxWindow)
	}
	if p.window != 0 {
		if err := checkWindow(p.window, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return p.choose(cmd)
}

// choose reads --address and --proto.
func (p *portsVerb) choose(cmd *cobra.Command) error {
	if cmd.Flags().Changed("address") {
		addr, err := netip.ParseAddr(p.address)
		if err != nil {
			return usagef("--address %q: must be an IP address", p.address)
		}
		p.query.Address = addr.Unmap()
	}
	if cmd.Flags().Changed("proto") {
		for i, name := range portProtocols {
			if name == p.proto {
				p.query.Protocol = portProtocolNumbers[i]
			}
		}
		if p.query.Protocol == 0 {
			return usagef("--proto %q: must be one of %v", p.proto, portProtocols)
		}
	}
	return nil
}

func (p *portsVerb) run(cmd *cobra.Command) error {
	if p.lvs {
		return p.runLVS(cmd)
	}
	if err := p.check(cmd); err != nil {
		return err
	}
	p.query.Top, p.query.Users, p.query.Alternatives = p.top, 3, true
	before, err := p.look(cmd)
	if err != nil {
		return err
	}
	if cmd.Flags().Changed("watch") {
		return p.watchOn(cmd, before)
	}
	after := before
	if p.window > 0 {
		if err := p.wait(cmd.Context(), p.window); err != nil {
			return errors.New("interrupted before the second look at the table (--for 0 takes one)")
		}
		if after, err = p.look(cmd); err != nil {
			return err
		}
	} else {
		before = nil
	}
	return p.show(after, before)
}

// wait lets time pass between two looks.
func (p *portsVerb) wait(ctx context.Context, d time.Duration) error {
	progress := p.env.progress()
	defer progress.Clear()
	progress.Update("waiting %s to compare", d)
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// watchOn shows one look after the other, each compared with the one before.
func (p *portsVerb) watchOn(cmd *cobra.Command, before *look) error {
	for {
		if err := p.wait(cmd.Context(), p.watch); err != nil {
			return nil // Ctrl-C ends it
		}
		after, err := p.look(cmd)
		if err != nil {
			if cmd.Context().Err() != nil {
				return nil
			}
			return err
		}
		if p.env.StdoutTerminal {
			fmt.Fprint(p.env.Stdout, "\x1b[H\x1b[J")
		}
		fmt.Fprintln(p.env.Stdout, after.middle.Format(time.TimeOnly))
		if err := p.show(after, before); err != nil {
			return err
		}
		if !p.env.StdoutTerminal {
			fmt.Fprintln(p.env.Stdout)
		}
		before = after
	}
}

// portsDocument is the JSON form.
type portsDocument struct {
	Schema  string                   `json:"schema"`
	Version string                   `json:"version"`
	Read    entriesAbout             `json:"read"`
	Kernel  string                   `json:"kernel,omitempty"`
	Notes   []string                 `json:"notes,omitempty"`
	Ports   *snapshot.Ports          `json:"ports"`
	Rules   *snapshot.NATRules       `json:"nat_rules,omitempty"`
	Shared  []snapshot.SharedAddress `json:"shared_with_sockets,omitempty"`
}

// show computes and prints; before may be nil.
func (p *portsVerb) show(after, before *look) error {
	q := p.query
	q.Complete, q.Rules = after.about.Complete, after.rules
	if before != nil && before.about.Complete {
		q.Before, q.Seconds = before.collector, after.middle.Sub(before.middle).Seconds()
	}
	doc := portsDocument{Schema: portsSchema, Version: p.env.Version, Read: after.about, Kernel: q.Release,
		Notes: p.notes, Ports: after.collector.Ports(q), Rules: after.rules}
	if doc.Ports.LeftOut > 0 {
		doc.Notes = append(doc.Notes, fmt.Sprintf("%d small pools found no room in memory and are left out", doc.Ports.LeftOut))
	}
	unread := ""
	if after.shared != nil {
		var err error
		if doc.Shared, err = after.shared(doc.Ports.Pools); err != nil {
			unread = err.Error()
		}
	}
	if p.asCSV {
		if more := doc.Ports.Total - int64(len(doc.Ports.Pools)); more > 0 {
			p.env.note("%d more with less of their range in use are left out (--top 0 lists all)", more)
		}
		for _, note := range doc.Notes {
			p.env.note("%s", note)
		}
		return report.CSV(p.env.Stdout, doc.Ports.Pools)
	}
	if p.asJSON {
		if unread != "" {
			doc.Notes = append(doc.Notes, unread)
		}
		return report.JSON(p.env.Stdout, doc)
	}
	view := report.PortsView{Source: doc.Read.Source, Shared: doc.Shared, Unread: unread, Notes: doc.Notes}
	return report.Ports(p.env.Stdout, p.env.style(), view, doc.Ports)
}

// look is one reading of the table.
type look struct {
	collector *ports.Collector
	about     entriesAbout
	// middle is when entries were read, on average.
	middle time.Time
	rules  *snapshot.NATRules
	shared func([]snapshot.PortPool) ([]snapshot.SharedAddress, error)
}

// look reads rules and table.
func (p *portsVerb) look(cmd *cobra.Command) (*look, error) {
	l := &look{}
	p.notes = nil
	if p.entries.fromText(cmd) {
		p.notes = append(p.notes, "a list of entries tells neither kernel nor rules: taken to be Linux 5.0 or later, with the kernel's own ranges")
	} else if err := p.readHost(cmd, l); err != nil {
		return nil, err
	}
	began := time.Now()
	fresh := func() {
		began = time.Now()
		l.collector = ports.NewCollector(ports.Options{Now: began, Addresses: ports.Given(l.rules)})
	}
	fresh()
	p.entries.restart = fresh
	var err error
	l.about, err = p.entries.each(cmd, p.env, nil, func(e *conntrack.Entry) error {
		l.collector.Add(e)
		return nil
	})
	l.middle = began.Add(time.Since(began) / 2)
	return l, err
}

// readHost reads what is not in the table. Without it the ports are told all the same.
func (p *portsVerb) readHost(cmd *cobra.Command, l *look) error {
	ns, err := p.entries.open(cmd)
	if err != nil {
		return err
	}
	defer ns.Close()
	if l.rules, err = read.NAT(ns); err != nil {
		p.notes = append(p.notes, fmt.Sprintf("the NAT rules are not known (%v): ranges are taken to be the kernel's own", err))
	}
	if p.query.Release, err = collect.Release(); err != nil {
		return err
	}
	sockets, err := collect.Sockets(ns)
	l.shared = func(pools []snapshot.PortPool) ([]snapshot.SharedAddress, error) {
		return ports.SharedWith(pools, sockets), err
	}
	return nil
}

// lvsSchema names the JSON form of --lvs.
const lvsSchema = "natkit.lvs/1"

// lvsDocument is the JSON form.
type lvsDocument struct {
	Schema  string `json:"schema"`
	Version string `json:"version"`
	Source  string `json:"source"`
	Kernel  string `json:"kernel"`
	// CountedPerSecond are new connections by the counter of IPVS; nil for one reading.
	CountedPerSecond *float64         `json:"counted_per_second,omitempty"`
	Sysctls          snapshot.Sysctls `json:"sysctls,omitempty"`
	Notes            []string         `json:"notes,omitempty"`
	IPVS             *snapshot.IPVS   `json:"ipvs"`
}

// runLVS tells of the kernel's load balancer instead of NAT's ports.
func (p *portsVerb) runLVS(cmd *cobra.Command) error {
	if err := p.checkLVS(cmd); err != nil {
		return err
	}
	doc := lvsDocument{Schema: lvsSchema, Version: p.env.Version, Source: p.entries.name()}
	rec, err := p.recordLVS(cmd, &doc)
	if err != nil {
		return err
	}
	last := rec.Last()
	if last.IPVS == nil {
		return noIPVS(doc.Source, last)
	}
	doc.Kernel, doc.IPVS, doc.Sysctls = last.Kernel.Release, last.IPVS, snapshot.Sysctls{}
	for name, value := range last.Sysctls {
		if strings.HasPrefix(name, snapshot.IPVSPrefix) {
			doc.Sysctls[name] = value
		}
	}
	for _, part := range []string{"ipvs", "ipvs_connections"} {
		if why := last.PartError(part); why != "" {
			doc.Notes = append(doc.Notes, why)
		}
	}
	doc.CountedPerSecond = countedByIPVS(rec)
	return p.showLVS(&doc)
}

func (p *portsVerb) checkLVS(cmd *cobra.Command) error {
	if p.entries.fromText(cmd) {
		return p.entries.check(cmd)
	}
	if p.window == 0 {
		return nil
	}
	return checkWindow(p.window, minWindow)
}

// noIPVS says why there is nothing to show.
func noIPVS(source string, s *snapshot.Snapshot) error {
	if why := s.PartError("ipvs"); why != "" {
		return errors.New(why)
	}
	return fmt.Errorf("read IPVS of %s: /proc/net/ip_vs is not there: the module ip_vs is not loaded ('ipvsadm -A …' loads it), or this kernel has none (CONFIG_IP_VS)", source)
}

// recordLVS reads the kernel, or a bundle.
func (p *portsVerb) recordLVS(cmd *cobra.Command, doc *lvsDocument) (*snapshot.Recording, error) {
	if p.entries.fromText(cmd) {
		doc.Source = "bundle " + p.entries.from
		return readBundleFile(p.env, p.entries.from, snapshot.DefaultBudget)
	}
	ns, err := p.entries.open(cmd)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	progress := p.env.progress()
	defer progress.Clear()
	return collect.RecordIPVS(cmd.Context(), collect.RecordOptions{
		Options: collect.Options{Netns: ns}, For: p.window, Progress: progress.Show,
	})
}

// countedByIPVS is nil where there are not two readings of the counter.
func countedByIPVS(rec *snapshot.Recording) *float64 {
	first, last := rec.First().IPVS, rec.Last().IPVS
	seconds := rec.Seconds()
	if first == nil || first.Stats == nil || last.Stats == nil || seconds <= 0 || last.Stats.Connections < first.Stats.Connections {
		return nil
	}
	rate := float64(last.Stats.Connections-first.Stats.Connections) / seconds
	return &rate
}

func (p *portsVerb) showLVS(doc *lvsDocument) error {
	if p.asJSON {
		return report.JSON(p.env.Stdout, doc)
	}
	v := report.LVSView{Source: doc.Source, Sysctls: doc.Sysctls, Notes: doc.Notes, CountedKnown: doc.CountedPerSecond != nil}
	if v.CountedKnown {
		v.Counted = *doc.CountedPerSecond
	}
	return report.LVS(p.env.Stdout, p.env.style(), v, doc.IPVS)
}
