//go:build linux

package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

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
	maxEntries int
	trace      bool
	progress   *report.Progress
	rec        *snapshot.Recording
}

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
(mode 0600). Its name is printed on stdout.

Without CAP_NET_ADMIN, root and what --trace requires (CAP_BPF, CAP_PERFMON, CAP_SYSLOG,
CAP_NET_RAW) it reads what it may, prints INCOMPLETE, what is missing and why, and exits
with 4. An interrupt (Ctrl-C) ends the wait, and the file is still written: INCOMPLETE,
exit code 130, and 4 of 'natkit doctor --from'.`,
		Example: `  sudo natkit snapshot
  sudo natkit snapshot -o gateway.tar.gz --for 10s
  sudo natkit snapshot --pid $(docker inspect -f '{{.State.Pid}}' web) -o web.tar.gz
  ssh gateway sudo natkit snapshot -o - > gateway.tar.gz
  sudo natkit snapshot --trace --for 10s # with dropped packets and a CPU profile
  natkit snapshot --json                 # no file, only what was read, in numbers`,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.run(cmd) },
	}
	s.target.addFlags(cmd)
	cmd.Flags().StringVarP(&s.output, "output", "o", "", "write to this `FILE`, - for stdout (default natkit-HOST-TIME.tar.gz)")
	addWindow(cmd, &s.duration, 2*time.Second, 0)
	s.maxEntries = collect.DefaultMaxEntries
	cmd.Flags().Var(between(&s.maxEntries, 1, maxSnapshotEntries), "max-entries", "read at most about `N` entries of the connection table in each sample")
	addTrace(cmd, &s.trace)
	env.addJSON(cmd, snapshot.RecordingSchema)
	cmd.MarkFlagsMutuallyExclusive("json", "output")
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
	err := s.target.with(cmd, func(ns *netns.Handle) error { return s.record(cmd.Context(), s.options(ns)) })
	if err != nil {
		return err
	}
	return s.whole()
}

// record writes the recording to the place given by the flags.
func (s *snapshotter) record(ctx context.Context, o collect.RecordOptions) (err error) {
	name, put := s.output, writeWhole
	switch {
	case s.env.asJSON:
		s.rec, err = collect.Record(ctx, o)
		s.progress.Clear()
		if err == nil {
			err = report.JSON(s.env.Stdout, s.rec)
		}
		return err
	case name == "-":
		if err = s.write(ctx, s.env.Stdout, name, o); err != nil {
			err = fmt.Errorf("write to stdout: %w", err)
		}
		return err
	case name == "":
		name, put = defaultBundleName(time.Now()), writeNew
	}
	if err := put(name, 0o600, func(w io.Writer) error { return s.write(ctx, w, name, o) }); err != nil {
		return err
	}
	return s.env.say("%s\n", name)
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

func (s *snapshotter) write(ctx context.Context, w io.Writer, name string, o collect.RecordOptions) (err error) {
	s.rec, err = collect.WriteBundle(ctx, w, o)
	s.progress.Clear()
	if err != nil {
		return err
	}
	fmt.Fprintf(s.env.notes(), "%s holds %s; read it with 'natkit doctor --from'\n", name, contents(s.rec))
	return nil
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
	s.env.detailParts(s.rec)
	var unread []string
	status := errIncomplete
	if s.rec.CutShortOf > 0 {
		status = errCutShort
		unread = append(unread, fmt.Sprintf("interrupted after %.1f s of %.1f s", s.rec.Seconds(), s.rec.CutShortOf))
	}
	for _, p := range s.rec.Last().Parts {
		if p.Error != "" {
			unread = append(unread, p.Name+": "+strings.ReplaceAll(p.Error, "\n", "; "))
		}
	}
	if len(unread) == 0 {
		return nil
	}
	text := units.Plural(len(unread), "part", "parts") + " could not be read"
	if status == errCutShort {
		text, unread = unread[0], unread[1:]
	}
	if err := report.Incomplete(s.env.Stderr, report.Style{Columns: s.env.columns()}, text, unread); err != nil {
		return err
	}
	return status
}

func defaultBundleName(now time.Time) string {
	host, err := os.Hostname()
	if err != nil || host == "" || strings.ContainsRune(host, '/') {
		host = "host"
	}
	return "natkit-" + host + "-" + now.UTC().Format("20060102T150405Z") + ".tar.gz"
}
