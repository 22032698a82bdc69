package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/load"
	loadrun "github.com/natkit/natkit/internal/load/run"
	"github.com/natkit/natkit/internal/report"
	"github.com/spf13/cobra"
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

// writeBenchText renders a result with at least one completed request in the words and the order of ab, so that its
// users find their way, with what ab does not tell after it.
func writeBenchText(w io.Writer, r *load.Result) error {
	var b bytes.Buffer
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-24s%s\n", name+":", fmt.Sprintf(format, args...))
	}
	if r.Server != "" {
		line("Server Software", "%s", r.Server)
	}
	line("URL", "%s", r.Config.URL)
	line("Document Length", "%d bytes", r.DocumentBytes)
	line("Concurrency Level", "%d (%d threads)", r.Config.Concurrency, r.Config.Workers)
	line("Load", "%s", loadWords(r.Config))
	if r.Config.MergeAck {
		line("Note", "--merge-ack: one packet fewer per connection, not comparable with runs without it")
	}
	b.WriteByte('\n')
	writeBenchTotals(line, r)
	writeBenchCost(line, r)
	b.WriteByte('\n')
	writeBenchTimes(&b, r)
	_, err := w.Write(b.Bytes())
	return err
}

// loadWords says in one line what was done.
func loadWords(c load.Config) string {
	words := "one connection per request"
	switch {
	case c.PerConnection > 0:
		words = fmt.Sprintf("%d requests per connection (keep-alive), then the %s closes", c.PerConnection, whoCloses(c.Close))
	case c.KeepAlive:
		words = "many requests per connection (keep-alive)"
	case c.Close == load.CloseClient:
		words += ", the client closes"
	case c.Close == load.CloseReset:
		words += ", the client closes with a reset"
	default:
		words += ", the server closes"
	}
	if c.Rate > 0 {
		words += fmt.Sprintf(", %g requests/s on schedule (open loop)", c.Rate)
	} else {
		words += ", closed loop"
	}
	if c.Batch > 0 {
		words += fmt.Sprintf(", batches of %d with %s between", c.Batch, c.Pause)
	}
	if n := len(c.Sources); n > 0 {
		words += fmt.Sprintf(", from %d addresses", n)
	}
	if n := len(c.ConnectTo); n > 0 {
		words += fmt.Sprintf(", to %d addresses", n)
	}
	return words
}

func whoCloses(c load.CloseMode) string {
	switch c {
	case load.CloseClient:
		return "client"
	case load.CloseReset:
		return "client, with a reset,"
	}
	return "server"
}

type lineFunc func(name, format string, args ...any)

func writeBenchTotals(line lineFunc, r *load.Result) {
	line("Time taken for tests", "%.3f seconds", r.Seconds)
	line("Complete requests", "%d", r.Completed)
	line("Failed requests", "%d", r.Failed)
	for _, f := range r.Failures {
		line("  "+string(f.Phase), "%s %d", f.Reason, f.Count)
	}
	if r.ConnectLate > 0 {
		line("Late connections", "%d took a second or more: their SYN was sent again", r.ConnectLate)
	}
	if r.Unfinished > 0 {
		line("Unfinished at the end", "%d", r.Unfinished)
	}
	if r.FirstFailureSeconds >= 0 {
		line("First failure", "after %.3f seconds; %.2f [#/sec] completed from then on",
			r.FirstFailureSeconds, r.AfterFirstFailurePerSecond)
	}
	line("Total transferred", "%d bytes", r.BytesReceived)
	line("HTML transferred", "%d bytes", r.BodyBytes)
	line("Requests per second", "%.2f [#/sec] (mean)", r.RequestsPerSecond)
	if r.Config.Rate == 0 {
		per := 1000 * r.Seconds / float64(r.Completed)
		line("Time per request", "%.3f [ms] (mean)", per*float64(r.Config.Concurrency))
		line("Time per request", "%.3f [ms] (mean, across all concurrent requests)", per)
	}
	line("Requests in flight", "%.1f (mean)", r.MeanInFlight)
	line("Transfer rate", "%.2f [Kbytes/sec] received", float64(r.BytesReceived)/1024/r.Seconds)
}

func writeBenchCost(line lineFunc, r *load.Result) {
	own := r.CPU.UserSeconds + r.CPU.SystemSeconds
	n := float64(r.Completed + r.Failed)
	line("System calls", "%.2f per request", float64(r.SystemCalls)/n)
	line("CPU", "%.1f us per request here, %.1f us on the whole machine", 1e6*own/n, 1e6*r.CPU.MachineSeconds/n)
	line("Memory", "%s at most", report.Bytes(float64(r.CPU.MaxRSSBytes)))
	writeGenerator(line, r.GeneratorLimit, r.CPUContention)
}

// writeGenerator says why the generator was the limit, and who else used the CPUs;
// both may be empty.
func writeGenerator(line lineFunc, limit, contention string) {
	if limit != "" {
		line("Generator", "THE LIMIT: %s", limit)
	}
	if contention != "" {
		line("Note", "%s", contention)
	}
}

func writeBenchTimes(b *bytes.Buffer, r *load.Result) {
	b.WriteString("Connection Times (ms)\n")
	writeTimesHead(b)
	writeTimesRow(b, "Connect", r.Connect)
	writeTimesRow(b, "Processing", r.Processing)
	writeTimesRow(b, "Waiting", r.Waiting)
	writeTimesRow(b, "Total", r.Total)
	if r.ServiceTotal != nil {
		writeTimesRow(b, "Service", *r.ServiceTotal)
		b.WriteString("Connect and Total count from when a request was due, Service from when it began.\n")
	}
	b.WriteString("\nPercentage of the requests served within a certain time (ms)\n")
	writePercentages(b, r.Total, "longest request")
}

func writeTimesHead(b *bytes.Buffer) {
	fmt.Fprintf(b, "%-11s %10s %10s %9s %10s %10s\n", "", "min", "mean", "[+/-sd]", "median", "max")
}

func writeTimesRow(b *bytes.Buffer, name string, t load.Times) {
	fmt.Fprintf(b, "%-11s %10.3f %10.3f %9.3f %10.3f %10.3f\n", name+":", t.Min, t.Mean, t.SD, t.Median, t.Max)
}

// writePercentages has ab's table; longest is what its last line is about.
func writePercentages(b *bytes.Buffer, t load.Times, longest string) {
	for _, p := range []struct {
		name  string
		value float64
	}{
		{"50%", t.Median}, {"90%", t.P90}, {"95%", t.P95},
		{"99%", t.P99}, {"99.9%", t.P999}, {"100%", t.Max},
	} {
		note := ""
		if p.name == "100%" {
			note = fmt.Sprintf(" (%s)", longest)
		}
		fmt.Fprintf(b, "%7s %10.3f%s\n", p.name, p.value, note)
	}
}
