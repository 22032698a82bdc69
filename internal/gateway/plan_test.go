package gateway

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestPlanAsJSON: a plan that was stored is the same plan.
func TestPlanAsJSON(t *testing.T) {
	for _, c := range compileCases {
		p := compile(t, c.body, router)
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		back := &Plan{}
		if err := json.Unmarshal(text, back); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if Digest(back) != Digest(p) || lines(back) != lines(p) {
			t.Errorf("%s: another plan came back:\n%s", c.name, cmp.Diff(lines(p), lines(back)))
		}
	}
}

func TestDigest(t *testing.T) {
	a := compile(t, "\n  nat:\n    - masquerade: {}", router)
	b := compile(t, "\n  nat:\n    - masquerade: {from: 0.0.0.0/0}", router)
	c := compile(t, "\n  mss: clamp\n  nat:\n    - masquerade: {}", router)
	if Digest(a) != Digest(b) || Digest(a) == Digest(c) || len(Digest(a)) != 64 {
		t.Errorf("digests: %s %s %s", Digest(a), Digest(b), Digest(c))
	}
}

// BenchmarkPlan is what a file of 10,000 rules costs before the kernel is asked.
func BenchmarkPlan(b *testing.B) {
	c := parse(b, forwards(10000))
	p := compile(b, forwards(10000), router)
	for name, do := range map[string]func() error{
		"Compile":  func() error { _, err := Compile(c, router); return err },
		"Digest":   func() error { Digest(p); return nil },
		"Capacity": func() error { Capacity(p, router, 120); return nil },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := do(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// forwards are n rules: port forwards on one address, and hosts with addresses of their
// own.
func forwards(n int) string {
	var b strings.Builder
	b.WriteString(roles + "\n  nat:")
	for i := range n / 2 {
		fmt.Fprintf(&b, "\n    - dnat: {on: 203.0.113.7, port: tcp/%d, to: \"172.17.%d.%d:80\", hairpin: true}", 1024+i, i/250, i%250+1)
		fmt.Fprintf(&b, "\n    - snat: {from: 10.%d.%d.1, to: 203.0.113.%d}", i/250, i%250, 8+i%8)
	}
	return b.String()
}
