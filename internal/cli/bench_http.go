package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/load"
	loadrun "github.com/natkit/natkit/internal/load/run"
	"github.com/natkit/natkit/internal/report"
	"github.com/spf13/cobra"
)

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
(HTTP/1.0), which the server closes. --timeout bounds each request from start to last
byte; a failure names the part of the request in which it occurred.

With --rate requests start on a schedule, and their time counts from when they were
due; without it, each of the -c connections sends its next request when the last one
is answered.

With --source the kernel still chooses the port, out of ip_local_port_range: one
address has about 28,000 connections to one server at a time. More addresses allow more.

Who closes first keeps the connection in TIME_WAIT: --close selects who, and with
--keepalive --per-connection also after how many requests. --batch with --pause lets a
NAT on the way expire the connections of a batch before the next one.

Requires no privilege; --netns and --pid require CAP_SYS_ADMIN to enter the namespace.`,
		Example: `  natkit bench http -c 1000 -n 50000 http://198.18.0.1:8080/
  natkit bench http -c 100 -t 10 -s 2 http://[2001:db8::1]/page
  natkit bench http -c 2000 -t 30s --rate 5000 http://198.18.0.1:8080/
  natkit bench http -c 500 -n 200000 --source 198.18.0.10-198.18.0.29 http://198.18.0.1/
  natkit bench http -k -c 50 -t 5 --json http://127.0.0.1:8080/
  natkit bench http -k --per-connection 100 --close client -n 5000 http://198.18.0.1/
  natkit bench http -c 150 -n 1200 --batch 150 --pause 2s http://198.18.0.1/
  natkit bench http -n 1000 --connect-to 198.19.0.2-198.19.0.9 http://198.19.0.2/`,
		Args: exactlyOne("URL"),
		RunE: func(cmd *cobra.Command, args []string) error { return b.run(cmd, args[0]) },
	}
	f, c := cmd.Flags(), &b.cfg
	f.VarP(orMore(&c.Concurrency, 1), "concurrency", "c", "concurrent requests")
	f.Int64VarP(&c.Requests, "requests", "n", 0, "number of requests to send (1, or until --time expires)")
	f.VarP(periodBetween(&c.Timeout, time.Millisecond, 0), "timeout", "s", "time limit of each request, connect to last byte: seconds or 500ms, 2m, …")
	f.BoolVarP(&c.KeepAlive, "keepalive", "k", false, "send many requests over one connection")
	f.StringVar((*string)(&c.Close), "close", string(load.CloseServer), "`WHO` closes a connection first: server, client, or rst (the client, with a reset)")
	f.IntVar(&c.PerConnection, "per-connection", 0, "with --keepalive: end a connection after `N` requests, by whom --close selects (0: never)")
	f.Var(addressList(&c.ConnectTo), "connect-to", "connect to this address, range or prefix (`ADDR[-ADDR]`, ADDR/BITS) instead of the URL's host, in turn; may be repeated")
	f.Int64Var(&c.Batch, "batch", 0, "send the requests in batches of `N`; the next one begins when all of the last one have ended")
	f.Var((*seconds)(&c.Pause), "pause", "with --batch: time between batches: seconds or 500ms, 2m, …")
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
		return usageError{err}
	}
	return runLoad(&b.benchVerb, cmd, url, benchRun[load.Result]{
		run:   func(o loadrun.Options) (*load.Result, error) { return loadrun.HTTP(cmd.Context(), b.cfg, o) },
		empty: noneCompleted,
		chosen: func(r *load.Result) map[string]string {
			return numbers(map[string]int64{"requests": r.Config.Requests, "concurrency": int64(r.Config.Concurrency), "workers": int64(r.Config.Workers)})
		},
		text: report.HTTPLoad,
	})
}

// noneCompleted is why a run without any completed request has failed: its table
// would be zeros.
func noneCompleted(r *load.Result) error {
	var failures []string
	for _, f := range r.Failures {
		failures = append(failures, fmt.Sprintf("%s: %s %d", f.Phase, f.Reason, f.Count))
	}
	switch {
	case r.Completed > 0:
		return nil
	case len(failures) == 0:
		return fmt.Errorf("bench http %s: the run ended before any request was answered", r.Config.URL)
	}
	return fmt.Errorf("bench http %s: no request completed: %s", r.Config.URL, strings.Join(failures, ", "))
}
