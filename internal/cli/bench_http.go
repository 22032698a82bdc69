package cli

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/load"
	loadrun "github.com/natkit/natkit/internal/load/run"
	"github.com/natkit/natkit/internal/report"
)

// benchHTTPSchema names the JSON form of bench http's result.
const benchHTTPSchema = "natkit.bench-http/1"

// abortAfter is ab's: so many failed connections before any success end the run.
const abortAfter = 10

// benchHTTP is what the command line of bench http says.
type benchHTTP struct {
	target
	cfg       load.Config
	time      seconds
	timeout   seconds
	closeMode string
	source    sourceFlags
	connectTo []string
	pause     seconds
	json      bool
}

func newBenchHTTP(env *Env) *cobra.Command {
	b := &benchHTTP{timeout: seconds(load.DefaultTimeout)}
	cmd := &cobra.Command{
		Use:   "http [flags] URL",
		Short: "load a web server with short connections, as ab does, and say where the time and the failures are",
		Long: `Send HTTP requests and report the rate, the time of each part of a request, and
failures by part and cause. By default every request has a connection of its own
(HTTP/1.0) that the server closes. Every request has one time limit, from its start
to its last byte; a failure names the part of the request in which it struck.

With --rate requests start on a schedule, whatever became of those before, and
their time counts from when they were due; without it, each of the -c connections
sends its next request when the last one is answered.

With --source the kernel still chooses the port, out of ip_local_port_range: one
address has about 28,000 connections to one server at a time, or in TIME_WAIT where
the client closes. Give more addresses for more.

Who closes first keeps the connection in TIME_WAIT: --close says who, and with
--keepalive --per-connection also after how many requests. --batch with --pause lets a
NAT on the way forget the connections of a batch before it sees the next one.

Needs no privilege; --netns and --pid need CAP_SYS_ADMIN to enter the namespace.`,
		Example: `  natkit bench http -c 1000 -n 50000 http://198.18.0.1:8080/
  natkit bench http -c 100 -t 10 -s 2 http://[2001:db8::1]/page
  natkit bench http -c 2000 -t 30s --rate 5000 http://198.18.0.1:8080/
  natkit bench http -c 500 -n 200000 --source 198.18.0.10-198.18.0.29 http://198.18.0.1/
  natkit bench http -k -c 50 -t 5 --json http://127.0.0.1:8080/
  natkit bench http -k --per-connection 100 --close client -n 5000 http://198.18.0.1/
  natkit bench http -c 150 -n 1200 --batch 150 --pause 2s http://198.18.0.1/
  natkit bench http -n 1000 --connect-to 198.19.0.2-198.19.0.9 http://198.19.0.2/`,
		Args: exactlyOneURL,
		RunE: func(cmd *cobra.Command, args []string) error { return b.run(cmd, env, args[0]) },
	}
	f := cmd.Flags()
	f.IntVarP(&b.cfg.Concurrency, "concurrency", "c", 1, "requests in flight at once")
	f.Int64VarP(&b.cfg.Requests, "requests", "n", 0, "requests in all (1, or without a bound where --time is given)")
	addTime(cmd, &b.time)
	f.VarP(&b.timeout, "timeout", "s", "time limit of each request, connect to last byte: seconds or 500ms, 2m, …")
	f.BoolVarP(&b.cfg.KeepAlive, "keepalive", "k", false, "many requests over one connection")
	f.StringVar(&b.closeMode, "close", string(load.CloseServer), "`WHO` closes a connection first: server, client, or rst (the client, with a reset)")
	f.IntVar(&b.cfg.PerConnection, "per-connection", 0, "with --keepalive: end a connection after `N` requests, by whom --close says (0: never)")
	f.StringArrayVar(&b.connectTo, "connect-to", nil, "connect to this address, range or prefix (`ADDR[-ADDR]`, ADDR/BITS) instead of the URL's host, in turn; may be repeated")
	f.Int64Var(&b.cfg.Batch, "batch", 0, "send the requests in batches of `N`; the next one begins when all of the last one are over")
	f.Var(&b.pause, "pause", "with --batch: wait so long between batches: seconds or 500ms, 2m, …")
	f.Float64Var(&b.cfg.Rate, "rate", 0, "start so many requests per second on a schedule (open loop)")
	b.source.addFlags(cmd, "choose source ports of `FIRST-LAST` in an order that --seed determines (the kernel chooses otherwise, which is faster)")
	f.BoolVar(&b.cfg.MergeAck, "merge-ack", false, "let the request carry the handshake's ACK: one packet fewer per connection, not comparable with runs without it")
	f.IntVar(&b.cfg.Workers, "workers", 0, "threads (0: one per CPU)")
	f.Uint64Var(&b.cfg.Seed, "seed", 0, "makes the order of the source addresses and of --source-port repeatable")
	f.BoolVar(&b.json, "json", false, "print one JSON document")
	b.target.addFlags(cmd)
	return cmd
}

func exactlyOneURL(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("expected one URL, found %d arguments", len(args))
	}
	return nil
}

// config checks the command line before anything is opened.
func (b *benchHTTP) config(url string) (load.Config, error) {
	cfg := b.cfg
	cfg.URL, cfg.Close = url, load.CloseMode(b.closeMode)
	cfg.Duration, cfg.Timeout = time.Duration(b.time), time.Duration(b.timeout)
	cfg.AbortAfter = abortAfter
	if cfg.Requests == 0 && cfg.Duration == 0 {
		cfg.Requests = 1
	}
	if b.cfg.Concurrency < 1 {
		return cfg, usagef("concurrency %d: must be 1 or more", b.cfg.Concurrency)
	}
	if cfg.Timeout == 0 {
		return cfg, usagef("timeout 0: every request has a time limit; give one above 0")
	}
	cfg.Pause = time.Duration(b.pause)
	var err error
	if cfg.ConnectTo, err = parseAddresses(b.connectTo); err != nil {
		return cfg, err
	}
	if cfg.Sources, cfg.SourcePorts, err = b.source.parse(); err != nil {
		return cfg, err
	}
	if _, _, err := cfg.Checked(); err != nil {
		return cfg, usageError{err}
	}
	return cfg, nil
}

func (b *benchHTTP) run(cmd *cobra.Command, env *Env, url string) error {
	cfg, err := b.config(url)
	if err != nil {
		return err
	}
	ns, err := b.target.open(cmd)
	if err != nil {
		return err
	}
	if ns != nil {
		defer ns.Close()
	}
	progress := env.progress()
	result, err := loadrun.HTTP(cmd.Context(), cfg, loadrun.Options{
		Netns: ns, WatchOthers: true,
		Progress: func(p load.Progress) { progress.Update("%v", p) },
	})
	progress.Clear()
	if err == nil {
		err = nothingDone(result)
	}
	switch {
	case result == nil:
		return err
	case b.json:
		return errors.Join(err, writeBenchJSON(env.Stdout, env.Version, result))
	case err != nil:
		return err
	}
	return writeBenchText(fitted{env}, result)
}

// nothingDone is why a run without any completed request has failed: its table
// would be zeros.
func nothingDone(r *load.Result) error {
	if r.Completed > 0 {
		return nil
	}
	if len(r.Failures) == 0 {
		return fmt.Errorf("bench http %s: the run ended before any request was answered", r.Config.URL)
	}
	return fmt.Errorf("bench http %s: no request completed: %s", r.Config.URL, failureTexts(r.Failures))
}

func failureTexts(failures []load.Failure) string {
	var texts []string
	for _, f := range failures {
		texts = append(texts, fmt.Sprintf("%s: %s %d", f.Phase, f.Reason, f.Count))
	}
	return strings.Join(texts, ", ")
}

func writeBenchJSON(w io.Writer, version string, r *load.Result) error {
	return report.JSON(w, struct {
		Schema  string `json:"schema"`
		Version string `json:"natkit_version"`
		*load.Result
	}{benchHTTPSchema, version, r})
}

// seconds is a duration flag that takes plain seconds, as ab's, too.
type seconds time.Duration

func (s *seconds) String() string {
	if *s == 0 {
		return ""
	}
	return time.Duration(*s).String()
}

func (s *seconds) Type() string { return "TIME" }

func (s *seconds) Set(text string) error {
	d, err := time.ParseDuration(text)
	if n, numErr := strconv.ParseFloat(text, 64); numErr == nil {
		d, err = time.Duration(n*float64(time.Second)), nil
		if !(n < 1e9) {
			return errors.New("too long")
		}
	}
	if err != nil {
		return errors.New("must be a number of seconds, or a time such as 500ms, 10s, 2m")
	}
	if d < 0 {
		return errors.New("must not be negative")
	}
	*s = seconds(d)
	return nil
}
