package capture

import (
	"testing"

	netbpf "golang.org/x/net/bpf"

	"github.com/natkit/natkit/internal/testutil"
)

// TestAbilities loads the programs as older kernels take them; the verifier has little to do with them, as older ones
// find fewer of its states equal.
func TestAbilities(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.TypedTracepoints)
	const most = 20_000
	filter, err := netbpf.Assemble([]netbpf.Instruction{netbpf.LoadMemShift{Off: 0}, netbpf.LoadIndirect{Off: 13, Size: 1}, netbpf.RetA{}})
	if err != nil {
		t.Fatal(err)
	}
	loaded := 0
	for n, a := range abilities {
		for _, traced := range []bool{true, false} {
			c, err := Open(Options{Traced: traced})
			if err != nil {
				t.Fatal(err)
			}
			c.filters = [][]netbpf.RawInstruction{filter, filter}
			p, err := c.loadAs(a.direct, a.allParts)
			if last := n == len(abilities)-1; err != nil && last && traced {
				t.Errorf("the oldest: %v", err)
			} else if err == nil {
				loaded++
				info, err := p.left.Info()
				if err != nil {
					t.Fatal(err)
				}
				if n, known := info.VerifiedInstructions(); known && n > most {
					t.Errorf("the verifier went through %d instructions", n)
				}
			}
			p.close()
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	t.Logf("%d of %d are loaded", loaded, 2*len(abilities))
}
