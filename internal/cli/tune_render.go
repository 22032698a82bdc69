package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
	"github.com/natkit/natkit/internal/units"
)

const tuneSchema = "natkit.tune/1"

// tuneDocument is what every sub-command of tune reports.
type tuneDocument struct {
	Schema string `json:"schema"`
	// Plan, Files (with --persist) and what follows are apply's.
	Plan     *tune.Plan    `json:"plan,omitempty"`
	Files    []tune.Change `json:"persist,omitempty"`
	Already  []string      `json:"already,omitempty"`
	Warnings []string      `json:"warnings,omitempty"`
	Confirm  float64       `json:"confirm_seconds,omitempty"`
	Applied  bool          `json:"applied"`

	Transactions []tuneTransaction `json:"transactions"`
	Damaged      []string          `json:"damaged,omitempty"`
	// Omitted are how many more there are with --all.
	Omitted int `json:"omitted,omitempty"`
	// one is asked for, so that it is shown whole.
	one bool
}

// tuneTransaction is a transaction with what it means now.
type tuneTransaction struct {
	Status journal.Status `json:"status"`
	// Remaining is the time to confirm, 0 where nothing waits.
	Remaining float64 `json:"remaining_seconds"`
	// GuardAlive reports whether the process that would undo it runs.
	GuardAlive bool `json:"guard_alive"`
	// Said is what a command just did to it.
	Said string `json:"-"`
	*journal.Transaction
}

func describeTransaction(tx *journal.Transaction, view journal.View) tuneTransaction {
	return tuneTransaction{
		Status: view.Status(tx), Remaining: view.Remaining(tx).Seconds(),
		GuardAlive: tx.BootID == view.BootID && tx.Guard.Alive("/proc"), Transaction: tx,
	}
}

// print writes JSON, or what text makes of the document.
func (d tuneDocument) print(env *Env, asJSON bool, text func(*Env, tuneDocument) error) error {
	if !asJSON {
		return text(env, d)
	}
	d.Schema = tuneSchema
	if d.Transactions == nil {
		d.Transactions = []tuneTransaction{}
	}
	return report.JSON(env.Stdout, d)
}

// printPlan shows what would be done.
func printPlan(env *Env, d tuneDocument) error {
	return report.Plan(env.Stdout, env.style(), report.Planned{
		Changes: d.Plan.Changes, Already: d.Already, Warnings: d.Warnings, Files: d.Files, FilesWait: d.Confirm > 0,
	})
}

// printApplied says what became of a plan, and how to take it back or keep it.
func printApplied(w io.Writer, style report.Style, tx *journal.Transaction) error {
	var b strings.Builder
	for _, c := range tx.Changes {
		if c.Note != "" {
			fmt.Fprintf(&b, "%s: %s\n", c.Target, c.Note)
		}
	}
	fmt.Fprintf(&b, "applied as %s; 'natkit tune undo %s' takes it back\n", tx.ID, tx.ID)
	if tx.Unconfirmed() {
		fmt.Fprintf(&b, "will be rolled back at %s unless you run 'natkit tune confirm %s'\n",
			tx.Confirm.DeadlineAt.Local().Format(time.TimeOnly), tx.ID)
	}
	_, err := io.WriteString(w, style.Fit(b.String()))
	return err
}

// printResults says what became of each change of the transactions.
func printResults(env *Env, d tuneDocument) error {
	for _, tx := range d.Transactions {
		if err := env.say("%s %s\n", tx.ID, tx.Said); err != nil {
			return err
		}
		t := &report.Table{Indent: 2, Columns: []report.Column{{}, {Wrap: true}}}
		for _, c := range tx.Changes {
			t.Row(changeName(c), resultText(c))
		}
		if err := t.Write(env.Stdout, env.style()); err != nil {
			return err
		}
	}
	return nil
}

// resultText is the value that a change has left; where that is not natkit's, its
// state, which the note explains.
func resultText(c journal.Change) string {
	text := report.ChangeValue(c.Change, c.After)
	switch {
	case c.State == journal.Left, c.Note != "" && c.State == journal.Undone && !c.Durable:
		text = string(c.State)
	case c.State == journal.Undone:
		text = report.ChangeValue(c.Change, c.Before)
	}
	if c.Note != "" {
		text += " (" + c.Note + ")"
	}
	return text
}

// changeName tells a line in a file from the live value.
func changeName(c journal.Change) string {
	if path := tune.ConfPath(c.Kind); path != "" {
		return "/" + path + " " + c.Target
	}
	return c.Target
}

// fewChanges of each transaction are listed.
const fewChanges = 5

func printTransactions(env *Env, d tuneDocument) error {
	if len(d.Transactions) == 0 && len(d.Damaged) == 0 {
		_, err := fmt.Fprintln(env.Stdout, "natkit has changed nothing on this host")
		return err
	}
	t := &report.Table{Columns: []report.Column{{Head: "id"}, {Head: "status"}, {Head: "made"}, {Head: "by"}, {Head: "change"}}}
	for _, tx := range d.Transactions {
		first := []report.Cell{
			{Text: tx.ID}, {Text: statusText(tx), Tone: statusTones[tx.Status]},
			{Text: tx.CreatedAt.Local().Format("2006-01-02 15:04")}, {Text: tx.Origin + ofNetns(tx.Netns)},
		}
		changes := txChanges(tx.Transaction)
		if more := len(changes) - fewChanges; more > 1 && !d.one {
			changes = append(changes[:fewChanges], fmt.Sprintf("… and %s more (natkit tune list %s)", units.Count(more), tx.ID))
		}
		for _, change := range changes {
			t.Cells(append(first, report.Cell{Text: change})...)
			first = make([]report.Cell, len(first))
		}
	}
	if len(d.Transactions) > 0 {
		if err := t.Write(env.Stdout, env.style()); err != nil {
			return err
		}
	}
	return printNotes(fitted{env}, d)
}

// tuneRow is a change, for tables of other programs.
type tuneRow struct {
	ID        string         `json:"id"`
	Status    journal.Status `json:"status"`
	CreatedAt time.Time      `json:"created_at"`
	Origin    string         `json:"origin"`
	Netns     uint64         `json:"netns"`
	journal.Change
}

func printCSV(env *Env, d tuneDocument) error {
	var rows []tuneRow
	for _, tx := range d.Transactions {
		for _, c := range tx.Changes {
			rows = append(rows, tuneRow{tx.ID, tx.Status, tx.CreatedAt, tx.Origin, tx.Netns, c})
		}
	}
	return errors.Join(report.CSV(env.Stdout, rows), printNotes(env.Stderr, d))
}

// ofNetns tells the network namespace of a transaction, where it is not natkit's own. Its
// number may be another one's by now, so that a name would be a guess.
func ofNetns(inode uint64) string {
	own, err := netns.Current()
	if err != nil {
		return ""
	}
	defer own.Close()
	if inode == 0 || inode == own.Inode() {
		return ""
	}
	return fmt.Sprintf(", netns %d", inode)
}

var statusTones = map[journal.Status]report.Tone{
	journal.StatusPending: report.Warn, journal.StatusApplied: report.Good, journal.StatusLeft: report.Warn,
	journal.StatusUndone: report.Dim,
}

func statusText(tx tuneTransaction) string {
	if tx.Status != journal.StatusPending {
		if len(stillOpen(tx)) > 0 {
			return string(tx.Status) + ", partly undone"
		}
		return string(tx.Status)
	}
	left := time.Duration(tx.Remaining * float64(time.Second)).Round(time.Second)
	if !tx.GuardAlive {
		return fmt.Sprintf("pending, %s left, no guard", left)
	}
	return fmt.Sprintf("pending, %s left", left)
}

// stillOpen names what an undo could not take back, although it took back others.
func stillOpen(tx tuneTransaction) []string {
	var open []string
	begun := false
	for _, c := range tx.Changes {
		if c.Open() {
			open = append(open, changeName(c))
		} else {
			begun = true
		}
	}
	if !begun {
		return nil
	}
	return open
}

func printNotes(w io.Writer, d tuneDocument) error {
	var b strings.Builder
	for _, tx := range d.Transactions {
		for _, c := range tx.Changes {
			if c.State == journal.Left {
				fmt.Fprintf(&b, "%s: %s left: %s\n", tx.ID, changeName(c), c.Note)
			}
		}
		for _, name := range stillOpen(tx) {
			fmt.Fprintf(&b, "%s: %s could not be undone; 'natkit tune undo %s' tries again\n", tx.ID, name, tx.ID)
		}
		if tx.Status == journal.StatusPending && !tx.GuardAlive {
			fmt.Fprintf(&b, "%s: its guard process is gone: run 'natkit tune list' again after the deadline to undo it\n", tx.ID)
		}
	}
	if d.Omitted > 0 {
		fmt.Fprintf(&b, "%s more that was undone: 'natkit tune list --all'\n", units.Count(d.Omitted))
	}
	for _, damaged := range d.Damaged {
		fmt.Fprintf(&b, "damaged: %s\n", damaged)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// txChanges are a transaction's changes, a line for each; that there are lines in
// files is said once.
func txChanges(tx *journal.Transaction) []string {
	var lines []string
	for _, c := range tx.Changes {
		if !c.Durable {
			lines = append(lines, fmt.Sprintf("%s %s → %s", c.Target, report.ChangeValue(c.Change, c.Before), report.ChangeValue(c.Change, c.After)))
		}
	}
	if slices.ContainsFunc(tx.Changes, func(c journal.Change) bool { return c.Durable }) {
		lines = append(lines, "persisted")
	}
	return lines
}
