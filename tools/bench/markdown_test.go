package bench

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/natkit/natkit/internal/report"
)

var update = flag.Bool("update", false, "write the golden files anew")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (go test ./tools/bench -update writes it)", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got); go test ./tools/bench -update accepts it:\n%s", path, diff)
	}
}

func TestMarkdown(t *testing.T) { golden(t, "fake.md", whole(t).Markdown()) }

func TestJSON(t *testing.T) {
	r := whole(t)
	var text bytes.Buffer
	if err := report.JSON(&text, r); err != nil {
		t.Fatal(err)
	}
	golden(t, "fake.json", text.String())
	var back Result
	if err := json.Unmarshal(text.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	ignore := []cmp.Option{cmpopts.IgnoreUnexported(Result{}), cmpopts.IgnoreFields(Quantity{}, "Text"), cmpopts.IgnoreFields(Result{}, "Parameters")}
	if diff := cmp.Diff(r, &back, ignore...); diff != "" {
		t.Errorf("what is read back differs (-written +read):\n%s", diff)
	}
}

func TestReplaceSection(t *testing.T) {
	r := whole(t)
	const doc = "# Title\n<!-- fake: begin -->\nold\n<!-- fake: end -->\nrest\n"
	got, err := r.replaceSection([]byte(doc))
	if want := strings.Replace(doc, "old\n", r.Markdown(), 1); err != nil || string(got) != want {
		t.Errorf("%v, got:\n%s", err, got)
	}
	appended, err := r.replaceSection([]byte("# Title\n\n"))
	want := "# Title\n\n## A fake\n\nNothing is measured here.\n\n<!-- fake: begin -->\n" + r.Markdown() + "<!-- fake: end -->\n"
	if err != nil || string(appended) != want {
		t.Errorf("%v, got:\n%s", err, appended)
	}
	if again, err := r.replaceSection(appended); err != nil || string(again) != want {
		t.Errorf("a second time: %v, got:\n%s", err, again)
	}
	for _, broken := range []string{"<!-- fake: begin -->\n", "<!-- fake: end -->\n", "<!-- fake: end -->\n<!-- fake: begin -->\n"} {
		if got, err := r.replaceSection([]byte(broken)); err == nil {
			t.Errorf("%q gave %q", broken, got)
		}
	}
}

func TestWrite(t *testing.T) {
	r, dir := whole(t), t.TempDir()
	doc := filepath.Join(dir, "figures.md")
	if err := r.Write(doc); err == nil {
		t.Error("wrote into a document that is not there")
	}
	if err := os.WriteFile(doc, []byte("<!-- fake: begin -->\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.Write(doc); err == nil {
		t.Error("wrote into a document without an end")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("a refused document left %v, %v", left, err)
	}
	if err := os.WriteFile(doc, []byte("<!-- fake: begin -->\n<!-- fake: end -->\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.Write(doc); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(doc)
	if err != nil || !strings.Contains(string(text), "| natkit | ab | wrk |") {
		t.Errorf("%v in:\n%s", err, text)
	}
	data, err := os.ReadFile(filepath.Join(dir, "figures", "fake.json"))
	if err != nil || !bytes.Contains(data, []byte(`"schema": "natkit.benchmark/1"`)) {
		t.Errorf("%v in:\n%s", err, data)
	}
}
