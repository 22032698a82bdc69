package bpf

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/natkit/natkit/internal/testutil"
)

func TestInstallNeedsTheSubprogram(t *testing.T) {
	spec := &ebpf.ProgramSpec{Name: "other", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}}
	err := Install(spec, mustParse(t, "tcp"))
	if err == nil || !strings.Contains(err.Error(), "program other: it has no subprogram flow_matches") {
		t.Errorf("got %v", err)
	}
	if err := Install(spec, nil); err != nil {
		t.Errorf("no filter needs no subprogram: %v", err)
	}
}

// TestInstallAgain exchanges a body that is one of ours already.
func TestInstallAgain(t *testing.T) {
	spec, err := loadMatch()
	if err != nil {
		t.Fatal(err)
	}
	program := spec.Programs["match_frame"]
	original := len(program.Instructions)
	for _, words := range []string{"port 80 or 443", "tcp", "host 2001:db8::1"} {
		e := mustParse(t, words)
		if err := Install(program, e); err != nil {
			t.Fatal(err)
		}
		begin, end := find(program.Instructions, subprogram)
		if body := len(generate(e, order(program))); end-begin != body || end != len(program.Instructions) || begin >= original {
			t.Errorf("%q: the body is %d to %d of %d, want %d instructions", words, begin, end, len(program.Instructions), body)
		}
	}
}

// largest are filters with as many words as may be, of the terms that cost most.
func largest() map[string]string {
	many := func(first, format string, n int) string {
		words := fmt.Sprintf(first, 0)
		for i := 1; i < n; i++ {
			words += fmt.Sprintf(format, i)
		}
		return words
	}
	return map[string]string{
		"hosts":       many("host 2001:db8::%x", " or 2001:db8::%x", 127),
		"no hosts":    many("not host 2001:db8::%x", " and not 2001:db8::%x", 84),
		"ranges":      many("portrange %d-60000", " or %d-60000", 127),
		"mixed":       many("src net 10.%d", " or dst port %[1]d and not icmp", 36),
		"nested":      strings.Repeat("(tcp or not (ip or ", 10) + "udp" + strings.Repeat("))", 10),
		"parentheses": strings.Repeat("not ", 32) + "tcp",
	}
}

// TestVerifierHasLittleToDo keeps the verifier's work proportional to a filter's
// length, far from its limit of a million instructions: it comes to flow_matches in
// several states, and a few times to each label.
func TestVerifierHasLittleToDo(t *testing.T) {
	testutil.NeedRoot(t)
	k := newKernel(t, oddFrames())
	k.install(t, nil)
	without := verified(t, k.program)
	for name, words := range largest() {
		e := mustParse(t, words)
		k.install(t, e)
		size, n := len(generate(e, order(k.spec.Programs["match_frame"]))), verified(t, k.program)
		t.Logf("%s: %d words, %d instructions; the verifier went through %d, %d without", name, len(strings.Fields(words)), size, n, without)
		if most := 20*uint32(size) + 4*without; n > most {
			t.Errorf("%s: the verifier went through %d instructions, want at most %d", name, n, most)
		}
	}
}

func verified(t *testing.T, p *ebpf.Program) uint32 {
	t.Helper()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	n, known := info.VerifiedInstructions() // since Linux 5.16
	if !known || n == 0 {
		t.Fatalf("the kernel does not report the number of verified instructions (%d)", n)
	}
	return n
}
