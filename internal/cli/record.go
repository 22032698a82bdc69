package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/record"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/ring"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// newRecord is the verb record: the recorder, and what reads its recordings on any system.
func newRecord(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "record",
		Short: "flight recorder: keep the last hours on disk, to be diagnosed afterwards",
		Long: `Record all that doctor reads into a bounded ring on disk, every few seconds, until
interrupted; 'natkit doctor --from DIR --at 10:15' then has the findings that doctor would
have had at 10:15, here or on another machine.

The ring also has what the kernel drops, by place and reason, with the headers of some of it,
and the headers of SYNs, FINs, RSTs and ICMP, without payload, at most some 200 a second on
average: beyond that of a sample of the connections; the others are not counted. It never takes
more than --ring on the disk; the oldest part makes room. Where the disk is full that is reported, and recording goes
on when there is room. What was recorded survives kill -9; a loss of power costs at most the
last 12 snapshots.

A trigger keeps the minutes around it in DIR/kept, beside the ring: a bundle of that moment,
the minutes before and after as a ring of their own, and the headers as pcapng. It is a finding
of a severity (--on), a counter (--when), or 'natkit record mark'. The same one triggers again
after 15 minutes. --keep of them are kept, with at most --ring bytes in all; the oldest go.

It takes 1 % of a CPU at most, or snapshots come later, within a minute; nothing
subscribes to events of connections, and at most some 4,000 entries of the table are read
each time. Requires CAP_NET_ADMIN; drops CAP_BPF and CAP_PERFMON, headers CAP_NET_RAW. What
cannot be had is reported, and the rest goes on.

Exit codes: 0 interrupted or terminated, as it ends no other way, 1 error, 2 usage.`,
		Example: `  sudo natkit record
  sudo natkit record --ring 1G --every 2s --on warning
  sudo natkit record --when 'insert_failed > 10/s' --before 10m --after 5m
  sudo natkit record --netns gw --dir /var/lib/natkit/record-gw
  sudo natkit record mark 'users call'   # keep these minutes
  natkit record show                     # what there is
  sudo natkit doctor --from /var/lib/natkit/record --at 10:15`,
		Annotations: runsItself,
		Args:        takes,
	}
	addRecorder(env, cmd)
	cmd.AddCommand(newRecordMark(env), newRecordShow(env), newRecordList(env), newRecordExport(env))
	return cmd
}

// recordDir is where rings are unless another directory is given.
func recordDir(env *Env) string {
	if state := env.Getenv(record.StateDirEnv); state != "" {
		return filepath.Join(state, filepath.Base(record.DefaultDir))
	}
	return record.DefaultDir
}

func newRecordShow(env *Env) *cobra.Command {
	var of func([]string) (string, error)
	cmd := &cobra.Command{
		Use:   "show [DIR]",
		Short: "show what is in a recording: time span, marks, triggers, gaps, size",
		Long: `Show what is in a recording, and check every part of it: the time span, how many
snapshots, headers of packets and drops, marks and triggers, gaps in which nothing was
recorded, and damaged parts. DIR is the directory of 'natkit record', a copy of it from
another host, or one below its kept.`,
		Example: `  natkit record show
  natkit record show /tmp/gateway-3/record
  natkit record show --json | jq -r '.gaps[].why'`,
		RunE: func(_ *cobra.Command, args []string) error {
			dir, err := of(args)
			if err != nil {
				return err
			}
			c, err := contentsOf(dir)
			if err != nil {
				return err
			}
			return env.print(report.Recorded{Contents: c, Dir: dir})
		},
	}
	of = addDir(env, cmd)
	env.addJSON(cmd, ring.ContentsSchema)
	return cmd
}

func newRecordList(env *Env) *cobra.Command {
	var of func([]string) (string, error)
	cmd := &cobra.Command{
		Use:   "list [DIR]",
		Short: "list what triggers kept, with the directory and size of each",
		Long: `List what the triggers of a recording kept, the oldest first: when, what, and the
directory with the bundle, the minutes around it, and the headers of packets.`,
		Example: `  natkit record list
  natkit record list --json | jq -r '.kept[].dir'`,
		RunE: func(_ *cobra.Command, args []string) error {
			dir, err := of(args)
			if err != nil {
				return err
			}
			if err := isRecordingDir(dir); err != nil {
				return err
			}
			kept, err := record.List(dir)
			if err != nil {
				return unreadRecording(dir, err)
			}
			return env.print(report.KeptList{Schema: record.ListSchema, Kept: kept})
		},
	}
	of = addDir(env, cmd)
	env.addJSON(cmd, record.ListSchema)
	return cmd
}

func newRecordExport(env *Env) *cobra.Command {
	var at moment
	tables := &ringTables{}
	var output string
	var packets bool
	var before, after time.Duration
	var of func([]string) (string, error)
	cmd := &cobra.Command{
		Use:   "export [DIR]",
		Short: "write a bundle, or headers of packets, of a time in a recording",
		Long: `Write what 'natkit snapshot' would have written at a time, for 'natkit doctor --from'
and 'natkit diff': a tar.gz of the two snapshots nearest to it. With --packets it is the
headers of packets around that time instead, as pcapng, for 'natkit pcap' and Wireshark.

With -o parquet --to PLACE it is tables for DuckDB, ClickHouse, Spark and others: samples,
services, flows, findings and, where --tables names them, the entries that were read; of the
whole recording, or of --before and --after around --at (docs/parquet.md).`,
		Example: `  natkit record export --at 10:15 -o at-ten.tar.gz
  natkit record export /tmp/gateway-3/record --at -2h --packets --before 1m -o at.pcapng
  natkit record export -o parquet --to s3://nat/tables
  natkit record export --at 10:15 --before 10m -o parquet --to tables --tables samples,findings`,
		RunE: func(cmd *cobra.Command, args []string) error {
			asTable := output == parquetFormat
			if err := tables.check(cmd, asTable && !packets); err != nil {
				return err
			}
			for _, name := range []string{"before", "after"} {
				if cmd.Flags().Changed(name) && !packets && !asTable {
					return usagef("--%s requires --packets or --output parquet", name)
				}
			}
			if output == "" || !at.given && !asTable {
				return usagef("--at TIME and --output FILE are required")
			}
			dir, err := of(args)
			if err != nil {
				return err
			}
			r, err := env.openNoted(dir)
			if err != nil {
				return err
			}
			when, err := momentIn(r, dir, at)
			if err != nil {
				return err
			}
			if asTable {
				from, to := time.Time{}, time.Now()
				if at.given {
					from, to = when.Add(-before), when.Add(after)
					tables.from, tables.until = from, to
				}
				env.noteLost(r, from, to)
				return tables.write(cmd.Context(), r, dir)
			}
			if packets {
				err = env.coversPackets(r, when.Add(-before), when.Add(after), when)
			} else {
				err = env.coversBundle(r, when)
			}
			if err != nil {
				return unreadRecording(dir, err)
			}
			write := func(w io.Writer) error { return record.Bundle(w, r, when, env.Version) }
			if packets {
				write = func(w io.Writer) error {
					return ring.WritePcapng(w, r, when.Add(-before), when.Add(after), env.Version)
				}
			}
			if output == "-" {
				err = write(env.Stdout)
			} else {
				err = writeWhole(output, 0o600, write)
			}
			if err != nil {
				return fmt.Errorf("export from %s: %w", dir, err)
			}
			return nil
		},
	}
	of = addDir(env, cmd)
	addAt(cmd, &at, "the time `TIME`: 10:15, 2026-11-20T10:15:00, -2h")
	cmd.Flags().VarP(into(&output, notEmpty("a file")), "output", "o", "write to this `FILE`, - for stdout; or parquet: tables, with --to")
	cmd.Flags().BoolVar(&packets, "packets", false, "write headers of packets, as pcapng, instead of a bundle")
	before, after = time.Minute, time.Minute
	cmd.Flags().Var(period(&before, 0, 24*time.Hour), "before", "with --packets and -o parquet: how long before the time")
	cmd.Flags().Var(period(&after, 0, 24*time.Hour), "after", "with --packets and -o parquet: how long after the time")
	tables.addFlags(env, cmd)
	return cmd
}

// noteLost says what is damaged of a recording from one time to another.
func (e *Env) noteLost(r *ring.Ring, from, to time.Time) {
	if lost := record.Lost(r, from, to); lost != "" {
		e.note("%s", lost)
	}
}

// coversPackets returns why there are no headers of a time to write; else it says what is damaged of it.
func (e *Env) coversPackets(r *ring.Ring, from, to, at time.Time) error {
	if err := record.Covers(r, from, to, at); err != nil {
		return err
	}
	e.noteLost(r, from, to)
	return nil
}

// coversBundle returns why there are no snapshots of a time to write; else it says which these are, and what is damaged between them
// and that time.
func (e *Env) coversBundle(r *ring.Ring, at time.Time) error {
	before, after, err := record.Pair(r, at)
	if err != nil {
		return err
	}
	e.note("written: %s", report.Compared(r.Compared(before, after)))
	from, to := record.Around(at, before, after)
	e.noteLost(r, from, to)
	return nil
}

// addAt adds --at.
func addAt(cmd *cobra.Command, at *moment, usage string) {
	cmd.Flags().Var(into(at, parseMoment), "at", usage)
}

// addDir adds --dir, as the recorder has it; the function that it returns is the directory that an argument or the flag names,
// or the usual one.
func addDir(env *Env, cmd *cobra.Command) func(args []string) (string, error) {
	dir := ""
	cmd.Flags().Var(into(&dir, notEmpty("a directory")), "dir", "the `DIR` of the recording, instead of the argument (default "+record.DefaultDir+")")
	return func(args []string) (string, error) {
		if len(args) > 0 && dir != "" {
			return "", usagef("%q and --dir are mutually exclusive", args[0])
		}
		return cmp.Or(append(args, dir, recordDir(env))...), nil
	}
}

// unreadRecording is the error of a recording that cannot be read.
func unreadRecording(dir string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("read the recording in %s: %w (it is its owner's alone)", dir, disk.Cause(err))
	}
	return malformed(fmt.Errorf("read the recording in %s: %w", dir, err))
}

// isRecordingDir is why a name cannot be that of a recording: it is no directory. What is in a directory shows later.
func isRecordingDir(dir string) error {
	const give = "give that of 'natkit record --dir'"
	switch info, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("read the recording in %s: there is no such directory; %s", dir, give)
	case err != nil:
		return unreadRecording(dir, err)
	case !info.IsDir():
		return unreadRecording(dir, errors.New("it is not a directory; "+give))
	}
	return nil
}

// openRing opens the recording in a directory.
func openRing(dir string) (*ring.Ring, error) {
	if err := isRecordingDir(dir); err != nil {
		return nil, err
	}
	r, err := ring.Open(disk.Plain(dir))
	if err == nil {
		err = r.Unread()
	}
	if kept := record.Alone(dir); errors.Is(err, ring.ErrNone) && len(kept) > 0 {
		err = fmt.Errorf("the ring is not there, only what %s kept; give one of these instead, such as the newest, %s ('natkit record list %s' lists them)",
			units.Plural(len(kept), "trigger", "triggers"), kept[len(kept)-1].Dir, dir)
	}
	if err != nil {
		return nil, unreadRecording(dir, err)
	}
	return r, nil
}

// openNoted is openRing, and says what it passes over.
func (e *Env) openNoted(dir string) (*ring.Ring, error) {
	r, err := openRing(dir)
	if err != nil {
		return nil, err
	}
	for _, c := range r.Copies {
		e.note("%s", c.Text())
	}
	return r, nil
}

func contentsOf(dir string) (*ring.Contents, error) {
	r, err := openRing(dir)
	if err != nil {
		return nil, err
	}
	return r.Contents(), nil
}

// momentIn resolves a time in a recording; without one it is that of the trigger, in a directory of what was kept, or
// zero.
func momentIn(r *ring.Ring, dir string, at moment) (time.Time, error) {
	if !at.given {
		kept, err := record.Trigger(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return time.Time{}, nil
		}
		if err != nil {
			return time.Time{}, malformed(fmt.Errorf("read %s: %w", dir, err))
		}
		return kept.At.Local(), nil
	}
	if !at.isClock {
		return at.resolve(time.Time{}, time.Time{}, time.Now()), nil
	}
	pairs := r.Pairs()
	if len(pairs) == 0 {
		return time.Time{}, unreadRecording(dir, ring.ErrTooFew)
	}
	oldest, newest := pairs[0][0].Wall, pairs[0][1].Wall
	for _, p := range pairs { // the clock may have been set back
		if p[0].Wall.Before(oldest) {
			oldest = p[0].Wall
		}
		if p[1].Wall.After(newest) {
			newest = p[1].Wall
		}
	}
	return at.resolve(oldest, newest, time.Now()), nil
}

// isRecording reports whether a name is that of a directory of 'natkit record', with its ring or with what was kept alone.
func isRecording(name string) bool { return isRing(name) || len(record.Alone(name)) > 0 }

// isRing reports whether a name is that of a directory of 'natkit record'.
func isRing(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir() && ring.Is(disk.Plain(name))
}

// noteCompared says which snapshots of a recording were compared, where no report does.
func (e *Env) noteCompared(c *snapshot.Compared) {
	if c != nil {
		e.note("compared: %s", report.Compared(c))
	}
}

// recordedAt reads the recording that a diagnosis would have compared at a time.
func (e *Env) recordedAt(_ context.Context, r recorded, fn func(*snapshot.Recording) error) error {
	from, err := e.openNoted(r.name)
	if err != nil {
		return err
	}
	at, err := momentIn(from, r.name, r.at)
	if err != nil {
		return err
	}
	rec, err := record.Diagnosable(from, at, snapshot.NewBudget(r.memory))
	if err != nil {
		return unreadRecording(r.name, err)
	}
	return fn(rec)
}
