package run

import (
	"errors"
	"testing"

	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/gateway/engine/fake"
	"github.com/natkit/natkit/internal/tune"
)

// TestEngineOfTheHost: preview, apply, undo and the service ask the host's engines, and
// no other.
func TestEngineOfTheHost(t *testing.T) {
	w := newWorld(t)
	w.Host.Apply.Engines = engine.Set{&fake.Engine{}}
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
	if p, err := w.InForce(); err != nil || p == nil || !p.Sources[0].Masquerade {
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
	w.Host.Apply.Engines = engine.Set{&fake.Engine{Fails: refused}}
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

// TestEngineOfALaterVersion: --force does not bring one that is not there.
func TestEngineOfALaterVersion(t *testing.T) {
	w := newWorld(t)
	forced := wish("gateway: {engine: ebpf, nat: [{masquerade: {}}]}\n")
	if _, err := w.Prepare(t.Context(), forced); !errors.As(err, new(Refused)) {
		t.Errorf("%v", err)
	}
	forced.Force = true
	if _, err := w.Prepare(t.Context(), forced); err == nil || errors.As(err, new(Refused)) {
		t.Errorf("%v", err)
	}
	w.want(tune.GatewayNone)
}
