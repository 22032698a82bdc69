//go:build linux

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/natlog"
	"github.com/natkit/natkit/internal/natlog/send"
	"github.com/natkit/natkit/internal/natlog/source"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/table/store"
	"github.com/natkit/natkit/internal/units"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// gatewayLog is the verb gateway log.
type gatewayLog struct {
	env       *Env
	target    target
	to        []string
	source    source.Way
	every     time.Duration
	endsAlone bool
	noPresent bool
	spool     string
	spoolSize int64
	rotate    int64
	keep      int
	flush     time.Duration
	node      string
	s3        string
	// place is the network namespace in the records.
	place string
}

// Bounds and defaults of the log.
const (
	usualSpool    = 1 << 30
	leastRotation = 1 << 20
	mostKept      = 10_000
	usualFlush    = 10 * time.Second
)

func newGatewayLog(env *Env) *cobra.Command {
	g := &gatewayLog{env: env, source: source.Auto, every: source.UsualEvery, spoolSize: usualSpool, keep: 10, flush: usualFlush}
	cmd := &cobra.Command{
		Use:   "log",
		Short: "log who had which NAT address and port when, until interrupted",
		Long: `Write a record when a translated connection starts and when it ends, of all NAT in a network
namespace, natkit's or not: to standard output as JSON lines, or to each --to. It finds connections by eBPF
programs on two tracepoints (Linux 5.8 with BTF, CAP_BPF, CAP_PERFMON, CAP_SYSLOG), each with its
exact time; where these cannot run, by what differs between two readings of the connection
table (CAP_NET_ADMIN), which says what it can miss. It never listens to the events of the tracker, which
slows new connections down. What is there already when it begins is read from the table once, and has a start
that says so (CAP_NET_ADMIN).

--to  PATH                        JSON lines; SIGHUP opens PATH again, as logrotate wants it
      syslog://HOST:514           RFC 5424 over UDP; syslog+tcp://HOST:601 with octet counting; syslog+unix:///dev/log
      ipfix://HOST:4739           IPFIX (RFC 7011, RFC 8158) over UDP; ipfix+tcp://HOST:4739
      kafka://HOST:9092[,HOST…]/TOPIC
      parquet:DIR                 rows of the table nat_log; parquet:s3://BUCKET/PREFIX

A receiver that is slow or away does not hold up the rest: what waits is bounded in memory, or with --spool
on disk, from where the next run goes on. Records that find no room are counted, and the log
says so where they are missing. docs/nat-log.md has the fields.

Exit codes: 0 ok, 1 error, 2 usage, 4 records were lost.`,
		Example: `  sudo natkit gateway log
  sudo natkit gateway log --to /var/log/natkit/nat.jsonl
  sudo natkit gateway log --to syslog+tcp://log.example.net:601 --spool /var/lib/natkit/nat-log
  sudo natkit gateway log --netns gw --to ipfix://198.51.100.7:4739 --ends-only`,
	}
	g.target.runs(cmd, func(ctx context.Context, ns *netns.Handle, _ []string) error {
		if err := g.check(cmd); err != nil {
			return err
		}
		return g.run(ctx, ns)
	})
	g.addSource(cmd)
	g.addOutputs(cmd)
	g.addSpool(cmd)
	return cmd
}

// addSource adds the flags of what is followed, and how.
func (g *gatewayLog) addSource(cmd *cobra.Command) {
	f := cmd.Flags()
	way := into(&g.source, oneOf(source.Auto, source.Trace, source.Table))
	way.text = string(source.Auto)
	f.Var(way, "by", "find connections by `WAY`: trace (tracepoints), table (differences of the connection table), auto (trace if possible)")
	f.Var(period(&g.every, time.Second, time.Hour), "every", "time between two readings of the table, at least; of --by table")
	f.BoolVar(&g.endsAlone, "ends-only", false, "one record for each connection, at its end, with the time of its start")
	f.BoolVar(&g.noPresent, "no-present", false, "leave out the connections that are there when the log begins (large tables)")
	cmd.MarkFlagsMutuallyExclusive("ends-only", "no-present")
	f.Var(into(&g.node, func(node string) (string, error) { return node, store.CheckNode(node) }), "node", "`NAME` of this host in the records (default: its host name)")
	completeFlags(cmd, map[string]cobra.CompletionFunc{"by": completeWords(string(source.Auto), string(source.Trace), string(source.Table))})
}

// addOutputs adds the flags of where records go.
func (g *gatewayLog) addOutputs(cmd *cobra.Command) {
	f := cmd.Flags()
	to := &value{kind: repeatable, set: func(text string) error {
		if err := checkOutput(text); err != nil {
			return err
		}
		if slices.ContainsFunc(g.to, func(o string) bool { return onePath(o) == onePath(text) }) {
			return errors.New("is given twice")
		}
		g.to = append(g.to, text)
		return nil
	}}
	f.Var(to, "to", "send records to this `OUTPUT` (- is stdout); may be repeated")
	rotate := into(&g.rotate, parseRotation)
	f.Var(rotate, "rotate", "rename a file of --to at this `SIZE` to PATH.1, that to PATH.2, …; without, only logrotate and SIGHUP do")
	f.Var(between(&g.keep, 1, mostKept), "keep", "how many renamed files stay with --rotate")
	requires(cmd, "keep", "rotate")
	f.Var(into(&g.s3, notEmpty("a URL")), "s3-endpoint", "with --to parquet:s3://…: `URL` of the store (default AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, then that of AWS)")
}

// addSpool adds the flags of what waits for receivers.
func (g *gatewayLog) addSpool(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Var(into(&g.spool, notEmpty("a directory")), "spool", "keep what waits for a receiver in this `DIR`, in a directory for each output")
	size := into(&g.spoolSize, parseSpool)
	size.text = "1G"
	f.Var(size, "spool-size", "`SIZE` of the spool of each output at most: 100M, 1G, …")
	requires(cmd, "spool-size", "spool")
	f.Var(period(&g.flush, 0, time.Hour), "flush", "how long the end waits for receivers to take what they have not")
}

// onePath is a path in one form, or another output as it is.
func onePath(to string) string {
	if o, err := parseOutput(to); err != nil || o.kind != "file" {
		return to
	}
	if path, err := filepath.Abs(to); err == nil {
		return path
	}
	return filepath.Clean(to)
}

// check refuses flags that nothing would use.
func (g *gatewayLog) check(cmd *cobra.Command) error {
	kinds := map[string]bool{}
	for _, to := range g.to {
		o, _ := parseOutput(to)
		kinds[o.kind] = true
		if kind, _ := store.KindOf(o.address); o.kind == "parquet" && kind == store.ToS3 {
			kinds["s3"] = true
		}
	}
	switch {
	case g.rotate > 0 && !kinds["file"]:
		return usagef("--rotate requires --to PATH")
	case g.s3 != "" && !kinds["s3"]:
		return usagef("--s3-endpoint requires --to parquet:s3://BUCKET/PREFIX")
	case cmd.Flags().Changed("every") && g.source == source.Trace:
		return usagef("--every and --by trace are mutually exclusive: nothing is read at intervals")
	}
	return nil
}

func parseSpool(text string) (int64, error) {
	n, ok := parseBytes(text)
	switch {
	case !ok:
		return 0, errors.New("must be an amount of disk: 100M, 1G, …")
	case n < send.LeastSpool || n > send.MostSpool:
		return 0, outside("1M", "1T", false)
	}
	return n, nil
}

func parseRotation(text string) (int64, error) {
	n, ok := parseBytes(text)
	if !ok || n < leastRotation {
		return 0, errors.New("must be an amount of disk, 1M or more")
	}
	return n, nil
}

// output is where records go, taken apart.
type output struct {
	kind, network, address, topic string
	brokers                       []string
}

var errOutput = errors.New("must be a path, -, syslog://HOST:PORT, syslog+tcp://HOST:PORT, syslog+unix://PATH, ipfix://HOST:PORT, ipfix+tcp://HOST:PORT, kafka://HOST:PORT/TOPIC or parquet:DIR")

func checkOutput(text string) error {
	_, err := parseOutput(text)
	return err
}

func parseOutput(text string) (o output, err error) {
	if text == "" {
		return o, errOutput
	}
	if text == "-" {
		return output{kind: "stdout"}, nil
	}
	if dir, is := strings.CutPrefix(text, "parquet:"); is {
		if kind, err := store.KindOf(dir); err != nil || kind == store.ToFile {
			return o, cmp.Or(err, errors.New("parquet: requires a directory or s3://BUCKET/PREFIX: a log has no end"))
		}
		return output{kind: "parquet", address: dir}, nil
	}
	scheme, _, is := strings.Cut(text, "://")
	if !is {
		return output{kind: "file", address: text}, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		if scheme != "kafka" {
			return o, errOutput
		}
	}
	name, network, _ := strings.Cut(scheme, "+")
	switch {
	case scheme == "kafka":
		return parseKafka(text)
	case scheme == "syslog+unix":
		if u.Host != "" || u.Path == "" {
			return o, errOutput
		}
		return output{kind: "syslog", network: "unixgram", address: u.Path}, nil
	case (name == "syslog" || name == "ipfix") && (network == "" || network == "udp" || network == "tcp") && strings.Trim(u.Path, "/") == "":
		if err := checkHostPort(u.Host); err != nil {
			return o, err
		}
		return output{kind: name, network: cmp.Or(network, "udp"), address: u.Host}, nil
	}
	return o, errOutput
}

func parseKafka(text string) (o output, err error) {
	brokers, topic, _ := strings.Cut(strings.TrimPrefix(text, "kafka://"), "/")
	o = output{kind: "kafka", topic: topic, brokers: strings.Split(brokers, ",")}
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r)
	}
	if topic == "" || len(topic) > 249 || strings.ContainsFunc(topic, func(r rune) bool { return !plain(r) }) {
		return o, errors.New("the topic is missing, or none: kafka://HOST:PORT/TOPIC")
	}
	for _, b := range o.brokers {
		if err := checkHostPort(b); err != nil {
			return o, err
		}
	}
	return o, nil
}

func checkHostPort(text string) error {
	host, port, err := net.SplitHostPort(text)
	if err != nil || host == "" || port == "" {
		return fmt.Errorf("%q: HOST:PORT is missing", text)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("port %q: must be from 1 to 65535", port)
	}
	return nil
}

// run follows connections until ctx ends.
func (g *gatewayLog) run(ctx context.Context, ns *netns.Handle) error {
	if len(g.to) == 0 {
		g.to = []string{"-"}
	}
	if g.node == "" {
		g.node, _ = os.Hostname()
	}
	var outlets []*send.Outlet
	var files []logFile
	s, why, err := source.Open(source.Options{Netns: ns, Way: g.source, EndsAlone: g.endsAlone, NoPresent: g.noPresent, Every: g.every,
		Note: func(text string) { g.env.note("%s", text) },
		Room: func(n int) bool {
			return !slices.ContainsFunc(outlets, func(o *send.Outlet) bool { return !o.Room(n) })
		},
		List: func() *source.Listing { return g.listing(files) }})
	if err != nil {
		return err
	}
	defer s.Close()
	if why != nil {
		g.env.note("no tracepoints: %v", why)
	}
	if g.place, err = netnsName(ns); err != nil {
		return err
	}
	outlets, files, err = g.open(ctx)
	if err != nil {
		return err
	}
	put := func(records []natlog.Record) { g.put(outlets, records) }
	stop := g.reopen(files)
	defer stop()
	g.env.note("logging translated connections of %s by %s; until interrupted", g.target.name(), s.About())
	put([]natlog.Record{{Kind: natlog.Begin, Time: s.Since(), Reason: s.About(), Without: g.without(), Within: s.Every()}})
	var lost uint64
	err = s.Run(ctx, func(records []natlog.Record) {
		for i := range records {
			if records[i].Kind == natlog.Lost {
				lost += records[i].Count
			}
		}
		put(records)
	})
	put([]natlog.Record{{Kind: natlog.Stop, Time: time.Now(), Count: lost}})
	return g.end(outlets, lost, err)
}

// logFile is a file of --to, and what delivers to it.
type logFile struct {
	*send.File
	outlet *send.Outlet
}

// listing is for the files that are begun amid the run; nil for none.
func (g *gatewayLog) listing(files []logFile) *source.Listing {
	var to []*send.Outlet
	for _, f := range files {
		if f.IsListWanted() {
			to = append(to, f.outlet)
		}
	}
	if len(to) == 0 {
		return nil
	}
	return &source.Listing{
		Put:  func(records []natlog.Record) { g.put(to, records) },
		Room: func(n int) bool { return !slices.ContainsFunc(to, func(o *send.Outlet) bool { return !o.Room(n) }) },
	}
}

// put hands records to outlets.
func (g *gatewayLog) put(outlets []*send.Outlet, records []natlog.Record) {
	for i := range records {
		g.stamp(&records[i])
	}
	for _, o := range outlets {
		o.Put(records)
	}
}

// without is what the log leaves out.
func (g *gatewayLog) without() natlog.Without {
	switch {
	case g.endsAlone:
		return natlog.WithoutStarts
	case g.noPresent:
		return natlog.WithoutPresent
	}
	return ""
}

// stamp gives a record its place.
func (g *gatewayLog) stamp(r *natlog.Record) { r.Node, r.Netns = g.node, g.place }

// open opens all outputs, or none.
func (g *gatewayLog) open(ctx context.Context) (outlets []*send.Outlet, files []logFile, err error) {
	defer func() {
		if err != nil {
			for _, o := range outlets {
				_, _ = o.Close(0)
			}
		}
	}()
	for _, to := range g.to {
		parsed, err := parseOutput(to)
		if err != nil {
			return outlets, files, usagef("--to %s: %v", to, err)
		}
		out, err := g.output(ctx, parsed)
		if err != nil {
			return outlets, files, fmt.Errorf("log to %s: %w", to, err)
		}
		o := send.Options{Name: to, Note: g.env.fail, Lost: func() natlog.Record {
			r := natlog.Record{Time: time.Now()}
			g.stamp(&r)
			return r
		}}
		if g.spool != "" && parsed.kind != "stdout" {
			if o.Spool, err = send.OpenSpool(g.spoolDir(to), g.spoolSize); err != nil {
				return outlets, files, errors.Join(err, out.Close())
			}
			if n := o.Spool.Waiting(); n > 0 {
				g.env.note("%s of the last run wait in the spool for %s", units.Bytes(n), to)
			}
		}
		outlet := send.NewOutlet(out, o)
		outlets = append(outlets, outlet)
		if f, is := out.(*send.File); is {
			files = append(files, logFile{f, outlet})
		}
	}
	return outlets, files, nil
}

// spoolDir is one for each output; its name has the kind, for people, and a hash.
func (g *gatewayLog) spoolDir(to string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(to))
	kind, _, _ := strings.Cut(to, ":")
	if strings.ContainsRune(kind, '/') {
		kind = "file"
	}
	return filepath.Join(g.spool, fmt.Sprintf("%s-%016x", kind, h.Sum64()))
}

func (g *gatewayLog) output(ctx context.Context, o output) (send.Output, error) {
	switch o.kind {
	case "stdout":
		return &send.Stream{W: g.env.Stdout}, nil
	case "syslog":
		return send.NewSyslog(o.network, o.address), nil
	case "ipfix":
		h := fnv.New32a()
		_, _ = h.Write([]byte(g.node))
		return send.NewCollector(o.network, o.address, h.Sum32(), time.Now), nil
	case "kafka":
		return send.NewKafka(o.brokers, o.topic)
	case "parquet":
		var u unix.Utsname
		_ = unix.Uname(&u) // a null column otherwise
		return send.NewTables(ctx, store.Options{To: o.address, Node: g.node, Version: g.env.Version, S3: s3Of(g.env.Getenv, g.s3)}, unix.ByteSliceToString(u.Release[:]), time.Now)
	}
	return send.NewFile(o.address, g.rotate, g.keep)
}

// reopen has SIGHUP open files again; without files it ends natkit, as everywhere.
func (g *gatewayLog) reopen(files []logFile) (stop func()) {
	if len(files) == 0 {
		return func() {}
	}
	hangs, done := hangups(), make(chan struct{})
	go func() {
		for {
			select {
			case <-hangs:
				for _, f := range files {
					f.Reopen()
				}
			case <-done:
				return
			}
		}
	}()
	return func() { close(done) }
}

// end flushes, and says what became of the records.
func (g *gatewayLog) end(outlets []*send.Outlet, lost uint64, err error) error {
	unsaid := uint64(0)
	for i, o := range outlets {
		tally, closeErr := o.Close(g.flush)
		err = errors.Join(err, closeErr)
		text := fmt.Sprintf("%s: %s, %s delivered", g.to[i], units.Plural(int64(tally.Records), "record", "records"), units.Count(int64(tally.Delivered)))
		if tally.Omitted > 0 {
			text += fmt.Sprintf(", %s have no row", units.Count(int64(tally.Omitted)))
		}
		if tally.Lost > 0 {
			text += fmt.Sprintf(", %s lost", units.Count(int64(tally.Lost)))
		}
		if tally.Waiting > 0 {
			text += fmt.Sprintf(", %s wait in the spool for the next run", units.Bytes(tally.Waiting))
		}
		g.env.note("%s", text)
		lost, unsaid = lost+tally.Lost, unsaid+tally.Unsaid
	}
	if lost == 0 {
		return err
	}
	if err != nil {
		g.env.fail(err)
	}
	g.env.fail(errors.New(saidLost(lost, unsaid)))
	return errIncomplete
}

// saidLost says of how many records that were lost the log says so.
func saidLost(lost, unsaid uint64) string {
	text := units.Plural(int64(lost), "record was", "records were") + " lost: "
	switch {
	case unsaid == 0:
		return text + "the log has a line where they are missing"
	case unsaid >= lost:
		return text + "the log does not say so, as they are the last"
	}
	return text + fmt.Sprintf("the log has a line where they are missing, but for the last %s", units.Count(int64(unsaid)))
}
