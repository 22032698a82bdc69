package run

import (
	"bytes"
	"io"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/anonymize"
	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/testutil"
)

// TestAnonymizedScenarios: with its connections, which the recordings lack, a bundle of a fault has the same findings
// once it is anonymized.
func TestAnonymizedScenarios(t *testing.T) {
	testutil.NeedRoot(t)
	key, err := anonymize.NewKey([]byte("the key of this test"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"service-unanswered", "snat-ports-exhausted", "kube-no-endpoints"} {
		t.Run(name, func(t *testing.T) {
			sc, err := lab.Find(name)
			if err != nil {
				t.Fatal(err)
			}
			for stage, file := range bundlesOf(t, sc) {
				var secret bytes.Buffer
				if err := collect.Rewrite(&secret, bytes.NewReader(file), collect.BundleOptions{Anonymize: anonymize.New(key)}); err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(foundIn(t, file), foundIn(t, secret.Bytes())); d != "" {
					t.Errorf("stage %s (-as it was +anonymized):\n%s", stage, d)
				}
			}
		})
	}
}

// bundlesOf runs a scenario and returns what doctor read, by stage.
func bundlesOf(t *testing.T, sc *lab.Scenario) map[string][]byte {
	t.Helper()
	var mutex sync.Mutex
	written := map[string]*bytes.Buffer{}
	o := options(t)
	o.Bundle = func(stage string) io.Writer {
		mutex.Lock()
		defer mutex.Unlock()
		written[stage] = &bytes.Buffer{}
		return written[stage]
	}
	if _, err := Run(t.Context(), sc, o); err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for stage, file := range written {
		files[stage] = file.Bytes()
	}
	if len(files) == 0 {
		t.Fatal("no stage with a doctor")
	}
	return files
}

func foundIn(t *testing.T, file []byte) []string {
	t.Helper()
	rec, err := collect.ReadBundle(bytes.NewReader(file), nil)
	if err != nil {
		t.Fatal(err)
	}
	r := diagnose.Run(rec, diagnose.Rules())
	return r.IDs()
}
