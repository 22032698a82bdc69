//go:build linux

package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/anonymize"
	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/doctor"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
	"github.com/spf13/cobra"
)

// maxSnapshotEntries keeps the largest bundle readable (snapshot.BundleReader).
const maxSnapshotEntries = 4_000_000

// snapshotter is the verb snapshot.
type snapshotter struct {
	env        *Env
	target     target
	output     string
	duration   time.Duration
	count      int
	maxEntries int
	trace      bool
	all        bool
	anonymize  bool
	keyFile    string
	// from is a bundle that is anonymized, list one whose contents are listed.
	from, list string
	progress   *report.Progress
	// unread are the parts that could not be read, cut how an interrupt cut the recording short.
	unread []string
	cut    string
}

// mostSnapshots is as many as a day has with one each minute.
const mostSnapshots = 1440

func newSnapshot(env *Env) *cobra.Command {
	s := &snapshotter{env: env}
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "write all that doctor reads to one file, to be diagnosed anywhere",
		Long: `Sample this host twice and write the raw kernel texts and netlink answers to one
tar.gz. 'natkit doctor --from FILE' has the same findings as doctor here.

The file holds addresses and ports of connections, sysctls, counters of conntrack, TCP
and the neighbour tables, NAT rules, memory and slab sizes, and kernel log lines about NAT;
with --trace also dropped packets, a CPU profile and SYNs. Only its owner may read it
(mode 0600). Its name is printed on stdout. --list shows what is in a file.

With --anonymize addresses are replaced by others of the same class (public, private,
loopback, …) that share their prefixes as before; hardware addresses, the names of hosts,
network namespaces, containers, chains and sets, interfaces that are not named after their
kind, and comments of rules are replaced as well; packets' payloads are in no bundle.
doctor has the same findings. The same key gives the same replacements; without
--anonymize-key it is drawn at random and kept nowhere. docs/bundles.md says what stays.

With --all-netns the file has every network namespace, containers' too; with --count more
than two samples. doctor, diff and --list read all of them.

Without CAP_NET_ADMIN, root and what --trace requires (CAP_BPF, CAP_PERFMON, CAP_SYSLOG,
CAP_NET_RAW) it reads what it may, prints INCOMPLETE, what is missing and why, and exits
with 4. An interrupt (Ctrl-C) ends the wait, and the file is still written: INCOMPLETE,
exit code 130, and 4 of 'natkit doctor --from'.`,
		Example: `  sudo natkit snapshot
  sudo natkit snapshot -o gateway.tar.gz --for 10s
  sudo natkit snapshot --pid $(docker inspect -f '{{.State.Pid}}' web) -o web.tar.gz
  ssh gateway sudo natkit snapshot -o - > gateway.tar.gz
  sudo natkit snapshot --trace --for 10s # with dropped packets and a CPU profile
  sudo natkit snapshot --all-netns       # containers as well
  sudo natkit snapshot --anonymize       # to be given to others
  natkit snapshot --from gateway.tar.gz --anonymize -o public.tar.gz
  natkit snapshot --list gateway.tar.gz
  natkit snapshot --json                 # no file, only what was read, in numbers`,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.run(cmd) },
	}
	s.target.addFlags(cmd)
	cmd.Flags().StringVarP(&s.output, "output", "o", "", "write to this `FILE`, - for stdout (default natkit-HOST-TIME.tar.gz)")
	addWindow(cmd, &s.duration, 2*time.Second, 0)
	s.maxEntries = collect.DefaultMaxEntries
	cmd.Flags().Var(between(&s.maxEntries, 1, maxSnapshotEntries), "max-entries", "read at most about `N` entries of the connection table in each sample")
	addTrace(cmd, &s.trace)
	s.count = 2
	cmd.Flags().Var(between(&s.count, 2, mostSnapshots), "count", "take `N` samples, --for apart; doctor compares the last two")
	cmd.Flags().BoolVar(&s.all, "all-netns", false, "read every network namespace into one file")
	cmd.Flags().BoolVar(&s.anonymize, "anonymize", false, "replace addresses and names")
	cmd.Flags().StringVar(&s.keyFile, "anonymize-key", "", "with --anonymize: take the key from `FILE`, for the same replacements each time")
	cmd.Flags().StringVar(&s.from, "from", "", "with --anonymize: read the bundle `FILE` instead of this host; - for standard input")
	cmd.Flags().StringVar(&s.list, "list", "", "list what is in the bundle `FILE`; - for standard input")
	env.addJSON(cmd, snapshot.RecordingSchema+", with --list "+snapshot.ContentsSchema)
	cmd.MarkFlagsMutuallyExclusive("json", "output")
	for _, live := range []string{"netns", "pid", "for", "count", "max-entries", "trace", "all-netns"} {
		cmd.MarkFlagsMutuallyExclusive("from", live)
		cmd.MarkFlagsMutuallyExclusive("list", live)
	}
	for _, other := range []string{"from", "output", "anonymize"} {
		cmd.MarkFlagsMutuallyExclusive("list", other)
	}
	for _, one := range []string{"netns", "pid", "trace", "json"} {
		cmd.MarkFlagsMutuallyExclusive("all-netns", one)
	}
	cmd.MarkFlagsMutuallyExclusive("from", "json")
	requires(cmd, "anonymize-key", "anonymize")
	requires(cmd, "from", "anonymize")
	return cmd
}

func (s *snapshotter) check() error {
	switch {
	case slices.Contains([]string{"text", "json", "csv", "wide"}, s.output):
		return usagef("--output names a file here: use --json for a document on stdout, ./%s for a file of that name", s.output)
	case s.output == "-" && s.env.StdoutTerminal:
		return usagef("--output -: stdout is a terminal and the bundle is binary: redirect it")
	}
	return nil
}

func (s *snapshotter) run(cmd *cobra.Command) error {
	if err := s.check(); err != nil {
		return err
	}
	ctx := cmd.Context()
	if s.list != "" {
		return s.contents(ctx)
	}
	o := collect.BundleOptions{Version: s.env.Version, Host: collect.ReadHost()}
	if s.anonymize {
		key, err := s.key(ctx)
		if err != nil {
			return err
		}
		o.Anonymize = anonymize.New(key)
	}
	if s.from != "" {
		return s.put(func(w io.Writer, name string) error { return s.rewrite(ctx, w, o) })
	}
	err := s.target.with(cmd, func(ns *netns.Handle) error { return s.record(ctx, s.options(ns, o)) })
	if err != nil {
		return err
	}
	return s.whole()
}

// key is that of a file, or a random one.
func (s *snapshotter) key(ctx context.Context) (anonymize.Key, error) {
	secret := make([]byte, 32)
	if s.keyFile == "" {
		rand.Read(secret)
		return anonymize.NewKey(secret)
	}
	const most = 1 << 20
	secret, err := s.env.read(ctx, "key", s.keyFile, most, "a key into it")
	if err == nil && len(secret) > most {
		err = fmt.Errorf("read key %s: it has more than %d bytes", s.keyFile, most)
	}
	if err != nil {
		return anonymize.Key{}, err
	}
	key, err := anonymize.NewKey(secret)
	if err != nil {
		err = malformed(fmt.Errorf("read key %s: %w", s.keyFile, err))
	}
	return key, err
}

// record writes the recording to the place given by the flags.
func (s *snapshotter) record(ctx context.Context, o collect.RecordOptions) error {
	if !s.env.asJSON {
		return s.put(func(w io.Writer, name string) error { return s.write(ctx, w, name, o) })
	}
	rec, err := collect.Record(ctx, o)
	s.progress.Clear()
	if err != nil {
		return err
	}
	s.read(rec)
	if o.Bundle.Anonymize != nil {
		o.Bundle.Anonymize.Value(rec)
	}
	return report.JSON(s.env.Stdout, rec)
}

// put has write write the file that the flags name, and prints its name.
func (s *snapshotter) put(write func(w io.Writer, name string) error) error {
	name, put := s.output, writeWhole
	switch name {
	case "-":
		if err := write(s.env.Stdout, name); err != nil {
			return fmt.Errorf("write to stdout: %w", err)
		}
		return nil
	case "":
		name, put = defaultBundleName(time.Now(), s.anonymize), writeNew
	}
	if err := put(name, 0o600, func(w io.Writer) error { return write(w, name) }); err != nil {
		return err
	}
	return s.env.say("%s\n", name)
}

// namesAge is how old names may be: of many namespaces the host's are read once.
func (s *snapshotter) namesAge() time.Duration {
	if s.all {
		return addressesAge
	}
	return time.Second
}

func (s *snapshotter) options(ns *netns.Handle, bundle collect.BundleOptions) collect.RecordOptions {
	s.progress = s.env.progress()
	o := collect.RecordOptions{
		Options:   collect.Options{Netns: ns, MaxEntries: s.maxEntries, Names: s.env.hostNames(s.namesAge())},
		Snapshots: s.count,
		For:       s.duration,
		Bundle:    bundle,
	}
	if !s.all { // of many at a time, each would show another
		o.Progress = s.progress.Show
	}
	if s.trace {
		o.Trace = doctor.Trace(ns)
	}
	return o
}

func (s *snapshotter) write(ctx context.Context, w io.Writer, name string, o collect.RecordOptions) error {
	defer s.progress.Clear()
	if s.all {
		return s.writeAll(ctx, w, name, o)
	}
	rec, err := collect.WriteBundle(ctx, w, o)
	s.progress.Clear()
	if err != nil {
		return err
	}
	s.read(rec)
	fmt.Fprintf(s.env.notes(), "%s holds %s; read it with 'natkit doctor --from'\n", name, contents(rec))
	return nil
}

// writeAll writes every network namespace.
func (s *snapshotter) writeAll(ctx context.Context, w io.Writer, name string, o collect.RecordOptions) error {
	b, err := collect.NewBundle(w, o.Bundle)
	if err != nil {
		return err
	}
	n, entries := 0, int64(0)
	s.progress.Show("reading all network namespaces for " + s.duration.String())
	missed, err := doctor.SnapshotAll(ctx, b, o, func(rec *snapshot.Recording, of int) error {
		n++
		s.read(rec)
		if table := rec.Last().Table; table != nil {
			entries += table.Sampled
		}
		s.progress.Update("read %d of %d network namespaces", n, of)
		return nil
	})
	s.progress.Clear()
	if missed != nil {
		s.unread = append(s.unread, fmt.Sprintf("other network namespaces: %v", missed))
	}
	if err == nil && n == 0 {
		err = errors.New("read network namespaces: none could be read")
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(s.env.notes(), "%s holds %s with the addresses of %d connections; read it with 'natkit doctor --from'\n",
		name, units.Plural(n, "network namespace", "network namespaces"), entries)
	return b.Close()
}

// rewrite anonymizes a bundle.
func (s *snapshotter) rewrite(ctx context.Context, w io.Writer, o collect.BundleOptions) error {
	return s.env.withBundle(ctx, s.from, func(r io.Reader) error { return collect.Rewrite(w, r, o) })
}

// contents lists what is in a bundle; of a damaged one, what comes before the damage.
func (s *snapshotter) contents(ctx context.Context) error {
	return s.env.withBundle(ctx, s.list, func(r io.Reader) error {
		listed, err := collect.List(r, snapshot.NewBudget(snapshot.DefaultBudget))
		if listed != nil && len(listed.Recordings) > 0 {
			err = cmp.Or(err, s.env.print(report.Contents{Contents: listed, Whole: s.env.verbose}))
		}
		return err
	})
}

// read keeps what is missing in a recording.
func (s *snapshotter) read(rec *snapshot.Recording) {
	s.env.detailParts(rec)
	of := ""
	if rec.Owner != nil {
		of = rec.Owner.String() + ": "
	}
	if rec.CutShortOf > 0 && s.cut == "" {
		s.cut = fmt.Sprintf("interrupted after %.1f s of %.1f s", rec.Seconds(), rec.CutShortOf)
	}
	for _, p := range rec.Last().Parts {
		if p.Error != "" {
			s.unread = append(s.unread, of+p.Name+": "+strings.ReplaceAll(p.Error, "\n", "; "))
		}
	}
}

// contents lists what is in a bundle, as it may be given to others.
func contents(rec *snapshot.Recording) string {
	last := rec.Last()
	text := fmt.Sprintf("%d sysctls, %d kernel log lines about NAT, the sizes of memory and slabs", len(last.Sysctls), len(last.KernelLog))
	if last.Table != nil {
		text += fmt.Sprintf(", the addresses of %d connections", last.Table.Sampled)
	}
	if rec.Drops != nil {
		text += fmt.Sprintf(", dropped packets with the addresses of %d flows", len(rec.Drops.Flows))
	}
	if rec.Profile != nil {
		text += ", a CPU profile"
	}
	if rec.SYNs != nil {
		text += fmt.Sprintf(", SYNs with the addresses of %d clients", len(rec.SYNs.Sources))
	}
	if rec.Followed != nil {
		text += fmt.Sprintf(", the addresses of %d services that were asked", len(rec.Followed.Services))
	}
	return text
}

// whole reports what is missing, and why: it must not be taken for an empty table.
func (s *snapshotter) whole() error {
	var status error = errIncomplete
	text := units.Plural(len(s.unread), "part", "parts") + " could not be read"
	switch {
	case s.cut != "":
		status, text = errCutShort, s.cut
	case len(s.unread) == 0:
		return nil
	}
	if err := report.Incomplete(s.env.Stderr, report.Style{Columns: s.env.columns()}, text, s.unread); err != nil {
		return err
	}
	return status
}

// defaultBundleName names the host, unless names are to be gone.
func defaultBundleName(now time.Time, anonymized bool) string {
	host, err := os.Hostname()
	switch {
	case anonymized:
		host = "anonymized"
	case err != nil || host == "" || strings.ContainsRune(host, '/'):
		host = "host"
	}
	return "natkit-" + host + "-" + now.UTC().Format("20060102T150405Z") + ".tar.gz"
}
