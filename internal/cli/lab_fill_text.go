package cli

import (
	"bytes"
	"fmt"
	"time"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/fill"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/units"
)

// Names of the JSON forms of lab fill: a fill, with --list, and with --remove.
const (
	fillSchema       = "natkit.fill/1"
	fillListSchema   = "natkit.fill-list/1"
	fillRemoveSchema = "natkit.fill-remove/1"
)

// fillDocument is a fill, and all that is needed to make it again: mix, seed, how
// full, and what the table held before.
type fillDocument struct {
	Schema  string `json:"schema"`
	Version string `json:"natkit_version"`
	Where   string `json:"where"`
	// Netns is the namespace's inode.
	Netns   uint64     `json:"netns"`
	Started time.Time  `json:"started_at"`
	Asked   lab.Amount `json:"asked"`
	Seed    uint64     `json:"seed"`
	// Mark is on the entries (CTA_MARK).
	Mark   uint32     `json:"mark"`
	Kept   bool       `json:"kept"`
	Max    int64      `json:"nf_conntrack_max"`
	Before int64      `json:"entries_before"`
	Made   int64      `json:"entries_made"`
	Table  int64      `json:"table_entries"`
	Took   float64    `json:"seconds"`
	Rate   float64    `json:"entries_per_second"`
	Parts  []fillPart `json:"parts"`
	Mix    *lab.Mix   `json:"mix"`
}

type fillPart struct {
	Name    string `json:"name"`
	Kind    string `json:"kind"`
	Entries int64  `json:"entries"`
}

func describeFill(env *Env, f *fill.Fill, mix *lab.Mix, asked lab.Amount, limit int64) fillDocument {
	d := fillDocument{
		Schema: fillSchema, Version: env.Version, Where: f.Where, Netns: f.Netns, Started: f.Started,
		Asked: asked, Seed: f.Seed, Mark: f.Mark, Kept: f.Keep, Max: limit, Before: f.Before,
		Made: f.Made, Table: f.Table.Entries, Took: f.Took.Seconds(), Mix: mix,
	}
	if d.Took > 0 {
		d.Rate = float64(d.Made) / d.Took
	}
	for i, n := range f.Counts() {
		d.Parts = append(d.Parts, fillPart{mix.Parts[i].Name, mix.Parts[i].Kind(), n})
	}
	return d
}

func (d fillDocument) print(env *Env, asJSON bool) error {
	if asJSON {
		return report.JSON(env.Stdout, d)
	}
	// In one piece: a reader of the first line only, as head, is no failure.
	var text bytes.Buffer
	fmt.Fprintf(&text, "%s: %s made in %s (%s/s)\n", d.Where, units.Plural(d.Made, "entry", "entries"), units.Seconds(d.Took), units.Rate(d.Rate))
	fmt.Fprintf(&text, "mix %s, seed %d, mark %#x; the table holds %s of %s\n\n", d.Mix.Name, d.Seed, d.Mark, units.Count(d.Table), limitText(d.Max))
	t := &report.Table{Columns: []report.Column{{Head: "part"}, {Head: "entries", Right: true}, {Head: "kind"}}}
	for _, p := range d.Parts {
		t.Row(p.Name, units.Count(p.Entries), p.Kind)
	}
	if err := t.Write(&text, env.style()); err != nil {
		return err
	}
	return env.say("%s", text.Bytes())
}

func limitText(limit int64) string {
	if limit == 0 {
		return "no limit"
	}
	return units.Count(limit)
}

// fillList is what --list prints.
type fillList struct {
	Schema string     `json:"schema"`
	Mixes  []*lab.Mix `json:"mixes"`
}

func listMixes(env *Env, asJSON bool) error {
	if asJSON {
		return report.JSON(env.Stdout, fillList{fillListSchema, lab.Mixes()})
	}
	t := &report.Table{Columns: []report.Column{{Head: "mix"}, {Head: "what it is", Wrap: true}}}
	for _, m := range lab.Mixes() {
		t.Row(m.Name, m.Title)
	}
	return t.Write(env.Stdout, env.style())
}

func showMix(env *Env, name string) error {
	mix, err := lab.FindMix(name)
	if err != nil {
		return usageError{err}
	}
	_, err = env.Stdout.Write(mix.Source())
	return err
}

// fillRemoval is what --remove prints.
type fillRemoval struct {
	Schema  string        `json:"schema"`
	Removed []removedFill `json:"removed"`
	// Held are those that a running natkit keeps up.
	Held []fill.Record `json:"held"`
}

type removedFill struct {
	fill.Record
	Deleted int64 `json:"entries_deleted"`
	// Gone: the namespace had ended, and its table with it.
	Gone bool `json:"netns_gone"`
}

func describeRemoved(removed []fill.Removed, held []fill.Record) fillRemoval {
	d := fillRemoval{Schema: fillRemoveSchema, Removed: []removedFill{}, Held: append([]fill.Record{}, held...)}
	for _, r := range removed {
		d.Removed = append(d.Removed, removedFill{r.Record, r.Entries, r.Gone})
	}
	return d
}

func (d fillRemoval) print(env *Env, asJSON bool) error {
	if asJSON {
		return report.JSON(env.Stdout, d)
	}
	for _, r := range d.Removed {
		switch {
		case r.Gone:
			fmt.Fprintf(env.Stdout, "%s: it is gone, and mix %s with it\n", r.Where, r.Mix)
		default:
			fmt.Fprintf(env.Stdout, "%s: removed %s of mix %s (of %s to be made)\n", r.Where, units.Plural(r.Deleted, "entry", "entries"), r.Mix, units.Count(r.Entries))
		}
	}
	for _, r := range d.Held {
		fmt.Fprintf(env.Stdout, "%s: left alone mix %s, which a running natkit (pid %d) keeps up\n", r.Where, r.Mix, r.PID)
	}
	if len(d.Removed)+len(d.Held) == 0 {
		_, err := fmt.Fprintln(env.Stdout, "no fill was left")
		return err
	}
	return nil
}
