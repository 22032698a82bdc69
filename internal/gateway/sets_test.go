package gateway

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/document"
)

// withSetFiles reads a file whose sets may come from others.
func withSetFiles(t *testing.T, files texts, text string) *File {
	t.Helper()
	f, err := ParseWith(files, "/etc/gw/g.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

const setFile = `gateway:
  define: {mine: 192.0.2.77}
  interfaces: {wan: eth0}
  sets:
    hosts: {addresses: [$mine, 192.0.2.9, 192.0.2.9, "2001:db8::1"]}
    nets: {file: nets.txt}
    feeds: {directory: /feeds}
    web: {ports: [tcp/80, tcp/443, udp/443]}
    more: {file: ports.txt}
  nat:
    - snat: {from: [$hosts, 10.0.0.0/8], only-to: $nets, except-to: $feeds, port: [$web, udp/53], to: 203.0.113.8}
    - dnat: {on: 203.0.113.7, except-from: $feeds, except-port: $more, to: 10.0.0.7}
`

var setTexts = texts{
	"/etc/gw/nets.txt":  "# of the partner\n\n198.51.100.0/24\n198.51.100.0/25 # within\n  203.0.113.64-203.0.113.70\r\n2001:db8::/32\n",
	"/etc/gw/ports.txt": "tcp/1000-1010\ntcp/https\n",
	"/feeds/a.txt":      "\ufeff192.0.2.1\n192.0.2.2\n", "/feeds/b.txt": "192.0.2.2\n", "/feeds/.hidden": "x", "/feeds/b.txt~": "x",
}

func TestSets(t *testing.T) {
	f := withSetFiles(t, setTexts, setFile)
	p, err := Compile(&f.Config, Facts{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, s := range p.Sets {
		got[s.Name] = strings.ReplaceAll(strings.TrimSpace(string(s.Text())), "\n", " ")
	}
	if diff := cmp.Diff(map[string]string{"hosts": "192.0.2.9 192.0.2.77 2001:db8::1", "feeds": "192.0.2.1 192.0.2.2", "web": "tcp/80 tcp/443 udp/443", "more": "tcp/443 tcp/1000-1010",
		"nets": "198.51.100.0-198.51.100.255 203.0.113.64-203.0.113.70 2001:db8::-2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"}, got); diff != "" {
		t.Error(diff)
	}
	var texts []string
	for _, r := range TextsOf(p) {
		texts = append(texts, r.Text)
	}
	if diff := cmp.Diff([]string{"udp/53, $web from 10.0.0.0/8, $hosts except to $feeds out eth0 only to $nets becomes 203.0.113.8",
		"on 203.0.113.7 except $more except from $feeds in eth0 becomes 10.0.0.7"}, texts); diff != "" {
		t.Error(diff)
	}
	if len(p.Sources) != 4 { // of a prefix and a set, of ports and a set of ports
		t.Errorf("%d entries", len(p.Sources))
	}
	if diff := cmp.Diff([]string{"nets.txt", "ports.txt"}, f.Beside()); diff != "" {
		t.Error(diff)
	}
	if got := string(Marshal(&f.Config)); !strings.Contains(got, `from: ["$hosts", 10.0.0.0/8]`) || !strings.Contains(got, "web: {ports: [tcp/80, tcp/443, udp/443]}") {
		t.Error(got)
	}
}

func TestSetErrors(t *testing.T) {
	for _, tt := range []struct{ name, sets, rule, want string }{
		{"no such set", "a: {addresses: 10.0.0.1}", "masquerade: {from: $b}", "g.yaml:4:24: $b is not defined"},
		{"where none may stand", "a: {addresses: 10.0.0.1}", "snat: {to: $a}", `g.yaml:4:16: expected an address, a range or a prefix such as 203.0.113.7, 203.0.113.8-203.0.113.15 or 203.0.113.32/27, found $a, which is a set: write`},
		{"for an interface", "a: {addresses: 10.0.0.1}", "dnat: {on: $a, to: 10.0.0.7}", "g.yaml:4:16: expected an address, a role (wan, lan), an interface or any, such as 203.0.113.7 or wan, found $a, which is a set: write"},
		{"among interfaces", "a: {addresses: 10.0.0.1}", "masquerade: {in: [eth1, $a]}", "g.yaml:4:29: expected a role (wan, lan) or interfaces such as eth0, ppp* or group 10, found $a, which is a set: write"},
		{"for a role", "a: {addresses: 10.0.0.1}, interfaces: {lan: $a}", "masquerade: {}", "g.yaml:3:21: expected a role (wan, lan) or interfaces"},
		{"for a mapping's interface", "a: {addresses: 10.0.0.1}, interfaces: {wan: {interface: $a}}", "masquerade: {}", "g.yaml:3:33: expected text, found $a, which is a set: write"},
		{"for a zone", "a: {addresses: 10.0.0.1}", "masquerade: {zone: $a}", "g.yaml:4:24: expected"},
		{"for a file", "a: {addresses: 10.0.0.1}, b: {file: $a}", "masquerade: {}", "g.yaml:2:46: expected text, found $a, which is a set: write"},
		{"ports for addresses", "a: {ports: tcp/80}", "masquerade: {from: [10.0.0.1, $a]}", "g.yaml:4:35: $a is a set of ports: it stands in port or except-port"},
		{"addresses for ports", "a: {addresses: 10.0.0.1}", "masquerade: {except-port: $a}", "g.yaml:4:31: $a is a set of addresses: it stands in from, only-to, except-from or except-to"},
		{"ports of a file for addresses", "a: {file: ports.txt}", "masquerade: {except-to: $a}", "g.yaml:4:29: $a is a set of ports: it stands in port or except-port"},
		{"a protocol", "a: {ports: [tcp]}", "masquerade: {}", "g.yaml:2:22: tcp: a set has protocols with ports, such as tcp/443 or udp/5000-5100"},
		{"two sources", "a: {addresses: 10.0.0.1, file: x}", "masquerade: {}", "g.yaml:2:13: expected one of addresses, ports, pairs, file, directory"},
		{"twice", "a: {file: x}, a: {file: y}", "masquerade: {}", `g.yaml:2:24: the key "a" is in line 2 already`},
		{"a name", "1a: {file: x}", "masquerade: {}", `g.yaml:2:10: "1a": a name begins with a letter`},
		{"missing file", "a: {file: x.txt}", "masquerade: {}", "g.yaml:2:13: set a: x.txt: file does not exist"},
		{"missing file of two lines", `a: {file: "x\ny"}`, "masquerade: {}", `g.yaml:2:13: set a: "x\ny": file does not exist`},
		{"missing directory", "a: {directory: x}", "masquerade: {}", "g.yaml:2:13: set a: x: file does not exist"},
		{"no element", "a: {file: bad.txt}", "masquerade: {}", `bad.txt:3:3: expected an address, a range or a prefix such as 203.0.113.7, 203.0.113.8-203.0.113.15 or 203.0.113.32/27, found "10.0.0.1/8": bits of a host are set; the prefix is 10.0.0.0/8`},
		{"mixed", "a: {file: mixed.txt}", "masquerade: {}", `mixed.txt:2:1: expected a protocol and its ports such as tcp/8080, udp/5000-5100 or icmp, found "tcp/80"`},
		{"too many", "a: {file: many.txt}", "masquerade: {}", "many.txt:2000001:1: the sets of a gateway file have at most 2000000 elements together"},
	} {
		files := texts{"ports.txt": "tcp/80\n", "bad.txt": "10.0.0.1\n# x\n  10.0.0.1/8\n", "mixed.txt": "10.0.0.1\ntcp/80\n"}
		if tt.name == "too many" {
			files["many.txt"] = strings.Repeat("::1\n", mostElements+1)
		}
		sets, interfaces, _ := strings.Cut(tt.sets, ", interfaces")
		if interfaces != "" {
			interfaces = "\n  interfaces" + interfaces
		}
		_, err := ParseWith(files, "g.yaml", []byte("gateway:\n  sets: {"+sets+"}"+interfaces+"\n  nat:\n  - "+tt.rule+"\n"))
		var syntax *document.SyntaxError
		if !errors.As(err, &syntax) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s:\n got %v\nwant %s", tt.name, err, tt.want)
		}
	}
}

// Of several faults always the same one is reported.
func TestSetErrorsInOrder(t *testing.T) {
	for range 20 {
		_, err := Parse("g.yaml", []byte("gateway:\n  sets: {p: {ports: tcp/80}}\n  nat:\n  - snat: {only-to: $p, to: 203.0.113.7, from: $p, except-to: $p, except-from: $p}\n"))
		if err == nil || !strings.HasPrefix(err.Error(), "g.yaml:4:80: $p is a set of ports") {
			t.Fatal(err)
		}
	}
}

// Rules whose sets have nothing in common do not overlap; others do, where neither is more specific.
func TestSetFindings(t *testing.T) {
	for _, tt := range []struct {
		name, a, b string
		want       string
	}{
		{"apart", "from: $a", "from: $b", ""},
		{"not apart", "from: $a", "from: $c", "rules-overlap"},
		{"in it and not", "from: $a", "except-from: $a", ""},
		{"all but what it has", "from: $a", "except-from: $c", ""},
		{"some of what it has", "from: $c", "except-from: $a", "rules-overlap"},
		{"prefixes are more specific", "from: 192.0.2.0/30", "from: $a", ""},
		{"two say more than one", "from: $a, except-to: $b", "from: $a", ""},
		{"ports apart", "port: $web", "port: $mail", ""},
		{"within what comes first", "from: $a, mark: 1", "from: $a", ""},
		{"all of it comes first", "from: $c, prefer: 7", "from: $a", "rule-never-matches"},
		{"preferred in part", "from: $a, prefer: 7", "from: $c", ""},
		{"empty", "from: $none", "from: $a", "set-empty"},
		{"of the other family", "from: $six", "from: $a", "set-empty"},
		{"itself excepted", "from: $a, except-from: $c", "from: $b", "rule-never-matches"},
	} {
		prefer := ""
		if a, p, is := strings.Cut(tt.a, ", prefer"); is {
			tt.a, prefer = a, "\n      prefer"+p
		}
		f := withSetFiles(t, texts{"/etc/gw/none": "# nothing today\n"}, fmt.Sprintf(`gateway:
  interfaces: {wan: eth0}
  sets:
    a: {addresses: [192.0.2.1, 192.0.2.2]}
    b: {addresses: [192.0.2.3, 192.0.2.8/29]}
    c: {addresses: [192.0.2.0-192.0.2.2, 10.0.0.0/8]}
    none: {file: none}
    six: {addresses: "2001:db8::1"}
    web: {ports: [tcp/80, tcp/443]}
    mail: {ports: [tcp/25, udp/443]}
  nat:
    - snat: {to: 203.0.113.8, %s}%s
    - snat: {to: 203.0.113.9, %s}
`, tt.a, prefer, tt.b))
		var ids []string
		for _, found := range Check(f, Facts{}) {
			ids = append(ids, found.ID)
		}
		if got := strings.Join(ids, " "); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// Elements alone are one line, and the rules that name the set stay.
func TestDiffOfSets(t *testing.T) {
	plan := func(sets string) *Plan {
		f := withSetFiles(t, nil, "gateway:\n  sets: {"+sets+"}\n  nat:\n  - masquerade: {from: $a}\n  - masquerade: {from: 10.0.0.1, except-to: $b}\n")
		p, err := Compile(&f.Config, Facts{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	was, is := plan("a: {addresses: [10.0.0.1, 10.0.0.2]}, b: {addresses: 10.1.0.0/16}"), plan("a: {addresses: [10.0.0.1, 10.0.0.3, 10.0.0.4]}, b: {addresses: 10.1.0.0/16}")
	d := DiffOf(was, is)
	if len(d.Rules) != 0 || d.Unchanged != 2 || d.Same() {
		t.Errorf("%+v", d)
	}
	if diff := cmp.Diff([]SetDiff{{Changed, "a", 3, 2, 1, false, setEffect}}, d.Sets); diff != "" {
		t.Error(diff)
	}
	if !SameButElements(was, is) {
		t.Error("what else differs")
	}
	if d := DiffOf(nil, is); len(d.Sets) != 2 || d.Sets[0].Change != Added || d.Sets[0].Elements != 3 {
		t.Errorf("%+v", d.Sets)
	}
}
