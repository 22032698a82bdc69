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
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ports"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/spf13/cobra"
)

// portsSchema names the JSON form.
const portsSchema = "natkit.ports/1"

// portsVerb is the verb ports.
type portsVerb struct {
	env     *Env
	entries entries
	window  time.Duration
	watch   time.Duration
	lvs     bool
	query   ports.Query
	notes   []string
	// names reads what the host calls addresses; nil before the first reading, and with --numeric.
	names func(context.Context, *netns.Handle) *snapshot.Names
}

func newPorts(env *Env) *cobra.Command {
	p := &portsVerb{env: env, query: ports.Query{Top: 20, Users: 3, Alternatives: true}}
	cmd := &cobra.Command{
		Use:   "ports",
		Short: "see which NAT address runs out of ports, and how likely a new connection is to fail",
		Long: `Two connections to one destination that leave through one address may not have the
same port. For each address that NAT gives, protocol and destination, ports prints how
many ports are in use of those that the rule (or the kernel) allows, how fast new
ones come and when they will be used up, who uses them, and the probability that a new
connection fails now: given that its own port is taken, and overall.

The whole connection table is read, twice for rates (--for 0 reads it once), in 64 MiB at
most; that requires CAP_NET_ADMIN. With --from a list of entries is enough; the rules are
then unknown, and the range is assumed to be the kernel's own; the rate is known if the
list has the entries' age (delta-time, where nf_conntrack_timestamp was on). "never"
means: at the present rate the number in use does not reach the range. A range of fewer
than 16 ports is that of one program, and all of them may be in use.

With --lvs it reports on the kernel's load balancer (IPVS) instead: services and their
real servers, the share of each against its weight, the number of client addresses,
how soon a client's port is reused, and how many of such connections stayed on the
former server. It requires root for the timeouts only, and with --from takes a bundle of
'natkit snapshot'. Its JSON form is ` + lvsSchema + `.`,
		Example: `  sudo natkit ports
  sudo natkit ports --netns gateway --top 5 --for 10
  sudo natkit ports --proto udp --watch
  conntrack -L | natkit ports --from -
  sudo natkit ports --json --for 0
  sudo natkit ports --lvs --netns director --for 10`,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.run(cmd) },
	}
	p.addFlags(cmd)
	return cmd
}

// Bounds of --watch and its usual value.
const (
	usualWatch = "2s"
	minWatch   = 500 * time.Millisecond
)

func (p *portsVerb) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	p.entries.addFlags(cmd)
	f.Var(natural(&p.query.Top), "top", "show the `N` most pressed, 0 for all")
	f.Var(into(&p.query.Address, parseAddress), "address", "only ports of the address `ADDR` that NAT gives")
	f.Var(into(&p.query.Protocol, parsePortProtocol), "proto", "only the protocol `NAME`: tcp, udp, icmp, …")
	addWindow(cmd, &p.window, time.Second, 0)
	f.Var(period(&p.watch, minWatch, maxWindow), "watch", "repeat at an interval of `SECONDS` (--watch=5), until Ctrl-C")
	f.Lookup("watch").NoOptDefVal = usualWatch
	f.BoolVar(&p.lvs, "lvs", false, "report on IPVS, the kernel's load balancer: services, real servers, reuse of clients' ports")
	p.env.addJSON(cmd, portsSchema)
	p.env.addCSV(cmd, "address, protocol and destination")
	for _, excluded := range []string{"json", "csv", "lvs"} {
		cmd.MarkFlagsMutuallyExclusive("watch", excluded)
	}
	for _, excluded := range []string{"csv", "address", "proto", "top"} {
		cmd.MarkFlagsMutuallyExclusive("lvs", excluded)
	}
	cmd.MarkFlagsMutuallyExclusive("watch", "for", "from")
	completeFlags(cmd, map[string]cobra.CompletionFunc{"proto": completeWords(portProtocols...)})
}

// portProtocols are those in which the kernel gives another port.
var portProtocols = []string{"tcp", "udp", "icmp", "icmpv6", "sctp", "dccp", "udplite"}

func parsePortProtocol(name string) (uint8, error) {
	if _, err := oneOf(portProtocols...)(name); err != nil {
		return 0, err
	}
	return nat.ParseProtocol(name)
}

func parseAddress(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return addr, errors.New("must be an IP address")
	}
	return addr.Unmap(), nil
}

func (p *portsVerb) run(cmd *cobra.Command) error {
	if p.entries.fromText(cmd) {
		p.window = 0
	}
	if p.lvs {
		return p.runLVS(cmd)
	}
	before, err := p.look(cmd)
	if err != nil {
		return err
	}
	if p.watch > 0 {
		return p.watchOn(cmd, before)
	}
	after := before
	if before = nil; p.window > 0 {
		progress := p.env.progress()
		progress.Update("waiting %s to compare", p.window)
		_ = during(cmd.Context(), p.window, 0, nil)
		progress.Clear()
		if cmd.Context().Err() != nil {
			return errors.New("interrupted before the second reading of the table (--for 0 takes one)")
		}
		before = after
		if after, err = p.look(cmd); err != nil {
			return err
		}
	}
	doc := p.document(after, before, "")
	if p.env.asCSV {
		if more := doc.Ports.Total - int64(len(doc.Ports.Pools)); more > 0 {
			p.env.note("%d more with less of their range in use are left out (--top 0 lists all)", more)
		}
		for _, note := range doc.Notes {
			p.env.note("%s", note)
		}
	}
	return p.env.print(report.Named{Document: doc, Names: after.names})
}

// watchOn shows one reading after the other, each compared with the one before, until Ctrl-C.
func (p *portsVerb) watchOn(cmd *cobra.Command, before *look) error {
	return during(cmd.Context(), 0, p.watch, func() error {
		after, err := p.look(cmd)
		if cmd.Context().Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		doc := p.document(after, before, after.middle.Format(time.TimeOnly))
		before = after
		return p.env.redraw(report.Named{Document: doc, Names: after.names}.Text)
	})
}

// document compares; before may be nil.
func (p *portsVerb) document(after, before *look, at string) report.Ports {
	q := p.query
	q.Complete, q.Rules = after.about.Complete, after.rules
	if before != nil && before.about.Complete {
		q.Before, q.Seconds = before.collector, after.middle.Sub(before.middle).Seconds()
	}
	doc := report.Ports{Schema: portsSchema, Version: p.env.Version, Read: after.about, Source: after.about.Source, Kernel: q.Release,
		Notes: p.notes, Ports: after.collector.Ports(q), Rules: after.rules, At: at}
	if doc.Ports.LeftOut > 0 {
		doc.Notes = append(doc.Notes, fmt.Sprintf("%d small pools exceeded the memory limit and are left out", doc.Ports.LeftOut))
	}
	if after.shared != nil {
		var err error
		if doc.Shared, err = after.shared(doc.Ports.Pools); err != nil {
			doc.Notes = append(doc.Notes, "whether sockets of this machine use these addresses is not known: "+err.Error())
		}
	}
	return doc
}

// look is one reading of the table.
type look struct {
	collector *ports.Collector
	about     entriesAbout
	// middle is when entries were read, on average.
	middle time.Time
	rules  *snapshot.NATRules
	names  *snapshot.Names
	shared func([]snapshot.PortPool) ([]snapshot.SharedAddress, error)
}

// look reads rules and table.
func (p *portsVerb) look(cmd *cobra.Command) (*look, error) {
	l := &look{}
	p.notes = nil
	if p.entries.fromText(cmd) {
		if err := p.readTexts(cmd, l); err != nil {
			return nil, err
		}
	} else if err := p.readHost(cmd, l); err != nil {
		return nil, err
	}
	began := time.Now()
	fresh := func() {
		began = time.Now()
		o := ports.Options{Now: began, Addresses: ports.Given(l.rules)}
		if p.entries.fromText(cmd) {
			o.Now = time.Time{} // not when the list was made
		}
		l.collector = ports.NewCollector(o)
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

// readTexts takes the rules and the kernel from the texts beside a list of connections.
func (p *portsVerb) readTexts(cmd *cobra.Command, l *look) error {
	host, err := p.entries.host(cmd.Context(), p.env)
	if err != nil {
		return err
	}
	if host != nil {
		p.query.Release = host.Last().Release
		if rules := host.Last().Rules; rules != nil {
			l.rules = ruleset.NATRules(rules, &ruleset.Budget{})
		}
	}
	if p.query.Release == "" || l.rules == nil {
		p.notes = append(p.notes, missingBeside(host != nil && p.query.Release != "", l.rules != nil))
	}
	return nil
}

// missingBeside says what is assumed where a list of connections is not all that is needed.
func missingBeside(kernel, rules bool) string {
	switch {
	case rules:
		return "the texts have no kernel: assumed to be Linux 5.0 or later"
	case kernel:
		return "the texts have no rules: assumed are the kernel's own ranges"
	}
	return "a list of entries has neither kernel nor rules: assumed to be Linux 5.0 or later, with the kernel's own ranges"
}

// lvsSchema names the JSON form of --lvs.
const lvsSchema = "natkit.lvs/1"

// runLVS reports on the kernel's load balancer instead of NAT's ports.
func (p *portsVerb) runLVS(cmd *cobra.Command) error {
	doc := report.LVS{Schema: lvsSchema, Version: p.env.Version, Source: p.entries.name()}
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
	return p.env.print(doc)
}

// noIPVS is why there is nothing to show.
func noIPVS(source string, s *snapshot.Snapshot) error {
	if why := s.PartError("ipvs"); why != "" {
		return errors.New(why)
	}
	return fmt.Errorf("read IPVS of %s: /proc/net/ip_vs does not exist: the module ip_vs is not loaded ('ipvsadm -A …' loads it), or this kernel has none (CONFIG_IP_VS)", source)
}

// recordLVS reads the kernel, or a bundle.
func (p *portsVerb) recordLVS(cmd *cobra.Command, doc *report.LVS) (*snapshot.Recording, error) {
	if p.entries.fromText(cmd) {
		if err := p.entries.check(cmd); err != nil {
			return nil, err
		}
		doc.Source = "bundle " + p.entries.from
		return p.env.readRecorded(cmd.Context(), recorded{name: p.entries.from, memory: snapshot.DefaultBudget})
	}
	if err := needsLinux("read IPVS", bundleInstead); err != nil {
		return nil, err
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
