package document

import "testing"

func TestNearest(t *testing.T) {
	known := []string{"masquerade", "snat", "dnat", "static", "netmap", "notrack", "to", "on", "tcp", "udp", "hairpin"}
	for word, want := range map[string]string{
		"masqurade": "masquerade", "Masquerade": "masquerade", "masq": "masquerade", "dnta": "dnat",
		"tpc": "tcp", "udpp": "udp", "hair-pin": "hairpin", "notrck": "notrack", "statc": "static", "stateless": "",
		"xyzzy": "", "": "", "http": "", "x": "", "natnatnatnatnatnatnatnatnatnatnatnat": "",
	} {
		if got := Nearest(word, known); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
	if got := Nearest("x", nil); got != "" {
		t.Error(got)
	}
}

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "ab", 2}, {"ab", "", 2}, {"kitten", "sitting", 3}, {"ca", "abc", 3}, {"ab", "ba", 1}, {"abcd", "badc", 2}, {"tables", "table", 1},
		{"long", "a much longer word", 9},
	} {
		if got := distance(tt.a, tt.b, 9); got != tt.want {
			t.Errorf("%q to %q: %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}

func TestHint(t *testing.T) {
	if got := Hint("dnta", []string{"dnat"}) + Hint("x", []string{"dnat"}); got != `: did you mean "dnat"?` {
		t.Error(got)
	}
}
