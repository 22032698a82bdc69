package ruleset

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// TestAuditOfRealRules: rules that programs and administrators keep on hosts that work are not
// reported.
func TestAuditOfRealRules(t *testing.T) {
	files, err := filepath.Glob("../gateway/convert/testdata/real-*.txtar")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, file := range files {
		ar, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		a := Audit(Parse(string(ar.Files[0].Data), 4).Tables, func(netip.Addr) string { return "lan0" })
		if strings.HasSuffix(file, "real-sources.txtar") { // a question of why rules have no effect
			if len(a.Shadowed) != 2 {
				t.Errorf("%s: %+v", file, a.Shadowed)
			}
			continue
		}
		for _, s := range a.Shadowed {
			t.Errorf("%s: %s\n behind %s", file, s.Text, s.By.Text)
		}
		for _, u := range a.Untracked {
			t.Errorf("%s: %s\n untracked by %s", file, u.Text, u.By.Text)
		}
		if a.TooMany {
			t.Errorf("%s: too many rules", file)
		}
	}
}
