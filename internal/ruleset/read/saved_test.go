package read

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/convert"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/testutil"
)

// TestRulesetsAsSaved loads the texts of iptables-save that import is tested with: from
// the kernel, of iptables-nft and of iptables-legacy, comes what comes from the text.
func TestRulesetsAsSaved(t *testing.T) {
	files, err := filepath.Glob("../../gateway/convert/testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no texts: %v", err)
	}
	loaded := 0
	for _, name := range files {
		archive, err := txtar.ParseFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text, program, version := string(archive.Files[0].Data), "iptables", 4
		if strings.Contains(string(archive.Comment), "IPv6") {
			program, version = "ip6tables", 6
		}
		base := strings.TrimSuffix(filepath.Base(name), ".txtar")
		if !strings.Contains(text, "COMMIT") || slices.Contains(refused, base) {
			continue
		}
		loaded++
		for _, kind := range []string{"nft", "legacy"} {
			t.Run(base+"/"+kind, func(t *testing.T) { asSaved(t, program+"-"+kind, text, version) })
		}
	}
	if loaded < 20 {
		t.Errorf("%d texts were loaded", loaded)
	}
}

// refused are texts that iptables-restore itself refuses: jumps to chains that are not
// there, addresses of the other family.
var refused = []string{"chains", "other-family"}

func asSaved(t *testing.T, program, text string, version int) {
	ns := testutil.Namespace(t)
	world{t, ns}.run(text, program+"-restore")
	set, err := Tables(ns)
	if err != nil {
		t.Fatal(err)
	}
	kernel, err := convert.Import(set)
	if err != nil {
		t.Fatal(err)
	}
	saved, err := convert.Import(ruleset.Parse(text, version))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(ruleTexts(saved), ruleTexts(kernel)); diff != "" {
		t.Errorf("rules (-text +kernel):\n%s", diff)
	}
	if a, b := len(saved.Untranslated()), len(kernel.Untranslated()); a != b {
		t.Errorf("of the text %d are not translated, of the kernel's %d:\n%+v\n%+v", a, b, saved.Untranslated(), kernel.Untranslated())
	}
	saved.Config.NAT, saved.Config.IPv6, kernel.Config.NAT, kernel.Config.IPv6 = nil, nil, nil, nil
	if diff := cmp.Diff(saved.Config, kernel.Config, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("settings (-text +kernel):\n%s", diff)
	}
}

// ruleTexts are the rules, of which the order means nothing.
func ruleTexts(r *convert.Result) (all []string) {
	for _, rule := range slices.Concat(r.Config.NAT, r.Config.IPv6) {
		all = append(all, gateway.MarshalRule(rule))
	}
	slices.Sort(all)
	return all
}
