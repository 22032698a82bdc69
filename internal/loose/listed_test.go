package loose

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var listings = []struct{ name, text, command, want string }{
	{"filter", "-P INPUT ACCEPT\n-P FORWARD DROP\n-P OUTPUT ACCEPT\n-N DOCKER\n-A FORWARD -o docker0 -j DOCKER\n", "",
		"*filter\n:INPUT ACCEPT\n:FORWARD DROP\n:OUTPUT ACCEPT\n:DOCKER -\n-A FORWARD -o docker0 -j DOCKER\nCOMMIT\n"},
	{"nat of an old kernel", "-P PREROUTING ACCEPT\n-P POSTROUTING ACCEPT\n-P OUTPUT ACCEPT\n-A POSTROUTING -o eth0 -j MASQUERADE\n", "",
		"*nat\n:PREROUTING ACCEPT\n:POSTROUTING ACCEPT\n:OUTPUT ACCEPT\n-A POSTROUTING -o eth0 -j MASQUERADE\nCOMMIT\n"},
	{"counters", "-P INPUT ACCEPT -c 5 300\n-P FORWARD DROP -c 57 6034\n-P OUTPUT ACCEPT -c 0 0\n-A FORWARD -i tun0 -c 3 180 -j ACCEPT\n", "",
		"*filter\n:INPUT ACCEPT [5:300]\n:FORWARD DROP [57:6034]\n:OUTPUT ACCEPT [0:0]\n[3:180] -A FORWARD -i tun0 -j ACCEPT\nCOMMIT\n"},
	{"a chain alone", "-N DOCKER-USER\n-A DOCKER-USER -j RETURN\n", "iptables -t filter -S DOCKER-USER", "*filter\n:DOCKER-USER -\n-A DOCKER-USER -j RETURN\nCOMMIT\n"},
	{"a chain of a table that is not known", "-N DOCKER-USER\n-A DOCKER-USER -j RETURN\n", "", ""},
}

func TestListed(t *testing.T) {
	for _, l := range listings {
		got, err := asSaved(l.text, l.command)
		if (err != nil) != (l.want == "") {
			t.Errorf("%s: %v", l.name, err)
		}
		if diff := cmp.Diff(l.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", l.name, diff)
		}
	}
}

// FuzzListed: what is not refused is one table of lines that iptables-save prints, and keeps every rule.
func FuzzListed(f *testing.F) {
	for _, l := range listings {
		f.Add(l.text, l.command)
	}
	f.Fuzz(func(t *testing.T, text, command string) {
		saved, err := asSaved(text, command)
		if err != nil {
			if saved != "" {
				t.Fatalf("%v, and %q", err, saved)
			}
			return
		}
		lines := strings.Split(strings.TrimSuffix(saved, "\n"), "\n")
		if lines[0][0] != '*' || lines[len(lines)-1] != "COMMIT" {
			t.Fatalf("%q", saved)
		}
		rules := 0
		for _, line := range lines[1 : len(lines)-1] {
			if line[0] != ':' && !strings.HasPrefix(line, "-A ") && line[0] != '[' {
				t.Fatalf("%q", line)
			}
			if line[0] != ':' {
				rules++
			}
		}
		want := 0
		for line := range strings.Lines(text) {
			if strings.HasPrefix(strings.TrimSpace(line), "-A ") {
				want++
			}
		}
		if rules != want {
			t.Fatalf("%d of %d rules: %q", rules, want, saved)
		}
	})
}

// TestFiltersUnknown: rules of NAT alone do not say that there is no filter.
func TestFiltersUnknown(t *testing.T) {
	const nat, filter = "*nat\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -o eth0 -j MASQUERADE\nCOMMIT\n", "*filter\n:FORWARD ACCEPT [0:0]\nCOMMIT\n"
	const listed = "-P PREROUTING ACCEPT\n-P INPUT ACCEPT\n-P OUTPUT ACCEPT\n-P POSTROUTING ACCEPT\n"
	for _, c := range []struct {
		files   map[string]string
		unknown string
	}{
		{map[string]string{"rules.txt": nat}, "rules.txt"},
		{map[string]string{"iptables-save_-t_nat": nat}, "iptables-save_-t_nat"},
		{map[string]string{"iptables-save_-c": nat}, ""},
		{map[string]string{"rules.txt": nat + filter}, ""},
		{map[string]string{"rules.txt": nat, "rules-filter.txt": filter}, ""},
		{map[string]string{"s": "# iptables -t nat -S\n" + listed}, "s"},
		{map[string]string{"s": "# iptables -t nat -S\n" + listed + "# iptables -S\n-P INPUT ACCEPT\n-P FORWARD ACCEPT\n-P OUTPUT ACCEPT\n"}, ""},
		{map[string]string{"nft": "table ip nat {\n}\n"}, ""},
		{map[string]string{"nft": "# nft list table ip nat\ntable ip nat {\n}\n"}, "nft"},
		{map[string]string{"iptables-save_-t_nat": nat, "nft_list_ruleset": "table ip nat {\n}\n"}, ""},
		{map[string]string{"ip6tables-save": filter, "iptables-save_-t_nat": nat}, "iptables-save_-t_nat"},
	} {
		if s := last(readTree(t, c.files)); s.FiltersUnknown != c.unknown || s.Rules == nil {
			t.Errorf("%q: filters unknown by %q, want %q", c.files, s.FiltersUnknown, c.unknown)
		}
	}
}
