//go:build linux

package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
	"github.com/natkit/natkit/internal/units"
)

// journal returns the journal of changes to the host.
func (e *Env) journal() (*journal.Journal, error) {
	dir := journal.Dir(e.Getenv)
	e.detail("journal: %s", dir)
	return journal.At(dir)
}

// transaction is a transaction of the journal with what it means now.
type transaction struct {
	Status journal.Status `json:"status"`
	// Remaining is the time to confirm, 0 where nothing waits.
	Remaining float64 `json:"remaining_seconds"`
	// GuardAlive reports whether the process that would undo it runs.
	GuardAlive bool `json:"guard_alive"`
	// result is what a command just did to it.
	result string
	*journal.Transaction
}

// changeDocument is what the verbs report that change the host or list the journal.
type changeDocument struct {
	Schema string `json:"schema"`
	// File is the gateway's; Digest is of the plan that it becomes, Before what is in force.
	File     string            `json:"file,omitempty"`
	Digest   string            `json:"digest,omitempty"`
	Before   string            `json:"before,omitempty"`
	Findings []gateway.Finding `json:"findings,omitempty"`
	// Difference is between the rules that are in force and the file's.
	Difference gateway.Diff `json:"difference,omitzero"`
	// Files are what --persist writes.
	Plan     *tune.Plan    `json:"plan,omitempty"`
	Files    []tune.Change `json:"persist,omitempty"`
	Already  []string      `json:"already,omitempty"`
	Notes    []string      `json:"notes,omitempty"`
	Warnings []string      `json:"warnings,omitempty"`
	Confirm  float64       `json:"confirm_seconds,omitempty"`
	Applied  bool          `json:"applied"`
	// Transactions are those that were made, confirmed, undone or listed.
	Transactions []transaction `json:"transactions"`
	// Stale are connections whose rule went away.
	Stale   *gatewayStale `json:"stale,omitempty"`
	Damaged []string      `json:"damaged,omitempty"`
	// Omitted are how many more there are with --all.
	Omitted int `json:"omitted,omitempty"`

	text func(io.Writer, report.Style) error
}

func (d changeDocument) Text(w io.Writer, style report.Style) error { return d.text(w, style) }

// resultsOf returns the results of transactions; lines follow them in the text.
func resultsOf(schema, lines string, all ...transaction) changeDocument {
	return changeDocument{Schema: schema, Transactions: list(all), text: func(w io.Writer, style report.Style) error {
		err := resultsText(w, style, all)
		_, wrote := io.WriteString(w, style.Fit(lines))
		return errors.Join(err, wrote)
	}}
}

// planOf returns the document of a plan.
func planOf(plan *tune.Plan, confirm time.Duration) *changeDocument {
	d := &changeDocument{Schema: tuneSchema, Plan: plan, Confirm: confirm.Seconds(), Transactions: []transaction{}}
	d.text = func(w io.Writer, style report.Style) error {
		return report.Planned{Changes: plan.Changes, Already: d.Already, Warnings: d.Warnings, Files: d.Files, FilesWait: confirm > 0}.Text(w, style)
	}
	return d
}

func resultsText(w io.Writer, style report.Style, all []transaction) error {
	for _, tx := range all {
		t := &report.Table{Indent: 2, Columns: []report.Column{{}, {Wrap: true}}}
		for _, c := range tx.Changes {
			t.Row(changeName(c), changeResult(c))
		}
		_, err := fmt.Fprintf(w, "%s %s\n", tx.ID, tx.result)
		if err = errors.Join(err, t.Write(w, style)); err != nil {
			return err
		}
	}
	return nil
}

// changeResult is the value that a change has left; where that is not natkit's, its
// state, which the note explains.
func changeResult(c journal.Change) string {
	text := report.ChangeValue(c.Change, c.After)
	switch {
	case c.State == journal.Left, c.Note != "" && c.State == journal.Undone && !c.Durable:
		text = string(c.State)
	case c.State == journal.Undone:
		before := c.Before
		if digest, changed := tune.GatewayDigest(before); changed && c.Kind == tune.Gateway {
			before = digest // it is restored as natkit wrote it
		}
		text = report.ChangeValue(c.Change, before)
	}
	if c.Note != "" {
		text += " (" + c.Note + ")"
	}
	return text
}

// changeName distinguishes a line in a file from the live value.
func changeName(c journal.Change) string {
	if path := tune.ConfPath(c.Kind); path != "" {
		return "/" + path + " " + c.Target
	}
	return c.Target
}

// appliedText returns the outcome of a plan, and the commands that keep it or undo it.
func appliedText(tx *journal.Transaction, undo, confirm string) string {
	var b strings.Builder
	for _, c := range tx.Changes {
		if c.Note != "" {
			fmt.Fprintf(&b, "%s: %s\n", c.Target, c.Note)
		}
	}
	fmt.Fprintf(&b, "applied as %s; undo it with '%s'\n", tx.ID, undo)
	if tx.Unconfirmed() {
		b.WriteString(rollback(tx, confirm))
	}
	return b.String()
}

func rollback(tx *journal.Transaction, confirm string) string {
	return fmt.Sprintf("will be rolled back at %s unless you run '%s'\n", tx.Confirm.DeadlineAt.Local().Format(time.TimeOnly), confirm)
}

// fewChanges of each transaction are listed.
const fewChanges = 5

// listText is the journal; whole: all changes of each transaction are listed.
func (d changeDocument) listText(w io.Writer, style report.Style, whole bool) error {
	if len(d.Transactions) == 0 && len(d.Damaged) == 0 {
		_, err := fmt.Fprintln(w, "natkit has changed nothing on this host")
		return err
	}
	t := &report.Table{Columns: []report.Column{{Head: "id"}, {Head: "status"}, {Head: "made"}, {Head: "by"}, {Head: "change"}}}
	for _, tx := range d.Transactions {
		first := []report.Cell{
			{Text: tx.ID}, {Text: tx.state(), Tone: statusTones[tx.Status]},
			{Text: tx.CreatedAt.Local().Format("2006-01-02 15:04")}, {Text: tx.Origin + ofNetns(tx.Netns)},
		}
		changes := changeLines(tx.Transaction)
		if more := len(changes) - fewChanges; more > 1 && !whole {
			changes = append(changes[:fewChanges], fmt.Sprintf("… and %s more (natkit tune list %s)", units.Count(more), tx.ID))
		}
		for _, change := range changes {
			t.Cells(append(first, report.Cell{Text: change})...)
			first = make([]report.Cell, len(first))
		}
	}
	if len(d.Transactions) > 0 {
		if err := t.Write(w, style); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, style.Fit(d.notes()))
	return err
}

// tuneRow is a change as a row of CSV.
type tuneRow struct {
	ID        string         `json:"id"`
	Status    journal.Status `json:"status"`
	CreatedAt time.Time      `json:"created_at"`
	Origin    string         `json:"origin"`
	Netns     uint64         `json:"netns"`
	journal.Change
}

func (d changeDocument) CSV(w io.Writer) error {
	var rows []tuneRow
	for _, tx := range d.Transactions {
		for _, c := range tx.Changes {
			rows = append(rows, tuneRow{tx.ID, tx.Status, tx.CreatedAt, tx.Origin, tx.Netns, c})
		}
	}
	return report.CSV(w, rows)
}

// notes returns the remarks that do not fit into the table.
func (d changeDocument) notes() string {
	var b strings.Builder
	for _, tx := range d.Transactions {
		for _, c := range tx.Changes {
			if c.State == journal.Left {
				fmt.Fprintf(&b, "%s: %s left: %s\n", tx.ID, changeName(c), c.Note)
			}
		}
		for _, name := range tx.stillOpen() {
			fmt.Fprintf(&b, "%s: %s could not be undone; 'natkit tune undo %s' tries again\n", tx.ID, name, tx.ID)
		}
		b.WriteString(tx.unguarded())
	}
	if d.Omitted > 0 {
		fmt.Fprintf(&b, "%s more, undone: 'natkit tune list --all'\n", units.Count(d.Omitted))
	}
	for _, damaged := range d.Damaged {
		fmt.Fprintf(&b, "unreadable: %s\n", damaged)
	}
	return b.String()
}

// unguarded says that nothing will undo a change at its deadline, and what does.
func (tx transaction) unguarded() string {
	if tx.Status != journal.StatusPending || tx.GuardAlive {
		return ""
	}
	return fmt.Sprintf("%[1]s: its guard process is gone: 'natkit tune undo %[1]s' undoes it now; after the deadline 'natkit tune list' or 'natkit lab clean' does, unless it is confirmed\n", tx.ID)
}

// ofNetns names the network namespace of a transaction, where it is not natkit's own. Its
// number may be another one's by now, so that a name would be a guess.
func ofNetns(inode uint64) string {
	if own, err := netns.InodeOf(nil); err != nil || inode == 0 || inode == own {
		return ""
	}
	return fmt.Sprintf(", netns %d", inode)
}

var statusTones = map[journal.Status]report.Tone{
	journal.StatusPending: report.Warn, journal.StatusApplied: report.Good, journal.StatusLeft: report.Warn,
	journal.StatusUndone: report.Dim,
}

func (tx transaction) state() string {
	left := time.Duration(tx.Remaining * float64(time.Second)).Round(time.Second)
	switch {
	case tx.Status != journal.StatusPending && len(tx.stillOpen()) > 0:
		return string(tx.Status) + ", partly undone"
	case tx.Status == journal.StatusUndone && !tx.Complete: // a write was refused, or cut off
		return string(tx.Status) + ", incomplete"
	case tx.Status != journal.StatusPending:
		return string(tx.Status)
	case !tx.GuardAlive:
		return fmt.Sprintf("pending, %s left, no guard", left)
	}
	return fmt.Sprintf("pending, %s left", left)
}

// stillOpen names what an undo could not take back, although it took back others.
func (tx transaction) stillOpen() (open []string) {
	for _, c := range tx.Changes {
		if c.Open() {
			open = append(open, changeName(c))
		}
	}
	if len(open) == len(tx.Changes) {
		return nil
	}
	return open
}

// changeLines are a transaction's changes; lines in files are mentioned once.
func changeLines(tx *journal.Transaction) (lines []string) {
	durable := false
	for _, c := range tx.Changes {
		if durable = durable || c.Durable; !c.Durable {
			lines = append(lines, fmt.Sprintf("%s %s → %s", c.Target, report.ChangeValue(c.Change, c.Before), report.ChangeValue(c.Change, c.After)))
		}
	}
	if durable {
		lines = append(lines, "persisted")
	}
	return lines
}

// describe adds what a transaction means now, and what a command did to it: result, or its
// status where that is empty.
func (t *tuner) describe(tx *journal.Transaction, result string) (transaction, error) {
	view, err := t.view()
	if err != nil {
		return transaction{}, err
	}
	d := transaction{
		Status: view.Status(tx), Remaining: view.Remaining(tx).Seconds(),
		GuardAlive: tx.BootID == view.BootID && tx.Guard.Alive("/proc"), Transaction: tx, result: result,
	}
	if result == "" {
		d.result = string(d.Status)
	}
	return d, nil
}

// list writes the journal, or the transaction with an id.
func (t *tuner) list(opt apply.Options, everything bool, id []string) error {
	// Reported after the list, which shows what could not be undone.
	undone, cleanErr := apply.Clean(opt)
	for _, tx := range undone {
		t.env.note("undid %s (%s): its natkit, guard or boot is gone", tx.ID, tx.Origin)
	}
	all, damaged, err := opt.Journal.List()
	if err != nil {
		return err
	}
	doc, whole := resultsOf(tuneSchema, ""), len(id) > 0
	switch {
	case whole:
		tx, err := opt.Journal.Load(id[0])
		if err != nil {
			return err
		}
		all = []*journal.Transaction{tx}
	case !everything:
		recent := recentOf(all)
		doc.Omitted, all = len(all)-len(recent), recent
	}
	for _, tx := range all {
		described, err := t.describe(tx, "")
		if err != nil {
			return err
		}
		doc.Transactions = append(doc.Transactions, described)
	}
	for _, d := range damaged {
		doc.Damaged = append(doc.Damaged, d.Error())
	}
	doc.text = func(w io.Writer, style report.Style) error { return doc.listText(w, style, whole) }
	if err := t.env.print(doc); err != nil {
		return err
	}
	if t.env.asCSV {
		_, _ = io.WriteString(t.env.Stderr, doc.notes())
	}
	if cleanErr != nil {
		return fmt.Errorf("undo what is overdue, or read the journal: %w", cleanErr)
	}
	return nil
}

// listed is how many transactions that are undone are listed.
const listed = 10

// recentOf are those of which something can be undone, and the last ones that are undone.
func recentOf(all []*journal.Transaction) []*journal.Transaction {
	finished := 0
	kept := slices.Clone(all)
	slices.Reverse(kept)
	kept = slices.DeleteFunc(kept, func(tx *journal.Transaction) bool {
		if tx.Finished() {
			finished++
		}
		return tx.Finished() && finished > listed
	})
	slices.Reverse(kept)
	return kept
}

// clean undoes what is overdue or abandoned; waits lists what waits for its deadline
// without a guard.
func (t *tuner) clean() (undone []transaction, waits string, err error) {
	opt, err := t.options()
	if err != nil {
		return nil, "", err
	}
	all, err := apply.Clean(opt)
	left, _, listErr := opt.Journal.List()
	if err == nil {
		err = listErr
	}
	for _, tx := range slices.Concat(all, left) {
		described, viewErr := t.describe(tx, "")
		if viewErr != nil {
			return undone, waits, errors.Join(err, viewErr)
		}
		if len(undone) < len(all) {
			undone = append(undone, described)
		}
		waits += described.unguarded()
	}
	return undone, waits, err
}

// choose lists the ids of transactions, oldest first. damaged are the errors about those
// that cannot be read.
func (t *tuner) choose(opt apply.Options, want func(journal.Status, *journal.Transaction) bool) (ids []string, damaged, err error) {
	all, unread, err := opt.Journal.List()
	damaged = errors.Join(unread...)
	if err != nil || len(all) == 0 {
		return nil, damaged, err
	}
	view, err := t.view()
	if err != nil {
		return nil, damaged, err
	}
	for _, tx := range all {
		if want(view.Status(tx), tx) {
			ids = append(ids, tx.ID)
		}
	}
	return ids, damaged, nil
}

// confirm keeps the transaction of the argument, or the only one of its kind that waits.
func (t *tuner) confirm(args []string, kind string, of func(*journal.Transaction) bool) (transaction, error) {
	opt, err := t.options()
	if err != nil {
		return transaction{}, err
	}
	if len(args) == 0 {
		ids, damaged, err := t.choose(opt, func(s journal.Status, tx *journal.Transaction) bool { return isPending(s) && of(tx) })
		if err == nil && len(ids) == 0 { // it is too late for those
			ids, damaged, err = t.choose(opt, func(s journal.Status, tx *journal.Transaction) bool { return s == journal.StatusOverdue && of(tx) })
			ids = ids[max(0, len(ids)-1):]
		}
		switch {
		case err != nil:
			return transaction{}, err
		case len(ids) == 0 && damaged != nil:
			return transaction{}, fmt.Errorf("confirm: no %s that can be read waits for confirmation: %w", kind, damaged)
		case len(ids) == 0:
			return transaction{}, fmt.Errorf("confirm: no %s waits for confirmation; 'natkit tune list' shows what became of it", kind)
		case len(ids) > 1:
			return transaction{}, usagef("confirm: several wait for confirmation, name one: %s", strings.Join(ids, " "))
		}
		args = ids
	}
	tx, err := apply.Confirm(args[0], opt)
	if err != nil {
		return transaction{}, err
	}
	return t.describe(tx, "confirmed")
}

func isPending(s journal.Status) bool { return s == journal.StatusPending }

// isUndoable transactions are in force, and no running natkit holds them.
func isUndoable(s journal.Status) bool {
	switch s {
	case journal.StatusUndone, journal.StatusLeft, journal.StatusHeld, journal.StatusApplying:
		return false
	}
	return true
}

// undoIDs are the transactions to undo, newest first. damaged means that there may be
// others, whose files cannot be read.
func (t *tuner) undoIDs(opt apply.Options, args []string, last bool) (ids []string, damaged, err error) {
	if len(args) == 1 {
		return args, nil, nil
	}
	ids, damaged, err = t.choose(opt, func(s journal.Status, _ *journal.Transaction) bool { return isUndoable(s) })
	switch {
	case err != nil || !last:
	case damaged != nil:
		return nil, nil, fmt.Errorf("undo: which one is the last is not known: %w; name one by its ID", damaged)
	case len(ids) == 0:
		return nil, nil, errors.New("undo: nothing is in force")
	default:
		ids = ids[len(ids)-1:]
	}
	slices.Reverse(ids)
	return ids, damaged, err
}

// undo goes on after errors, so that one value that cannot be written does not
// keep the others. whole means that the journal has no others.
func (t *tuner) undo(opt apply.Options, ids []string, all, whole bool) error {
	var done []transaction
	var errs []error
	for _, id := range ids {
		tx, err := apply.Undo(id, opt)
		if errors.Is(err, apply.ErrUndone) && all {
			continue // by its guard, or by another natkit, since the ids were listed
		}
		described := transaction{}
		if err == nil {
			described, err = t.describe(tx, "")
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		done = append(done, described)
	}
	if len(ids) == 0 && whole && !t.env.asJSON {
		return t.env.say("nothing is in force\n")
	}
	return errors.Join(append(errs, t.env.print(resultsOf(tuneSchema, "", done...)))...)
}
