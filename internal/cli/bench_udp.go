package cli

import (
	"fmt"
	"time"

	"github.com/natkit/natkit/internal/load/packets"
	loadrun "github.com/natkit/natkit/internal/load/run"
	"github.com/natkit/natkit/internal/report"
	"github.com/spf13/cobra"
)

// benchUDP is bench udp.
type benchUDP struct {
	benchVerb
	cfg packets.UDPConfig
}

func newBenchUDP(env *Env) *cobra.Command {
	b := &benchUDP{benchVerb{env: env, schema: report.UDPLoadSchema}, packets.UDPConfig{Timeout: packets.UDPTimeout, Flows: 1}}
	cmd := &cobra.Command{
		Use:   "udp [flags] ADDR:PORT",
		Short: "send UDP datagrams to a server that echoes them, and count lost, reordered, duplicated and misdelivered ones",
		Long: `Send datagrams of many flows, each from its own address and port, to a server that
echoes the payload: 'natkit bench serve --udp'. Each carries a token (run, flow,
sequence number), by which the replies are classified:

  lost          no reply until --timeout after the last datagram
  reordered     came after a newer one of its flow (RFC 4737)
  duplicated    came more than once
  misdelivered  came from another address or port than it was sent to, or to
                another flow: a NAT did not translate it back, or wrongly

With --rate datagrams are sent on a schedule, whether replies come or not. Without it,
-c of them are in flight at once, and a lost one keeps its place for the --timeout.

--size counts as RFC 2544 does, the whole Ethernet frame with its FCS: an IPv4
datagram of size 64 has 18 bytes of payload. imix is 7 × 64, 4 × 594 and 1 × 1518;
IPv6 needs at least 78.

A run without any reply ends early. Public addresses are refused without
--i-own-this-network. docs/bench.md describes how it works and what the counts mean.

Requires no privilege; --netns and --pid require CAP_SYS_ADMIN to enter the namespace.`,
		Example: `  natkit bench udp 198.18.0.2:9000
  natkit bench udp --flows 5000 --rate 20000 -t 10 198.18.0.2:9000
  natkit bench udp --flows 100 -c 200 -n 1000000 --size imix 198.18.0.2:9000
  natkit bench udp --flows 60000 --source 198.18.0.0/28 --source-port 1024-65535 --seed 7 -t 5 --rate 50000 198.18.1.2:9000
  natkit bench udp --netns client --json [2001:db8::2]:9000`,
		Args: exactlyOne("ADDR:PORT"),
		RunE: func(cmd *cobra.Command, args []string) error { return b.run(cmd, args[0]) },
	}
	f, c := cmd.Flags(), &b.cfg
	f.Var(orMore(&c.Flows, 1), "flows", "number of sockets to send from in turn, each with its own source port")
	f.IntVarP(&c.Concurrency, "concurrency", "c", 0, "concurrent requests (100, or unbounded with --rate)")
	f.Int64VarP(&c.Packets, "packets", "n", 0, "number of datagrams to send (1000, or until --time expires)")
	f.VarP(periodBetween(&c.Timeout, time.Millisecond, 0), "timeout", "s", "how long to wait for a reply: seconds or 500ms, 2m, …")
	addSize(cmd, &c.Size)
	addOwnNetwork(cmd, &c.OwnNetwork)
	b.addFlags(cmd, loadFlags{&c.Duration, &c.Rate, &c.Sources, &c.SourcePorts, &c.Seed, &c.Workers}, "datagrams", " (by default the kernel chooses)")
	return cmd
}

func (b *benchUDP) run(cmd *cobra.Command, to string) (err error) {
	if b.cfg.To, err = parseAddrPort("", to); err != nil {
		return err
	}
	cfg, err := b.cfg.Checked()
	if err != nil {
		return usageError{err}
	}
	return runLoad(&b.benchVerb, cmd, to, benchRun[packets.UDPResult]{
		run: func(o loadrun.Options) (*packets.UDPResult, error) { return loadrun.UDP(cmd.Context(), cfg, o) },
		empty: func(r *packets.UDPResult) error {
			if r.Answered() == 0 {
				return fmt.Errorf("bench udp %s: the run ended before any reply came", to)
			}
			return nil
		},
		chosen: func(r *packets.UDPResult) map[string]string {
			return numbers(map[string]int64{"flows": int64(r.Config.Flows), "workers": int64(r.Config.Workers), "packets": r.Config.Packets, "concurrency": int64(r.Config.Concurrency)})
		},
		text: report.UDPLoad,
	})
}
