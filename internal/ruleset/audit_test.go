package ruleset

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/snapshot"
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

// TestAuditOfMany: thousands of returns before a rule are compared in a moment, and jumps that
// branch without end are given up.
func TestAuditOfMany(t *testing.T) {
	var text strings.Builder
	text.WriteString("*nat\n:PREROUTING ACCEPT [0:0]\n:X - [0:0]\n-A PREROUTING -p tcp -j X\n")
	for i := range 20_000 {
		fmt.Fprintf(&text, "-A X -d 198.18.%d.%d -j RETURN\n", i/250, i%250)
	}
	text.WriteString("-A X -p tcp -j REDIRECT --to-ports 9\n-A PREROUTING -p tcp -d 198.19.0.1 -j DNAT --to-destination 192.168.1.10\n" +
		"-A PREROUTING -p tcp -d 198.18.0.1 -j DNAT --to-destination 192.168.1.10\nCOMMIT\n")
	a := Audit(Parse(text.String(), 4).Tables, func(netip.Addr) string { return "" })
	if a.TooMany || len(a.Shadowed) != 1 || !strings.Contains(a.Shadowed[0].Text, "198.19.0.1") {
		t.Errorf("%+v", a)
	}
	text.Reset()
	text.WriteString("*nat\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j C0\n")
	for i := range 40 {
		fmt.Fprintf(&text, "-A C%d -j C%d\n-A C%d -j C%d\n", i, i+1, i, i+1)
	}
	text.WriteString("-A C40 -j MASQUERADE\nCOMMIT\n")
	if a := Audit(Parse(text.String(), 4).Tables, func(netip.Addr) string { return "" }); !a.TooMany {
		t.Errorf("%+v", a)
	}
}

// TestUntrackedSYNs: what exempts the first packets of connections from tracking keeps them from NAT.
func TestUntrackedSYNs(t *testing.T) {
	for name, c := range map[string]struct {
		port      string
		mask, set byte
		want      int
	}{"--syn": {"443", 0x17, 0x02, 1}, "ACK": {"443", 0x17, 0x10, 0}, "of another port": {"80", 0x17, 0x02, 0}} {
		text := "*raw\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -i wan0 -p tcp --dport " + c.port + " -j CT --notrack\nCOMMIT\n" +
			"*nat\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10\nCOMMIT\n"
		tables := Parse(text, 4).Tables
		for _, table := range tables {
			for _, chain := range table.Chains {
				for _, r := range chain.Rules {
					if r.Target.Kind == Notrack {
						r.match("tcp", 0, []byte{0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff, 0, c.mask, c.set, 0}, false)
					}
				}
			}
		}
		if a := Audit(tables, func(netip.Addr) string { return "lan0" }); len(a.Untracked) != c.want || c.want > 0 && (!a.Untracked[0].SYNs || a.Untracked[0].FirstPort != 443) {
			t.Errorf("%s: %+v", name, a.Untracked)
		}
	}
}

// TestUntrackedQuestions: what exempts questions of a port keeps them from a rule for all that leaves.
func TestUntrackedQuestions(t *testing.T) {
	for name, c := range map[string]struct {
		raw        string
		want, back int
	}{
		"and the answers":      {"-A PREROUTING -p udp --dport 53 -j CT --notrack\n-A PREROUTING -p udp --sport 53 -j CT --notrack\n-A OUTPUT -p udp --sport 53 -j CT --notrack\n", 1, 2},
		"from inside":          {"-A PREROUTING -i lan0 -p tcp --dport 443 -j CT --notrack\n", 1, 0},
		"from outside":         {"-A PREROUTING -i wan0 -p udp --dport 53 -j CT --notrack\n", 0, 0},
		"datagrams of one way": {"-A PREROUTING -p udp --dport 514 -j CT --notrack\n", 0, 0},
	} {
		text := "*raw\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n" + c.raw + "COMMIT\n*nat\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -o wan0 -j MASQUERADE\nCOMMIT\n"
		a := Audit(Parse(text, 4).Tables, func(netip.Addr) string { return "lan0" })
		asked := slices.DeleteFunc(a.Untracked, func(u snapshot.UntrackedRule) bool { return !u.Questions })
		if len(asked) != c.want || c.want > 0 && len(asked[0].Back) != c.back {
			t.Errorf("%s: %+v", name, a.Untracked)
		}
	}
}

// TestPartOfAConnection: matches that some packets of a connection meet.
func TestPartOfAConnection(t *testing.T) {
	for name, want := range map[string]bool{"string": true, "connbytes": true, "cgroup": false} {
		var r Rule
		if r.match(name, 0, make([]byte, 64), false); r.Match.Part != want || r.Match.Limits {
			t.Errorf("%s: %+v", name, r.Match)
		}
	}
}
