package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/report"
)

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
