package iptables

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestChainsThatLeadToEachOther are more ways through them than anybody can follow: the
// kernel refuses loops, and a text need not come from one.
func TestChainsThatLeadToEachOther(t *testing.T) {
	loop := "*nat\n" + strings.Repeat("-A A -j A\n-A A -p tcp -j RETURN\n", 3) + "-A POSTROUTING -j A\n-A POSTROUTING -j MASQUERADE\nCOMMIT\n"
	var fan strings.Builder
	fan.WriteString("*nat\n-A POSTROUTING -j c0\n")
	for i := range 40 {
		fmt.Fprintf(&fan, "-A c%d -j c%d\n-A c%[1]d -s 10.0.0.0/8 -j c%[2]d\n", i, i+1)
	}
	fan.WriteString("-A c40 -j MASQUERADE\nCOMMIT\n")
	for _, text := range []string{loop, fan.String()} {
		start := time.Now()
		r, err := Import(Parse(text, 4))
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Untranslated()) == 0 {
			t.Errorf("all of it was translated:\n%s", r.YAML())
		}
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("it took %v", took)
		}
	}
}
