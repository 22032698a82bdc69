package gateway

import (
	"fmt"
	"strings"
	"testing"
)

// large is a file of n rules of one shape.
func large(n int, rule func(i int) string) []byte {
	var b strings.Builder
	b.WriteString(inFile())
	for i := range n {
		fmt.Fprintf(&b, "  - %s\n", rule(i))
	}
	return []byte(b.String())
}

// shapes of files with thousands of rules: port forwards on one address, ranges of
// ports there, hosts by clients and by ports for one client network, floating addresses, hosts with a pool each, and netmaps with a dnat in
// each of them.
var shapes = []struct {
	name string
	rule func(i int) string
}{
	{"dnat", func(i int) string {
		return fmt.Sprintf("dnat: {on: 203.0.113.1, port: tcp/%d, to: 10.0.%d.%d:80}", 1+i, i>>8, i&255)
	}},
	{"ranges", func(i int) string {
		return fmt.Sprintf("dnat: {on: 203.0.113.1, port: udp/%d-%d, to: 10.0.%d.%d}", 1+4*i, 4+4*i, i>>8, i&255)
	}},
	{"clients", func(i int) string {
		return fmt.Sprintf("dnat: {on: 203.0.113.1, port: tcp/80, from: 100.64.%d.%d, to: 10.0.%d.%d}", i>>8, i&255, i>>8, i&255)
	}},
	{"clients of all", func(i int) string {
		return fmt.Sprintf("dnat: {on: 203.0.113.1, from: 100.64.%d.%d, to: 10.0.%d.%d}", i>>8, i&255, i>>8, i&255)
	}},
	{"ports for one client", func(i int) string {
		return fmt.Sprintf("dnat: {on: 203.0.113.1, port: tcp/%d, from: 100.64.0.0/10, to: 10.0.%d.%d}", 1+i, i>>8, i&255)
	}},
	{"static", func(i int) string {
		return fmt.Sprintf("static: {inside: 10.0.%d.%d, outside: 198.18.%d.%d}", i>>8, i&255, i>>8, i&255)
	}},
	{"snat", func(i int) string {
		return fmt.Sprintf("snat: {from: 10.0.%d.%d, to: 198.18.%d.0/24}", i>>8, i&255, i>>8)
	}},
	{"mixed", func(i int) string {
		switch {
		case i == 0:
			return "netmap: {inside: 10.0.0.0/16, outside: 198.18.0.0/16}"
		case i%2 == 0:
			return fmt.Sprintf("static: {inside: 10.0.%d.%d, outside: 198.18.%d.%d}", i>>8, i&255, i>>8, i&255)
		}
		return fmt.Sprintf("dnat: {on: 198.18.%d.%d, port: tcp/80, to: 10.0.%d.%d}", i>>8, i&255, i>>8, i&255)
	}},
}

// What apply does with a file before it touches the kernel: it is to take far less
// than the two seconds that an apply of 10,000 rules may.
func BenchmarkCheck(b *testing.B) {
	for _, s := range shapes {
		text := large(10_000, s.rule)
		b.Run(s.name+"/parse", func(b *testing.B) {
			for b.Loop() {
				if _, err := Parse("f", text); err != nil {
					b.Fatal(err)
				}
			}
		})
		f, err := Parse("f", text)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(s.name+"/check", func(b *testing.B) {
			for b.Loop() {
				Check(f, hostWithDocker())
			}
		})
	}
}
