package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/aggregate"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
	"github.com/spf13/cobra"
)

const conntrackDeleteSchema = "natkit.conntrack-delete/1"

// conntrackDeleter is conntrack delete.
type conntrackDeleter struct {
	env              *Env
	target           target
	filter           filterFlags
	all, yes, dryRun bool
	asJSON           bool
}

func newConntrackDelete(env *Env) *cobra.Command {
	d := &conntrackDeleter{env: env}
	cmd := &cobra.Command{
		Use:   "delete",
		Short: "delete connections from the table, after showing them in numbers",
		Long: `Find the connections that the filters choose, those of conntrack(8), show how many
and which they are, and ask. Then it deletes exactly those: a connection that was
made meanwhile stays, also one with the same addresses and ports.

What was deleted cannot be put back. The next packet of a deleted connection is
taken for a new one: it meets the rules again, and may get another translated port
or none, which breaks the connection of whoever used it. That is what it is for
where a connection has a translation that is not right any more (UDP after a
change of rules).

On a terminal it asks; elsewhere it needs --yes. Needs CAP_NET_ADMIN.`,
		Example: `  sudo natkit conntrack delete -p udp --dport 53 --dst-nat=198.18.0.9 --dry-run
  sudo natkit conntrack delete --netns gateway -s 198.18.4.0/24
  sudo natkit conntrack delete --all --yes`,
		Args:              d.filter.args,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return d.run(cmd) },
	}
	d.target.addFlags(cmd)
	addFilterFlags(cmd, &d.filter)
	cmd.Flags().BoolVar(&d.all, "all", false, "delete every connection; needed where there is no filter")
	addYes(cmd, &d.yes, "")
	cmd.Flags().BoolVar(&d.dryRun, "dry-run", false, "only show what would be deleted")
	cmd.MarkFlagsMutuallyExclusive("yes", "dry-run")
	addJSON(cmd, &d.asJSON, conntrackDeleteSchema)
	return cmd
}

func (d *conntrackDeleter) check() error {
	empty := d.filter.filter.Empty()
	switch {
	case empty && !d.all:
		return usagef("there is no filter: every connection would be deleted: give filters, or --all if that is meant")
	case !empty && d.all:
		return usagef("--all and %s: give either filters or --all", d.filter.String())
	case !d.dryRun && !d.yes && d.asJSON:
		return errJSONAsks
	case !d.dryRun && !d.yes && !d.env.StdinTerminal:
		return errNoTerminal
	}
	return nil
}

// conntrackDeletion is the document of conntrack delete.
type conntrackDeletion struct {
	Schema string `json:"schema"`
	Filter string `json:"filter,omitempty"`
	DryRun bool   `json:"dry_run,omitempty"`
	// Found were chosen; each was then deleted, gone meanwhile, or offloaded, which
	// the kernel does not delete.
	Found     int64                    `json:"found"`
	Deleted   int64                    `json:"deleted"`
	Gone      int64                    `json:"gone"`
	Offloaded int64                    `json:"offloaded"`
	Summary   *snapshot.ConntrackTable `json:"summary,omitempty"`
	// Interruption is why Found may be incomplete.
	Interruption string `json:"interruption,omitempty"`
}

func (d *conntrackDeleter) run(cmd *cobra.Command) error {
	if err := d.check(); err != nil {
		return err
	}
	ns, err := d.target.open(cmd)
	if err != nil {
		return err
	}
	defer ns.Close()
	doc := conntrackDeletion{Schema: conntrackDeleteSchema, Filter: d.filter.String(), DryRun: d.dryRun}
	keys, err := d.find(cmd, ns, &doc)
	if err != nil {
		return err
	}
	if !d.asJSON {
		if err := printDeletion(d.env, &doc); err != nil {
			return err
		}
	}
	if d.dryRun || len(keys) == 0 {
		return d.printJSON(&doc)
	}
	if !d.yes {
		if agreed, err := d.env.ask(cmd.Context(), d.env.Stdout, "delete?", "nothing was deleted"); err != nil || !agreed {
			return err
		}
	}
	return d.delete(cmd, ns, keys, &doc)
}

// find collects what is to be deleted, and its summary.
func (d *conntrackDeleter) find(cmd *cobra.Command, ns *netns.Handle, doc *conntrackDeletion) ([]conntrack.Key, error) {
	progress := d.env.progress()
	defer progress.Clear()
	var keys []conntrack.Key
	sampler := aggregate.NewSampler()
	restart := func() {
		keys, sampler = keys[:0], aggregate.NewSampler()
		progress.Update("the table was resized meanwhile: reading it again")
	}
	r, err := dump.EachWhole(cmd.Context(), ns, &d.filter.filter, restart, func(e *conntrack.Entry) error {
		keys = append(keys, e.Key())
		sampler.Add(e)
		return nil
	})
	if err != nil {
		return nil, err
	}
	doc.Found, doc.Interruption = int64(len(keys)), r.Interruption()
	doc.Summary = sampler.Table(r.Complete)
	return keys, nil
}

func (d *conntrackDeleter) delete(cmd *cobra.Command, ns *netns.Handle, keys []conntrack.Key, doc *conntrackDeletion) error {
	done, err := dump.DeleteKeys(cmd.Context(), ns, keys)
	doc.Deleted, doc.Gone, doc.Offloaded = done.Deleted, done.Gone, done.Busy
	if err == nil && done.Busy > 0 {
		err = fmt.Errorf("%d are offloaded to a flow table: the kernel does not delete those before they go back to the slow path", done.Busy)
	}
	if d.asJSON {
		return errors.Join(d.printJSON(doc), err)
	}
	return errors.Join(printDeleted(fitted{d.env}, doc), err)
}

func (d *conntrackDeleter) printJSON(doc *conntrackDeletion) error {
	if !d.asJSON {
		return nil
	}
	return report.JSON(d.env.Stdout, doc)
}

// printDeletion shows what is to be deleted.
func printDeletion(env *Env, doc *conntrackDeletion) error {
	if doc.Interruption != "" {
		env.note("%s", doc.Interruption)
	}
	if doc.Found == 0 {
		_, err := fmt.Fprintln(env.Stdout, "no connection matches: there is nothing to delete")
		return err
	}
	var b strings.Builder
	what := cmp.Or(doc.Filter, "all")
	fmt.Fprintf(&b, "%s to delete (%s)\n", units.Plural(doc.Found, "connection", "connections"), what)
	t := doc.Summary
	line := func(name string, counts string) {
		if counts != "" {
			fmt.Fprintf(&b, "  %-12s %s\n", name, counts)
		}
	}
	line("protocols", counted(t.ByProtocol))
	line("TCP states", counted(t.ByTCPState))
	line("sources", talkers(t.TopSources))
	line("services", talkers(t.TopServices))
	line("translated", translated(t))
	line("of these", fmt.Sprintf("%s assured, %s unreplied", units.Count(t.Assured), units.Count(t.Unreplied)))
	fmt.Fprintln(&b, "this cannot be undone: the next packet of a deleted connection is taken for a new one")
	err := env.say("%s", b.String())
	return err
}

func translated(t *snapshot.ConntrackTable) string {
	if t.SNAT == 0 && t.DNAT == 0 {
		return ""
	}
	return fmt.Sprintf("source of %s, destination of %s", units.Count(t.SNAT), units.Count(t.DNAT))
}

// counted lists the largest first.
func counted(counts map[string]int64) string {
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	for i, name := range names {
		names[i] = name + " " + units.Count(counts[name])
	}
	return strings.Join(names, ", ")
}

// talkersShown is how many sources and services are named.
const talkersShown = 5

func talkers(all []snapshot.Talker) string {
	var parts []string
	for i, t := range all {
		if i == talkersShown {
			parts = append(parts, "…")
			break
		}
		parts = append(parts, t.Who+" "+units.Count(t.Entries))
	}
	return strings.Join(parts, ", ")
}

// printDeleted says what became of them.
func printDeleted(w io.Writer, doc *conntrackDeletion) error {
	text := fmt.Sprintf("deleted %s", units.Plural(doc.Deleted, "connection", "connections"))
	if doc.Gone > 0 {
		text += fmt.Sprintf(", %s had ended meanwhile", units.Count(doc.Gone))
	}
	if rest := doc.Found - doc.Deleted - doc.Gone; rest > 0 {
		text += fmt.Sprintf(", %s left", units.Count(rest))
	}
	_, err := fmt.Fprintln(w, text)
	return err
}
