package collect

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

var update = flag.Bool("update", false, "write what is understood into the test files")

// Each testdata/KERNEL.txtar holds the files of one kernel below /proc/net, and in
// "want" what is understood of them. Its comment says whether the texts were recorded.
func TestIPVSOfKernels(t *testing.T) {
	files, err := filepath.Glob("testdata/ipvs/*.txtar")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d files, error %v", len(files), err)
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			ar, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got := understoodIPVS(t, ar)
			if *update {
				ar.Files = append(slices.DeleteFunc(ar.Files, func(f txtar.File) bool { return f.Name == "want" }), txtar.File{Name: "want", Data: []byte(got)})
				if err := os.WriteFile(path, txtar.Format(ar), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if d := cmp.Diff(archived(ar, "want"), got); d != "" {
				t.Errorf("understood (-want +got):\n%s", d)
			}
		})
	}
}

func archived(ar *txtar.Archive, name string) string {
	for _, f := range ar.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	return ""
}

func understoodIPVS(t *testing.T, ar *txtar.Archive) string {
	t.Helper()
	v, err := parseIPVSServices(strings.NewReader(archived(ar, "ip_vs")))
	if err != nil {
		t.Fatal(err)
	}
	if text := archived(ar, "ip_vs_stats_percpu"); text != "" {
		if v.Stats, err = parseIPVSStats(strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
	v.Connections = ipvsSummary(t, archived(ar, "ip_vs_conn"))
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + "\n"
}

func ipvsSummary(t *testing.T, text string) *snapshot.IPVSConnections {
	t.Helper()
	table := newIPVSTable()
	table.complete = true
	if err := parseIPVSConnections(strings.NewReader(text), table.add); err != nil {
		t.Fatal(err)
	}
	return table.summary(nil, 10)
}

func TestIPVSConnectionsCutOff(t *testing.T) {
	const line = "TCP C6120109 0800 C6120050 01BB C613000B 01BB TIME_WAIT       117\n"
	whole := connHeader + line + line
	for n := range len(whole) + 1 {
		count := 0
		err := parseIPVSConnections(strings.NewReader(whole[:n]), func(*ipvsConnection) { count++ })
		want := max(0, n-len(connHeader)) / len(line)
		if err != nil || count != want {
			t.Fatalf("%d bytes: %d entries, expected %d; error %v", n, count, want, err)
		}
	}
}

func TestIPVSRubbish(t *testing.T) {
	for _, text := range []string{
		"x\n", connHeader + "TCP\n", connHeader + "TCP C6120109 0800 C6120050 01BB C613000B 01BB TIME_WAIT soon\n",
		connHeader + "TCP C612010 0800 C6120050 01BB C613000B 01BB TIME_WAIT 1\n", connHeader + "TCP C6120109 800 C6120050 01BB C613000B 01BB TIME_WAIT 1\n",
		connHeader + "TCP fe80::1%eth0 0800 C6120050 01BB C613000B 01BB TIME_WAIT 1\n", connHeader + strings.Repeat("x", 1<<17) + "\n",
	} {
		if err := parseIPVSConnections(strings.NewReader(text), func(*ipvsConnection) {}); err == nil {
			t.Errorf("%.80q was accepted", text)
		}
	}
	const head = "IP Virtual Server version 1.2.1 (size=4096)\n"
	for _, text := range []string{
		"", "IP Virtual Server\n", head + "  -> C613000B:0050 Masq 1 0 0\n", head + "TCP  C6120050 rr\n", head + "FWM  x rr\n", head + "TCP  C6120050:01BB\n",
		head + "TCP  C6120050:01BB rr\n  -> C613000B:0050 Masq 1 0\n", head + "TCP  C6120050:01BB rr\n  -> C613000B:0050 Masq x 0 0\n",
	} {
		if v, err := parseIPVSServices(strings.NewReader(text)); err == nil || v != nil {
			t.Errorf("%.80q was accepted", text)
		}
	}
	for _, text := range []string{"", "Total\n", "  0 X 1 2 3 4\n"} {
		if s, err := parseIPVSStats(strings.NewReader(text)); err == nil || s != nil {
			t.Errorf("%.80q was accepted", text)
		}
	}
}

func FuzzIPVS(f *testing.F) {
	files, _ := filepath.Glob("testdata/ipvs/*.txtar")
	for _, path := range files {
		ar, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for _, m := range ar.Files {
			f.Add(string(m.Data))
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		defer testutil.Bounded(t, len(text))()
		if v, err := parseIPVSServices(strings.NewReader(text)); (err == nil) == (v == nil) {
			t.Errorf("services %v with error %v", v, err)
		}
		if s, err := parseIPVSStats(strings.NewReader(text)); (err == nil) == (s == nil) {
			t.Errorf("stats %v with error %v", s, err)
		}
		first, second := newIPVSTable(), newIPVSTable()
		_ = parseIPVSConnections(strings.NewReader(text), first.add)
		_ = parseIPVSConnections(strings.NewReader(text), second.add)
		second.at = 3
		s := second.summary(first, 5)
		for _, u := range s.Services {
			if u.SameServer > u.UsedAgain || u.UsedAgain > u.Entries || u.Ended > u.Entries {
				t.Errorf("more of a part than of the whole: %+v", u)
			}
		}
	})
}
