package ruleset

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/testutil"
)

// configurations are those of the corpus of imports.
func configurations(t testing.TB, extension string) (all []string) {
	t.Helper()
	files, err := filepath.Glob("../gateway/convert/testdata/corpus/*" + extension)
	if err != nil || len(files) == 0 {
		t.Fatalf("no configuration %s: %v", extension, err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(text))
	}
	return all
}

// TestConfigurationsAreRecognized: what a text is follows from its content.
func TestConfigurationsAreRecognized(t *testing.T) {
	for text, want := range map[string]int{
		"config redirect\n\toption src 'wan'\n\toption dest_ip '192.168.1.2'\nconfig zone\n\toption name wan\n\tlist device eth0\n\toption masq 1\n": 3,
		"firewall.w=zone\nfirewall.w.name='wan'\nfirewall.w.device='eth0' 'eth1'\nfirewall.w.masq='1'\n":                                             2,
		"vyos@r# set nat source rule 5 translation address 'masquerade'\n":                                                                           1,
		"set nat66 source rule 5 source prefix 'fd00::/64'\nset nat66 source rule 5 translation address '2001:db8::/64'\n":                           1,
		"nat {\n    source {\n        rule 1 {\n            translation {\n                address masquerade\n            }\n        }\n    }\n}\n": 1,
	} {
		set, n := Parse(text, 4), 0
		for _, table := range set.Tables {
			for _, c := range table.Chains {
				n += len(c.Rules)
			}
		}
		if n != want || set.Foreign || len(set.Notes) > 0 {
			t.Errorf("%d rules, want %d; %+v\n%s", n, want, set.Notes, text)
		}
	}
}

// TestConfigurationsCutOff: a configuration that is not whole says so, or is one that has less.
func TestConfigurationsCutOff(t *testing.T) {
	boot := configurations(t, "boot.vyos")[0]
	lines := strings.SplitAfter(boot, "\n")
	for n := slices.Index(lines, "nat {\n") + 1; n < len(lines)-2; n++ {
		if notes := Parse(strings.Join(lines[:n], ""), 4).Notes; len(notes) == 0 {
			t.Errorf("the first %d lines are whole", n)
		}
	}
}

func FuzzUCI(f *testing.F) { fuzzConfiguration(f, ".uci", parseUCI) }

func FuzzVyOS(f *testing.F) { fuzzConfiguration(f, ".vyos", parseVyOS) }

// fuzzConfiguration wants every rule to have a line, a text and an end.
func fuzzConfiguration(f *testing.F, extension string, parse func(string) *Ruleset) {
	for _, text := range configurations(f, extension) {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 8192 {
			return
		}
		defer testutil.Bounded(t, len(text)+8)()
		set := parse(text)
		for _, table := range set.Tables {
			for _, c := range table.Chains {
				for _, r := range c.Rules {
					if r.Line == 0 || r.Text == "" || r.Target.Kind == "" {
						t.Errorf("%+v of\n%s", r, text)
					}
				}
			}
		}
		for _, n := range set.Notes {
			if n.Reason == "" {
				t.Errorf("%+v of\n%s", n, text)
			}
		}
	})
}

// TestLargeConfigurations: what is only long is read in the time of its size.
func TestLargeConfigurations(t *testing.T) {
	for name, text := range map[string]string{
		"zones":     "config zone\n\toption name a\n\tlist device eth0\n\toption masq 1\n",
		"redirects": "config redirect\n\toption src a\n\toption dest a\n\toption src_dport 1\n\toption dest_ip 10.0.0.1\n",
		"networks":  "config interface a\n\toption device @a\n",
		"rules":     "set nat source rule 1 source address 10.0.0.0/8\n",
		"groups":    "set firewall group address-group A address 10.0.0.1\nset nat source rule 1 source group address-group A\n",
		"blocks":    "nat {\n source {\n",
	} {
		t.Run(name, func(t *testing.T) {
			text := "config zone\n\toption name a\n\tlist device eth1\n" + strings.Repeat(text, 20_000)
			if name == "rules" || name == "groups" || name == "blocks" {
				text = strings.TrimPrefix(text, "config zone\n\toption name a\n\tlist device eth1\n")
			}
			defer testutil.Bounded(t, len(text))()
			Parse(text, 4)
		})
	}
}
