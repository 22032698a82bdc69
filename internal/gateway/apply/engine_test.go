package apply

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/gateway/engine/fake"
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

// stopping is an engine that is told to end as it has put rules in force: a service manager
// stops what it has just started.
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
