package apply

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/gateway/engine/fake"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/tune"
)

// TestEngineOfTheHost: preview, apply, undo and the service ask the host's engines, and
// no other.
func TestEngineOfTheHost(t *testing.T) {
	w := newWorld(t)
	w.Host.Engines = engine.Set{&fake.Engine{}}
	a, _ := w.apply(masqueradeText, 0)
	_, second := w.apply(snatText, 0)
	if w.state().Present {
		t.Error("the kernel has a table")
	}
	if v, err := w.Preview(t.Context(), wish(snatText)); err != nil || len(v.Plan.Changes) != 0 {
		t.Errorf("what is in force would be applied again: %+v, %v", v, err)
	}
	if _, err := w.Undo(second); err != nil {
		t.Error(err)
	}
	w.want(a)
	if p, err := w.InForce(); err != nil || p == nil || p.Sources[0].Action.Kind != nat.Masquerade {
		t.Errorf("in force is %+v, %v", p, err)
	}
	s := w.serve(snatText)
	s.end()
	s.begin(func(s *Service) { s.UndoOnExit = true })
	s.end()
	s.want(a)
}

// TestEngineFails: what the engine does not take is not half in force.
func TestEngineFails(t *testing.T) {
	w := newWorld(t)
	refused := errors.New("too much for it")
	w.Host.Engines = engine.Set{&fake.Engine{Fails: refused}}
	r, err := w.Prepare(t.Context(), wish(masqueradeText))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Apply(t.Context(), 0); !errors.Is(err, refused) {
		t.Errorf("%v", err)
	}
	w.want(tune.GatewayNone)
	w.wantSysctl(Forward4, "0")
}

// TestEngineFailsOverAPlan: the rules before stay in force, and it is still known how they
// were written.
func TestEngineFailsOverAPlan(t *testing.T) {
	w := newWorld(t)
	e := &fake.Engine{}
	w.Host.Engines = engine.Set{e}
	a, _ := w.apply(masqueradeText, 0)
	seal := w.store().Seal(w.ns.Inode(), e.Name())
	e.Fails = errors.New("too much for it")
	if _, err := w.prepare(wish(snatText)).Apply(t.Context(), 0); !errors.Is(err, e.Fails) {
		t.Errorf("%v", err)
	}
	w.want(a)
	if got := w.store().Seal(w.ns.Inode(), e.Name()); got != seal || seal == "" {
		t.Errorf("seal %q, was %q", got, seal)
	}
}

// TestEngineThatIsMissing: --force does not bring it.
func TestEngineThatIsMissing(t *testing.T) {
	w := newWorld(t)
	w.Host.Engines = engine.Set{&fake.Engine{}}
	forced := wish("gateway: {engine: ebpf, nat: [{masquerade: {}}]}\n")
	forced.Force = true
	if _, err := w.Prepare(t.Context(), forced); !errors.As(err, new(Obstacle)) {
		t.Errorf("%v", err)
	}
	w.want(tune.GatewayNone)
}

// stopping is an engine that is signalled to end once it has put rules in force: a service
// manager stops what it has just started.
type stopping struct {
	*fake.Engine
	stop func()
}

func (e stopping) Apply(ns *netns.Handle, p *gateway.Plan, digest string) (string, error) {
	defer e.stop()
	return e.Engine.Apply(ns, p, digest)
}

// TestServiceStoppedAsItBegins: a stop leaves the rules in force, also one that comes while
// the service applies: what has begun is done whole, and is not taken back. One that comes
// before leaves all as it was.
func TestServiceStoppedAsItBegins(t *testing.T) {
	w := newWorld(t)
	ctx, stop := context.WithCancel(t.Context())
	w.Host.Engines = engine.Set{stopping{&fake.Engine{}, stop}}
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(file, []byte(masqueradeText), 0o644); err != nil {
		t.Fatal(err)
	}
	s := Service{Host: w.Host, File: file, Log: func(string) {}, Getenv: func(string) string { return "" }}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := s.Run(ended); err != nil {
		t.Errorf("stopped before: %v", err)
	}
	w.want(tune.GatewayNone)
	w.wantSysctl(Forward4, "0")
	if err := s.Run(ctx); err != nil || ctx.Err() == nil {
		t.Errorf("stopped meanwhile: %v, %v", err, ctx.Err())
	}
	if p, err := w.InForce(); err != nil || p == nil {
		t.Errorf("in force: %+v, %v", p, err)
	}
	w.wantSysctl(Forward4, "1")
	open, err := w.Transactions()
	if err != nil || len(open) != 1 || !open[0].Complete {
		t.Errorf("%+v, %v", open, err)
	}
}

// both is a file with rules of two engines.
const both = `gateway:
  interfaces: {wan: wan0, lan: lan0}
  nat:
    - static: {inside: 192.168.0.9, outside: 203.0.113.9}
    - masquerade: {from: 192.168.0.0/16}
`

// TestEnginesTogether: each has a change of its own in the journal; all of them are in
// force, or none is.
func TestEnginesTogether(t *testing.T) {
	w := newWorld(t)
	static, rest := &fake.Engine{Word: "static", Only: []string{"static"}}, &fake.Engine{}
	w.Engines = engine.Set{static, rest}
	a, first := w.apply(masqueradeText, 0)
	wantValues := func(ofStatic, ofRest string) {
		t.Helper()
		s, err := w.State()
		if err != nil {
			t.Fatal(err)
		}
		if got, other := Value(s.Engines["static"]), Value(s.Engines[gateway.EngineNetfilter]); got != ofStatic || other != ofRest {
			t.Errorf("in force: %s and %s, want %s and %s", got, other, ofStatic, ofRest)
		}
	}
	wantValues(tune.GatewayNone, a)
	r := w.prepare(wish(both))
	if c := r.Carriers; len(c) != 2 || c[0].Engine != "static" || c[1].Engine != gateway.EngineNetfilter || len(c[1].Notes) != 1 || c[1].Notes[0].Because != "it is for static alone" {
		t.Errorf("%+v", c)
	}
	rest.Fails = errors.New("too much for it")
	if _, err := r.Apply(t.Context(), 0); !errors.Is(err, rest.Fails) {
		t.Errorf("%v", err)
	}
	wantValues(tune.GatewayNone, a)
	rest.Fails = nil
	b, second := w.apply(both, 0)
	wantValues(b, b)
	w.want(b)
	var targets []string
	for _, c := range w.load(second).Changes {
		if c.Kind == tune.Gateway {
			targets = append(targets, c.Target)
		}
	}
	inode := w.ns.Inode()
	if want := []string{tune.GatewayTarget(inode, "netfilter"), tune.GatewayTarget(inode, "static")}; !slices.Equal(targets, want) {
		t.Errorf("%q, want %q", targets, want)
	}
	if p, err := w.InForce(); err != nil || p == nil || len(p.Assigned) != 1 {
		t.Errorf("in force is %+v, %v", p, err)
	}
	// The next file has nothing for the first engine.
	c, third := w.apply(masqueradeText, 0)
	wantValues(tune.GatewayNone, c)
	for _, step := range []struct{ id, static, rest string }{{third, b, b}, {second, tune.GatewayNone, a}, {first, tune.GatewayNone, tune.GatewayNone}} {
		if _, err := w.Undo(step.id); err != nil {
			t.Fatal(err)
		}
		wantValues(step.static, step.rest)
	}
}

// TestEnginesThatDisagree: a natkit that was killed between two engines has left one with
// the new plan. It is not taken for in force, and can be undone.
func TestEnginesThatDisagree(t *testing.T) {
	w := newWorld(t)
	static, rest := &fake.Engine{Word: "static", Only: []string{"static"}}, &fake.Engine{}
	w.Engines = engine.Set{static, rest}
	_, id := w.apply(both, 0)
	if err := rest.Remove(w.ns); err != nil {
		t.Fatal(err)
	}
	s, err := w.State()
	if err != nil || s.Integrity != gateway.RulesChanged || len(s.Changes) != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := w.Prepare(t.Context(), wish(masqueradeText)); !errors.Is(err, ErrChanged) {
		t.Errorf("%v", err)
	}
	if tx, err := w.Undo(id); err != nil || !tx.Finished() {
		t.Errorf("%+v, %v", tx, err)
	}
	w.want(tune.GatewayNone)
}

// TestJournalOfAnEarlierVersion: it names natkit's table where later ones name the engine.
// It is undone alone, and hands over to a transaction of this version.
func TestJournalOfAnEarlierVersion(t *testing.T) {
	for _, later := range []bool{false, true} {
		w := newWorldIn(t)
		_, id := w.apply(masqueradeText, 0)
		tx := w.load(id)
		for i := range tx.Changes {
			if c := &tx.Changes[i]; c.Kind == tune.Gateway {
				c.Target = fmt.Sprintf("netns %d inet natkit", w.ns.Inode())
			}
		}
		unlock, err := w.Apply.Journal.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Apply.Journal.Save(tx); err != nil {
			t.Fatal(err)
		}
		unlock()
		ids := []string{id}
		if later {
			_, second := w.apply(snatText, 0)
			ids = append(ids, second)
		}
		for _, id := range ids { // the older one first
			if tx, err := w.Undo(id); err != nil || !tx.Finished() {
				t.Fatalf("%+v, %v", tx, err)
			}
		}
		w.want(tune.GatewayNone)
		w.wantSysctl(Forward4, "0")
	}
}

// unread is an engine of which nobody can read what it has in force.
type unread struct {
	engine.Engine
	why error
}

func (u unread) Read(*netns.Handle, string, func(string) *gateway.Plan) (*gateway.State, error) {
	return nil, u.why
}

// TestWhatIsInForceCannotBeRead: what is wrong with a file is said first.
func TestWhatIsInForceCannotBeRead(t *testing.T) {
	w := newWorld(t)
	why := errors.New("not permitted")
	w.Host.Engines = engine.Set{unread{&fake.Engine{}, why}}
	if r, err := w.Prepare(t.Context(), wish("gateway: {nat: [snat: {from: 10.0.0.1, to: 224.0.0.1}]}")); !errors.As(err, new(Refused)) || len(r.Findings) == 0 {
		t.Errorf("a file that is refused: %+v, %v", r, err)
	}
	if _, err := w.Prepare(t.Context(), wish("gateway: [")); err == nil || errors.Is(err, why) {
		t.Errorf("a file that is none: %v", err)
	}
	if _, err := w.Prepare(t.Context(), wish(masqueradeText)); !errors.Is(err, why) {
		t.Errorf("%v", err)
	}
}
