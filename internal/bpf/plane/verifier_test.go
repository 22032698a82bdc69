package plane

import (
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/natkit/natkit/internal/testutil"
)

// TestVerifierHasLittleToDo keeps the programs far from the verifier's limit of a million instructions: older kernels find
// fewer of its states equal. The figure is about what it is now, twice.
func TestVerifierHasLittleToDo(t *testing.T) {
	testutil.NeedRoot(t)
	const most = 100_000
	one, all := netip.MustParsePrefix("203.0.113.1/32"), netip.MustParsePrefix("203.0.113.0/24")
	every := []Mapping{{Match: one, To: one, Roles: AnyRole}, {Match: one, To: one, Protocol: tcp, Port: 80, Roles: AnyRole}, {Match: all, To: all, Roles: AnyRole}}
	for name, tables := range map[string]Tables{"nothing": {}, "hosts": {Destinations: every[:1], Sources: every[:1]}, "everything": {Destinations: every, Sources: every}} {
		p, err := Load(Config{Tables: tables, Marks: MarksOf(3)})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		for _, program := range []*ebpf.Program{p.Forward, p.Ingress, p.IngressWithoutEthernet, p.Egress, p.EgressWithoutEthernet} {
			info, err := program.Info()
			if err != nil {
				t.Fatal(err)
			}
			n, known := info.VerifiedInstructions() // since Linux 5.16
			if !known || n == 0 {
				t.Fatalf("the kernel does not report the number of verified instructions (%d)", n)
			}
			t.Logf("%s, %s: %d", name, info.Name, n)
			if n > most {
				t.Errorf("%s, %s: the verifier went through %d instructions", name, info.Name, n)
			}
		}
	}
}
