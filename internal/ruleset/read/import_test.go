package read

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/gateway/convert"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/tools/txtar"
)

// TestRulesetsOfNft loads each testdata/*.txtar with nft and compares what the kernel's
// rules become: the gateway file, and what is not in it (UPDATE=1 writes both anew).
func TestRulesetsOfNft(t *testing.T) {
	files, err := filepath.Glob("testdata/import/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) { nftCase(t, name) })
	}
}

func nftCase(t *testing.T, name string) {
	t.Setenv("TZ", "UTC") // by which nft reads hours
	archive, err := txtar.ParseFile(name)
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string]string{}
	for _, f := range archive.Files {
		parts[f.Name] = string(f.Data)
	}
	if strings.Contains(parts["rules"], " prefix to ") {
		testutil.NeedFeature(t, testutil.NATPrefix)
	}
	ns := testutil.Namespace(t)
	world{t, ns}.run(parts["rules"], "nft", "-f", "-")
	set, err := Tables(ns)
	if err != nil {
		t.Fatal(err)
	}
	r, err := convert.Import(set)
	if err != nil {
		t.Fatal(err)
	}
	fromText(t, ns, r)
	var notes strings.Builder
	for _, n := range r.Notes {
		fmt.Fprintf(&notes, "%s %d: %s: %s\n", n.Kind, n.Rules, n.Text, n.Reason)
	}
	got := []txtar.File{archive.Files[0], {Name: "file", Data: []byte(r.YAML())}, {Name: "notes", Data: []byte(notes.String())}}
	if os.Getenv("UPDATE") != "" {
		archive.Files = got
		if err := os.WriteFile(name, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range got {
		if diff := cmp.Diff(parts[f.Name], string(f.Data)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", f.Name, diff)
		}
	}
}

// fromText compares what the kernel's rules become with what the text of `nft list ruleset`
// becomes: the same, or less where that has maps, and then it says so.
func fromText(t *testing.T, ns *netns.Handle, kernel *convert.Result) {
	t.Helper()
	testutil.NeedProgram(t, "nft")
	var text []byte
	err := ns.Do(func() (err error) {
		text, err = exec.Command("nft", "list", "ruleset").Output()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	read, err := convert.Import(ruleset.Parse(string(text), 4))
	if err != nil {
		t.Fatal(err)
	}
	want, got := ruleTexts(kernel), ruleTexts(read)
	for _, rule := range got {
		if !slices.Contains(want, rule) {
			t.Errorf("of the text alone: %s\n%s", rule, text)
		}
	}
	if len(got) < len(want) && !strings.Contains(string(text), "map") && !strings.Contains(string(text), "meta hour") {
		t.Errorf("rules (-kernel +text):\n%s\n%+v\n%s", cmp.Diff(want, got), read.Notes, text)
	}
	if len(got) < len(want) && read.Exact() {
		t.Errorf("of the text come fewer rules, and no note says so:\n%s", text)
	}
}
