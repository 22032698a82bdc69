package drops

import (
	"testing"

	"github.com/natkit/natkit/internal/frame"
)

// TestVerifierHasLittleToDo keeps the programs far from the verifier's limit of a
// million instructions: older kernels find fewer of its states equal.
func TestVerifierHasLittleToDo(t *testing.T) {
	const most = 20_000
	words, err := frame.ParseFilter([]string{"(tcp or udp) and not (src net 198.18.0.0/15 or portrange 1-99)"})
	if err != nil {
		t.Fatal(err)
	}
	for _, opt := range []Options{
		{FlowSample: 64, StackSample: 64, Filter: words},
		{FlowSample: 64, StackSample: 64, Filter: words, untyped: true},
		{FlowSample: 1, StackSample: 1, Filter: words, Events: func(Event) {}},
		{PlacesOnly: true, Headers: HeaderOptions{All: 64, Each: 4, Room: 64}},
	} {
		tr := start(t, opt)
		info, err := tr.program.Info()
		if err != nil {
			t.Fatal(err)
		}
		n, known := info.VerifiedInstructions()
		if !known {
			t.Skip("before Linux 5.16 the kernel does not report the number of verified instructions; it took the programs")
		}
		t.Logf("%s: %d", tr.source, n)
		if n > most {
			t.Errorf("%s: the verifier went through %d instructions", tr.source, n)
		}
	}
}
