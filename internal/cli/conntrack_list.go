package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/conntrack/text"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/table"
	"github.com/natkit/natkit/internal/table/store"
	"github.com/spf13/cobra"
)

// entrySchema names the form of an entry's JSON document.
const entrySchema = "natkit.conntrack-entry/1"

// entryForm is how entries are written, chosen by flags.
type entryForm struct {
	output      []string
	usual       string
	json, csv   bool
	timestamped bool
	// known are the words of --output.
	known   []string
	options text.Options
}

// entryOutputs are the words of --output; text and wide are what it is without the flag.
var entryOutputs = []string{"extended", "plain", "id", "timestamp", "ktimestamp", "labels", "json", "csv", "text", "wide"}

// listOutputs are those of the list, which is written as a table as well.
var listOutputs = append(slices.Clip(entryOutputs), parquetFormat)

func (f *entryForm) addFlags(cmd *cobra.Command, usual string) {
	f.usual = usual
	if f.known == nil {
		f.known = entryOutputs
	}
	cmd.Flags().StringSliceVarP(&f.output, "output", "o", []string{usual},
		"`FORMS`, separated by commas: extended (with the network protocol), plain, id, ktimestamp (when it began and ended), timestamp (of an event), labels; or json, csv or text alone")
	cmd.Flags().BoolVar(&f.json, "json", false, "print one JSON document (a line, for each entry; schema "+entrySchema+")")
	cmd.Flags().BoolVar(&f.csv, "csv", false, "print comma-separated values, their names in the first line")
	completeFlags(cmd, map[string]cobra.CompletionFunc{"output": completeWords(f.known...)})
}

// check reads the flags.
func (f *entryForm) check(cmd *cobra.Command) (err error) {
	for _, word := range f.output {
		if !slices.Contains(f.known, word) {
			return usagef("--output %q: must be of %s", word, strings.Join(f.known, ", "))
		}
	}
	if len(f.output) == 1 && (f.output[0] == "text" || f.output[0] == "wide") {
		f.output[0] = f.usual
	}
	has := func(word string) bool { return slices.Contains(f.output, word) }
	switch {
	case (has("json") || has("csv") || has(parquetFormat)) && len(f.output) > 1:
		return usagef("--output %s: json, csv and parquet exclude other forms", strings.Join(f.output, ","))
	case cmd.Flags().Changed("output") && (f.json && !has("json") || f.csv && !has("csv")):
		return usagef("--output, --json and --csv are mutually exclusive")
	}
	f.json, f.csv, f.timestamped = f.json || has("json"), f.csv || has("csv"), has("timestamp")
	f.options = text.Options{Extended: has("extended"), ID: has("id"), Timestamps: has("ktimestamp"), Location: time.Local, Now: time.Now().Unix()}
	if numeric, _ := cmd.Flags().GetBool("numeric"); numeric {
		f.options.Labels = new(text.Labels)
	} else if has("labels") {
		f.options.Labels, err = connlabels()
	}
	return err
}

// header is appended before the first entry.
func (f *entryForm) header(b []byte) []byte {
	if f.csv {
		b = append(text.AppendCSVHeader(b), '\n')
	}
	return b
}

// append adds e without the end of the line.
func (f *entryForm) append(b []byte, e *conntrack.Entry) []byte {
	switch {
	case f.json:
		return text.AppendJSON(b, e)
	case f.csv:
		return text.AppendCSV(b, e)
	}
	return text.Append(b, e, f.options)
}

// connlabelNames is where iptables keeps the names of labels.
const connlabelNames = "/etc/xtables/connlabel.conf"

// connlabels are the names of labels; none without a file of them.
func connlabels() (*text.Labels, error) {
	file, err := os.Open(connlabelNames)
	if os.IsNotExist(err) {
		return new(text.Labels), nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return text.ReadLabels(file)
}

func newConntrackList(env *Env) *cobra.Command {
	l, form, tables := &tableVerb{env: env}, &entryForm{known: listOutputs}, &tableFlags{}
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "list the connections, as conntrack -L does, as JSON lines, CSV or Parquet",
		Long: `Print a line for each connection, in the format of conntrack-tools
('conntrack -L -o extended'), as JSON (one document per line) or CSV. The filters
are those of conntrack(8), which all must hold. With -o parquet --to PLACE it is a
table for DuckDB, ClickHouse, Spark and others (docs/parquet.md).

The table changes while it is read: a connection that begins or ends meanwhile may
be listed or not. Requires CAP_NET_ADMIN, except with --from.`,
		Example: `  sudo natkit conntrack list -p tcp --state SYN_SENT --status UNREPLIED
  sudo natkit conntrack list --netns gateway --src-nat=203.0.113.5 --csv > translated.csv
  sudo natkit conntrack list --json | jq -r .orig_src | sort | uniq -c
  natkit conntrack list --from table.gz -d 198.18.0.0/16
  sudo natkit conntrack list -o parquet --to s3://nat/tables   # entries/day=…/node=…/`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := form.check(cmd); err != nil {
				return err
			}
			asTable := slices.Contains(form.output, parquetFormat)
			if err := tables.check(cmd, asTable); err != nil {
				return err
			}
			if asTable {
				return l.table(cmd, tables)
			}
			return l.list(cmd, form)
		},
	}
	l.addFlags(cmd, true)
	form.addFlags(cmd, "extended")
	cmd.Flags().Lookup("output").Usage = strings.Replace(cmd.Flags().Lookup("output").Usage, "json, csv or text alone", "json, csv, parquet or text alone", 1)
	tables.addFlags(env, cmd)
	return cmd
}

// table writes the entries as a table.
func (v *tableVerb) table(cmd *cobra.Command, flags *tableFlags) error {
	v.filter.noteNAT(v.env)
	collectSeldom()
	node, err := flags.named("", v.entries.fromText(cmd))
	if err != nil {
		return err
	}
	s, err := flags.open(cmd.Context(), node)
	if err != nil {
		return err
	}
	defer s.Abort()
	rows := table.EntryRows{Head: table.Head{Node: node, Time: table.TimeOf(time.Now())}}
	if !v.entries.fromText(cmd) {
		if err := v.entries.with(cmd, func(ns *netns.Handle) error { return describe(ns, &rows) }); err != nil {
			return err
		}
	}
	sink := store.Of[table.Entry](s)
	if _, err = v.entries.each(cmd, v.env, &v.filter.filter, func(e *conntrack.Entry) error { return sink.Add(rows.Row(e)) }); err != nil {
		return err
	}
	return flags.commit(s)
}

func (v *tableVerb) list(cmd *cobra.Command, form *entryForm) error {
	v.filter.noteNAT(v.env)
	w := bufio.NewWriterSize(v.env.Stdout, lineBuffer)
	// Progress would stand between the lines where both go to the terminal.
	env := *v.env
	env.StderrTerminal = env.StderrTerminal && !env.StdoutTerminal
	_, _ = w.Write(form.header(w.AvailableBuffer()))
	// The age is that of the list, also where a list is written again or read later.
	now := form.options.Now
	form.options.Now = 0
	_, err := v.entries.each(cmd, &env, &v.filter.filter, func(e *conntrack.Entry) error {
		if !v.entries.fromText(cmd) {
			text.SetAge(e, now)
		}
		_, err := w.Write(append(form.append(w.AvailableBuffer(), e), '\n'))
		return err
	})
	return written(err, w.Flush())
}

// written is the first of the errors of reading entries and of writing them; nil where the
// reader of stdout has closed it.
func written(read, write error) error {
	switch {
	case errors.Is(write, syscall.EPIPE) || errors.Is(write, io.ErrClosedPipe):
		return nil
	case write != nil:
		return fmt.Errorf("write the list: %w", write)
	}
	return read
}

// lineBuffer gathers lines, to write many at once.
const lineBuffer = 64 << 10

const conntrackCountSchema = "natkit.conntrack-count/1"

// conntrackCount is the document of conntrack count.
type conntrackCount struct {
	Schema  string `json:"schema"`
	Entries int64  `json:"entries"`
	// Filter are the flags that chose them.
	Filter string `json:"filter,omitempty"`
	// Max is nf_conntrack_max, where everything was counted and the kernel has it.
	Max   int64         `json:"nf_conntrack_max,omitempty"`
	About *entriesAbout `json:"read,omitempty"`
}

// Text is the number.
func (c conntrackCount) Text(w io.Writer, _ report.Style) error {
	_, err := fmt.Fprintln(w, c.Entries)
	return err
}

func newConntrackCount(env *Env) *cobra.Command {
	c := &tableVerb{env: env}
	cmd := &cobra.Command{
		Use:   "count",
		Short: "count the connections, or those that filters choose",
		Long: `Print the number of connections. Without a filter it is the kernel's own count
(nf_conntrack_count), which includes expired entries that were not removed yet. With
filters, those of conntrack(8), the table is read.

Requires CAP_NET_ADMIN, except with --from.`,
		Example: `  sudo natkit conntrack count
  sudo natkit conntrack count --netns gateway -p tcp --state TIME_WAIT
  conntrack -L | natkit conntrack count --from - --status UNREPLIED`,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.count(cmd) },
	}
	c.addFlags(cmd, true)
	c.env.addJSON(cmd, conntrackCountSchema)
	return cmd
}

func (v *tableVerb) count(cmd *cobra.Command) error {
	doc := conntrackCount{Schema: conntrackCountSchema, Filter: v.filter.String()}
	if v.filter.filter.Empty() && !v.entries.fromText(cmd) {
		ns, err := v.entries.open(cmd)
		if err != nil {
			return err
		}
		defer ns.Close()
		usage, err := dump.Count(ns)
		if err != nil {
			return err
		}
		doc.Entries, doc.Max = usage.Entries, usage.Max
	} else {
		v.entries.restart = func() {} // a resized table is counted again
		about, err := v.each(cmd, func(*conntrack.Entry) error { return nil })
		if err != nil {
			return err
		}
		doc.Entries, doc.About = about.Entries, &about
	}
	return v.env.print(doc)
}
