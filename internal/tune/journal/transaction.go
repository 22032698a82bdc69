package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/tune"
	"golang.org/x/sys/unix"
)

// Schema names the JSON form of a Transaction.
const Schema = "natkit.journal/1"

const (
	// maxFileBytes bounds what is read of one journal file.
	maxFileBytes = 64 << 20
	// maxForeignBytes bounds one of another user, who may write many: a gateway's has
	// some kilobytes.
	maxForeignBytes = 1 << 20
	// maxBeginBytes bounds a new transaction: what becomes of its changes is written
	// down too.
	maxBeginBytes = 8 << 20
)

// State is how far a change has come.
type State string

const (
	// Planned changes may have been written: the journal is always ahead.
	Planned State = "planned"
	// Applied changes were written and read back.
	Applied State = "applied"
	// Undone changes are as before, by natkit's hand, another's, or a reboot.
	Undone State = "undone"
	// Left changes were not undone because the value is no longer natkit's.
	Left State = "left"
)

// Change is a tune.Change and what became of it.
type Change struct {
	tune.Change
	State State `json:"state"`
	// Durable changes live in files and outlast a reboot.
	Durable bool `json:"durable,omitempty"`
	// NetnsCookie is that of the network namespace that Target names.
	NetnsCookie uint64 `json:"netns_cookie,omitempty"`
	// Along are values that the kernel sets along with it and that are to be put back:
	// what they were, by name.
	Along map[string]string `json:"along,omitempty"`
	// Note is a remark: rounded by the kernel, left because …
	Note string `json:"note,omitempty"`
}

// Open is true while there is something that may have to be undone.
func (c Change) Open() bool { return c.State == Planned || c.State == Applied }

// Confirm is the promise to undo unless a person confirms.
type Confirm struct {
	// BoottimeNS is the deadline by CLOCK_BOOTTIME, which counts suspended time
	// and cannot be set; DeadlineAt is the same for people.
	BoottimeNS int64     `json:"deadline_boottime_ns"`
	DeadlineAt time.Time `json:"deadline_at"`
	Confirmed  bool      `json:"confirmed"`
	// Expired: it was undone because it was not confirmed in time.
	Expired bool `json:"expired,omitempty"`
}

// Transaction is one plan on its way through a host.
type Transaction struct {
	Schema string `json:"schema"`
	ID     string `json:"id"`
	// Nonce distinguishes the transaction from another one with the same ID: ids begin
	// again if the journal was deleted.
	Nonce     string    `json:"nonce,omitempty"`
	BootID    string    `json:"boot_id"`
	CreatedAt time.Time `json:"created_at"`
	Origin    string    `json:"origin"`
	Owner     Process   `json:"owner"`
	// OwnerLock: the owner holds a lock for as long as it works on the transaction, and
	// not a moment longer, whatever PID namespace it is in. OwnerRuns reports whether it
	// did when this was read.
	OwnerLock bool `json:"owner_lock,omitempty"`
	OwnerRuns bool `json:"-"`
	// UID is the user whose file it is: he wrote it.
	UID int `json:"-"`
	// Guard is the process that undoes the transaction when the owner dies or the
	// deadline passes; zero where there is none.
	Guard Process `json:"guard,omitzero"`
	// Netns is the network namespace (inode) whose net.* values were changed; 0
	// where unknown.
	Netns uint64 `json:"netns,omitempty"`
	// NetnsCookie is that namespace's, which no other gets before the next boot; the
	// inode is given again at once. 0 before Linux 5.14.
	NetnsCookie uint64 `json:"netns_cookie,omitempty"`
	// Complete is set once every change that was due had been written.
	Complete bool `json:"complete"`
	// Lifeline transactions end with their owner.
	Lifeline bool     `json:"lifeline,omitempty"`
	Persist  bool     `json:"persist,omitempty"`
	Confirm  *Confirm `json:"confirm,omitempty"`
	Changes  []Change `json:"changes"`
}

// Made is the network namespace in which the transaction was made.
func (t *Transaction) Made() netns.ID {
	return netns.ID{Inode: t.Netns, Cookie: t.NetnsCookie, SeenFrom: t.Owner.Namespace}
}

// In is the network namespace that a change is in; zero where it is in none.
func (t *Transaction) In(c Change) netns.ID {
	id := t.Made()
	named := c.Netns()
	switch {
	case named != 0 && (named != t.Netns || c.NetnsCookie != 0):
		id.Inode, id.Cookie = named, c.NetnsCookie
	case c.Durable, c.Kind == tune.Sysctl && !strings.HasPrefix(c.Target, "net."):
		return netns.ID{}
	}
	return id
}

// Is reports whether both are the same transaction, at two moments.
func (t *Transaction) Is(other *Transaction) bool { return t.ID == other.ID && t.Nonce == other.Nonce }

// Foreign is true where neither root nor this process's user wrote it. Such a one does
// nothing that its writer could not do himself with CAP_NET_ADMIN, which is all that a
// gateway's service has.
func (t *Transaction) Foreign() bool { return isForeign(t.UID) }

func isForeign(uid int) bool { return uid != 0 && uid != os.Geteuid() }

// ReadOnly is true where it is not this process's to change.
func (t *Transaction) ReadOnly() bool { return os.Geteuid() != 0 && t.UID != os.Geteuid() }

// Finished is true once nothing is left to undo.
func (t *Transaction) Finished() bool {
	for _, c := range t.Changes {
		if c.Open() {
			return false
		}
	}
	return true
}

// Unconfirmed is true while the transaction waits for a person.
func (t *Transaction) Unconfirmed() bool { return t.Confirm != nil && !t.Confirm.Confirmed }

// idPattern: short, typeable, and in order of time.
var idPattern = regexp.MustCompile(`^t([0-9]{4,9})$`)

// nonces are rand.Text's; none in the files of an early natkit.
var nonces = regexp.MustCompile(`^[A-Z2-7]*$`)

// IsID reports whether a text is the id of a transaction, such as t0001.
func IsID(text string) bool {
	_, ok := idNumber(text)
	return ok
}

func idNumber(id string) (int, bool) {
	m := idPattern.FindStringSubmatch(id)
	if m == nil {
		return 0, false
	}
	n, err := strconv.Atoi(m[1])
	return n, err == nil
}

func (t *Transaction) encode() ([]byte, error) {
	b, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode transaction %s: %w", t.ID, err)
	}
	return append(b, '\n'), nil
}

// update is what became of one change while a transaction was being applied: a line
// behind the transaction, where a new text of all of it would take its time.
type update struct {
	Change int    `json:"change"`
	After  string `json:"after"`
	State  State  `json:"state"`
	Note   string `json:"note,omitempty"`
}

// decode reads one journal file: the transaction and its updates. Names that it does not
// know are skipped, so that an older natkit can undo what a newer one did.
func decode(r io.Reader, limit int) (*Transaction, error) {
	b, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	if err != nil {
		return nil, err
	}
	if len(b) > limit {
		return nil, fmt.Errorf("larger than %d bytes", limit)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	t := &Transaction{}
	if err := dec.Decode(t); err != nil {
		return nil, fmt.Errorf("not a journal file: %w", err)
	}
	if err := t.update(b[dec.InputOffset():]); err != nil {
		return nil, err
	}
	if err := t.check(); err != nil {
		return nil, err
	}
	return t, nil
}

// update reads the lines behind the transaction. After a crash of the machine the last
// ones may be cut off, or be zeros: those changes are as if they were planned.
func (t *Transaction) update(text []byte) error {
	text, _, _ = bytes.Cut(text, []byte{0})
	for line := range bytes.Lines(text) {
		if len(bytes.TrimSpace(line)) == 0 || line[len(line)-1] != '\n' {
			continue
		}
		var u update
		if err := json.Unmarshal(line, &u); err != nil {
			return fmt.Errorf("text after the end of the transaction: %w", err)
		}
		if u.Change < 0 || u.Change >= len(t.Changes) {
			return fmt.Errorf("change %d is none of the transaction's %d", u.Change, len(t.Changes))
		}
		c := &t.Changes[u.Change]
		c.After, c.State, c.Note = u.After, u.State, u.Note
	}
	return nil
}

// read reads an open journal file.
func read(f *os.File) (*Transaction, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.New("not a file")
	}
	limit := maxFileBytes
	if isForeign(int(st.Uid)) {
		limit = maxForeignBytes
	}
	t, err := decode(f, limit)
	if err != nil {
		return nil, err
	}
	if t.UID = int(st.Uid); t.Foreign() {
		err = t.checkForeign()
	}
	if err != nil {
		return nil, err
	}
	return t, nil
}

// gatewaySysctls are the values that a gateway sets: CAP_NET_ADMIN is enough for them
// (net_ctl_permissions).
var gatewaySysctls = regexp.MustCompile(`^net\.(ipv4\.ip_forward|ipv4\.conf\.[^.]+\.src_valid_mark|ipv6\.conf\.[^.]+\.(forwarding|accept_ra)|nf_conntrack_max|netfilter\.nf_conntrack_(acct|max|buckets|tcp_timeout_time_wait))$`)

// checkForeign refuses what root must not do because another user wrote it.
func (t *Transaction) checkForeign() error {
	for _, c := range t.Changes {
		if c.Kind != tune.Gateway && c.Kind != tune.Routing && !(c.Kind == tune.Sysctl && gatewaySysctls.MatchString(c.Target)) || c.Durable {
			return fmt.Errorf("uid %d wrote it, who may journal a gateway's rules and values only, not %s %s", t.UID, c.Kind, c.Target)
		}
	}
	if t.Confirm != nil || t.Lifeline || t.Persist || t.Guard != (Process{}) { // root signals a guard
		return fmt.Errorf("uid %d wrote it, who may have nothing confirmed, persisted or guarded", t.UID)
	}
	return nil
}

// errSchema: another version of natkit wrote it, or none.
var errSchema = errors.New("its form is")

// check refuses what natkit would not have written: an undo acts as root on it.
func (t *Transaction) check() error {
	if t.Schema != Schema {
		return fmt.Errorf("%w %q and this natkit reads %s", errSchema, t.Schema, Schema)
	}
	if _, ok := idNumber(t.ID); !ok {
		return fmt.Errorf("id %q is malformed", t.ID)
	}
	if !nonces.MatchString(t.Nonce) {
		return fmt.Errorf("nonce %q is malformed", t.Nonce)
	}
	if t.BootID == "" {
		return errors.New("boot_id is missing")
	}
	plan := tune.Plan{Origin: t.Origin}
	for _, c := range t.Changes {
		switch c.State {
		case Planned, Applied, Undone, Left:
		default:
			return fmt.Errorf("%s: state %q is unknown", c.Target, c.State)
		}
		for name := range c.Along {
			if !tune.IsAlong(c.Target, name) {
				return fmt.Errorf("%s: the kernel does not set %q along with it", c.Target, name)
			}
		}
		plan.Changes = append(plan.Changes, c.Change)
	}
	return plan.Validate()
}

// Status is what a transaction means at a moment, derived from its file, the
// boot, the clock and the processes that belong to it.
type Status string

const (
	// StatusApplying: its owner is writing it now.
	StatusApplying Status = "applying"
	// StatusInterrupted: its owner died while writing it.
	StatusInterrupted Status = "interrupted"
	// StatusHeld: a running owner holds it (a lab) and will undo it.
	StatusHeld Status = "held"
	// StatusOrphaned: its owner is dead and its guard did not undo it.
	StatusOrphaned Status = "orphaned"
	// StatusPending: waits for confirmation.
	StatusPending Status = "pending"
	// StatusOverdue: the deadline passed and its guard did not undo it.
	StatusOverdue Status = "overdue"
	// StatusApplied: in force, can be undone.
	StatusApplied Status = "applied"
	// StatusPersisted: of an earlier boot, its files are in force.
	StatusPersisted Status = "persisted"
	// StatusVoid: of an earlier boot; the reboot undid it.
	StatusVoid Status = "void"
	// StatusUndone: everything is as before.
	StatusUndone Status = "undone"
	// StatusLeft: undone but for values that are no longer natkit's.
	StatusLeft Status = "left"
)

// View is the moment for which statuses are determined.
type View struct {
	ProcRoot string
	BootID   string
	Clock    Clock
}

// NewView reads the boot id.
func NewView(procRoot string, clock Clock) (View, error) {
	id, err := ReadBootID(procRoot)
	return View{ProcRoot: procRoot, BootID: id, Clock: clock}, err
}

// Status returns the present status of a transaction.
func (v View) Status(t *Transaction) Status {
	switch {
	case t.Finished():
		return finishedStatus(t)
	case t.BootID != v.BootID:
		return rebootedStatus(t)
	case !t.Complete && t.ownerRuns(v.ProcRoot):
		return StatusApplying
	case !t.Complete:
		return StatusInterrupted
	case t.Lifeline && t.ownerRuns(v.ProcRoot):
		return StatusHeld
	case t.Lifeline:
		return StatusOrphaned
	case t.Unconfirmed() && v.Remaining(t) > 0:
		return StatusPending
	case t.Unconfirmed():
		return StatusOverdue
	}
	return StatusApplied
}

// ownerRuns reports whether the owner runs: by its lock, or by its process number for an
// older natkit, which held none.
func (t *Transaction) ownerRuns(procRoot string) bool {
	if t.OwnerLock {
		return t.OwnerRuns
	}
	return t.Owner.Alive(procRoot)
}

func finishedStatus(t *Transaction) Status {
	for _, c := range t.Changes {
		if c.State == Left {
			return StatusLeft
		}
	}
	return StatusUndone
}

// isVoid reports whether a reboot undid all of the transaction.
func (t *Transaction) isVoid(bootID string) bool {
	inFile := slices.ContainsFunc(t.Changes, func(c Change) bool { return c.Durable && c.Open() })
	return t.BootID != bootID && !inFile
}

func rebootedStatus(t *Transaction) Status {
	for _, c := range t.Changes {
		// Files of a transaction that was never confirmed or completed are not
		// meant to stay.
		if c.Durable && c.Open() && t.Complete && !t.Unconfirmed() && !t.Lifeline {
			return StatusPersisted
		}
	}
	return StatusVoid
}

// Abandoned reports whether no process is left to undo the transaction as promised: these
// are the ones that `natkit lab clean` undoes.
func (s Status) Abandoned() bool {
	switch s {
	case StatusInterrupted, StatusOrphaned, StatusOverdue, StatusVoid:
		return true
	}
	return false
}

// Remaining is the time until an unconfirmed transaction is undone; 0 where it
// is due or needs no confirmation.
func (v View) Remaining(t *Transaction) time.Duration {
	if !t.Unconfirmed() || t.BootID != v.BootID {
		return 0
	}
	return max(0, time.Duration(t.Confirm.BoottimeNS)-v.Clock.Boottime())
}
