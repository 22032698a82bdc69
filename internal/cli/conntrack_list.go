package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/aggregate"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// conntrackCommands are the commands below the verb conntrack.
func conntrackCommands(env *Env) []*cobra.Command {
	return []*cobra.Command{newConntrackList(env), newConntrackCount(env), newConntrackEvents(env), newConntrackDelete(env)}
}

// conntrackLister is conntrack list.
type conntrackLister struct {
	env     *Env
	entries entries
	filter  filterFlags
	form    entryForm
}

func newConntrackList(env *Env) *cobra.Command {
	l := &conntrackLister{env: env}
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "list the connections, as conntrack -L does, as JSON lines or CSV",
		Long: `Print a line for each connection, in the format of conntrack-tools
('conntrack -L -o extended'), as JSON (one document per line) or CSV. The filters
are those of conntrack(8), which all must hold; without one it prints everything,
IPv4 and IPv6.

The kernel filters where it can (address family, mark, status, zone; protocol and
ports of TCP and UDP; single addresses of IPv4, also those put in place by NAT), natkit
the rest. Older kernels know less of it.

The table lives while it is read: a connection that is made or ends meanwhile may
be listed or not. Where its hash is resized meanwhile, that is said on stderr.

It needs CAP_NET_ADMIN, except with --from.`,
		Example: `  sudo natkit conntrack list -p tcp --state SYN_SENT --status UNREPLIED
  sudo natkit conntrack list --netns gateway --src-nat=203.0.113.5 --csv > translated.csv
  sudo natkit conntrack list --json | jq -r .orig_src | sort | uniq -c
  natkit conntrack list --from table.gz -d 198.18.0.0/16`,
		Args:              l.filter.args,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return l.run(cmd) },
	}
	l.entries.addFlags(cmd)
	addFilterFlags(cmd, &l.filter)
	l.form.addFlags(cmd, "extended")
	return cmd
}

func (l *conntrackLister) run(cmd *cobra.Command) error {
	if err := l.form.check(cmd); err != nil {
		return err
	}
	l.filter.noteNAT(l.env)
	w := newLineWriter(l.env.Stdout)
	// Progress would stand between the lines where both go to the terminal.
	env := *l.env
	env.StderrTerminal = env.StderrTerminal && !env.StdoutTerminal
	l.form.now(time.Now())
	l.form.begin(w)
	_, err := l.entries.each(cmd, &env, &l.filter.filter, func(e *conntrack.Entry) error {
		w.buf = l.form.append(w.buf, e)
		return w.endLine()
	})
	if flushErr := w.flush(); err == nil {
		err = flushErr
	}
	return ended(err)
}

// ended is nil where the reader of stdout has had enough.
func ended(err error) error {
	if errors.Is(err, unix.EPIPE) || errors.Is(err, io.ErrClosedPipe) {
		return nil
	}
	return err
}

// lineWriter gathers lines, to write many at once.
type lineWriter struct {
	to  io.Writer
	buf []byte
}

const lineBuffer = 64 << 10

func newLineWriter(to io.Writer) *lineWriter {
	return &lineWriter{to: to, buf: make([]byte, 0, lineBuffer+4096)}
}

// endLine ends the line that was appended to buf.
func (w *lineWriter) endLine() error {
	w.buf = append(w.buf, '\n')
	if len(w.buf) < lineBuffer {
		return nil
	}
	return w.flush()
}

func (w *lineWriter) flush() error {
	if len(w.buf) == 0 {
		return nil
	}
	_, err := w.to.Write(w.buf)
	w.buf = w.buf[:0]
	if err != nil {
		return fmt.Errorf("write the list: %w", err)
	}
	return nil
}

const conntrackCountSchema = "natkit.conntrack-count/1"

// conntrackCounter is conntrack count.
type conntrackCounter struct {
	env     *Env
	entries entries
	filter  filterFlags
	asJSON  bool
}

func newConntrackCount(env *Env) *cobra.Command {
	c := &conntrackCounter{env: env}
	cmd := &cobra.Command{
		Use:   "count",
		Short: "count the connections, or those that filters choose",
		Long: `Print the number of connections. Without a filter it is the kernel's own count,
which it tells without reading the table (nf_conntrack_count); it has entries in it
that expired and were not removed yet. With filters, those of conntrack(8), the
table is read; the kernel filters where it can.

It needs CAP_NET_ADMIN, except with --from.`,
		Example: `  sudo natkit conntrack count
  sudo natkit conntrack count --netns gateway -p tcp --state TIME_WAIT
  conntrack -L | natkit conntrack count --from - --status UNREPLIED`,
		Args:              c.filter.args,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return c.run(cmd) },
	}
	c.entries.addFlags(cmd)
	addFilterFlags(cmd, &c.filter)
	addJSON(cmd, &c.asJSON, conntrackCountSchema)
	return cmd
}

// conntrackCount is the document of conntrack count.
type conntrackCount struct {
	Schema  string `json:"schema"`
	Entries int64  `json:"entries"`
	// Filter are the flags that chose them.
	Filter string `json:"filter,omitempty"`
	// Max is nf_conntrack_max, where everything was counted and the kernel tells it.
	Max   int64         `json:"nf_conntrack_max,omitempty"`
	About *entriesAbout `json:"read,omitempty"`
}

func (c *conntrackCounter) run(cmd *cobra.Command) error {
	doc := conntrackCount{Schema: conntrackCountSchema, Filter: c.filter.String()}
	if err := c.entries.check(cmd); err != nil {
		return err
	}
	count := c.countAll
	if !c.filter.filter.Empty() || c.entries.fromText(cmd) {
		count = c.countChosen
	}
	if err := count(cmd, &doc); err != nil {
		return err
	}
	if c.asJSON {
		return report.JSON(c.env.Stdout, doc)
	}
	_, err := fmt.Fprintln(c.env.Stdout, doc.Entries)
	return err
}

func (c *conntrackCounter) countAll(cmd *cobra.Command, doc *conntrackCount) error {
	ns, err := c.entries.open(cmd)
	if err != nil {
		return err
	}
	defer ns.Close()
	usage, err := dump.Count(ns)
	doc.Entries, doc.Max = usage.Entries, usage.Max
	return err
}

func (c *conntrackCounter) countChosen(cmd *cobra.Command, doc *conntrackCount) error {
	c.entries.restart = func() {} // a resized table is counted again
	about, err := c.entries.each(cmd, c.env, &c.filter.filter, func(*conntrack.Entry) error { return nil })
	doc.Entries, doc.About = about.Entries, &about
	return err
}

const (
	usualMemory memorySize = 64 << 20
	// ownMemory is what natkit takes besides groups: its program, Go's runtime, the
	// buffers of a dump.
	ownMemory memorySize = 15 << 20
	// programMemory is the part of it that Go's runtime does not count.
	programMemory memorySize = 10 << 20
)

// forGroups is what is left for groups, a part of it for each version of IP.
func (m *memorySize) forGroups(seed uint64) aggregate.Memory {
	left := int64(*m - ownMemory)
	return aggregate.Memory{Budget: aggregate.NewBudget(left), Reserve: left / 16, Seed: seed}
}

// limit lets the garbage collector keep to the limit, until it is put back.
func (m *memorySize) limit() (putBack func()) {
	before := debug.SetMemoryLimit(int64(*m - programMemory))
	return func() { debug.SetMemoryLimit(before) }
}

// newBuffered writes many small pieces at a time.
func newBuffered(w io.Writer) *bufio.Writer { return bufio.NewWriterSize(w, 64<<10) }

// overviewDocument is the JSON form of the overview.
type overviewDocument struct {
	Schema  string       `json:"schema"`
	Version string       `json:"version"`
	Read    entriesAbout `json:"read"`
	Filter  string       `json:"filter,omitempty"`
	// Count and Max are nf_conntrack_count and _max, of a table that was read now.
	Count int64 `json:"nf_conntrack_count,omitempty"`
	Max   int64 `json:"nf_conntrack_max,omitempty"`
	*aggregate.Overview
}

func (c *conntrackVerb) overview(cmd *cobra.Command) error {
	counted, about, err := c.count(cmd, func() counter {
		return aggregate.NewSummary(c.memory.forGroups(rand.Uint64()))
	})
	if err != nil {
		return err
	}
	doc := overviewDocument{Schema: conntrackSchema, Version: c.env.Version, Read: about, Filter: c.filter.String()}
	timeouts := aggregate.Timeouts{}
	if about.Live {
		if timeouts, err = c.look(cmd, &doc); err != nil {
			return err
		}
	}
	doc.Overview = counted.(*aggregate.Summary).Overview(c.top, timeouts)
	if c.asJSON {
		return report.JSON(c.env.Stdout, doc)
	}
	o := report.Overview{Overview: doc.Overview, Source: about.Source, Filter: doc.Filter, Count: doc.Count, Max: doc.Max}
	return o.Text(c.env.Stdout, c.env.style())
}

// look reads what is known of a table besides its entries.
func (c *conntrackVerb) look(cmd *cobra.Command, doc *overviewDocument) (aggregate.Timeouts, error) {
	ns, err := c.entries.open(cmd)
	if err != nil {
		return aggregate.Timeouts{}, err
	}
	defer ns.Close()
	usage, err := dump.Count(ns)
	if err != nil {
		return aggregate.Timeouts{}, err
	}
	doc.Count, doc.Max = usage.Entries, usage.Max
	return readTimeouts(ns), nil
}

// readTimeouts has zeros for what cannot be read, as in a container without these files.
func readTimeouts(ns *netns.Handle) (t aggregate.Timeouts) {
	read := func() error {
		t.Established = timeout("established")
		t.Short = max(timeout("unacknowledged"), timeout("max_retrans"))
		return nil
	}
	if ns.Do(read) != nil {
		return aggregate.Timeouts{}
	}
	return t
}

func timeout(of string) uint32 {
	n, err := apply.ReadSysctlInt("/proc", "net.netfilter.nf_conntrack_tcp_timeout_"+of)
	if err != nil || n < 0 {
		return 0
	}
	return uint32(min(n, math.MaxUint32))
}
