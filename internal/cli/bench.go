//go:build linux

package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
	loadrun "github.com/natkit/natkit/internal/load/run"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newBench(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "generate load and measure the result; a server to aim it at",
	}
	cmd.AddCommand(newBenchHTTP(env), newBenchConnect(env), newBenchHold(env), newBenchUDP(env), newBenchPackets(env), newBenchRFC9693(env), newBenchServe(env))
	return cmd
}

// benchVerb is what the verbs that make load have in common.
type benchVerb struct {
	env *Env
	target
	schema string
}

// loadFlags are the fields of a run's configuration that all kinds of load have.
type loadFlags struct {
	duration *time.Duration
	rate     *float64
	sources  *[]netip.Addr
	ports    *nat.Ports
	seed     *uint64
	workers  *int // nil for those that have one
}

// addFlags adds the flags of all kinds of load, which sends what; ports describes
// --source-port further.
func (b *benchVerb) addFlags(cmd *cobra.Command, l loadFlags, what, ports string) {
	f := cmd.Flags()
	f.VarP(period(l.duration, 0, 0), "time", "t", "end after this time: seconds or 500ms, 2m, …")
	f.Float64Var(l.rate, "rate", 0, "send this many "+what+" per second on a schedule (0: as fast as replies come)")
	f.Var(addressList(l.sources), "source", "send from this address, range or prefix (`ADDR[-ADDR]`, ADDR/BITS), in turn; may be repeated")
	f.Var(into(l.ports, nat.ParsePorts), "source-port", "choose source ports of `FIRST-LAST` in an order that --seed determines"+ports)
	f.Uint64Var(l.seed, "seed", 0, "makes the order of the source addresses and of --source-port repeatable")
	if l.workers != nil {
		f.IntVar(l.workers, "workers", *l.workers, "threads (0: one per CPU)")
	}
	b.addJSON(cmd)
}

// addJSON adds --json, --netns and --pid.
func (b *benchVerb) addJSON(cmd *cobra.Command) {
	b.env.addJSON(cmd, b.schema)
	b.target.addFlags(cmd)
}

// addressList reads addresses, ranges and prefixes.
func addressList(to *[]netip.Addr) pflag.Value {
	return &value{kind: repeatable, set: func(text string) error {
		more, err := load.ParseSources(text)
		*to = append(*to, more...)
		return err
	}}
}

// addSize adds --size, which packets.ParseSizes reads.
func addSize(cmd *cobra.Command, size *string) {
	cmd.Flags().StringVar(size, "size", "", "frame sizes in bytes, FCS included: `SIZE[,SIZE]` in turn, or imix (64, or the least possible)")
}

// addOwnNetwork adds the flag without which no load goes to public addresses.
func addOwnNetwork(cmd *cobra.Command, own *bool) {
	cmd.Flags().BoolVar(own, "i-own-this-network", false, "allow public addresses: they and all on the way there are yours")
}

// addClose adds --close; usual is its default, in words.
func addClose(cmd *cobra.Command, mode *load.CloseMode, usual string, more ...load.CloseMode) {
	v := into(mode, func(text string) (load.CloseMode, error) {
		if slices.Contains(more, load.CloseMode(text)) {
			return load.CloseMode(text), nil
		}
		return load.ParseCloseMode(text)
	})
	v.text = usual
	cmd.Flags().Var(v, "close", "`WHO` closes a connection first: server, client (or fin), or rst (the client, with a reset)")
	completeFlags(cmd, map[string]cobra.CompletionFunc{"close": completeWords(string(load.CloseServer), string(load.CloseClient), string(load.CloseReset))})
}

// parseAddrPort reads what a flag or an argument of that name must be.
func parseAddrPort(name, text string) (netip.AddrPort, error) {
	at, err := netip.ParseAddrPort(text)
	if err != nil {
		return at, usagef("%s%q: must be ADDR:PORT, such as 198.18.0.2:9000 or [2001:db8::2]:9000", name, text)
	}
	return at, nil
}

// benchRun is a run of load by sockets, and what is done with its result.
type benchRun[R any] struct {
	run func(loadrun.Options) (*R, error)
	// empty is why a result is a failure.
	empty func(*R) error
	// chosen are the flags that repeat it.
	chosen func(*R) map[string]string
	// progress is a line about where the run stands; nil for Progress.String.
	progress func(load.Progress) string
	text     func(io.Writer, report.Style, *R) error
}

// runLoad makes load from the chosen namespace and prints what came of it.
func runLoad[R any](b *benchVerb, cmd *cobra.Command, args []string, r benchRun[R]) error {
	ns, err := b.target.open(cmd)
	if err != nil {
		return err
	}
	defer ns.Close()
	at := ns
	if at == nil { // entering it would need a privilege
		if at, err = netns.Current(); err != nil {
			return err
		}
		defer at.Close()
	}
	progress, line := b.env.progress(), r.progress
	if line == nil {
		line = load.Progress.String
	}
	result, err := r.run(loadrun.Options{Netns: ns, WatchOthers: true, Progress: func(p load.Progress) { progress.Update("%s", line(p)) }})
	progress.Clear()
	if result == nil {
		return err
	}
	head := report.LoadHead{Command: commandLine(cmd, r.chosen(result), args...), Netns: snapshot.Netns{Name: at.Name(), Inode: at.Inode()}}
	return b.print(cmp.Or(err, r.empty(result)), head, result, func(w io.Writer, style report.Style) error { return r.text(w, style, result) })
}

// print writes the result of a run, which failed if err is not nil: that has a document, too.
func (b *benchVerb) print(err error, head report.LoadHead, result any, text func(io.Writer, report.Style) error) error {
	head.Schema, head.Version = b.schema, b.env.Version
	switch {
	case b.env.asJSON:
		return errors.Join(err, report.JSON(b.env.Stdout, head, result))
	case err != nil:
		return err
	}
	return text(b.env.Stdout, b.env.style())
}

// notRepeated are flags that a command line to repeat a run does without.
var notRepeated = []string{"json", "output", "quiet", "verbose", "numeric", "no-names"}

// commandLine is a command line as a shell takes it: with the flags that were given
// but for those of output, and the values of those that were chosen, given or not.
func commandLine(cmd *cobra.Command, chosen map[string]string, args ...string) string {
	words := []string{cmd.CommandPath()}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if value, known := chosen[f.Name]; known {
			values[0] = value
		} else if !f.Changed || slices.Contains(notRepeated, f.Name) {
			return
		}
		if list, is := f.Value.(*value); is && list.kind == repeatable && f.Changed {
			values = list.texts
		}
		for _, value := range values {
			separator := " "
			if f.NoOptDefVal != "" { // a switch, or a flag that may stand alone
				separator = "="
			}
			words = append(words, "--"+f.Name+separator+diagnose.ShellWord(value))
		}
	})
	for _, arg := range args {
		words = append(words, diagnose.ShellWord(arg))
	}
	return strings.Join(words, " ")
}

// numbers are flags that natkit chose a value for; 0 is none.
func numbers(chosen map[string]int64) map[string]string {
	texts := map[string]string{}
	for name, n := range chosen {
		if n > 0 {
			texts[name] = fmt.Sprint(n)
		}
	}
	return texts
}

// abortAfter is ab's: this many failed connections before any success end the run.
const abortAfter = 10

// benchHTTP is bench http.
type benchHTTP struct {
	benchVerb
	cfg load.Config
}

func newBenchHTTP(env *Env) *cobra.Command {
	b := &benchHTTP{benchVerb{env: env, schema: report.HTTPLoadSchema}, load.Config{Timeout: load.DefaultTimeout, AbortAfter: abortAfter, Concurrency: 1}}
	cmd := &cobra.Command{
		Use:   "http [flags] URL",
		Short: "load a web server with short connections, as ab does, and show where the time and the failures are",
		Long: `Send HTTP requests and report the rate, the time of each part of a request, and
failures by part and cause. By default every request has its own connection
(HTTP/1.0), which the server closes. With --rate requests start on a schedule, and
their time counts from when they were due; without it, each of the -c connections sends
its next request when the last one is answered.

Who closes first keeps the connection in TIME_WAIT (--close). --batch with --pause lets
a NAT on the way expire the connections of a batch before the next one. One --source
address has about 28,000 connections to one server at a time.

Requires no privilege; --netns and --pid require CAP_SYS_ADMIN to enter the namespace.`,
		Example: `  natkit bench http -c 1000 -n 50000 http://198.18.0.1:8080/
  natkit bench http -c 100 -t 10 -s 2 http://[2001:db8::1]/page
  natkit bench http -c 2000 -t 30s --rate 5000 http://198.18.0.1:8080/
  natkit bench http -c 500 -n 200000 --source 198.18.0.10-198.18.0.29 http://198.18.0.1/
  natkit bench http -k -c 50 -t 5 --json http://127.0.0.1:8080/
  natkit bench http -k --per-connection 100 --close client -n 5000 http://198.18.0.1/
  natkit bench http -c 150 -n 1200 --batch 150 --pause 2s http://198.18.0.1/
  natkit bench http -n 1000 --connect-to 198.19.0.2-198.19.0.9 http://198.19.0.2/`,
		RunE: func(cmd *cobra.Command, args []string) error { return b.run(cmd, args[0]) },
	}
	f, c := cmd.Flags(), &b.cfg
	f.VarP(between(&c.Concurrency, 1, math.MaxInt), "concurrency", "c", "concurrent requests")
	f.Int64VarP(&c.Requests, "requests", "n", 0, "number of requests to send (1, or until --time expires)")
	f.VarP(period(&c.Timeout, time.Millisecond, 0), "timeout", "s", "time limit of each request, connect to last byte: seconds or 500ms, 2m, …")
	f.BoolVarP(&c.KeepAlive, "keepalive", "k", false, "send many requests over one connection")
	c.Close = load.CloseServer
	addClose(cmd, &c.Close, string(load.CloseServer))
	f.IntVar(&c.PerConnection, "per-connection", 0, "with --keepalive: end a connection after `N` requests, by whom --close selects (0: never)")
	f.Var(addressList(&c.ConnectTo), "connect-to", "connect to this address, range or prefix (`ADDR[-ADDR]`, ADDR/BITS) instead of the URL's host, in turn; may be repeated")
	f.Int64Var(&c.Batch, "batch", 0, "send the requests in batches of `N`; the next one begins when all of the last one have ended")
	f.Var(period(&c.Pause, 0, 0), "pause", "with --batch: time between batches: seconds or 500ms, 2m, …")
	requires(cmd, "per-connection", "keepalive")
	requires(cmd, "pause", "batch")
	f.BoolVar(&c.MergeAck, "merge-ack", false, "let the request carry the handshake's ACK: one packet fewer per connection, not comparable with runs without it")
	b.addFlags(cmd, loadFlags{&c.Duration, &c.Rate, &c.Sources, &c.SourcePorts, &c.Seed, &c.Workers}, "requests", " (by default the kernel chooses, which is faster)")
	return cmd
}

func (b *benchHTTP) run(cmd *cobra.Command, url string) error {
	b.cfg.URL = url
	if b.cfg.Requests == 0 && b.cfg.Duration == 0 {
		b.cfg.Requests = 1
	}
	if _, _, err := b.cfg.Checked(); err != nil {
		return usage(err)
	}
	return runLoad(&b.benchVerb, cmd, []string{url}, benchRun[load.Result]{
		run:   func(o loadrun.Options) (*load.Result, error) { return loadrun.HTTP(cmd.Context(), b.cfg, o) },
		empty: func(r *load.Result) error { return noneCompleted("http", url, r) },
		chosen: func(r *load.Result) map[string]string {
			return numbers(map[string]int64{"requests": r.Config.Requests, "concurrency": int64(r.Config.Concurrency), "workers": int64(r.Config.Workers)})
		},
		text: report.HTTPLoad,
	})
}

// noneCompleted is why a run without any completed request has failed: its table
// would be zeros.
func noneCompleted(verb, to string, r *load.Result) error {
	answered, completed := "request was answered", "request completed"
	if r.Config.NoRequest {
		answered, completed = "connection was closed", "connection completed"
	}
	switch {
	case r.Completed > 0:
		return nil
	case len(r.Failures) == 0:
		return fmt.Errorf("bench %s %s: the run ended before any %s", verb, to, answered)
	}
	return fmt.Errorf("bench %s %s: no %s: %s", verb, to, completed, failuresText(r.Failures))
}

func failuresText(all []load.Failure) string {
	var texts []string
	for _, f := range all {
		texts = append(texts, fmt.Sprintf("%s: %s %d", f.Phase, f.Reason, f.Count))
	}
	return strings.Join(texts, ", ")
}

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
echoes the payload: 'natkit bench serve --udp'. The replies are classified:

  lost          no reply until --timeout after the last datagram
  reordered     came after a newer one of its flow (RFC 4737)
  duplicated    came more than once
  misdelivered  came from another address or port than it was sent to, or to
                another flow: a NAT did not translate it back, or wrongly

With --rate datagrams are sent on a schedule, whether replies come or not. Without it,
-c of them are in flight at once. Sizes are those of Ethernet frames with FCS (RFC 2544).

Requires no privilege; --netns and --pid require CAP_SYS_ADMIN to enter the namespace.`,
		Example: `  natkit bench udp 198.18.0.2:9000
  natkit bench udp --flows 5000 --rate 20000 -t 10 198.18.0.2:9000
  natkit bench udp --flows 100 -c 200 -n 1000000 --size imix 198.18.0.2:9000
  natkit bench udp --flows 60000 --source 198.18.0.0/28 --source-port 1024-65535 --seed 7 -t 5 --rate 50000 198.18.1.2:9000
  natkit bench udp --netns client --json [2001:db8::2]:9000`,
		RunE: func(cmd *cobra.Command, args []string) error { return b.run(cmd, args[0]) },
	}
	f, c := cmd.Flags(), &b.cfg
	f.Var(between(&c.Flows, 1, math.MaxInt), "flows", "number of sockets to send from in turn, each with its own source port")
	f.IntVarP(&c.Concurrency, "concurrency", "c", 0, "concurrent requests (100, or unbounded with --rate)")
	f.Int64VarP(&c.Packets, "packets", "n", 0, "number of datagrams to send (1000, or until --time expires)")
	f.VarP(period(&c.Timeout, time.Millisecond, 0), "timeout", "s", "how long to wait for a reply: seconds or 500ms, 2m, …")
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
		return usage(err)
	}
	return runLoad(&b.benchVerb, cmd, []string{to}, benchRun[packets.UDPResult]{
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

// benchServe is bench serve.
type benchServe struct {
	benchVerb
	listen, udp, tcp string
	limit            int
	closes           bool
	expected         packets.End
	workers          int
	ownNetwork       bool
	packet           packetServe
}

func newBenchServe(env *Env) *cobra.Command {
	b := &benchServe{benchVerb: benchVerb{env: env, schema: report.ServedSchema}, limit: loadrun.HoldLimit}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "answer HTTP requests with a small page, echo UDP datagrams, hold TCP connections, or answer them by eBPF, until interrupted",
		Long: `Answer every HTTP/1.0 and 1.1 request with the same small page, until interrupted.

With --udp echo the datagrams of 'natkit bench udp' instead, and no others, and report
their number at the end. Those from public addresses are counted and not answered
without --i-own-this-network: they may be forged.

With --tcp accept the connections of 'natkit bench hold' and 'natkit bench connect' on a
port or a range of them, keep them and return every byte, and report their number at the
end. There are as many threads as the limit of open files requires for --limit, 4,000 at
most.

With --engine packet an XDP program on --interface answers the connections of 'natkit
bench connect --engine packet' to --port at any address, from what stands in each
segment and without a memory of them. All other packets go on to the kernel.

Requires no privilege; --netns and --pid require CAP_SYS_ADMIN to enter the namespace,
ports below 1024 CAP_NET_BIND_SERVICE, --engine packet CAP_SYS_ADMIN and CAP_NET_ADMIN.`,
		Example: `  natkit bench serve
  natkit bench serve --listen 198.18.0.2:80 --netns server
  natkit bench serve --udp 198.18.0.2:9000
  natkit bench serve --udp [::]:9000 --netns server --json
  natkit bench serve --tcp 198.18.1.2:8100-8119 --limit 1000000
  natkit bench serve --tcp 198.18.1.2:8100 --close
  natkit bench serve --udp 198.18.1.2:9000 --expect-source 198.18.1.1:1024-2047
  sudo natkit bench serve --engine packet --interface eth0 --port 80
  sudo natkit bench serve --engine packet --interface eth0 --port 8000-8099 --netns server --json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&b.listen, "listen", "127.0.0.1:8080", "where to listen, `ADDR:PORT`; port 0 takes a free one")
	f.StringVar(&b.udp, "udp", "", "echo UDP datagrams at `ADDR:PORT`, instead of HTTP; port 0 takes a free one")
	f.StringVar(&b.tcp, "tcp", "", "accept TCP connections at `ADDR:PORT[-LAST]` and keep them, instead of HTTP; port 0 takes a free one")
	f.Var(between(&b.limit, 1, math.MaxInt), "limit", "with --tcp: hold at most this many connections")
	f.BoolVar(&b.closes, "close", false, "with --tcp: close each connection as soon as it is accepted")
	cmd.MarkFlagsMutuallyExclusive("listen", "udp", "tcp")
	requires(cmd, "limit", "tcp")
	requires(cmd, "close", "tcp")
	f.Var(into(&b.expected, packets.ParseEnd), "expect-source", "with --udp: count datagrams that do not come from `PREFIX[:PORTS]` as misdelivered")
	f.Var(natural(&b.workers), "workers", "threads (0: one per CPU)")
	addOwnNetwork(cmd, &b.ownNetwork)
	b.addJSON(cmd)
	b.packet.addFlags(cmd, &b.benchVerb)
	for _, name := range []string{"expect-source", "i-own-this-network"} {
		requires(cmd, name, "udp")
	}
	requires(cmd, "json", "udp", "tcp", "engine")
	return cmd
}

func (b *benchServe) run(cmd *cobra.Command) error {
	if b.packet.engine == packetEngine {
		return b.packet.run(cmd)
	}
	if b.tcp != "" {
		return b.serveTCP(cmd)
	}
	overUDP := cmd.Flags().Changed("udp")
	name, text := "--listen ", b.listen
	if overUDP {
		name, text = "--udp ", b.udp
	}
	at, err := parseAddrPort(name, text)
	if err != nil {
		return err
	}
	ns, err := b.target.open(cmd)
	if err != nil {
		return err
	}
	if overUDP {
		cfg := loadrun.ServeUDPConfig{Listen: at, Netns: ns, Workers: b.workers, OwnNetwork: b.ownNetwork}
		if cmd.Flags().Changed("expect-source") {
			cfg.Expected = &b.expected
		}
		return errors.Join(b.serveUDP(cmd, cfg), ns.Close())
	}
	if b.workers > 0 {
		runtime.GOMAXPROCS(b.workers)
	}
	return errors.Join(loadrun.Serve(cmd.Context(), loadrun.ServeConfig{Listen: at, Netns: ns, Ready: func(a netip.AddrPort) {
		// In a URL the % before an interface is escaped (RFC 6874, 2).
		fmt.Fprintf(b.env.Stdout, "listening on http://%s/\n", strings.ReplaceAll(a.String(), "%", "%25"))
	}}), ns.Close())
}

func (b *benchServe) serveUDP(cmd *cobra.Command, cfg loadrun.ServeUDPConfig) error {
	progress := b.env.progress()
	cfg.Ready = func(a netip.AddrPort) {
		out := b.env.Stdout
		if b.env.asJSON { // the document comes there
			out = b.env.Stderr
		}
		fmt.Fprintf(out, "answering UDP at %v\n", a)
	}
	cfg.Progress = func(p load.Progress) {
		progress.Update("%.0f s: %d answered, %.0f datagrams/s, %d misdelivered", p.Elapsed.Seconds(), p.Completed, p.PerSecond, p.Failed)
	}
	served, err := loadrun.ServeUDP(cmd.Context(), cfg)
	progress.Clear()
	if err != nil {
		return err
	}
	return b.print(nil, report.LoadHead{}, served, func(w io.Writer, style report.Style) error { return report.Served(w, style, served) })
}

func (b *benchServe) serveTCP(cmd *cobra.Command) error {
	addr, ports, err := parseAddrPorts("--tcp ", b.tcp)
	if err != nil {
		return err
	}
	ns, err := b.target.open(cmd)
	if err != nil {
		return err
	}
	defer ns.Close()
	progress := b.env.progress()
	held, err := loadrun.ServeTCP(cmd.Context(), loadrun.ServeTCPConfig{
		Listen: addr, Ports: ports, Netns: ns, Limit: b.limit, Workers: b.workers, CloseAtOnce: b.closes,
		Ready: func(a netip.AddrPort) {
			out := b.env.Stdout
			if b.env.asJSON { // the document comes there
				out = b.env.Stderr
			}
			fmt.Fprintf(out, "holding TCP at %v\n", a)
		},
		Progress: func(p load.Progress) {
			progress.Update("%.0f s: %d accepted, %.0f connections/s, %d open", p.Elapsed.Seconds(), p.Completed, p.PerSecond, p.InFlight)
		},
	})
	progress.Clear()
	if err != nil {
		return err
	}
	b.schema = report.HeldSchema
	return b.print(nil, report.LoadHead{}, held, func(w io.Writer, style report.Style) error { return report.Held(w, style, held) })
}
