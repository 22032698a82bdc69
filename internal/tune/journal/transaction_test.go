package journal

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
	got, err := decode(bytes.NewReader(good))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sample(), got); diff != "" {
		t.Error(diff)
	}
	bad := []struct{ old, new, want string }{
		{Schema, "natkit.journal/2", "schema"},
		{"t0001", "../../x", "malformed"},
		{"boot-a", "", "boot_id"},
		{`"applied"`, `"eaten"`, `state "eaten" is unknown`},
		{"net.core.somaxconn", "net.//.passwd", "relative part"},
		{`"changes": [`, `"changes": [7,`, "not a journal file"},
		{`"origin": "tune"`, `"origin": ""`, "origin"},
		{string(good[len(good)-20:]), "", "not a journal file"},
		{"\n}\n", "\n}\n{}", "text after the end"},
		{`"origin": "tune"`, `"origin": "` + strings.Repeat("x", maxFileBytes) + `"`, "larger than"},
	}
	for _, c := range bad {
		text := strings.ReplaceAll(string(good), c.old, c.new)
		if text == string(good) {
			t.Fatalf("%q does not occur", c.old)
		}
		got, err := decode(strings.NewReader(text))
		if err == nil || !strings.Contains(err.Error(), c.want) || got != nil {
			t.Errorf("%q for %q: %v, %v; want nil and an error with %q", c.new[:min(30, len(c.new))], c.old, got, err, c.want)
		}
	}
	// What a newer natkit adds does not hinder an undo.
	newer := strings.Replace(string(good), `"origin"`, `"colour": {"red": 1}, "origin"`, 1)
	if _, err := decode(strings.NewReader(newer)); err != nil {
		t.Errorf("unknown field: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	good, _ := sample().encode()
	f.Add(good)
	f.Add([]byte("{}"))
	f.Add([]byte(`{"schema":"natkit.journal/1","id":"t9999999999"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		defer testutil.Bounded(t, len(b))()
		tx, err := decode(bytes.NewReader(b))
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
		again, err := decode(bytes.NewReader(text))
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
