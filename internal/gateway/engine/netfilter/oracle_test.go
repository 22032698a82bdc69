package netfilter

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// TestOracle compares what natkit writes for a gateway file with what nft(8) makes of
// a file that a person wrote, as nft(8) shows both.
func TestOracle(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "nft")
	t.Setenv("TZ", "UTC") // in which nft(8) reads and shows hours
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			plan := planOf(t, file)
			if slices.ContainsFunc(plan.Sources, func(e gateway.Entry) bool { return e.IsHairpin() }) {
				testutil.NeedFeature(t, testutil.Hairpin)
			}
			if slices.ContainsFunc(plan.Destinations, func(e gateway.Entry) bool { return e.Action.AllDown == nat.AllDownReject }) {
				testutil.NeedFeature(t, testutil.EarlyReject)
			}
			if len(plan.Helpers) > 0 {
				testutil.NeedFeature(t, testutil.NATHelpers)
			}
			ours, theirs := testutil.Namespace(t), testutil.Namespace(t)
			if err := Apply(ours, plan); err != nil {
				t.Fatal(err)
			}
			run(t, theirs, "nft", "-f", strings.TrimSuffix(file, ".yaml")+".nft")
			ourText, theirText := listing(t, ours), listing(t, theirs)
			if k, err := kernel(); err == nil && k.Before(5, 5) { // see untranslatable
				theirText = strings.ReplaceAll(theirText, "hook postrouting priority srcnat + 9;", "hook forward priority 120;")
			}
			if diff := cmp.Diff(strings.Split(theirText, "\n"), strings.Split(ourText, "\n")); diff != "" {
				t.Errorf("-nft -f, +natkit:\n%s\nnatkit's:\n%s", diff, ourText)
			}
		})
	}
}

// planOf compiles a file for a host of which nothing is known.
func planOf(t testing.TB, file string) *gateway.Plan {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return planOfText(t, file, string(text))
}

func planOfText(t testing.TB, name, text string) *gateway.Plan {
	t.Helper()
	f, err := gateway.Parse(name, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p, err := gateway.Compile(&f.Config, gateway.Facts{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// run runs a program in a namespace.
func run(t testing.TB, ns *netns.Handle, name string, args ...string) string {
	t.Helper()
	var out []byte
	err := ns.Do(func() (err error) {
		out, err = exec.Command(name, args...).CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// markText is natkit's mark in a listing, which no hand writes.
var markText = regexp.MustCompile(`(?s)\n\tchain natkit-mark \{.*?\n\t\}\n`)

// placesText are the elements of a map of places, which are too many to be written by hand.
var placesText = regexp.MustCompile(`(?s)(\n\tmap (?:hosts|checked)-[^{]*\{[^}]*?)\n\t\telements = \{[^}]*\}`)

// listing is nft's of natkit's table without the mark and without who is at which place.
func listing(t testing.TB, ns *netns.Handle) string {
	t.Helper()
	return placesText.ReplaceAllString(markText.ReplaceAllString(run(t, ns, "nft", "list", "ruleset"), ""), "$1")
}

// TestListable: nft(8) shows tables with maps that it has no words for to write them,
// too, and each rule once.
func TestListable(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "nft")
	testutil.NeedFeature(t, testutil.Hairpin)
	for _, kind := range []string{"hairpin", "ports", "stateless"} {
		ns, p := testutil.Namespace(t), largePlan(kind, 3)
		if err := Apply(ns, p); err != nil {
			t.Fatal(err)
		}
		text := listing(t, ns)
		for _, r := range build(p, host{netmap: true}).rules {
			if r.chain != MarkChain && strings.Count(text, `comment "`+r.comment+`"`) == 0 {
				t.Errorf("%s: no rule %q in\n%s", kind, r.comment, text)
			}
		}
		t.Log(text)
	}
}
