package apply

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
)

// Somebody takes all rules away (`systemctl restart nftables` flushes the ruleset): the
// same file applied again stays, and an undo leads to what was before the service.
func TestServiceAfterAFlush(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	w := newWorld(t)
	s := w.serve(masqueradeText)
	digest := s.value()
	w.ip("nft flush ruleset")
	s.reload <- unix.SIGHUP
	within(t, 30*time.Second, "reloaded", func() bool { return s.notified(wordReady) == 2 })
	s.want(digest)
	w.wantSysctl(Forward4, "1")
	s.end()
	open, err := w.Transactions()
	if err != nil || len(open) != 1 {
		t.Fatalf("%+v, %v", open, err)
	}
	if _, err := w.Undo(open[0].ID); err != nil {
		t.Fatal(err)
	}
	w.want(tune.GatewayNone)
	w.wantSysctl(Forward4, "0")
}

// TestServiceMissesItsRules: a flush is noticed without a reload, and connections that
// there were are translated as before; an undo, which takes the same rules away, it does
// not work against, however long that takes.
func TestServiceMissesItsRules(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	w := newWorld(t)
	w.ip("ip addr add 192.168.0.9/24 dev lan0")
	s := w.serve(masqueradeText)
	digest := s.value()
	w.send("192.168.0.9:4000", "203.0.113.99:53")
	plan, err := w.InForce()
	if err != nil {
		t.Fatal(err)
	}
	w.ip("nft flush ruleset")
	began := time.Now()
	s.waitValue("the same rules again", func(v string) bool { return v == digest })
	t.Logf("without rules for %v", time.Since(began))
	if had, err := w.Orphans(t.Context(), plan, nil); err != nil || len(had.Keys) != 1 || had.Cut {
		t.Errorf("of the connection before: %+v, %v", had, err)
	}
	var open []*journal.Transaction
	within(t, 30*time.Second, "one transaction in the place of the former", func() bool {
		var err error
		open, err = w.Transactions()
		return err == nil && len(open) == 1
	})
	unlock, err := w.Apply.Journal.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Engines.Remove(w.ns); err != nil { // as an undo does
		t.Fatal(err)
	}
	w.ip("ip addr add 192.168.0.10/24 dev lan0") // nor does an address that comes meanwhile bring them back
	time.Sleep(2 * settle)                       // several looks of the service, which has to wait
	open[0].Changes[0].State, open[0].Changes[1].State = journal.Undone, journal.Undone
	if err := w.Apply.Journal.Save(open[0]); err != nil {
		t.Fatal(err)
	}
	unlock()
	s.waitSaid("was undone by another process")
	s.want(tune.GatewayNone)
	// Once at most: an address that the kernel adds late brings them back as well.
	if strings.Count(s.said(), "the rules were removed;") > 1 {
		t.Errorf("said: %s", s.said())
	}
	s.end()
}

// Somebody applies another file while the service holds its own, and the service puts
// its own in force again: it stays, and nothing that was undone or ends takes it away.
func TestServiceOverAnApply(t *testing.T) {
	w := newWorld(t)
	s := w.serve(masqueradeText)
	own := s.value()
	other, id := w.apply(snatText, later)
	s.want(other)
	s.reload <- unix.SIGHUP
	within(t, 30*time.Second, "reloaded", func() bool { return s.notified(wordReady) == 2 })
	s.want(own)
	w.expire(id)
	s.want(own)
	w.wantSysctl(Accounting, "0")
	w.wantSysctl(Forward4, "1")
	s.end()
	open, err := w.Transactions()
	if err != nil || len(open) != 1 {
		t.Fatalf("%+v, %v", open, err)
	}
	if _, err := w.Undo(open[0].ID); err != nil {
		t.Fatal(err)
	}
	w.want(tune.GatewayNone)
	w.wantSysctl(Forward4, "0")
}
