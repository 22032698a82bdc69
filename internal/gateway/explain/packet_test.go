package explain

import (
	"github.com/natkit/natkit/internal/testutil"
	"strings"
	"testing"
)

func TestParsePacket(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"tcp 192.168.0.2:4000 -> 198.51.100.9:443", "tcp 192.168.0.2:4000 -> 198.51.100.9:443"},
		{"udp 192.168.0.2 198.51.100.9:53", "udp 192.168.0.2:40000 -> 198.51.100.9:53"},
		{"tcp [fd00::2]:4000 to [2001:db8::9]:443", "tcp [fd00::2]:4000 -> [2001:db8::9]:443"},
		{"icmp 192.168.0.2→198.51.100.9", "icmp 192.168.0.2 -> 198.51.100.9"},
		{"icmp 192.168.0.2:77 -> 198.51.100.9", "icmp 192.168.0.2:77 -> 198.51.100.9"},
		{"47 192.168.0.2 -> 198.51.100.9", "gre 192.168.0.2 -> 198.51.100.9"},
		{"tcp 192.168.0.2:4000 -", "!quotes"},
		{"tcp 192.168.0.2:4000", "!expected PROTOCOL"},
		{"", "!expected PROTOCOL"},
		{"tpc 192.168.0.2:4000 -> 198.51.100.9:443", "!is no protocol"},
		{"tcp 192.168.0.2:4000 -> 198.51.100.9", "!destination port"},
		{"tcp 192.168.0.2:4000 -> 2001:db8::9", "!one family"},
		{"tcp 192.168.0.2:4000 -> example.com:443", "!no address"},
		{"gre 192.168.0.2:1 -> 198.51.100.9", "!no ports"},
		{"icmp fd00::1 -> fd00::2", "!not for"},
	} {
		p, err := ParsePacket(strings.Split(c.text, " "))
		if want, fails := strings.CutPrefix(c.want, "!"); fails {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want …%s…", c.text, err, want)
			}
			continue
		}
		if err != nil || p.String() != c.want {
			t.Errorf("%q: %s, %v", c.text, p, err)
		}
	}
}

func FuzzParsePacket(f *testing.F) {
	for _, text := range []string{"tcp 192.168.0.2:4000 -> 198.51.100.9:443", "icmp 192.168.0.2→198.51.100.9", "udp [fd00::2]:1 [2001:db8::9]:2", "47 0.0.0.0 ::", "tcp a -", "tcp ::ffff:1.2.3.4 1.2.3.4:1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		defer testutil.Bounded(t, len(text))()
		p, err := ParsePacket([]string{text})
		if err != nil {
			return
		}
		again, err := ParsePacket([]string{p.String()})
		if err != nil || again != p {
			t.Errorf("%q is %s, which is %v, %v", text, p, again, err)
		}
	})
}
