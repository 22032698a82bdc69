package doctor

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/anonymize"
	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/snapshot"
)

// firstForm has bundles that natkit wrote in the form natkit.bundle/1: real ones of a lab, which are read for ever.
const firstForm = "../collect/testdata/bundle-1"

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	file, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func idsOf(t *testing.T, file []byte) []string {
	t.Helper()
	rec, err := collect.ReadBundle(bytes.NewReader(file), nil)
	if err != nil {
		t.Fatal(err)
	}
	r := diagnose.Run(rec, diagnose.Rules())
	return r.IDs()
}

// TestFirstForm: the first form is read as it was, all of it.
func TestFirstForm(t *testing.T) {
	for name, want := range map[string]struct {
		ids     []string
		entries int64
		traced  bool
	}{
		"gateway": {[]string{"dnat-filtered"}, 87, false},
		"traced":  {[]string{"dnat-filtered"}, 104, true},
	} {
		file := readFile(t, filepath.Join(firstForm, name+".tar.gz"))
		if d := cmp.Diff(want.ids, idsOf(t, file)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		rec, err := collect.ReadBundle(bytes.NewReader(file), nil)
		if err != nil {
			t.Fatal(err)
		}
		last := rec.Last()
		if last.Netns.Name != "kit-gw" || last.Kernel.Release != "6.18.44-fc-v669" || last.Table.Sampled != want.entries || len(last.Sysctls) != 58 ||
			len(last.NATRules.Rules) != 3 || len(rec.Snapshots) != 2 || (rec.Followed != nil) != want.traced || (rec.Drops != nil) != want.traced {
			t.Errorf("%s: %s, %s, %d entries, %d sysctls, %d rules", name, last.Netns.Name, last.Kernel.Release, last.Table.Sampled, len(last.Sysctls), len(last.NATRules.Rules))
		}
		for _, s := range rec.Snapshots {
			for _, p := range s.Parts {
				if p.Error != "" {
					t.Errorf("%s: %s: %s", name, p.Name, p.Error)
				}
			}
		}
		if listed, err := collect.List(bytes.NewReader(file), nil); err != nil || listed.Bundle.Schema != "natkit.bundle/1" || len(listed.Recordings) != 1 {
			t.Errorf("%s: %+v, %v", name, listed, err)
		}
	}
}

// anonymized is a bundle by a key that does not change.
func anonymized(t *testing.T, file []byte) []byte {
	t.Helper()
	key, err := anonymize.NewKey([]byte("the key of these tests"))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := collect.Rewrite(&out, bytes.NewReader(file), collect.BundleOptions{Anonymize: anonymize.New(key)}); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestAnonymizedFindings: an anonymized bundle has the same findings, and the same numbers, as it was.
func TestAnonymizedFindings(t *testing.T) {
	files, err := filepath.Glob("../lab/run/testdata/recordings/*.tar.gz")
	if err != nil || len(files) < 40 {
		t.Fatalf("%d recordings, %v", len(files), err)
	}
	own, err := filepath.Glob(filepath.Join(firstForm, "*.tar.gz"))
	if err != nil || len(own) == 0 {
		t.Fatalf("%d bundles, %v", len(own), err)
	}
	found := 0
	for _, name := range append(files, own...) {
		file := readFile(t, name)
		secret := anonymized(t, file)
		want := checksOf(t, file)
		found += len(idsOf(t, file))
		if d := cmp.Diff(want, checksOf(t, secret)); d != "" {
			t.Errorf("%s (-as it was +anonymized):\n%s", filepath.Base(name), d)
		}
		if !bytes.Equal(unpacked(t, secret), unpacked(t, anonymized(t, file))) {
			t.Errorf("%s: one key makes two bundles", filepath.Base(name))
		}
	}
	if found < 20 {
		t.Errorf("%d findings in all recordings: they say nothing", found)
	}
}

// checksOf are the states of all checks, by their ids, and whether each part was read.
func checksOf(t *testing.T, file []byte) map[string]diagnose.State {
	t.Helper()
	rec, err := collect.ReadBundle(bytes.NewReader(file), nil)
	if err != nil {
		t.Fatal(err)
	}
	states := map[string]diagnose.State{}
	for _, c := range diagnose.Run(rec, diagnose.Rules()).Checks {
		states[c.ID] = c.State
	}
	for _, p := range rec.Last().Parts { // what could be read, too
		states["part "+p.Name] = map[bool]diagnose.State{true: diagnose.OK, false: diagnose.NotChecked}[p.Error == ""]
	}
	return states
}

func unpacked(t *testing.T, file []byte) []byte {
	t.Helper()
	gz, err := gzip.NewReader(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(gz)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestNothingLeaks greps an anonymized bundle of a lab for what identifies it: in text, as bytes in both orders, in
// hexadecimal of both cases. The bundle as it was has each of them.
func TestNothingLeaks(t *testing.T) {
	for _, name := range []string{"gateway", "traced"} {
		file := readFile(t, filepath.Join(firstForm, name+".tar.gz"))
		before, after := unpacked(t, file), unpacked(t, anonymized(t, file))
		rec, err := collect.ReadBundle(bytes.NewReader(file), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range append(secretsOf(rec), "acmefw", "secretproject", "clinic", "wanacme", "kit-gw", "nat6", "fc-v669") {
			if !bytes.Contains(before, []byte(secret)) {
				t.Errorf("%s: %q is not in the bundle", name, secret)
			}
			if bytes.Contains(bytes.ToLower(after), bytes.ToLower([]byte(secret))) {
				t.Errorf("%s: %q came through", name, secret)
			}
		}
		for _, text := range []string{"10.77.3.5", "10.77.3.1", "10.77.3.9", "81.2.69.142", "81.2.69.160", "fd42:1:2:3::5", "2a02:6b8:5::160", "2a02:6b8:5::142"} {
			for _, form := range formsOf(netip.MustParseAddr(text)) {
				if bytes.Contains(after, form) {
					t.Errorf("%s: the address %s came through as %q", name, text, form)
				}
			}
		}
	}
}

// secretsOf are the identifiers of the machine.
func secretsOf(rec *snapshot.Recording) []string {
	return []string{rec.Last().Kernel.BootID}
}

// formsOf are the ways in which an address may be written.
func formsOf(a netip.Addr) (all [][]byte) {
	b := a.AsSlice()
	reversed := slices.Clone(b)
	slices.Reverse(reversed)
	for _, raw := range [][]byte{b, reversed} {
		all = append(all, raw, []byte(hex.EncodeToString(raw)), []byte(strings.ToUpper(hex.EncodeToString(raw))))
	}
	return append(all, []byte(a.String()), []byte(a.StringExpanded()))
}

// TestAnonymizedTwice: what has been replaced can be replaced again, and a bundle says that it was.
func TestAnonymizedTwice(t *testing.T) {
	file := readFile(t, filepath.Join(firstForm, "gateway.tar.gz"))
	again := anonymized(t, anonymized(t, file))
	if d := cmp.Diff(idsOf(t, file), idsOf(t, again)); d != "" {
		t.Error(d)
	}
	listed, err := collect.List(bytes.NewReader(again), nil)
	if err != nil || !listed.Bundle.Anonymized {
		t.Errorf("%+v, %v", listed, err)
	}
	was, err := collect.List(bytes.NewReader(file), nil)
	if err != nil || !listed.Bundle.TakenAt.Equal(was.Bundle.TakenAt) {
		t.Errorf("taken at %v, was %v, %v", listed.Bundle.TakenAt, was.Bundle.TakenAt, err)
	}
	for n := 0; n < len(file); n += len(file) / 50 {
		err := collect.Rewrite(io.Discard, bytes.NewReader(file[:n]), collect.BundleOptions{Anonymize: anonymize.New(anonymize.Key{})})
		if err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%d of %d bytes: %v", n, len(file), err)
		}
	}
}
