package plane

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/natkit/natkit/internal/testutil"
)

func TestLoad(t *testing.T) {
	testutil.NeedRoot(t)
	p, err := Load(Config{Tables: Tables{
		Destinations: []Mapping{{Match: netip.MustParsePrefix("203.0.113.1/32"), To: netip.MustParsePrefix("10.0.0.1/32"), Roles: 1, Rule: 1},
			{Match: netip.MustParsePrefix("203.0.114.0/24"), To: netip.MustParsePrefix("10.0.1.0/24"), Roles: 1, Rule: 1},
			{Match: netip.MustParsePrefix("203.0.113.1/32"), Protocol: 6, Port: 80, To: netip.MustParsePrefix("10.0.1.0/32"), ToPort: 8080, Roles: 1, Rule: 1}},
		Sources: []Mapping{{Match: netip.MustParsePrefix("10.0.0.1/32"), To: netip.MustParsePrefix("203.0.113.1/32"), Roles: 1, Rule: 1},
			{Match: netip.MustParsePrefix("10.0.1.0/24"), To: netip.MustParsePrefix("203.0.114.0/24"), Roles: 1, Rule: 1}}, Rules: 2}, Marks: MarksOf(3 << 8)})
	var v *ebpf.VerifierError
	if errors.As(err, &v) {
		t.Fatalf("%+v", v)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []*ebpf.Program{p.Forward, p.Ingress, p.IngressWithoutEthernet, p.Egress} {
		i, _ := x.Info()
		n, _ := i.VerifiedInstructions()
		t.Log(i.Name, n)
	}
	defer p.Close()
}
