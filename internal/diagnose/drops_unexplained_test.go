package diagnose

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Advice that names what is IPv4's alone has its counterpart for packets of IPv6.
func TestAdviceForBothFamilies(t *testing.T) {
	v4 := regexp.MustCompile(`ipv4|'ip (route|neigh|address)|ICMP 'frag`)
	kinds := []dropKind{dropUnspecified, dropNormal, "wanted", "local", dropLoss, dropNoise, dropQueue}
	for name, r := range texts().Drops {
		if v4.MatchString(r.Hint) && r.HintIPv6 == "" && name != "IP_LOCALNET" { // of 127.0.0.0/8
			t.Errorf("%s: %q, and nothing for IPv6", name, r.Hint)
		}
		if !slices.Contains(kinds, r.Kind) || r.Means == "" || r.Risk != "" && r.Hint == "" {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// TestTexts: what the code asks for by name is there, nothing else is, and each argument
// that a text names is passed.
func TestTexts(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	asked := map[string]bool{}
	for _, path := range files {
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\b(?:worded|advice|advise)\("([^"]+)"`).FindAllStringSubmatch(string(source), -1) {
			asked[m[1]] = true
		}
	}
	for _, h := range hostFaults() {
		for _, s := range h.signs {
			asked[h.id+s.variant], asked["raise "+s.raised] = true, true
		}
		for _, variant := range h.variants {
			asked[h.id+variant] = true
		}
		if h.log != nil {
			asked[h.id+" log"] = true
		}
		for _, name := range h.advice {
			asked[name] = true
		}
	}
	delete(asked, "raise ")
	for name, f := range texts().Findings {
		if !asked[name] || f.Severity == 0 || f.Consequence == "" {
			t.Errorf("finding %q: asked for %v, %+v", name, asked[name], f)
		}
		delete(asked, name)
		if id, _, _ := strings.Cut(name, " "); !slices.ContainsFunc(Rules(), func(r Rule) bool { return r.ID == id }) {
			t.Errorf("finding %q is of no rule", name)
		}
	}
	for name, r := range texts().Remedies {
		if !asked[name] || r.Title == "" {
			t.Errorf("remedy %q: asked for %v, %+v", name, asked[name], r)
		}
		delete(asked, name)
	}
	for name := range asked {
		t.Errorf("texts.yaml has no %q", name)
	}
}
