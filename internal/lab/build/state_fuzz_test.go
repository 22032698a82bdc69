package build

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/natkit/natkit/internal/testutil"
)

// FuzzReadState reads a modified record of a lab.
func FuzzReadState(f *testing.F) {
	dir := f.TempDir()
	if err := os.MkdirAll(filepath.Dir(statePath(dir, "fuzz")), 0o700); err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{"schema":"` + StateSchema + `","pid":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		defer testutil.Bounded(t, len(text))()
		if err := os.WriteFile(statePath(dir, "fuzz"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := ReadState(dir, "fuzz"); err == nil && s.Schema != StateSchema {
			t.Errorf("schema %q", s.Schema)
		}
	})
}
