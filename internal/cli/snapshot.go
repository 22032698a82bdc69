package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/doctor"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// maxSnapshotEntries keeps the largest bundle readable (snapshot.BundleReader).
const maxSnapshotEntries = 4_000_000

// snapshotter is the verb snapshot.
type snapshotter struct {
	env        *Env
	target     target
	output     string
	duration   time.Duration
	maxEntries int
	trace      bool
	asJSON     bool
	progress   *report.Progress
	rec        *snapshot.Recording
}

func newSnapshot(env *Env) *cobra.Command {
	s := &snapshotter{env: env}
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "write all that doctor reads to one file, to be diagnosed anywhere",
		Long: `Look at this host twice and write the raw kernel texts and netlink answers to
one tar.gz. 'natkit doctor --from FILE' finds in it what it would have found here.

The file holds addresses and ports of connections, sysctls and counters of
conntrack and TCP, NAT rules, memory and slab sizes, and kernel log lines about NAT. Only its owner
may read it (mode 0600). Its name is printed on stdout.

With --trace it also holds what the kernel dropped between the two looks, with the
addresses and ports of some of these packets, what the CPUs did, and who opened
connections to this namespace's listeners.

The connection table, its counters and NAT rules need CAP_NET_ADMIN, --trace needs CAP_BPF,
CAP_PERFMON, CAP_SYSLOG and CAP_NET_RAW, slab sizes need root,
the kernel log may need CAP_SYSLOG, --netns and --pid need CAP_SYS_ADMIN. Without
them it reads what it may, says INCOMPLETE, what is missing and why, and exits with 4.
An interrupt (Ctrl-C) ends the wait, and the file is still written.`,
		Example: `  sudo natkit snapshot
  sudo natkit snapshot -o gateway.tar.gz --for 10s
  sudo natkit snapshot --pid $(docker inspect -f '{{.State.Pid}}' web) -o web.tar.gz
  ssh gateway sudo natkit snapshot -o - > gateway.tar.gz
  sudo natkit snapshot --trace --for 10s # with dropped packets and a CPU profile
  natkit snapshot --json                 # no file, only what was read, in numbers`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.run(cmd) },
	}
	s.target.addFlags(cmd)
	cmd.Flags().StringVarP(&s.output, "output", "o", "", "write to this `FILE`, - for stdout (default natkit-HOST-TIME.tar.gz)")
	addWindow(cmd, &s.duration, 2*time.Second)
	cmd.Flags().IntVar(&s.maxEntries, "max-entries", collect.DefaultMaxEntries, "read at most about `N` entries of the connection table at each look")
	addTrace(cmd, &s.trace)
	addJSON(cmd, &s.asJSON, snapshot.RecordingSchema)
	return cmd
}

func (s *snapshotter) check() error {
	switch {
	case s.maxEntries < 1 || s.maxEntries > maxSnapshotEntries:
		return usagef("--max-entries %d: must be from 1 to %d", s.maxEntries, maxSnapshotEntries)
	case slices.Contains([]string{"text", "json", "csv", "wide"}, s.output):
		return usagef("--output names a file here: use --json for a document on stdout, ./%s for a file of that name", s.output)
	case s.asJSON && s.output != "":
		return usagef("--json prints instead of writing a file: give --json or --output")
	case s.output == "-" && s.env.StdoutTerminal:
		return usagef("--output -: stdout is a terminal and the bundle is binary: redirect it")
	}
	return checkWindow(s.duration, 0)
}

func (s *snapshotter) run(cmd *cobra.Command) error {
	if err := s.check(); err != nil {
		return err
	}
	ns, err := s.target.open(cmd)
	if err != nil {
		return err
	}
	defer ns.Close()
	o := s.options(ns)
	switch {
	case s.asJSON:
		err = s.printJSON(cmd.Context(), o)
	case s.output == "-":
		if err = s.write(cmd.Context(), s.env.Stdout, "-", o); err != nil {
			err = fmt.Errorf("write to stdout: %w", err)
		}
	default:
		err = s.writeFile(cmd.Context(), o)
	}
	if err != nil {
		return err
	}
	return s.whole()
}

func (s *snapshotter) options(ns *netns.Handle) collect.RecordOptions {
	s.progress = s.env.progress()
	o := collect.RecordOptions{
		Options:  collect.Options{Netns: ns, MaxEntries: s.maxEntries},
		For:      s.duration,
		Progress: s.progress.Show,
	}
	if s.trace {
		o.Trace = doctor.Trace(ns)
	}
	return o
}

func (s *snapshotter) printJSON(ctx context.Context, o collect.RecordOptions) (err error) {
	s.rec, err = collect.Record(ctx, o)
	s.progress.Clear()
	if err != nil {
		return err
	}
	if err := report.JSON(s.env.Stdout, s.rec); err != nil {
		return fmt.Errorf("print the recording: %w", err)
	}
	return nil
}

func (s *snapshotter) writeFile(ctx context.Context, o collect.RecordOptions) error {
	name, put := s.output, writeWhole
	if name == "" {
		name, put = defaultBundleName(time.Now()), writeNew
	}
	if err := put(name, 0o600, func(w io.Writer) error { return s.write(ctx, w, name, o) }); err != nil {
		return err
	}
	_, err := fmt.Fprintln(s.env.Stdout, name)
	return err
}

func (s *snapshotter) write(ctx context.Context, w io.Writer, name string, o collect.RecordOptions) (err error) {
	s.rec, err = collect.WriteBundle(ctx, w, o)
	s.progress.Clear()
	if err != nil {
		return err
	}
	fmt.Fprintf(s.env.notes(), "%s holds %s; read it with 'natkit doctor --from'\n", name, contents(s.rec))
	return nil
}

// contents says what somebody gives away with a bundle.
func contents(rec *snapshot.Recording) string {
	last := rec.Last()
	parts := []string{fmt.Sprintf("%d sysctls", len(last.Sysctls))}
	if last.Table != nil {
		parts = append([]string{fmt.Sprintf("the addresses of %d connections", last.Table.Sampled)}, parts...)
	}
	if n := len(last.KernelLog); n > 0 {
		parts = append(parts, fmt.Sprintf("%d kernel log lines about NAT", n))
	}
	if rec.Drops != nil {
		parts = append(parts, fmt.Sprintf("dropped packets with the addresses of %d flows", len(rec.Drops.Flows)))
	}
	if rec.Profile != nil {
		parts = append(parts, "a CPU profile")
	}
	if rec.SYNs != nil {
		parts = append(parts, fmt.Sprintf("SYNs with the addresses of %d clients", len(rec.SYNs.Sources)))
	}
	return strings.Join(append(parts, "the sizes of memory and slabs"), ", ")
}

// whole says what is missing, and why: it must not look like nothing to see.
func (s *snapshotter) whole() error {
	s.env.detailParts(s.rec)
	var unread []string
	for _, p := range s.rec.Last().Parts {
		if p.Error != "" {
			unread = append(unread, p.Name+": "+strings.ReplaceAll(p.Error, "\n", "; "))
		}
	}
	if len(unread) == 0 {
		return nil
	}
	text := units.Plural(len(unread), "part", "parts") + " could not be read"
	if err := report.Incomplete(s.env.Stderr, report.Style{Columns: s.env.columns()}, text, unread); err != nil {
		return err
	}
	return errIncomplete
}

func defaultBundleName(now time.Time) string {
	host, err := os.Hostname()
	if err != nil || host == "" || strings.ContainsRune(host, '/') {
		host = "host"
	}
	return "natkit-" + host + "-" + now.UTC().Format("20060102T150405Z") + ".tar.gz"
}
