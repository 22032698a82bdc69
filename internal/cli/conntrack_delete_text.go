package cli

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

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
