package ruleset

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// TestUnreached: rules of chains that no base chain leads to, unless a program keeps such.
func TestUnreached(t *testing.T) {
	const head = "*nat\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n"
	const docker = ":DOCKER - [0:0]\n-A DOCKER ! -i docker0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80\n"
	const forwards = ":forwards - [0:0]\n:web - [0:0]\n-A web -p tcp -m tcp --dport 80 -j DNAT --to-destination 192.168.1.10\n-A forwards -i wan0 -j web\n"
	for name, c := range map[string]struct{ text, want string }{
		"Docker's jumps are flushed":       {docker, "DOCKER prerouting dnat to 172.17.0.2:80"},
		"PREROUTING alone is":              {docker + "-A OUTPUT -m addrtype --dst-type LOCAL -j DOCKER\n", "DOCKER prerouting dnat to 172.17.0.2:80"},
		"OUTPUT alone is":                  {docker + "-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER\n", ""},
		"an administrator's, by its first": {forwards, "forwards prerouting dnat to 192.168.1.10"},
		"it is reached":                    {forwards + "-A PREROUTING -j forwards\n", ""},
		"an empty one":                     {":DOCKER - [0:0]\n", ""},
		"sources":                          {":LIBVIRT_PRT - [0:0]\n-A LIBVIRT_PRT -s 192.168.122.0/24 -j MASQUERADE\n", "LIBVIRT_PRT postrouting masquerade"},
		"a service that kube-proxy left":   {":KUBE-SEP-A - [0:0]\n-A KUBE-SEP-A -p tcp -j DNAT --to-destination 10.0.0.1:80\n", ""},
	} {
		text := head
		for _, part := range []string{":", "-"} { // chains first, as iptables-save has them
			for _, line := range strings.SplitAfter(c.text, "\n") {
				if strings.HasPrefix(line, part) {
					text += line
				}
			}
		}
		rules, got := NATRules(Parse(text+"COMMIT\n", 4).Tables, &Budget{}), ""
		for _, r := range rules.Unreached {
			got += fmt.Sprintln(r.From, r.Hook, r.Text)
		}
		if strings.TrimSpace(got) != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestMSSFree: a rule that clamps is found in any table.
func TestMSSFree(t *testing.T) {
	for text, want := range map[string]bool{
		"*nat\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -o ppp0 -j MASQUERADE\nCOMMIT\n":                                                  true,
		"*mangle\n:FORWARD ACCEPT [0:0]\n-A FORWARD -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu\nCOMMIT\n":         false,
		"table inet f {\n\tchain c {\n\t\ttype filter hook forward priority 0;\n\t\ttcp flags syn tcp option maxseg size set 1400\n\t}\n}": false,
	} {
		if got := Audit(Parse(text, 4).Tables, func(netip.Addr) string { return "" }).MSSFree; got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
