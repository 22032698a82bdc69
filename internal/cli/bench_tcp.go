//go:build linux

package cli

import (
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
	loadrun "github.com/natkit/natkit/internal/load/run"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/report"
	"github.com/spf13/cobra"
)

// parseAddrPorts reads what a flag or an argument of that name must be. Port 0 is the zero value.
func parseAddrPorts(name, text string) (netip.Addr, nat.Ports, error) {
	fail := func() (netip.Addr, nat.Ports, error) {
		return netip.Addr{}, nat.Ports{}, usagef("%s%q: must be ADDR:PORT or ADDR:FIRST-LAST, such as 198.18.0.2:8100-8119 or [2001:db8::2]:9000", name, text)
	}
	colon := strings.LastIndexByte(text, ':')
	if colon < 0 {
		return fail()
	}
	at, err := netip.ParseAddrPort(text[:colon] + ":0")
	if err != nil {
		return fail()
	}
	if text[colon+1:] == "0" {
		return at.Addr(), nat.Ports{}, nil
	}
	ports, err := nat.ParsePorts(text[colon+1:])
	if err != nil {
		return fail()
	}
	return at.Addr(), ports, nil
}

// benchConnect is bench connect.
type benchConnect struct {
	benchVerb
	cfg     load.Config
	request string
	packet  packetConnect
}

func newBenchConnect(env *Env) *cobra.Command {
	b := &benchConnect{benchVerb: benchVerb{env: env, schema: report.ConnectLoadSchema},
		cfg: load.Config{Timeout: load.DefaultTimeout, AbortAfter: abortAfter, Concurrency: 1}}
	cmd := &cobra.Command{
		Use:   "connect [flags] ADDR:PORT",
		Short: "open and close TCP connections, and report how many per second and what fails",
		Long: `Open TCP connections and close each as soon as it stands, without a byte, or after one
HTTP request (--request). Who closes first decides who keeps the connection in
TIME_WAIT, and which timeout of a NAT's connection table applies to it:

  client  (or fin) natkit closes: it has TIME_WAIT; the default without --request
  server  the server closes: it has TIME_WAIT; the default with --request, as with ab.
          Without a request that is a server such as 'natkit bench serve --tcp … --close'
  rst     natkit sends a reset: nobody has TIME_WAIT

Each of the -c connections is opened again when the last one has ended; with --rate they
start on a schedule, and their time counts from when they were due.

With --request the work per connection is that of ab and of 'natkit bench http'. With
--merge-ack it is not: the handshake's ACK travels with what follows it.

With --engine packet eBPF programs make whole connections, with a request and a reply of
one segment each, without a socket: what lies on the way is the limit. 'natkit bench
serve --engine packet' answers them. Acknowledgements prove that each segment came back
through the mapping of its flow. No segment is sent again: a connection that loses one
is incomplete, and counts at the step that it waited for. --source must be one range
or prefix that is routed back to the interface; each address and port is used once
before any is used again. --close none leaves connections open, to fill a table. It
requires -n or -t, has -c 256 (with --rate all flows), -s 1s and --source-port 1024-65535
by default, and its JSON has the schema natkit.bench-connect-packet/1. docs/bench.md has
the counts.

Requires no privilege, --engine packet Linux 5.18, CAP_SYS_ADMIN and CAP_NET_ADMIN; --netns
and --pid require CAP_SYS_ADMIN to enter the namespace.`,
		Example: `  natkit bench connect -c 100 -n 50000 198.18.0.1:8080
  natkit bench connect -c 100 -t 10 --close rst 198.18.0.1:8080
  natkit bench connect -c 1000 -n 50000 --request 198.18.0.1:8080
  natkit bench connect -c 1000 -n 50000 --request=/page --close client [2001:db8::1]:80
  natkit bench connect -c 2000 -t 30s --rate 20000 --source 198.18.0.10-198.18.0.29 198.18.0.1:8080
  natkit bench connect -c 100 -n 200000 --source-port 1024-65535 --seed 7 --json 198.18.0.1:8080
  sudo natkit bench connect --engine packet -n 1000000 --netns client 198.18.0.1:8080
  sudo natkit bench connect --engine packet -t 10 --rate 50000 --max-loss 0.1% 198.18.0.1:8080
  sudo natkit bench connect --engine packet -n 4000000 --close none --source 198.18.64.0/25 198.18.0.1:8080`,
		RunE: func(cmd *cobra.Command, args []string) error { return b.run(cmd, args[0]) },
	}
	f, c := cmd.Flags(), &b.cfg
	f.VarP(between(&c.Concurrency, 1, math.MaxInt), "concurrency", "c", "concurrent requests (connections)")
	f.Int64VarP(&c.Requests, "connections", "n", 0, "number of connections to open (1, or until --time expires)")
	f.VarP(period(&c.Timeout, time.Millisecond, 0), "timeout", "s", "time limit of each connection, connect to close: seconds or 500ms, 2m, …")
	f.StringVar(&b.request, "request", "", "send one HTTP request for `PATH` over each connection and wait for the response (/ without a PATH)")
	f.Lookup("request").NoOptDefVal = "/"
	addClose(cmd, &c.Close, "client, server with --request", packets.CloseNone)
	f.BoolVar(&c.MergeAck, "merge-ack", false, "let what follows carry the handshake's ACK: one packet fewer per connection, not comparable with runs without it")
	b.addFlags(cmd, loadFlags{&c.Duration, &c.Rate, &c.Sources, &c.SourcePorts, &c.Seed, &c.Workers}, "connections", " (by default the kernel chooses, which is faster)")
	b.packet.addFlags(cmd, &b.benchVerb)
	return cmd
}

func (b *benchConnect) run(cmd *cobra.Command, to string) error {
	if b.packet.engine == packetEngine {
		return b.packet.run(cmd, to, b.cfg)
	}
	if b.cfg.Close == packets.CloseNone {
		return usagef("--close none requires --engine packet")
	}
	at, err := parseAddrPort("", to)
	if err != nil {
		return err
	}
	if packets.Public(at.Addr()) && !b.packet.cfg.OwnNetwork {
		return usage(packets.PublicError("server", at))
	}
	c := &b.cfg
	c.NoRequest = b.request == ""
	if !cmd.Flags().Changed("close") && c.NoRequest {
		c.Close = load.CloseClient
	}
	// In a URL the % before an interface is escaped (RFC 6874, 2).
	c.URL = "http://" + strings.ReplaceAll(to, "%", "%25") + "/" + strings.TrimPrefix(b.request, "/")
	if c.Requests == 0 && c.Duration == 0 {
		c.Requests = 1
	}
	if _, _, err := c.Checked(); err != nil {
		return usage(err)
	}
	return runLoad(&b.benchVerb, cmd, []string{to}, benchRun[load.Result]{
		run:   func(o loadrun.Options) (*load.Result, error) { return loadrun.HTTP(cmd.Context(), *c, o) },
		empty: func(r *load.Result) error { return noneCompleted("connect", to, r) },
		chosen: func(r *load.Result) map[string]string {
			return numbers(map[string]int64{"connections": r.Config.Requests, "concurrency": int64(r.Config.Concurrency), "workers": int64(r.Config.Workers)})
		},
		progress: func(p load.Progress) string {
			return fmt.Sprintf("%.0f s: %d completed, %d failed, %.0f connections/s, %d open", p.Elapsed.Seconds(), p.Completed, p.Failed, p.PerSecond, p.InFlight)
		},
		text: report.ConnectLoad,
	})
}

// benchHold is bench hold.
type benchHold struct {
	benchVerb
	cfg        load.HoldConfig
	ownNetwork bool
}

func newBenchHold(env *Env) *cobra.Command {
	b := &benchHold{benchVerb: benchVerb{env: env, schema: report.HoldLoadSchema}, cfg: load.HoldConfig{
		Concurrency: load.HoldConcurrency, Timeout: load.DefaultTimeout, Verify: load.HoldVerified,
		Close: load.CloseReset, SourcePorts: load.HoldPorts,
	}}
	cmd := &cobra.Command{
		Use:   "hold [flags] N ADDR:PORT[-LAST]",
		Short: "open many TCP connections, keep them, see whether they still work, and close them",
		Long: `Open N TCP connections, keep them for --keep, send a byte over --verify of them, chosen
at random, which the server must return, and close all. The server is
'natkit bench serve --tcp', or, with --verify 0, any.

natkit chooses the source address and port of each connection, in an order that --seed
determines, so that the kernel's search for a port is not measured. There are as many
connections as source addresses × source ports × ports of the server: give more of
these where they are too few for N. Each --source must be an address of this machine;
'ip route add local PREFIX dev lo' makes all of a prefix such.

Connections are ended by a reset, which leaves nothing behind. With --close client natkit
has all of them in TIME_WAIT for a minute, with --close server the server has.

-t bounds the opening and the keeping. What is open then is verified and closed, for
each connection of which --timeout is the limit; once 100, and twice -c, have timed out
in a row, no more are verified, or closed by the server. Ctrl-C closes all at once and
reports what was reached.

A thread holds as many connections as a process may open files (ulimit -n), and there
are as many threads as N requires, 4,000 at most.

Exits with 1 where no connection stood, or none was alive at the end.

Requires no privilege; --netns and --pid require CAP_SYS_ADMIN to enter the namespace.`,
		Example: `  natkit bench hold 10000 198.18.0.2:8100
  natkit bench hold --keep 5m --verify 10000 50000 198.18.0.2:8100
  natkit bench hold --source 198.18.0.0/28 1000000 198.18.1.2:8100-8119
  natkit bench hold --rate 5000 -t 60 --close client 200000 [2001:db8::2]:8100-8103
  natkit bench hold --verify 0 --source-port 20000-29999 --seed 7 --json 5000 198.18.0.1:80`,
		RunE: func(cmd *cobra.Command, args []string) error { return b.run(cmd, args) },
	}
	f, c := cmd.Flags(), &b.cfg
	f.VarP(between(&c.Concurrency, 1, math.MaxInt), "concurrency", "c", "concurrent requests (connections that are being opened, verified or closed)")
	f.Var(period(&c.Keep, 0, 0), "keep", "how long to keep all of them when they are open: seconds or 500ms, 2m, …")
	f.Var(natural(&c.Verify), "verify", "connections over which the server must return a byte at the end (0: none, and no data at all)")
	f.VarP(period(&c.Timeout, time.Millisecond, 0), "timeout", "s", "time limit of each part of a connection's life: seconds or 500ms, 2m, …")
	addClose(cmd, &c.Close, string(c.Close))
	addOwnNetwork(cmd, &b.ownNetwork)
	b.addFlags(cmd, loadFlags{&c.Duration, &c.Rate, &c.Sources, &c.SourcePorts, &c.Seed, &c.Workers}, "connections", " (1024-65535 by default)")
	return cmd
}

func (b *benchHold) run(cmd *cobra.Command, args []string) (err error) {
	c := &b.cfg
	if c.Connections, err = strconv.Atoi(args[0]); err != nil || c.Connections < 1 {
		return usagef("%q: must be a number of connections, 1 or more", args[0])
	}
	if c.To, c.Ports, err = parseAddrPorts("", args[1]); err != nil {
		return err
	}
	if packets.Public(c.To) && !b.ownNetwork {
		return usage(packets.PublicError("server", c.To))
	}
	if _, err := c.Checked(); err != nil {
		return usage(err)
	}
	return runLoad(&b.benchVerb, cmd, args, benchRun[load.HoldResult]{
		run: func(o loadrun.Options) (*load.HoldResult, error) { return loadrun.Hold(cmd.Context(), *c, o) },
		empty: func(r *load.HoldResult) error {
			return noneAlive(args[1], r)
		},
		chosen: func(r *load.HoldResult) map[string]string {
			return numbers(map[string]int64{"workers": int64(r.Config.Workers)})
		},
		progress: func(p load.Progress) string {
			return fmt.Sprintf("%.0f s: %d of %d connections established, %d failed, %.0f connections/s", p.Elapsed.Seconds(), p.Completed, c.Connections, p.Failed, p.PerSecond)
		},
		text: report.HoldLoad,
	})
}

// noneAlive is why a run has failed in which no connection stood, or none was left or returned its byte.
func noneAlive(to string, r *load.HoldResult) error {
	switch {
	case r.Established == 0:
		return fmt.Errorf("bench hold %s: the run ended before any connection stood", to)
	case r.Alive > 0 || r.Verified == 0 && r.Lost < r.Established:
		return nil
	}
	return fmt.Errorf("bench hold %s: no connection was alive of %d that stood: %s", to, r.Established, failuresText(r.Failures))
}
