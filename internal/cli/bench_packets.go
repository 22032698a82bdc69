package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/bpf/pktgen"
	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/packet"
	"github.com/natkit/natkit/internal/units"
)

// benchPacketsSchema names the JSON form of bench packets' result.
const benchPacketsSchema = "natkit.bench-packets/1"

// benchPackets is what the command line of bench packets says.
type benchPackets struct {
	env       *Env
	cfg       packet.Config
	time      seconds
	source    sourceFlags
	tcp, size string
	expect    struct{ source, destination string }
	ways      ways
	maxLoss   string
	json      bool
}

func newBenchPackets(env *Env) *cobra.Command {
	b := &benchPackets{env: env, source: sourceFlags{ports: defaultSourcePorts}}
	cmd := &cobra.Command{
		Use:   "packets [flags] ADDR:PORT",
		Short: "send numbered packets from eBPF, and count at the other end what became of each",
		Long: `Send UDP or TCP packets that an eBPF program makes, to ADDR:PORT as the sender
sees it, for instance the public address of a DNAT. With --sink an XDP program counts
what arrives at that interface. It takes away the packets of this run and nothing
else; by the number that each carries it tells lost, reordered and duplicated ones.
Other traffic of that interface goes on, but may be much slower during the run.

Where a NAT lies between, --expect-source and --expect-destination say how the packets
must look when they arrive: 'same' as sent, an ADDRESS, a PREFIX, or 'netmap:PREFIX' (the
prefix's bits, and behind them those that were sent); with ':PORT', ':FIRST-LAST' or
':same' if the port matters, and IPv6 in brackets then. Then, and with --verify, their
checksums are checked, too.

The sender is the namespace that natkit runs in, or that of --netns, --pid, or --node
(of a lab that is up); the receiver's is that of --sink-netns, --sink-pid or
--sink-node. --sink may be left out where the receiver's has one interface only.

The packets bypass the sender's own stack: its netfilter rules and sockets do not see
them. TCP segments belong to no connection: connection tracking takes a SYN, or in
its default setting (nf_conntrack_tcp_loose) an ACK, as the first one of a new entry.
A NAT's connection table gets an entry for each flow.

Needs Linux 5.18, CAP_SYS_ADMIN and CAP_NET_ADMIN. docs/bench.md tells how it
works and what the counts mean.`,
		Example: `  sudo natkit lab up table-full
  sudo natkit bench packets --node client --sink-node gateway --sink eth0 198.18.0.1:9
  sudo natkit bench packets --node client --sink-node server --tcp syn -n 100000 --rate 100000 \
      --expect-source same --expect-destination 198.19.0.2:80 198.18.0.1:8080
  sudo natkit bench packets --netns a --sink-netns b --sink eth0 --size imix -t 5 198.18.0.2:9
  sudo natkit bench packets --dev eth1 --flows 100000 --source 198.18.1.0/24 --rate 1e6 --json 198.19.0.2:9`,
		Args: exactlyOneAddrPort,
		RunE: func(cmd *cobra.Command, args []string) error { return b.run(cmd, args[0]) },
	}
	b.addFlags(cmd)
	return cmd
}

func (b *benchPackets) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Int64VarP(&b.cfg.Packets, "packets", "n", 0, "packets in all (0: until --time is over)")
	addTime(cmd, &b.time)
	f.Lookup("time").Usage += " (10s where --packets is not given either)"
	f.Float64Var(&b.cfg.Rate, "rate", 0, "send so many packets per second on a schedule (0: as fast as it goes)")
	f.IntVar(&b.cfg.Flows.Count, "flows", 0, "send in turn so many flows, each with a source address and port of its own (default 1000, or as many as there are)")
	b.source.addFlags(cmd, "choose source ports of `FIRST-LAST` in an order that --seed determines")
	f.Uint64Var(&b.cfg.Flows.Seed, "seed", 0, "makes the order of the source addresses and of --source-port repeatable")
	f.StringVar(&b.tcp, "tcp", "", "send TCP segments with these `FLAGS`, in turn: syn, or syn,ack:10,fin+ack (UDP otherwise)")
	addSize(cmd, &b.size)
	f.Uint16Var(&b.cfg.Spec.VLAN, "vlan", 0, "put a VLAN tag with this `ID` in front (0: none)")
	f.Uint8Var(&b.cfg.Spec.DSCP, "dscp", 0, "differentiated services code point, 0 to 63")
	f.Uint8Var(&b.cfg.Spec.HopLimit, "ttl", defaultTTL, "time to live, IPv6's hop limit")
	f.IntVar(&b.cfg.Workers, "workers", 1, "send from so many CPUs (0: all)")
	f.StringVar(&b.expect.source, "expect-source", "", "`END` that packets must come from: same, ADDRESS, PREFIX or netmap:PREFIX, with :PORTS or :same")
	f.StringVar(&b.expect.destination, "expect-destination", "", "`END` that packets must be for when they arrive, said in the same way")
	f.BoolVar(&b.cfg.Verify, "verify", false, "check the checksums of what arrives")
	f.StringVar(&b.maxLoss, "max-loss", "", "exit with 3 where more than this `SHARE` was lost, misdelivered, corrupted or duplicated: 0, 0.001 or 0.1%")
	f.BoolVar(&b.cfg.Bare, "bare", false, "send one unchanging frame and only count what arrives: what the link can do at most, to compare with")
	f.BoolVar(&b.cfg.Statistics, "bpf-stats", false, "measure the programs' own time per packet; measuring costs more than they do, so look at the rate of another run")
	b.ways.addFlags(cmd, b.env)
	addOwnNetwork(cmd, &b.cfg.OwnNetwork)
	addJSON(cmd, &b.json, benchPacketsSchema)
}

func (b *benchPackets) run(cmd *cobra.Command, to string) error {
	cfg, err := b.config(to)
	if err != nil {
		return err
	}
	maxLoss, err := b.checkReceiver(cmd)
	if err != nil {
		return err
	}
	if err := pktgen.CheckPrivilege(); err != nil {
		return fmt.Errorf("bench packets %w", err)
	}
	places, err := b.ways.open(cmd)
	if err != nil {
		return err
	}
	defer places.close()
	from, err := pktgen.ReadEgress(places.way, cfg.Flows.Destinations[0].Addr())
	if err != nil {
		return err
	}
	if cfg, err = complete(cfg, from); err != nil {
		return err
	}
	doc := packetsDocument{Schema: benchPacketsSchema, Version: b.env.Version, Command: b.command(cmd, cfg, to)}
	doc.Result, err = b.send(cmd.Context(), cfg, from, places.sink)
	if doc.Result == nil {
		return err
	}
	doc.judge(maxLoss)
	return errors.Join(err, b.print(doc))
}

// complete adds what only the way out tells.
func complete(cfg packet.Config, from pktgen.Egress) (packet.Config, error) {
	if len(cfg.Flows.Sources) == 0 {
		if !from.Source.IsValid() {
			return cfg, fmt.Errorf("%v has no address of the destination's family: give --source", from.Port)
		}
		cfg.Flows.Sources = append(cfg.Flows.Sources, from.Source)
	}
	if err := cfg.Check(); err != nil { // the kernel's choice of a source may be public
		return cfg, usageError{err}
	}
	return cfg, from.CheckMTU(cfg.Spec)
}

func (b *benchPackets) send(ctx context.Context, cfg packet.Config, from pktgen.Egress, sink *pktgen.Port) (*packet.Result, error) {
	progress := b.env.progress()
	defer progress.Clear()
	others := collect.WatchOthers()
	result, err := pktgen.Run(ctx, cfg, from, sink, pktgen.Options{Progress: func(p packet.Progress) {
		progress.Show(packetsProgress(p, sink != nil))
	}})
	if result == nil {
		return nil, err
	}
	result.OtherCPU = others()
	if note := load.OthersNote(result.OtherCPU, ""); note != "" {
		result.Notes = append(result.Notes, note)
	}
	if ctx.Err() != nil {
		result.Notes = append(result.Notes, "interrupted: the counts are those until then")
	}
	return result, err
}

func packetsProgress(p packet.Progress, counted bool) string {
	text := fmt.Sprintf("%.1f s  %s sent", p.Elapsed.Seconds(), units.Count(p.Sent))
	if p.Packets > 0 {
		text = strings.Replace(text, " sent", fmt.Sprintf(" of %s sent", units.Count(p.Packets)), 1)
	}
	if counted {
		text += fmt.Sprintf("  %s received", units.Count(p.Received))
	}
	return text
}

// print writes the result, and says by its error what came of the run.
func (b *benchPackets) print(doc packetsDocument) error {
	failed := nothingArrived(doc.Result)
	switch {
	case b.json:
		failed = errors.Join(failed, doc.writeJSON(b.env.Stdout))
	case failed == nil:
		failed = doc.writeText(b.env.Stdout, b.env.style())
	}
	if failed == nil && doc.exceeded() {
		return errFindings
	}
	return failed
}

// nothingArrived is why a run of which nothing came as it should has failed.
func nothingArrived(r *packet.Result) error {
	to := r.Config.Flows.Destinations[0]
	switch {
	case r.Sent == 0:
		return fmt.Errorf("bench packets %v: the run ended before anything was sent", to)
	case r.To == "" || r.Received > 0:
		return nil
	}
	var kinds []string
	for _, k := range badArrivals(r) {
		kinds = append(kinds, fmt.Sprintf("%s %s", k.name, units.Count(k.count)))
	}
	if len(kinds) == 0 {
		kinds = []string{"none came at all"}
	}
	return fmt.Errorf("bench packets %v: none of %s packets arrived at %s as it should: %s", to, units.Count(r.Sent), r.To, strings.Join(kinds, ", "))
}
