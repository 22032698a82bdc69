//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/bpf/pktgen"
	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/units"
	"github.com/spf13/cobra"
)

// loadEngine is what makes connections, or answers them.
type loadEngine string

const packetEngine loadEngine = "packet"

const (
	// defaultConnectWindow connections find room in a veth's ring of 256 at every step.
	defaultConnectWindow  = 256
	defaultConnectTimeout = time.Second
)

// packetConnect is bench connect with the packet engine.
type packetConnect struct {
	verb    *benchVerb
	cfg     packets.ConnectConfig
	engine  loadEngine
	maxLoss float64
	sender  benchSender
}

// addFlags adds the flags that the engine of sockets does not have.
func (b *packetConnect) addFlags(cmd *cobra.Command, verb *benchVerb) {
	b.verb, b.sender = verb, benchSender{env: verb.env, from: &place{target: &verb.target}}
	f := cmd.Flags()
	f.Var(into(&b.engine, oneOf(packetEngine)), "engine", "what makes the connections: `packet`, by eBPF (kernel sockets otherwise)")
	f.Var(into(&b.maxLoss, parseShare), "max-loss", "exit with 3 if more than this `SHARE` of the connections was incomplete or reset, or a segment was misdelivered: 0, 0.001 or 0.1%")
	addOwnNetwork(cmd, &b.cfg.OwnNetwork)
	b.sender.addFlags(cmd)
	for _, name := range []string{"max-loss", "node", "dev", "next-mac"} {
		requires(cmd, name, "engine")
	}
	for _, name := range []string{"request", "merge-ack", "workers"} {
		cmd.MarkFlagsMutuallyExclusive("engine", name)
	}
	for name, differs := range map[string]string{
		"close": "also none (it stays open)", "connections": "this or --time is required", "concurrency": "256 by default, with --rate all flows",
		"timeout": "1s by default", "source-port": "1024-65535 by default", "json": "schema " + report.ConnectPacketSchema,
	} {
		f.Lookup(name).Usage += "; with --engine packet " + differs
	}
	completeFlags(cmd, map[string]cobra.CompletionFunc{"engine": completeWords(string(packetEngine))})
}

// take takes over the flags that both engines have; those not given have defaults of their own.
func (b *packetConnect) take(cmd *cobra.Command, shared load.Config) {
	given := cmd.Flags().Changed
	b.cfg.Connections, b.cfg.Duration, b.cfg.Rate = shared.Requests, shared.Duration, shared.Rate
	b.cfg.Close, b.cfg.Timeout = load.CloseClient, defaultConnectTimeout
	b.cfg.Flows = packets.Flows{Sources: shared.Sources, SourcePorts: nat.Ports{First: 1024, Last: 65535}, Seed: shared.Seed}
	if given("close") {
		b.cfg.Close = shared.Close
	}
	if given("timeout") {
		b.cfg.Timeout = shared.Timeout
	}
	if given("concurrency") {
		b.cfg.Window = shared.Concurrency
	}
	if given("source-port") {
		b.cfg.Flows.SourcePorts = shared.SourcePorts
	}
}

func (b *packetConnect) run(cmd *cobra.Command, to string, shared load.Config) error {
	b.take(cmd, shared)
	if err := b.complete(to); err != nil {
		return err
	}
	if err := pktgen.CheckPrivilege(); err != nil {
		return fmt.Errorf("bench connect --engine packet %w", err)
	}
	way, err := b.sender.open(cmd)
	defer b.sender.from.close()
	if err != nil {
		return err
	}
	from, err := pktgen.ReadEgress(way, b.cfg.Target().Addr())
	if err != nil {
		return err
	}
	if err := b.checkSource(from); err != nil {
		return err
	}
	result, err := b.connect(cmd.Context(), from)
	if result == nil {
		return err
	}
	judged := report.ConnectResult{ConnectResult: result}
	if cmd.Flags().Changed("max-loss") {
		judged.Judge(b.maxLoss)
	}
	b.verb.schema = report.ConnectPacketSchema
	err = errors.Join(err, b.verb.print(noneComplete(result), report.LoadHead{Command: b.command(cmd, to)}, judged, judged.Text))
	if err == nil && judged.MaxLossExceeded {
		return errFindings
	}
	return err
}

// complete fills in what the flags leave open, but for the source address, which the kernel may
// choose, and checks all before anything is opened.
func (b *packetConnect) complete(to string) error {
	dst, err := parseAddrPort("destination ", to)
	if err != nil {
		return err
	}
	c := &b.cfg
	c.Flows.Destinations = []netip.AddrPort{dst}
	if c.Connections == 0 && c.Duration == 0 {
		return usagef("--engine packet requires --connections or --time: it begins hundreds of thousands of connections per second")
	}
	check := *b
	if len(c.Flows.Sources) == 0 { // one that stands for it
		check.cfg.Flows.Sources = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		if dst.Addr().Is6() {
			check.cfg.Flows.Sources[0] = netip.MustParseAddr("2001:db8::1")
		}
	}
	return check.settle()
}

// settle sets what follows from the sources, and checks the whole.
func (b *packetConnect) settle() error {
	c := &b.cfg
	c.Flows.Count = int(min(c.Flows.Combinations(), packets.MaxFlows+1))
	switch {
	case c.Window != 0:
	case c.Rate > 0:
		c.Window = c.Flows.Count
	default:
		c.Window = min(defaultConnectWindow, c.Flows.Count)
	}
	if err := c.Check(); err != nil {
		return usage(err)
	}
	return nil
}

// checkSource adds the kernel's choice of a source, and checks what depends on the way out.
func (b *packetConnect) checkSource(from pktgen.Egress) error {
	if err := chooseSource(&b.cfg.Flows, from); err != nil {
		return err
	}
	return b.settle()
}

func (b *packetConnect) connect(ctx context.Context, from pktgen.Egress) (*packets.ConnectResult, error) {
	progress := b.verb.env.progress()
	defer progress.Clear()
	others := collect.WatchOthers()
	result, err := pktgen.Connect(ctx, b.cfg, from, func(p packets.ConnectProgress) {
		progress.Update("%.1f s: %s connections begun, %s complete", p.Elapsed.Seconds(), units.Count(p.Started), units.Count(p.Complete))
	})
	if result == nil {
		return nil, err
	}
	result.OtherCPU = others()
	result.Notes = append(result.Notes, circumstances(ctx, result.OtherCPU)...)
	return result, err
}

// noneComplete is why a run without a complete connection has failed.
func noneComplete(r *packets.ConnectResult) error {
	to := r.Config.Target()
	switch {
	case r.Complete > 0:
		return nil
	case r.Started == 0:
		return fmt.Errorf("bench connect %v: the run ended before anything was sent", to)
	}
	return fmt.Errorf("bench connect %v: none of %s connections became complete: %s", to, units.Count(r.Started), report.ConnectFaults(r))
}

// command makes the same connections again.
func (b *packetConnect) command(cmd *cobra.Command, to string) string {
	c := b.cfg
	chosen := numbers(map[string]int64{"concurrency": int64(c.Window)})
	chosen["seed"], chosen["source-port"] = fmt.Sprint(c.Flows.Seed), c.Flows.SourcePorts.String()
	chosen["source"], chosen["timeout"], chosen["close"] = c.Flows.Sources[0].String(), c.Timeout.String(), string(c.Close)
	if c.Duration > 0 {
		chosen["time"] = c.Duration.String()
	}
	return commandLine(cmd, chosen, to)
}

// packetServe is bench serve with the packet engine.
type packetServe struct {
	verb   *benchVerb
	engine loadEngine
	// at has its place; its device answers.
	at    benchSender
	ports []nat.Ports
}

func (s *packetServe) addFlags(cmd *cobra.Command, verb *benchVerb) {
	s.verb, s.at = verb, benchSender{env: verb.env, from: &place{target: &verb.target}}
	f := cmd.Flags()
	f.Var(into(&s.engine, oneOf(packetEngine)), "engine", "what answers: `packet`, an XDP program (kernel sockets otherwise)")
	f.Var(into(&s.at.dev, notEmpty("an interface")), "interface", "with --engine packet: answer at this interface (`IF`)")
	f.Var(&value{kind: repeatable, set: s.addPorts}, "port", "with --engine packet: answer TCP to `PORT[-PORT]`; may be repeated")
	f.StringVar(&s.at.from.node, "node", "", "with --engine packet: in this `NODE` of a lab that is up")
	addLab(cmd, &s.at.lab)
	requires(cmd, "node", "engine")
	requires(cmd, "lab", "node")
	cmd.MarkFlagsRequiredTogether("engine", "interface", "port")
	cmd.MarkFlagsMutuallyExclusive("netns", "pid", "node")
	for _, name := range []string{"listen", "udp", "tcp", "workers"} {
		cmd.MarkFlagsMutuallyExclusive("engine", name)
	}
	completeFlags(cmd, map[string]cobra.CompletionFunc{
		"engine": completeWords(string(packetEngine)), "interface": s.at.completeInterfaces(s.at.from), "node": offer(s.at.nodeNames),
	})
}

func (s *packetServe) addPorts(text string) error {
	ports, err := nat.ParsePorts(text)
	s.ports = append(s.ports, ports)
	return err
}

func (s *packetServe) run(cmd *cobra.Command) error {
	if err := pktgen.CheckPrivilege(); err != nil {
		return fmt.Errorf("bench serve --engine packet %w", err)
	}
	way, err := s.at.open(cmd)
	defer s.at.from.close()
	if err != nil {
		return err
	}
	r, err := pktgen.Respond(pktgen.Port{Netns: way.Netns, Interface: s.at.dev}, s.ports)
	if err != nil {
		return err
	}
	served, err := s.serve(cmd.Context(), r)
	if err = errors.Join(err, r.Close()); served == nil {
		return err
	}
	s.verb.schema = report.RespondedSchema
	return errors.Join(err, s.verb.print(nil, report.LoadHead{}, served, func(w io.Writer, style report.Style) error {
		return report.Responded(w, style, served)
	}))
}

// serve returns what was answered until ctx ended, or the responder broke.
func (s *packetServe) serve(ctx context.Context, r *pktgen.Responder) (*packets.Responded, error) {
	env := s.verb.env
	out := env.Stdout
	if env.asJSON { // the document comes there
		out = env.Stderr
	}
	fmt.Fprintf(out, "answering TCP at %v, port %s\n", r, strings.Trim(fmt.Sprint(s.ports), "[]"))
	for _, note := range r.Notes() {
		env.note("%s", note)
	}
	progress := env.progress()
	defer progress.Clear()
	err := during(ctx, 0, 500*time.Millisecond, func() error {
		c, err := r.Counts()
		if err == nil {
			progress.Update("%.0f s: %s connections opened, %s requests answered", c.Seconds, units.Count(c.Opened), units.Count(c.Answered))
			err = r.Broken()
		}
		return err
	})
	served, errCounts := r.Counts()
	return served, errors.Join(err, errCounts)
}
