package behaviour

import "net/netip"

// rfc4787 is Network Address Translation (NAT) Behavioral Requirements for Unicast
// UDP.
func rfc4787() []Case {
	return []Case{{
		ID: "rfc4787-req-1", RFC: 4787, Requirement: "REQ-1", Level: Must,
		Asks: "the mapping of an inside address and port is the same for all destinations (endpoint-independent)",
		Run:  mappingBehaviour,
		Want: []Outcome{EndpointIndependent},
	}}
}

// The kinds of mapping and filtering (RFC 4787, sections 4.1 and 5).
const (
	EndpointIndependent     Outcome = "endpoint-independent"
	AddressDependent        Outcome = "address-dependent"
	AddressAndPortDependent Outcome = "address-and-port-dependent"
)

func mappingBehaviour(p *Play) (Outcome, error) {
	from := ap("192.168.0.2:4000")
	var seen []netip.AddrPort
	destinations := []struct {
		host Host
		to   netip.AddrPort
	}{{X, ap("198.18.0.10:5000")}, {X, ap("198.18.0.10:5001")}, {X, ap("198.18.0.11:5000")}, {Y, ap("198.18.1.20:5000")}}
	for _, d := range destinations {
		got, err := p.Exchange(A, d.host, UDPPacket(from, d.to, ""))
		if err != nil {
			return "", err
		}
		seen = append(seen, got.Frame.Tuple().Src)
	}
	switch {
	case seen[0] == seen[1] && seen[0] == seen[2] && seen[0] == seen[3]:
		return EndpointIndependent, nil
	case seen[0] == seen[1]:
		return AddressDependent, nil
	}
	return AddressAndPortDependent, nil
}

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
