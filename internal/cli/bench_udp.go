package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/load"
	loadrun "github.com/natkit/natkit/internal/load/run"
	"github.com/natkit/natkit/internal/load/udp"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/spf13/cobra"
)

// benchUDPSchema names the JSON form of bench udp's result.
const benchUDPSchema = "natkit.bench-udp/1"

// benchUDP is what the command line of bench udp says.
type benchUDP struct {
	target
	cfg     udp.Config
	time    seconds
	timeout seconds
	source  sourceFlags
	json    bool
}

func newBenchUDP(env *Env) *cobra.Command {
	b := &benchUDP{timeout: seconds(udp.DefaultTimeout)}
	cmd := &cobra.Command{
		Use:   "udp [flags] ADDR:PORT",
		Short: "send UDP datagrams to a server that answers them, and say what was lost, reordered, duplicated or misdelivered",
		Long: `Send datagrams of many flows, each from an address and port of its own, to a server
that answers with the same payload: 'natkit bench serve --udp'. Each carries a token
(run, flow, sequence number), so that the replies tell what became of it:

  lost          no reply came until --timeout after the last datagram
  reordered     came after a newer one of its flow (RFC 4737)
  duplicated    came more than once
  misdelivered  came from another address or port than it was sent to, or to
                another flow: a NAT did not translate it back, or wrongly

With --rate datagrams go out on a schedule, whether replies come or not. Without it,
-c of them are on the way at once, and a lost one keeps its place for the --timeout.
ICMP errors are counted by their kind; hosts send few of them per second.

--size counts as RFC 2544 does, the whole Ethernet frame with its FCS: an IPv4
datagram of size 64 has 18 bytes of payload. imix is 7 × 64, 4 × 594 and 1 × 1518;
IPv6 needs at least 78.

The first datagram goes alone, so that neighbours are found before the others. A run to
which nothing at all comes back ends early. Public addresses are refused without
--i-own-this-network. docs/bench.md tells how it works and what the counts mean.

Needs no privilege; --netns and --pid need CAP_SYS_ADMIN to enter the namespace.`,
		Example: `  natkit bench udp 198.18.0.2:9000
  natkit bench udp --flows 5000 --rate 20000 -t 10 198.18.0.2:9000
  natkit bench udp --flows 100 -c 200 -n 1000000 --size imix 198.18.0.2:9000
  natkit bench udp --flows 60000 --source 198.18.0.0/28 --source-port 1024-65535 --seed 7 -t 5 --rate 50000 198.18.1.2:9000
  natkit bench udp --netns client --json [2001:db8::2]:9000`,
		Args: exactlyOneAddrPort,
		RunE: func(cmd *cobra.Command, args []string) error { return b.run(cmd, env, args[0]) },
	}
	b.addFlags(cmd)
	return cmd
}

func (b *benchUDP) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.IntVar(&b.cfg.Flows, "flows", 1, "send in turn from so many sockets, each with a source port of its own")
	f.IntVarP(&b.cfg.Concurrency, "concurrency", "c", 0, "requests in flight at once (100, or without a bound where --rate is given)")
	f.Int64VarP(&b.cfg.Packets, "packets", "n", 0, "datagrams in all (1000, or without a bound where --time is given)")
	addTime(cmd, &b.time)
	f.VarP(&b.timeout, "timeout", "s", "wait so long for a reply: seconds or 500ms, 2m, …")
	f.Float64Var(&b.cfg.Rate, "rate", 0, "send so many datagrams per second on a schedule (0: as fast as replies come)")
	addSize(cmd, &b.cfg.Size)
	b.source.addFlags(cmd, "choose source ports of `FIRST-LAST` in an order that --seed determines (the kernel chooses otherwise)")
	f.IntVar(&b.cfg.Workers, "workers", 0, "threads (0: one per CPU)")
	f.Uint64Var(&b.cfg.Seed, "seed", 0, "makes the order of the source addresses and of --source-port repeatable")
	addOwnNetwork(cmd, &b.cfg.OwnNetwork)
	addJSON(cmd, &b.json, benchUDPSchema)
	b.target.addFlags(cmd)
}

func exactlyOneAddrPort(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("expected one ADDR:PORT, found %d arguments", len(args))
	}
	return nil
}

// config checks the command line before anything is opened.
func (b *benchUDP) config(to string) (udp.Config, error) {
	cfg := b.cfg
	var err error
	if cfg.To, err = netip.ParseAddrPort(to); err != nil {
		return cfg, usagef("%q: must be ADDRESS:PORT, such as 198.18.0.2:9000 or [2001:db8::2]:9000", to)
	}
	if cfg.Flows < 1 {
		return cfg, usagef("flows %d: must be 1 or more", cfg.Flows)
	}
	if b.timeout == 0 {
		return cfg, usagef("timeout 0: without waiting no reply is seen; give a time above 0")
	}
	cfg.Duration, cfg.Timeout = time.Duration(b.time), time.Duration(b.timeout)
	if cfg.Sources, cfg.SourcePorts, err = b.source.parse(); err != nil {
		return cfg, err
	}
	if cfg, err = cfg.Checked(); err != nil {
		return cfg, usageError{err}
	}
	return cfg, nil
}

func (b *benchUDP) run(cmd *cobra.Command, env *Env, to string) error {
	cfg, err := b.config(to)
	if err != nil {
		return err
	}
	ns, err := b.target.open(cmd)
	if err != nil {
		return err
	}
	defer ns.Close()
	progress := env.progress()
	result, err := loadrun.UDP(cmd.Context(), cfg, loadrun.Options{
		Netns: ns, WatchOthers: true,
		Progress: func(p load.Progress) {
			progress.Update("%.0f s: %d answered, %d lost, %.0f replies/s, %d in flight",
				p.Elapsed.Seconds(), p.Completed, p.Failed, p.PerSecond, p.InFlight)
		},
	})
	progress.Clear()
	if err == nil && result.Answered() == 0 {
		err = fmt.Errorf("bench udp %s: the run ended before any reply came", to)
	}
	switch {
	case result == nil:
		return err
	case b.json:
		return errors.Join(err, b.writeJSON(cmd, env, ns, result))
	case err != nil:
		return err
	}
	return writeBenchUDPText(fitted{env}, result)
}

// udpDocument is a result with what is needed to repeat it.
type udpDocument struct {
	Schema  string `json:"schema"`
	Version string `json:"natkit_version"`
	// Command does the same again, as a shell takes it.
	Command string `json:"command"`
	// Netns is where the datagrams were sent from.
	Netns snapshot.Netns `json:"netns"`
	*udp.Result
}

func (b *benchUDP) writeJSON(cmd *cobra.Command, env *Env, ns *netns.Handle, r *udp.Result) error {
	if ns == nil {
		var err error
		if ns, err = netns.Current(); err != nil {
			return err
		}
		defer ns.Close()
	}
	return report.JSON(env.Stdout, udpDocument{
		Schema: benchUDPSchema, Version: env.Version, Command: b.command(cmd, r.Config),
		Netns: snapshot.Netns{Name: ns.Name(), Inode: ns.Inode()}, Result: r,
	})
}

// command is the command line that sends the same again, with what natkit chose by
// itself spelled out.
func (b *benchUDP) command(cmd *cobra.Command, cfg udp.Config) string {
	chosen := map[string][]string{
		"flows": {fmt.Sprint(cfg.Flows)}, "workers": {fmt.Sprint(cfg.Workers)}, "source": b.source.addresses,
	}
	if cfg.Packets > 0 {
		chosen["packets"] = []string{fmt.Sprint(cfg.Packets)}
	}
	if cfg.Concurrency > 0 {
		chosen["concurrency"] = []string{fmt.Sprint(cfg.Concurrency)}
	}
	return commandLine(cmd, chosen, cfg.To.String())
}

// writeBenchUDPText renders a result with at least one reply, in the form of bench
// http's.
func writeBenchUDPText(w io.Writer, r *udp.Result) error {
	var b bytes.Buffer
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-24s%s\n", name+":", fmt.Sprintf(format, args...))
	}
	line("Server", "%v", r.Config.To)
	line("Flows", "%d (%d threads)", r.Config.Flows, r.Config.Workers)
	line("Frame Size", "%s", frameWords(r.Config))
	line("Load", "%s", udpLoadWords(r.Config))
	b.WriteByte('\n')
	line("Time taken for tests", "%.3f seconds", r.Seconds)
	writeUDPDelivery(line, r)
	writeUDPRates(line, r)
	writeUDPCost(line, r)
	b.WriteString("\nRound Trip Times (ms)\n")
	writeTimesHead(&b)
	writeTimesRow(&b, "Reply", r.RoundTrip)
	b.WriteString("\nPercentage of the replies that came within a certain time (ms)\n")
	writePercentages(&b, r.RoundTrip, "longest reply")
	_, err := w.Write(b.Bytes())
	return err
}

func frameWords(c udp.Config) string {
	least, most := slices.Min(c.FrameBytes), slices.Max(c.FrameBytes)
	switch {
	case least == most:
		return fmt.Sprintf("%d bytes on Ethernet, FCS included", least)
	case len(c.FrameBytes) <= 8:
		return fmt.Sprintf("%v bytes on Ethernet in turn, FCS included", c.FrameBytes)
	}
	return fmt.Sprintf("%s, %d to %d bytes on Ethernet, FCS included", c.Size, least, most)
}

// udpLoadWords says in one line what was done.
func udpLoadWords(c udp.Config) string {
	words := fmt.Sprintf("%d in flight at once (closed loop)", c.Concurrency)
	if c.Rate > 0 {
		words = fmt.Sprintf("%g datagrams/s on schedule (open loop)", c.Rate)
	}
	switch n := len(c.Sources); {
	case n == 1:
		words += fmt.Sprintf(", from %v", c.Sources[0])
	case n > 1:
		words += fmt.Sprintf(", from %d addresses", n)
	}
	if p := c.SourcePorts; p.Len() > 0 {
		words += fmt.Sprintf(", source ports %d to %d, seed %d", p.First, p.Last, c.Seed)
	}
	return words
}

func writeUDPDelivery(line lineFunc, r *udp.Result) {
	line("Datagrams sent", "%d", r.Sent)
	line("Replies received", "%d", r.Received)
	line("Lost", "%d (%.4g %%)", r.Lost, percent(r.Lost, r.Sent))
	line("Reordered", "%d", r.Reordered)
	line("Duplicated", "%d", r.Duplicated)
	line("Misdelivered", "%d", r.Misdelivered)
	for _, s := range r.MisdeliveredFrom {
		line("  from", "%v %d", s.From, s.Count)
	}
	for _, f := range r.Failures {
		name := "Refused on the way"
		if f.Phase == "send" {
			name = "Refused on sending"
		}
		line(name, "%s %d", f.Reason, f.Count)
	}
	optional := func(name string, n int64) {
		if n > 0 {
			line(name, "%d", n)
		}
	}
	if r.InFlight > 0 {
		line("Interrupted", "%d were still to be answered; they do not count as lost", r.InFlight)
	}
	optional("Too late to classify", r.Late)
	optional("Altered in length", r.Altered)
	optional("Foreign datagrams", r.Foreign)
	optional("Not sent in time", r.Unsent)
	optional("No room in sockets", r.SocketDrops)
}

func percent(part, of int64) float64 {
	if of == 0 {
		return 0
	}
	return 100 * float64(part) / float64(of)
}

func writeUDPRates(line lineFunc, r *udp.Result) {
	line("Datagrams per second", "%.2f sent, %.2f answered (mean)", r.SentPerSecond, r.AnsweredPerSecond)
	if r.Seconds > 0 {
		line("Transfer rate", "%.2f [Mbit/s] of Ethernet frames sent", float64(r.SentFrameBytes)*8/1e6/r.Seconds)
	}
}

func writeUDPCost(line lineFunc, r *udp.Result) {
	own := r.CPU.UserSeconds + r.CPU.SystemSeconds
	n := float64(max(r.Sent, 1))
	line("System calls", "%.2f per datagram and its reply", float64(r.SystemCalls)/n)
	line("CPU", "%.2f us per datagram here, %.2f us on the whole machine", 1e6*own/n, 1e6*r.CPU.MachineSeconds/n)
	line("Memory", "%s at most", report.Bytes(float64(r.CPU.MaxRSSBytes)))
	writeGenerator(line, r.GeneratorLimit, r.CPUContention)
}
