package bpf

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/net/bpf"
)

// classic is what tcpdump makes of a filter, without its optimizer, which refuses
// filters that match nothing.
type classic struct{ vm *bpf.VM }

func compile(t *testing.T, tcpdump, words string) classic {
	t.Helper()
	var failure bytes.Buffer
	cmd := exec.Command(tcpdump, "-n", "-O", "-y", "EN10MB", "-ddd", words)
	cmd.Stderr = &failure
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tcpdump %q: %v: %s", words, err, &failure)
	}
	var code []bpf.RawInstruction
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n")[1:] {
		var i bpf.RawInstruction
		if _, err := fmt.Sscan(line, &i.Op, &i.Jt, &i.Jf, &i.K); err != nil {
			t.Fatalf("tcpdump %q: %q: %v", words, line, err)
		}
		code = append(code, i)
	}
	instructions, known := bpf.Disassemble(code)
	if !known {
		t.Fatalf("tcpdump %q: instructions that are not known", words)
	}
	vm, err := bpf.NewVM(instructions)
	if err != nil {
		t.Fatal(err)
	}
	return classic{vm}
}

// matches is false for a frame that ends before what the program looks at.
func (c classic) matches(t *testing.T, frame []byte) bool {
	t.Helper()
	n, err := c.vm.Run(frame)
	if err != nil {
		t.Fatal(err)
	}
	return n > 0
}

// terms are single questions of every kind.
func terms() []string {
	terms := []string{"tcp", "udp", "icmp", "ip", "ip6",
		"net 10", "net 10.1", "src net 10.0.0.0/30", "net 10.0.0.0/31", "net 0.0.0.0/0", "ip net 0.0.0.0/0", "net 128.0.0.0/1", "dst net 10.1.2/24",
		"src and dst net 10", "ip src net 10",
		"net ::/0", "net 2001:db8::/32", "src net 2001:db8::/31", "net 2001:db8::/64", "dst net 2001:db8:0:1::/64", "net 2001:db8::/127",
		"ip6 net ::ffff:0:0/96", "src and dst net 2001:db8::/33", "net 8000::/1",
		"portrange 1024-2047", "tcp src portrange 1024-65535", "portrange 0-65535", "udp portrange 0-1024", "dst portrange 80-80", "src and dst portrange 53-1024"}
	for _, direction := range []string{"", "src ", "dst ", "src and dst ", "src or dst "} {
		terms = append(terms, direction+"host 10.0.0.1", "ip "+direction+"host 10.0.0.2", direction+"host 2001:db8::1", "ip6 "+direction+"host ::ffff:10.0.0.1",
			direction+"host ::", direction+"host 0.0.0.0", direction+"host 255.255.255.255", direction+"host 1.0.0.10",
			direction+"port 80", "tcp "+direction+"port 80", "udp "+direction+"port 443", direction+"port 0", direction+"port 20480", direction+"port 65535")
	}
	return terms
}

// combinations use the grammar: inherited qualifiers, precedence, parentheses.
var combinations = []string{
	"not tcp", "not ip", "not port 80", "not host 10.0.0.1", "not not udp",
	"port 80 or 443", "tcp port 80 or 443", "src host 10.0.0.1 or 10.0.0.2", "host 10.0.0.1 or 2001:db8::1", "net 10 or 2001:db8::/32",
	"tcp or udp and port 53", "tcp and port 80 or udp", "tcp or (udp and port 53)", "port 80 and not 443", "port (80 or not (443 or 53))",
	"not (host 10.0.0.1 or host 10.0.0.2)", "not host 10.0.0.1 or 10.0.0.2", "not (tcp or udp or icmp)", "ip and not (src port 80 or dst port 443)",
	"tcp and udp", "ip or not ip", "src net 10 and dst portrange 1-1024 and not icmp", "(ip6 or icmp) and (host 2001:db8::1 or net 10)",
	"src 10.0.0.1 and dst 10.0.0.2 and tcp dst port 443", "port 80 and (tcp) or 443",
}

// someExpression combines terms at random.
func someExpression(random *rand.Rand, depth int) string {
	text := func() string {
		if depth > 0 && random.IntN(3) == 0 {
			return "(" + someExpression(random, depth-1) + ")"
		}
		return pick(random, terms())
	}
	negated := func() string { return pick(random, []string{"", "", "not "}) + text() }
	words := negated()
	for range random.IntN(4) {
		words += pick(random, []string{" and ", " or "}) + negated()
	}
	return words
}
