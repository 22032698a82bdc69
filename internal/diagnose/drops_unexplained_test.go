package diagnose

import (
	"regexp"
	"testing"
)

// Advice that names what is IPv4's alone has its counterpart for packets of IPv6.
func TestAdviceForBothFamilies(t *testing.T) {
	v4 := regexp.MustCompile(`ipv4|'ip (route|neigh|address)|ICMP 'frag`)
	for name, r := range dropReasons {
		_, v6 := hintV6[name]
		if v4.MatchString(r.hint) && !v6 && name != "IP_LOCALNET" { // of 127.0.0.0/8
			t.Errorf("%s: %q, and nothing for IPv6", name, r.hint)
		}
	}
	for name := range hintV6 {
		_, ofNAT := natCauses[name]
		if _, known := dropReasons[name]; !known && !ofNAT {
			t.Errorf("hintV6 has %s, which is no reason", name)
		}
	}
	for name := range hintRisk {
		if _, known := dropReasons[name]; !known {
			t.Errorf("hintRisk has %s, which is no reason", name)
		}
	}
}
