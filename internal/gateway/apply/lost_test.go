package apply

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/tune"
)

// damage overwrites the plan of a digest in the store.
func (w *world) damage(digest string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.store().Dir(), digest+".json"), []byte("{}"), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// The plan in force is damaged in the store: an undo does not need it, and does not fail
// for it; what would have to put it back is refused, before anything is changed.
func TestPlanInForceIsDamaged(t *testing.T) {
	w := newWorld(t)
	a, first := w.apply(masqueradeText, 0)
	w.damage(a)
	if p, err := w.InForce(); p != nil || err != nil {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := w.Prepare(t.Context(), wish(snatText)); err == nil || !strings.Contains(err.Error(), "damaged") || !strings.Contains(err.Error(), "--overwrite") {
		t.Errorf("%v", err)
	}
	over := wish(snatText)
	over.Overwrite = true
	r := w.prepare(over)
	if _, err := r.Apply(t.Context(), time.Minute); err == nil || !strings.Contains(err.Error(), "without --confirm") {
		t.Errorf("with a confirmation: %v", err)
	}
	w.want(a)
	applied, err := r.Apply(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Undo(applied.ID()); err == nil || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("undo: %v", err)
	}
	w.want(r.Digest)
	w.wantSysctl(Accounting, "1")
	w.wantSysctl(Forward4, "1")
	// The older one, which led from nothing to the plan that is lost, is handed over; the
	// undo of the newer one then leads there.
	for _, id := range []string{first, applied.ID()} {
		if _, err := w.Undo(id); err != nil {
			t.Error(err)
		}
	}
	w.want(tune.GatewayNone)
	w.wantSysctl(Forward4, "0")
}

// A file without an end is refused, not read into memory.
func TestFileThatIsTooLong(t *testing.T) {
	long := filepath.Join(t.TempDir(), "long.yaml")
	if err := errors.Join(os.WriteFile(long, nil, 0o600), os.Truncate(long, 2*gateway.MaxSource)); err != nil {
		t.Fatal(err)
	}
	text, err := ReadFile(long)
	if err != nil || len(text) != gateway.MaxSource+1 {
		t.Fatalf("%d bytes, %v", len(text), err)
	}
	if _, err := gateway.Parse("long", text); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("%v", err)
	}
	for _, name := range []string{t.TempDir(), "/dev/zero"} {
		if _, err := ReadFile(name); err == nil {
			t.Errorf("%s was read", name)
		}
	}
	if _, err := ReadFile("none.yaml"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}
