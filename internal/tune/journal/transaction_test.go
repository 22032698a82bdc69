package journal

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune"
)

func sample() *Transaction {
	return &Transaction{
		Schema: Schema, ID: "t0001", BootID: "boot-a", Origin: "tune", Complete: true,
		CreatedAt: time.Date(2026, 3, 1, 22, 10, 0, 0, time.UTC),
		Owner:     Process{PID: 42, StartTicks: 7, Namespace: 4026531836},
		Confirm:   &Confirm{BoottimeNS: 5e9, DeadlineAt: time.Date(2026, 3, 1, 22, 11, 0, 0, time.UTC)},
		Persist:   true,
		Changes: []Change{
			{Change: tune.Change{Kind: tune.Sysctl, Target: "net.core.somaxconn", Before: "1", After: "2"}, State: Applied},
			{Change: tune.Change{Kind: tune.SysctlConf, Target: "net.core.somaxconn", After: "2"}, State: Planned, Durable: true},
		},
	}
}

func TestDecode(t *testing.T) {
	good, err := sample().encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := decode(bytes.NewReader(good), maxFileBytes)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sample(), got); diff != "" {
		t.Error(diff)
	}
	bad := []struct{ old, new, want string }{
		{Schema, "natkit.journal/2", "its form is"},
		{"t0001", "../../x", "malformed"},
		{"boot-a", "", "boot_id"},
		{`"applied"`, `"eaten"`, `state "eaten" is unknown`},
		{"net.core.somaxconn", "net.//.passwd", "relative part"},
		{`"changes": [`, `"changes": [7,`, "not a journal file"},
		{`"origin": "tune"`, `"origin": ""`, "origin"},
		{string(good[len(good)-20:]), "", "not a journal file"},
		{"\n}\n", "\n}\nx\n", "text after the end"},
		{"\n}\n", "\n}\n" + `{"change":2,"state":"applied"}` + "\n", "change 2 is none"},
		{"\n}\n", "\n}\n" + `{"change":0,"state":"eaten"}` + "\n", `state "eaten" is unknown`},
		// An undo would have the kernel start the program written there.
		{"net.core.somaxconn", "kernel.core_pattern", "starts programs"},
		{"net.core.somaxconn", "fs.binfmt_misc.register", "starts programs"},
		{"net.core.somaxconn", "-kernel.core_pattern", "begins with a hyphen"},
		{`"before": ""`, `"before": "1\nkernel.core_pattern = |/x"`, "more than one line"},
		{`"state": "applied"`, `"along": {"kernel.core_pattern": "|/x"}, "state": "applied"`, "does not set"},
		{"boot-a\",", "boot-a\", \"nonce\": \"../x\",", "nonce"},
		{`"origin": "tune"`, `"origin": "` + strings.Repeat("x", maxFileBytes) + `"`, "larger than"},
	}
	for _, c := range bad {
		text := strings.ReplaceAll(string(good), c.old, c.new)
		if text == string(good) {
			t.Fatalf("%q does not occur", c.old)
		}
		got, err := decode(strings.NewReader(text), maxFileBytes)
		if err == nil || !strings.Contains(err.Error(), c.want) || got != nil {
			t.Errorf("%q for %q: %v, %v; want nil and an error with %q", c.new[:min(30, len(c.new))], c.old, got, err, c.want)
		}
	}
	// What a newer natkit adds does not hinder an undo.
	newer := strings.Replace(string(good), `"origin"`, `"colour": {"red": 1}, "origin"`, 1)
	if _, err := decode(strings.NewReader(newer), maxFileBytes); err != nil {
		t.Errorf("unknown field: %v", err)
	}
}

// What became of each change stands behind the transaction. What a crash of the machine
// has cut off, or left as zeros, is not there.
func TestUpdates(t *testing.T) {
	text, err := sample().encode()
	if err != nil {
		t.Fatal(err)
	}
	first := `{"change":0,"after":"3","state":"applied","note":"rounded"}` + "\n"
	second := `{"change":1,"after":"2","state":"applied"}` + "\n"
	for _, c := range []struct{ tail, states, after string }{
		{"", "applied planned", "2"},
		{first, "applied planned", "3"},
		{first + second, "applied applied", "3"},
		{first + second[:len(second)-1], "applied planned", "3"},
		{first + second[:9], "applied planned", "3"},
		{first + "\x00\x00\x00", "applied planned", "3"},
		{first + "{\"cha\x00\x00\n" + second, "applied planned", "3"},
		{first + strings.Replace(first, "3", "4", 1), "applied planned", "4"},
	} {
		tx, err := decode(strings.NewReader(string(text)+c.tail), maxFileBytes)
		if err != nil {
			t.Errorf("%q: %v", c.tail, err)
			continue
		}
		if got := fmt.Sprint(tx.Changes[0].State, " ", tx.Changes[1].State); got != c.states || tx.Changes[0].After != c.after {
			t.Errorf("%q: %s, %s", c.tail, got, tx.Changes[0].After)
		}
	}
}

// TestIn: where a change is, in files of this natkit and of earlier ones.
func TestIn(t *testing.T) {
	tx := &Transaction{Netns: 7, NetnsCookie: 70, Owner: Process{Namespace: 5}}
	rule := func(inode int) tune.Change {
		return tune.Change{Kind: tune.NATRule, Target: fmt.Sprintf("netns %d ip nat post 5f3a9c01", inode)}
	}
	for _, c := range []struct {
		change Change
		want   netns.ID
	}{
		{Change{Change: tune.Change{Kind: tune.Sysctl, Target: "net.core.somaxconn"}}, netns.ID{Inode: 7, Cookie: 70, SeenFrom: 5}},
		{Change{Change: tune.Change{Kind: tune.Sysctl, Target: "vm.swappiness"}}, netns.ID{}},
		{Change{Change: tune.Change{Kind: tune.SysctlConf, Target: "net.core.somaxconn"}, Durable: true}, netns.ID{}},
		{Change{Change: rule(8), NetnsCookie: 80}, netns.ID{Inode: 8, Cookie: 80, SeenFrom: 5}},
		{Change{Change: rule(8)}, netns.ID{Inode: 8, SeenFrom: 5}},
		{Change{Change: rule(7)}, netns.ID{Inode: 7, Cookie: 70, SeenFrom: 5}},
		{Change{Change: tune.Change{Kind: tune.Gateway, Target: tune.GatewayTarget(7, "netfilter")}, NetnsCookie: 71}, netns.ID{Inode: 7, Cookie: 71, SeenFrom: 5}},
	} {
		if got := tx.In(c.change); got != c.want {
			t.Errorf("%s %s: %+v, want %+v", c.change.Kind, c.change.Target, got, c.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	good, _ := sample().encode()
	f.Add(good)
	f.Add(append(good, `{"change":0,"after":"3","state":"applied","note":"x"}`+"\n"+`{"change":1,"state":"left"}`...))
	f.Add(append(good, "{\"change\":0,\"after\":\"3\"\x00\n{}\n"...))
	f.Add([]byte("{}"))
	f.Add([]byte(`{"schema":"natkit.journal/1","id":"t9999999999"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		defer testutil.Bounded(t, len(b))()
		tx, err := decode(bytes.NewReader(b), maxFileBytes)
		if err != nil {
			if tx != nil {
				t.Fatal("a transaction with an error")
			}
			return
		}
		text, err := tx.encode()
		if err != nil {
			return // times outside of what RFC 3339 can write
		}
		again, err := decode(bytes.NewReader(text), maxFileBytes)
		if err != nil {
			t.Fatalf("%s\nis not read back: %v", text, err)
		}
		if diff := cmp.Diff(tx, again); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestParseStartTicks(t *testing.T) {
	const rest = " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21"
	for _, comm := range []string{"(natkit)", "(a b)", "(x) S 1 2)", "())"} {
		if got, err := parseStartTicks([]byte("7 " + comm + rest)); err != nil || got != 4711 {
			t.Errorf("%s: %d, %v", comm, got, err)
		}
	}
	for _, bad := range []string{"", "7 natkit S", "7 (x) S 1 2 3", "7 (x)" + strings.Replace(rest, "4711", "soon", 1), "7 (x)" + strings.Replace(rest, " S", " Z", 1)} {
		if got, err := parseStartTicks([]byte(bad)); err == nil {
			t.Errorf("%q: %d without an error", bad, got)
		}
	}
}

// What another user wrote is his, also after root has saved it, and does nothing that he
// could not do with CAP_NET_ADMIN; what is no file is not read.
func TestForeign(t *testing.T) {
	testutil.NeedRoot(t) // files of another user
	const other = 12345
	j := newJournal(t)
	defer lock(t, j)()
	if err := errors.Join(os.Chown(j.Dir(), 0, other), os.Chmod(j.Dir(), 0o770|os.ModeSticky|os.ModeSetgid)); err != nil {
		t.Fatal(err)
	}
	digest := strings.Repeat("a", 64)
	forwards := tune.Change{Kind: tune.Sysctl, Target: "net.ipv4.ip_forward", Before: "0", After: "1"}
	rules := tune.Change{Kind: tune.Gateway, Target: tune.GatewayTarget(4026531840, "netfilter"), Before: tune.GatewayNone, After: digest}
	for _, c := range []struct {
		name string
		edit func(*Transaction)
		want string // of the error; a good one where empty
	}{
		{name: "a gateway", edit: func(*Transaction) {}},
		{"another value of the network", func(x *Transaction) { x.Changes[0].Target = "net.core.somaxconn" }, "net.core.somaxconn"},
		{"a value of the host", func(x *Transaction) { x.Changes[0].Target = "vm.swappiness" }, "vm.swappiness"},
		{"a value without a namespace", func(x *Transaction) { x.Changes[0].Durable = true }, "ip_forward"},
		{"a file of values", func(x *Transaction) { x.Changes[0].Kind = tune.SysctlConf }, "sysctl.d"},
		{"a module", func(x *Transaction) {
			x.Changes[0].Change = tune.Change{Kind: tune.ModulesLoad, Target: "nf_conntrack", After: "on"}
		}, "modules-load.d"},
		{"the file for the next boot", func(x *Transaction) {
			x.Changes[0].Change = tune.Change{Kind: tune.GatewayFile, Target: tune.GatewayFileTarget, After: digest}
		}, "gateway-file"},
		{"a guard", func(x *Transaction) { x.Confirm = &Confirm{} }, "guarded"},
		{"a process to be signalled", func(x *Transaction) { x.Guard = Process{PID: 1} }, "guarded"},
		{"a lifeline", func(x *Transaction) { x.Lifeline = true }, "guarded"},
		{"files to come", func(x *Transaction) { x.Persist = true }, "guarded"},
	} {
		tx := sample()
		tx.Confirm, tx.Persist, tx.Guard = nil, false, Process{}
		tx.Changes = []Change{{Change: forwards, State: Applied}, {Change: rules, State: Applied}}
		c.edit(tx)
		end, err := j.Begin(tx)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		end()
		if _, err := j.Load(tx.ID); err != nil {
			t.Errorf("%s: root's: %v", c.name, err)
		}
		if err := os.Chown(j.path(tx.ID), other, other); err != nil {
			t.Fatal(err)
		}
		got, err := j.Load(tx.ID)
		switch {
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), "uid 12345") || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want an error with %q", c.name, err, c.want)
		case c.want == "" && (err != nil || !got.Foreign()):
			t.Errorf("%s: %+v, %v", c.name, got, err)
		case c.want == "":
			if err := j.Save(got); err != nil {
				t.Error(err)
			}
			if again, err := j.Load(tx.ID); err != nil || again.UID != other {
				t.Errorf("%s, saved as root: %+v, %v", c.name, again, err)
			}
		}
	}
	for name, plant := range map[string]func(path string) error{
		"pipe": func(path string) error { return syscall.Mkfifo(path, 0o666) },
		"link": func(path string) error { return os.Symlink(j.path("t0001"), path) },
	} {
		path := j.path("t0100")
		if err := errors.Join(plant(path), os.Lchown(path, other, other)); err != nil {
			t.Fatal(err)
		}
		if got, err := j.Load("t0100"); err == nil {
			t.Errorf("a %s was read: %+v", name, got)
		}
		os.Remove(path)
	}
}

// TestForeignSwapped: a user who may write to the directory replaces his transaction by
// another file while root undoes it. Root neither waits for that file nor writes to it.
func TestForeignSwapped(t *testing.T) {
	testutil.NeedRoot(t)
	const other = 12345
	j := newJournal(t)
	defer lock(t, j)()
	tx := sample()
	tx.Confirm, tx.Persist, tx.Guard = nil, false, Process{}
	tx.Changes = []Change{{Change: tune.Change{Kind: tune.Sysctl, Target: "net.ipv4.ip_forward", Before: "0", After: "1"}, State: Applied}}
	end, err := j.Begin(tx)
	if err != nil {
		t.Fatal(err)
	}
	end()
	path, victim := j.path(tx.ID), filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	pipe := func() error { return syscall.Mkfifo(path, 0o666) }
	for name, swap := range map[string]func() error{
		"pipe": pipe,
		"pipe that is read": func() error {
			err := pipe()
			f, errOpen := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
			t.Cleanup(func() { f.Close() })
			return errors.Join(err, errOpen)
		},
		"link to another's file": func() error { return os.Link(victim, path) },
	} {
		if err := os.Chown(path, other, other); err != nil {
			t.Fatal(err)
		}
		got, err := j.Load(tx.ID)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Remove(path), swap()); err != nil {
			t.Fatal(err)
		}
		got.Changes[0].State = Undone
		noted := make(chan error, 1)
		go func() { noted <- j.Note(got, 0) }()
		select {
		case err := <-noted:
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(testutil.Patience(5 * time.Second)):
			t.Fatalf("%s: still waits", name)
		}
		if again, err := j.Load(tx.ID); err != nil || again.UID != other || again.Changes[0].State != Undone {
			t.Errorf("%s: %+v, %v", name, again, err)
		}
		if text, err := os.ReadFile(victim); err != nil || len(text) > 0 {
			t.Errorf("%s: written into another file: %s, %v", name, text, err)
		}
	}
	// A large one costs root no more than it may.
	if err := errors.Join(os.Truncate(path, maxForeignBytes+1), os.Chown(path, other, other)); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Load(tx.ID); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("%v", err)
	}
}

type fixedClock time.Duration

func (c fixedClock) Now() time.Time          { return time.Unix(0, int64(c)) }
func (c fixedClock) Boottime() time.Duration { return time.Duration(c) }

func TestStatus(t *testing.T) {
	self, err := ReadProcess("/proc", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	reused := self
	reused.StartTicks--
	elsewhere := reused
	elsewhere.Namespace++

	cases := []struct {
		name string
		at   time.Duration
		edit func(*Transaction)
		want Status
	}{
		{"before the deadline", 4 * time.Second, func(*Transaction) {}, StatusPending},
		{"at the deadline", 5 * time.Second, func(*Transaction) {}, StatusOverdue},
		{"confirmed", 9 * time.Second, func(x *Transaction) { x.Confirm.Confirmed = true }, StatusApplied},
		{"no deadline", 9 * time.Second, func(x *Transaction) { x.Confirm = nil }, StatusApplied},
		{"being written", 0, func(x *Transaction) { x.Complete, x.Owner = false, self }, StatusApplying},
		{"writer died", 0, func(x *Transaction) { x.Complete, x.Owner = false, reused }, StatusInterrupted},
		{"held", 0, func(x *Transaction) { x.Confirm, x.Lifeline, x.Owner = nil, true, self }, StatusHeld},
		{"pid was reused", 0, func(x *Transaction) { x.Confirm, x.Lifeline, x.Owner = nil, true, reused }, StatusOrphaned},
		{"owner in another pid namespace", 0, func(x *Transaction) { x.Confirm, x.Lifeline, x.Owner = nil, true, elsewhere }, StatusHeld},
		{"lock is held from another pid namespace", 0, func(x *Transaction) { x.Complete, x.Owner, x.OwnerLock, x.OwnerRuns = false, elsewhere, true, true }, StatusApplying},
		{"lock ended in another pid namespace", 0, func(x *Transaction) { x.Complete, x.Owner, x.OwnerLock = false, elsewhere, true }, StatusInterrupted},
		{"lock ended, its number is another's", 0, func(x *Transaction) { x.Confirm, x.Lifeline, x.Owner, x.OwnerLock = nil, true, self, true }, StatusOrphaned},
		{"rebooted unconfirmed", 0, func(x *Transaction) { x.BootID = "b" }, StatusVoid},
		{"rebooted with files", 0, func(x *Transaction) { x.BootID, x.Confirm.Confirmed = "b", true }, StatusPersisted},
		{"rebooted without files", 0, func(x *Transaction) { x.BootID, x.Confirm, x.Changes = "b", nil, x.Changes[:1] }, StatusVoid},
		{"undone", 9 * time.Second, func(x *Transaction) { x.Changes[0].State, x.Changes[1].State = Undone, Undone }, StatusUndone},
		{"left", 9 * time.Second, func(x *Transaction) { x.Changes[0].State, x.Changes[1].State = Left, Undone }, StatusLeft},
		{"undone, other boot", 0, func(x *Transaction) { x.BootID, x.Changes[0].State, x.Changes[1].State = "b", Undone, Undone }, StatusUndone},
	}
	for _, c := range cases {
		tx := sample()
		c.edit(tx)
		view := View{ProcRoot: "/proc", BootID: "boot-a", Clock: fixedClock(c.at)}
		if got := view.Status(tx); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	view := View{BootID: "boot-a", Clock: fixedClock(2 * time.Second)}
	if got := view.Remaining(sample()); got != 3*time.Second {
		t.Errorf("remaining %s, want 3s", got)
	}
}
