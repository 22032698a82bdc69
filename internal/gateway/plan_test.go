package gateway

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
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

// TestOrderInTheFileMeansNothing shuffles rules and compares what is left of them
// without their numbers.
func TestOrderInTheFileMeansNothing(t *testing.T) {
	rules := []string{
		"masquerade: {from: 192.168.0.0/16}", "masquerade: {from: 10.0.0.0/8, except-to: 10.9.0.0/16}",
		"snat: {from: [192.168.1.0/24, 10.1.0.0/16], to: 203.0.113.8}", "snat: {from: 192.168.1.7, to: 203.0.113.9}",
		"static: {inside: 192.168.1.8, outside: 203.0.113.10, hairpin: true}", "netmap: {inside: 10.7.0.0/24, outside: 198.51.100.0/24}",
		"dnat: {on: wan, port: tcp/80, to: 192.168.1.9, hairpin: true}", "dnat: {on: wan, port: tcp/443, to: 192.168.1.9}",
		"dnat: {on: wan, port: tcp, to: 192.168.1.10, from: 198.51.100.0/24}", "notrack: {on: 203.0.113.77}",
	}
	r := rand.New(rand.NewPCG(1, 2))
	var want *Plan
	for range 50 {
		p := compile(t, roles+"\n  nat:\n    - "+strings.Join(rules, "\n    - "), router)
		p.forgetRules()
		if want == nil {
			want = p
		}
		if Digest(p) != Digest(want) {
			t.Fatalf("another order, another plan:\n%s", cmp.Diff(lines(want), lines(p)))
		}
		r.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
	}
}

func (p *Plan) forgetRules() {
	for e := range p.Entries() {
		e.Rule.Index = 0
	}
}
