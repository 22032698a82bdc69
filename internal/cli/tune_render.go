package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
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
}

// tuneTransaction is a transaction with what it means now.
type tuneTransaction struct {
	Status journal.Status `json:"status"`
	// Remaining is the time to confirm, 0 where nothing waits.
	Remaining float64 `json:"remaining_seconds"`
	// GuardAlive tells whether the process that would undo it runs.
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
func (d tuneDocument) print(w io.Writer, asJSON bool, text func(io.Writer, tuneDocument) error) error {
	if !asJSON {
		return text(w, d)
	}
	d.Schema = tuneSchema
	if d.Transactions == nil {
		d.Transactions = []tuneTransaction{}
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(d)
}

func printPlan(w io.Writer, d tuneDocument) error {
	if err := printPlanned(w, d); err != nil {
		return err
	}
	said := "nothing was changed; add --yes to do it"
	if len(d.Plan.Changes) == 0 {
		said = "nothing to change"
	}
	_, err := fmt.Fprintln(w, said)
	return err
}

// printPlanned lists what would be done, without a last word.
func printPlanned(w io.Writer, d tuneDocument) error {
	var b strings.Builder
	for _, already := range d.Already {
		fmt.Fprintf(&b, "%s already\n", already)
	}
	writePlanned(&b, d.Plan.Changes)
	if len(d.Files) > 0 {
		when := "after a boot"
		if d.Confirm > 0 {
			when += ", written when you confirm"
		}
		fmt.Fprintf(&b, "to hold %s:\n", when)
	}
	for _, c := range d.Files {
		fmt.Fprintf(&b, "  /%s: %s\n", tune.ConfPath(c.Kind), fileLine(c))
		if c.Risk != "" {
			fmt.Fprintf(&b, "    risk  %s\n", c.Risk)
		}
	}
	for _, warning := range d.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", warning)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func fileLine(c tune.Change) string {
	switch {
	case tune.SameValue(c.Before, c.After):
		return c.Target + " = " + c.After + " (is there)"
	case c.Kind == tune.ModulesLoad:
		return c.Target
	case c.Before != "":
		return c.Target + " = " + c.After + " (was " + c.Before + ")"
	}
	return c.Target + " = " + c.After
}

func writePlanned(b *strings.Builder, changes []tune.Change) {
	for _, c := range changes {
		fmt.Fprintf(b, "%s\n  %s → %s\n", c.Target, orAbsent(c.Before), orAbsent(c.After))
		if c.Cost != "" {
			fmt.Fprintf(b, "    cost  %s\n", c.Cost)
		}
		if c.Risk != "" {
			fmt.Fprintf(b, "    risk  %s\n", c.Risk)
		}
	}
}

func orAbsent(v string) string {
	if v == "" {
		return "(none)"
	}
	return v
}

func printApplied(w io.Writer, d tuneDocument) error {
	tx := d.Transactions[0]
	var b strings.Builder
	for _, c := range tx.Changes {
		if c.Note != "" {
			fmt.Fprintf(&b, "%s: %s\n", c.Target, c.Note)
		}
	}
	fmt.Fprintf(&b, "applied as %s; `natkit tune undo %s` takes it back\n", tx.ID, tx.ID)
	if tx.Status == journal.StatusPending {
		fmt.Fprintf(&b, "undone by itself at %s unless `natkit tune confirm %s` comes\n",
			tx.Transaction.Confirm.DeadlineAt.Format("15:04:05"), tx.ID)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// printResults says what became of each change of the transactions.
func printResults(w io.Writer, d tuneDocument) error {
	var b strings.Builder
	for _, tx := range d.Transactions {
		fmt.Fprintf(&b, "%s %s\n", tx.ID, tx.Said)
		for _, c := range tx.Changes {
			writeResult(&b, c)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func writeResult(b *strings.Builder, c journal.Change) {
	value := c.After
	if c.State == journal.Undone {
		value = c.Before
	}
	fmt.Fprintf(b, "  %s: ", changeName(c))
	switch {
	case c.State == journal.Left, c.Note != "" && c.State == journal.Undone && !c.Durable:
		fmt.Fprintf(b, "%s (%s)\n", c.State, c.Note)
	case c.Note != "":
		fmt.Fprintf(b, "%s (%s)\n", orAbsent(value), c.Note)
	default:
		fmt.Fprintf(b, "%s\n", orAbsent(value))
	}
}

// changeName tells a line in a file from the live value.
func changeName(c journal.Change) string {
	if path := tune.ConfPath(c.Kind); path != "" {
		return "/" + path + " " + c.Target
	}
	return c.Target
}

func printTransactions(w io.Writer, d tuneDocument) error {
	if len(d.Transactions) == 0 && len(d.Damaged) == 0 {
		_, err := fmt.Fprintln(w, "natkit has changed nothing on this host")
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(d.Transactions) > 0 {
		fmt.Fprintln(table, "ID\tSTATUS\tMADE\tBY\tCHANGES")
	}
	for _, tx := range d.Transactions {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", tx.ID, statusText(tx),
			tx.CreatedAt.Local().Format(time.DateTime), tx.Origin, txSummary(tx.Transaction))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	return printNotes(w, d)
}

func statusText(tx tuneTransaction) string {
	if tx.Status != journal.StatusPending {
		return string(tx.Status)
	}
	left := (time.Duration(tx.Remaining * float64(time.Second))).Round(time.Second)
	if !tx.GuardAlive {
		return fmt.Sprintf("pending, %s left, no guard", left)
	}
	return fmt.Sprintf("pending, %s left", left)
}

func printNotes(w io.Writer, d tuneDocument) error {
	var b strings.Builder
	for _, tx := range d.Transactions {
		for _, c := range tx.Changes {
			if c.State == journal.Left {
				fmt.Fprintf(&b, "%s: %s left: %s\n", tx.ID, changeName(c), c.Note)
			}
		}
		if tx.Status == journal.StatusPending && !tx.GuardAlive {
			fmt.Fprintf(&b, "%s: its guard process is gone: run `natkit tune list` again after the deadline to undo it\n", tx.ID)
		}
	}
	for _, damaged := range d.Damaged {
		fmt.Fprintf(&b, "damaged: %s\n", damaged)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// txSummary is a transaction's changes in a line; lines in files are not repeated.
func txSummary(tx *journal.Transaction) string {
	var parts []string
	for _, c := range tx.Changes {
		if !c.Durable {
			parts = append(parts, fmt.Sprintf("%s %s → %s", c.Target, orAbsent(c.Before), orAbsent(c.After)))
		}
	}
	if slices.ContainsFunc(tx.Changes, func(c journal.Change) bool { return c.Durable }) {
		parts = append(parts, "persist")
	}
	return strings.Join(parts, ", ")
}
