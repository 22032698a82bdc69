package nat

import "testing"

func TestParsePorts(t *testing.T) {
	good := map[string]Ports{"80": {80, 80}, "1024-65535": {1024, 65535}, "1-1": {1, 1}}
	for text, want := range good {
		if got, err := ParsePorts(text); err != nil || got != want {
			t.Errorf("ParsePorts(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "0-9", "9-5", "65536", "1-65536", "x", "1-", "-1", "1-2-3"} {
		if got, err := ParsePorts(text); err == nil {
			t.Errorf("ParsePorts(%q) = %v", text, got)
		}
	}
}

// Of all pairs of ranges among few ports: what they say is what their ports say.
func TestPortsAreSets(t *testing.T) {
	const most = 5
	var all []Ports
	for first := range uint16(most) {
		for last := first; last < most; last++ {
			all = append(all, Ports{first, last})
		}
	}
	for _, p := range all {
		n := 0
		for port := range uint16(most) {
			if p.Contains(port) {
				n++
			}
		}
		if got := p.Len(); got != n && p != (Ports{}) {
			t.Errorf("%v has %d ports, want %d", p, got, n)
		}
		for _, o := range all {
			covers, common := true, 0
			for port := range uint16(most) {
				covers = covers && (p.Contains(port) || !o.Contains(port))
				if p.Contains(port) && o.Contains(port) {
					common++
				}
			}
			if p.Covers(o) != covers {
				t.Errorf("%v covers %v: %v, want %v", p, o, p.Covers(o), covers)
			}
			c, meet := p.Common(o)
			if meet != (common > 0) || meet && c != (Ports{}) && c.Len() != common {
				t.Errorf("%v and %v have %v, %v in common; want %d", p, o, c, meet, common)
			}
		}
	}
}

func TestPortsString(t *testing.T) {
	for p, want := range map[Ports]string{{}: "", {80, 80}: "80", {0, 65535}: "0-65535", {1024, 2047}: "1024-2047"} {
		if p.String() != want {
			t.Errorf("%q, want %q", p.String(), want)
		}
	}
}
