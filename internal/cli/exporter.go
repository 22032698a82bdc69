//go:build linux

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/exporter"
	"github.com/natkit/natkit/internal/metrics"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/record"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/state"
	"github.com/natkit/natkit/internal/web"
)

// exporterPage makes the page of the exporter, with what is recorded in a directory.
func exporterPage(current func() state.State, ring string) http.Handler {
	host, _ := os.Hostname() // the page does without
	return web.Handler(web.Options{State: current, Host: host, Past: record.NewPast(ring).History})
}

// exporterVerb is the verb exporter.
type exporterVerb struct {
	env       *Env
	listen    string
	cert, key string
	token     string
	netns     []string
	pids      []int
	all       bool
	every     time.Duration
	top       int
	once      bool
	ring      string
	// otlp is nil where nothing is pushed.
	otlp      *url.URL
	otlpEvery time.Duration
}

// Defaults and bounds of the exporter.
const (
	usualListen = "127.0.0.1:9752"
	usualCount  = 5 * time.Second
	maxCount    = 5 * time.Minute
	usualPush   = 30 * time.Second
	minPush     = 5 * time.Second
	usualListed = 10
	mostListed  = 100
)

func newExporter(env *Env) *cobra.Command {
	e := &exporterVerb{env: env, listen: usualListen, every: usualCount, top: usualListed, otlpEvery: usualPush}
	cmd := &cobra.Command{
		Use:   "exporter",
		Short: "serve metrics for Prometheus, and what natkit knows of this host as a page and as JSON",
		Long: `Watch NAT on this host and serve what is known over HTTP: /metrics for Prometheus,
/api/state the same and more as JSON (schema ` + state.Schema + `), / a page, /healthz whether the
exporter works. It changes nothing on the host. The page shows the last 24 hours where 'natkit record'
records the namespace.

The counters are read every interval. What costs more, samples of the connection table and
the rules of 'natkit doctor', is read in the background as often as 1 % of a CPU each allows;
natkit_data_age_seconds shows how old each part is. A request reads nothing from the kernel.

It listens on loopback. Another address requires --tls-cert, --tls-key and --token-file.
Their files may be renewed while it runs. Sockets of systemd (natkit-exporter.socket) take
the place of --listen.

The table and its counters require CAP_NET_ADMIN, drops CAP_BPF and CAP_PERFMON, the kernel's
log CAP_SYSLOG, other network namespaces CAP_SYS_ADMIN and, to find them, CAP_SYS_PTRACE.
Parts that cannot be read are missing: natkit_read_failed names them where that failed this
time, natkit_unavailable where a privilege or the device is missing.

It runs until SIGINT or SIGTERM, and exits with 0 then.`,
		Example: `  sudo natkit exporter                        # http://127.0.0.1:9752/
  sudo natkit exporter --netns gw --netns gw2
  sudo natkit exporter --all-netns            # containers' too
  sudo natkit exporter --listen :9752 --tls-cert cert.pem --tls-key key.pem --token-file token
  sudo natkit exporter --otlp http://127.0.0.1:4318
  sudo natkit exporter --once                 # print the metrics once, for a textfile collector
  sudo natkit exporter --once --json          # print the state once`,
		RunE: func(cmd *cobra.Command, _ []string) error { return e.run(cmd) },
	}
	f := cmd.Flags()
	f.Var(into(&e.listen, parseListen), "listen", "listen on `ADDRESS:PORT`")
	f.Lookup("listen").DefValue = usualListen
	f.Var(into(&e.cert, notEmpty("a file")), "tls-cert", "certificate of the server, a PEM `FILE`")
	f.Var(into(&e.key, notEmpty("a file")), "tls-key", "key of the certificate, a PEM `FILE`")
	f.Var(into(&e.token, notEmpty("a file")), "token-file", "requests must bear the token in `FILE`")
	f.StringArrayVar(&e.netns, "netns", nil, "in the network namespace `NAME` (of 'ip netns list'; may be repeated)")
	f.IntSliceVar(&e.pids, "pid", nil, "in the network namespace of process `PID`, for instance a container's (may be repeated)")
	f.BoolVar(&e.all, "all-netns", false, fmt.Sprintf("watch every network namespace that has a name or a process, up to %d", exporter.MostNamespaces))
	f.Var(period(&e.every, time.Second, maxCount), "every", "time from one reading of the counters to the next: seconds or 500ms, 1m, …")
	f.Var(between(&e.top, 0, mostListed), "top", "services, addresses, sources and destinations that have metrics, at most `N` each")
	f.Var(into(&e.ring, notEmpty("a directory")), "ring", "show the hours before from the recording in `DIR` (of 'natkit record'; default "+record.DefaultDir+")")
	f.BoolVar(&e.once, "once", false, "examine twice, print the metrics, and end")
	f.Var(into(&e.otlp, exporter.ParseReceiver), "otlp", "also push the metrics to the OpenTelemetry receiver at `URL`, over HTTP; OTEL_EXPORTER_OTLP_HEADERS has headers to send")
	f.Var(period(&e.otlpEvery, minPush, maxCount), "otlp-every", "with --otlp: time from one push to the next: seconds or 500ms, 1m, …")
	requires(cmd, "otlp-every", "otlp")
	env.addJSON(cmd, state.Schema)
	requires(cmd, "json", "once")
	cmd.MarkFlagsRequiredTogether("tls-cert", "tls-key")
	cmd.MarkFlagsMutuallyExclusive("netns", "all-netns")
	cmd.MarkFlagsMutuallyExclusive("pid", "all-netns")
	for _, serving := range []string{"listen", "tls-cert", "tls-key", "token-file", "otlp", "ring"} {
		cmd.MarkFlagsMutuallyExclusive("once", serving)
	}
	completeFlags(cmd, map[string]cobra.CompletionFunc{"netns": offer(netns.Names)})
	return cmd
}

func parseListen(text string) (string, error) {
	_, port, err := net.SplitHostPort(text)
	if err != nil || port == "" {
		return "", errors.New("must be ADDRESS:PORT, such as 127.0.0.1:9752, [::1]:9752 or :9752")
	}
	return text, nil
}

func (e *exporterVerb) run(cmd *cobra.Command) (err error) {
	ctx := cmd.Context()
	serve, listeners, err := e.serving()
	if err != nil {
		return err
	}
	o := exporter.Options{All: e.all, Every: e.every, Limits: state.Limits{Top: e.top}, Version: e.env.Version,
		Note: func(text string) { e.env.note("%s", text) }}
	if o.Netns, err = e.open(); err != nil {
		return err
	}
	defer netns.CloseAll(o.Netns)
	c := exporter.New(o)
	if err := c.Start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if e.once {
		return e.print(ctx, c)
	}
	return e.serve(ctx, c, listeners, serve)
}

// open opens the chosen namespaces.
func (e *exporterVerb) open() (all []*netns.Handle, err error) {
	take := func(ns *netns.Handle, openErr error) {
		if err == nil {
			err = openErr
		}
		if openErr == nil {
			all = append(all, ns)
		}
	}
	for _, name := range e.netns {
		take(openNamed(name))
	}
	for _, pid := range e.pids {
		take(openPID("pid", pid))
	}
	if err != nil {
		netns.CloseAll(all)
		return nil, err
	}
	return all, nil
}

// serving listens, and reads what protects that.
func (e *exporterVerb) serving() (o exporter.ServeOptions, all []net.Listener, err error) {
	if e.once {
		return o, nil, nil
	}
	o.Fail = func(err error) { e.env.detail("%v", err) } // of one connection, as of a scanner
	if e.cert != "" {
		if o.TLS, err = exporter.LoadCertificate(e.cert, e.key, e.env.fail); err != nil {
			return o, nil, err
		}
	}
	if e.token != "" {
		if o.Token, err = exporter.LoadToken(e.token, e.env.fail); err != nil {
			return o, nil, err
		}
	}
	if all, err = exporter.Activated(e.env.Getenv, os.Getpid()); err == nil && len(all) == 0 {
		all, err = exporter.Listen(e.listen)
	}
	if at := exporter.Exposed(all); at != nil && (o.TLS == nil || o.Token == nil) {
		for _, l := range all {
			l.Close()
		}
		return o, nil, usagef("listen on %s: other hosts can reach it, which requires --tls-cert, --tls-key and --token-file; or listen on 127.0.0.1", at)
	}
	return o, all, err
}

// serve serves until it is interrupted, which is how it ends.
func (e *exporterVerb) serve(ctx context.Context, c *exporter.Collector, listeners []net.Listener, o exporter.ServeOptions) error {
	headers, err := exporter.ParseHeaders(e.env.Getenv("OTEL_EXPORTER_OTLP_HEADERS"))
	if err != nil {
		return usage(err)
	}
	registry := metrics.NewRegistry(c.State)
	o.Metrics = registry.Handler()
	o.Page = exporterPage(c.State, cmp.Or(e.ring, recordDir(e.env)))
	scheme := "http"
	if o.TLS != nil {
		scheme = "https"
	}
	for _, l := range listeners {
		e.env.note("serving %s://%s/", scheme, l.Addr())
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var background sync.WaitGroup
	background.Go(func() { c.Run(ctx) })
	if e.otlp != nil {
		push := exporter.Push{URL: e.otlp, Every: e.otlpEvery, Headers: headers, Metrics: registry, Version: e.env.Version,
			Note: func(text string) { e.env.note("%s", text) }}
		background.Go(func() { push.Run(ctx) })
	}
	err = exporter.Serve(ctx, listeners, c.State, o)
	stop()
	background.Wait()
	return err
}

// print prints the metrics or the state once.
func (e *exporterVerb) print(ctx context.Context, c *exporter.Collector) error {
	s, err := c.Once(ctx)
	if err != nil {
		return err
	}
	if e.env.asJSON {
		return report.JSON(e.env.Stdout, s)
	}
	if err := metrics.NewRegistry(func() state.State { return s }).Write(e.env.Stdout); err != nil {
		return fmt.Errorf("print the metrics: %w", err)
	}
	return nil
}
