package pktgen

import (
	"fmt"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/natkit/natkit/internal/load/packets"
)

// TestVerifierHasLittleToDo keeps the programs far from the verifier's limit of a
// million instructions: older kernels find fewer of its states equal. The figure is
// about what it is now, twice.
func TestVerifierHasLittleToDo(t *testing.T) {
	const most = 10_000
	for _, kind := range stacks() {
		for _, concurrent := range []bool{false, true} {
			cfg := kind.config()
			cfg.Spec.Sizes = []int{cfg.Spec.MinSize(), 1518}
			same := packets.End{Address: packets.Same, Port: packets.Same}
			cfg.Expect = packets.Expectation{Source: same, Destination: same}
			s := loadSink(t, cfg, concurrent)
			w := loadWorker(t, s.tables, cfg, 0)
			for name, p := range map[string]*ebpf.Program{"sink": s.objects.Sink, "generate": w.objects.Program} {
				what := fmt.Sprintf("%s, %s, concurrent %t", name, kind.name, concurrent)
				if n := verified(t, p); n > most {
					t.Errorf("%s: the verifier went through %d instructions", what, n)
				}
			}
		}
	}
}

// TestVerifierOfConnections is the same of the client and the responder.
func TestVerifierOfConnections(t *testing.T) {
	const most = 10_000
	for _, to := range []string{"198.18.0.1:80", "[2001:db8:18::1]:80"} {
		d := newDialogue(t, connections(to))
		for name, p := range map[string]*ebpf.Program{"initiate": d.client.objects.Initiate, "client": d.client.objects.Client, "respond": d.server.objects.Respond} {
			if n := verified(t, p); n > most {
				t.Errorf("%s to %s: the verifier went through %d instructions", name, to, n)
			}
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
	t.Logf("%s: %d", info.Name, n)
	return n
}
