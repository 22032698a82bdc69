package snapshot

import (
	"net/netip"
	"strconv"
)

// Services is what became of the connections that NAT translated lately, service by service.
type Services struct {
	// Seconds is how far back connections count, by their last packet.
	Seconds float64   `json:"seconds"`
	All     []Service `json:"services"`
	// Complete is true where the whole table was read, and all services with a DNAT are in All.
	// Of the others those are that fail most; of destinations no others, of networks those that get
	// no answer where others do.
	Complete bool `json:"complete"`
	// NewKnown is true where New of all services with a DNAT is known.
	NewKnown bool `json:"new_known,omitempty"`
}

// What Service.Kind may be.
const (
	// ServiceDNAT are connections to Service, which lead to Target.
	ServiceDNAT = "dnat"
	// ServiceSNAT are all connections whose source alone is translated, to Given.
	ServiceSNAT = "snat"
	// ServiceDestination are those of them to Service.
	ServiceDestination = "destination"
	// ServiceUntranslated are connections from private addresses to public ones that are not
	// translated, and so get an answer only if another host translates them. Given is the
	// network that they are from, of 24 bits, or 64 of IPv6. Those to private ones have Target, the
	// network that they are to, as long; they are kept where all from one to the other get no answer, and with
	// Service those to one destination, where it answers none.
	ServiceUntranslated = "untranslated"
	// ServiceNetwork are those of a ServiceDNAT that are from the network Given, as above; or,
	// without Service, those from there whose source alone is translated.
	ServiceNetwork = "network"
)

// networkBits and networkBits6 are the length of the networks that clients are counted by.
const networkBits, networkBits6 = 24, 64

// NetworkOf is the network that a client is counted by.
func NetworkOf(client netip.Addr) netip.Prefix {
	bits := networkBits
	if client.Is6() {
		bits = networkBits6
	}
	network, _ := client.Prefix(bits)
	return network
}

// Service is connections that are translated alike. Numbers are of entries of the table,
// those that were read: a connection that is refused leaves none, as the tracker removes its
// entry with the RST (nf_conntrack_tcp_packet).
type Service struct {
	Kind     string         `json:"kind"`
	Protocol string         `json:"protocol"`
	Service  netip.AddrPort `json:"service,omitzero"`
	Target   netip.AddrPort `json:"target,omitzero"`
	// Given is the address that the source becomes; not valid where it is not translated.
	Given netip.Addr `json:"given,omitzero"`
	Zone  uint16     `json:"zone,omitempty"`
	// Answered connections began or ended lately, Reset of them by a RST. Open ones are older
	// and still there. Stalled ones were answered, and then one side did not acknowledge what
	// the other one sent, for longer than PatienceSeconds.
	Answered int64 `json:"answered"`
	Reset    int64 `json:"reset,omitempty"`
	// Busy of Answered are those in which one side had just sent something, so that it is not known
	// yet whether that arrives.
	Busy    int64 `json:"busy,omitempty"`
	Open    int64 `json:"open"`
	Stalled int64 `json:"stalled,omitempty"`
	// Expired of those that were open at the first dump were forgotten before the second one, as
	// no packet had come for as long as their timeout.
	Expired int64 `json:"expired,omitempty"`
	// New connections began between the two dumps that were compared, whatever became of them.
	New int64 `json:"new,omitempty"`
	// Lately are others that had a packet since the earlier snapshot began to be read: some may have
	// begun between the reading of the rules' counters and the earlier dump.
	Lately int64 `json:"lately,omitempty"`
	// Unanswered had no answer, for longer than PatienceSeconds. HalfOpen were answered, and
	// their client did not go on (SYN_RECV). Waiting are younger. Asking of Unanswered are
	// datagrams of clients that went on asking from one dump to the other.
	Unanswered int64 `json:"unanswered"`
	HalfOpen   int64 `json:"half_open,omitempty"`
	Waiting    int64 `json:"waiting,omitempty"`
	Asking     int64 `json:"asking,omitempty"`
	// OneWay are without an answer and of a protocol that has none (nat.IsOneWay); they are counted
	// for ServiceDNAT only.
	OneWay int64 `json:"one_way,omitempty"`
	// Inside of them all are from private addresses, and Outside from others; they are counted for ServiceDNAT only.
	Inside  int64 `json:"from_private,omitempty"`
	Outside int64 `json:"from_public,omitempty"`
	// AnsweredBy is who sends datagrams from Target's port to where answers to these go, in flows of their own, and
	// is not Target; they are counted for ServiceDNAT only.
	AnsweredBy netip.Addr `json:"answered_by,omitzero"`
	// Failing of them, Unanswered or HalfOpen, are younger than the last one that was
	// answered; SilentSeconds is how long ago that was, -1 where there is none.
	Failing       int64 `json:"failing"`
	SilentSeconds int64 `json:"silent_seconds"`
	// Clients and Destinations are some of those whose connections failed.
	Clients      []netip.Addr     `json:"clients,omitempty"`
	Destinations []netip.AddrPort `json:"destinations,omitempty"`
	// Routes are those of the packets of the first of them; nil where they were not asked for.
	Routes *Routes `json:"routes,omitempty"`
}

// PatienceSeconds is how long a connection may wait for its first answer.
const PatienceSeconds = 2

// Failed is how many connections came to nothing, lately.
func (s *Service) Failed() int64 { return s.Unanswered + s.HalfOpen }

// IsPart reports whether its connections are counted in another service as well.
func (s *Service) IsPart() bool {
	return s.Kind == ServiceDestination || s.Kind == ServiceNetwork || s.isInside()
}

// isInside reports whether it is one destination of what goes from one private network to another.
func (s *Service) isInside() bool { return s.Kind == ServiceUntranslated && s.Service.IsValid() }

// StalledShare is Stalled as a share of the connections that were answered, without Busy ones.
func (s *Service) StalledShare() float64 {
	return float64(s.Stalled) / float64(max(1, s.Stalled+s.Answered-s.Busy+s.Open))
}

// FailedShare is Failed as a share of the connections that began or ended lately.
func (s *Service) FailedShare() float64 {
	all := s.Failed() + s.Answered
	if all == 0 {
		return 0
	}
	return float64(s.Failed()) / float64(all)
}

// String names the service: "tcp 203.0.113.1:80 -> 192.168.1.10:8080".
func (s *Service) String() string {
	switch s.Kind {
	case ServiceDNAT:
		return s.Protocol + " " + endString(s.Service) + " -> " + endString(s.Target)
	case ServiceDestination:
		return s.Protocol + " " + endString(s.Service) + " from " + s.Given.String()
	case ServiceUntranslated:
		if s.isInside() {
			return s.Protocol + " " + endString(s.Service) + " from " + NetworkOf(s.Given).String() + ", untranslated"
		}
		if s.Target.IsValid() {
			return s.Protocol + " from " + NetworkOf(s.Given).String() + " to " + NetworkOf(s.Target.Addr()).String() + ", untranslated"
		}
		return s.Protocol + " from " + NetworkOf(s.Given).String() + ", untranslated"
	case ServiceNetwork:
		if s.Service.IsValid() {
			return s.Protocol + " " + endString(s.Service) + " -> " + endString(s.Target) + " from " + NetworkOf(s.Given).String()
		}
		return s.Protocol + " from " + NetworkOf(s.Given).String()
	}
	return s.Protocol + " from " + s.Given.String()
}

// endString is an address with its port, if it has one.
func endString(e netip.AddrPort) string {
	switch {
	case e.Port() == 0:
		return e.Addr().String()
	case e.Addr().Is6():
		return "[" + e.Addr().String() + "]:" + strconv.Itoa(int(e.Port()))
	}
	return e.String()
}
