package snapshot

import "net/netip"

// PartFollowed is the name of the part that Recording.Followed is.
const PartFollowed = "followed"

// Followed is how far connections came that were followed through the namespace, between the
// interfaces by which their packets came and left.
type Followed struct {
	Seconds float64 `json:"seconds"`
	// PausedSeconds of them were not watched, as there were too many packets.
	PausedSeconds float64 `json:"paused_seconds,omitempty"`
	// Sample: one in so many connections of TCP was followed. TCPOnly is true where datagrams were
	// too many to be followed to the end. Lost packets were not read.
	Sample  int    `json:"sample"`
	TCPOnly bool   `json:"tcp_only,omitempty"`
	Lost    uint64 `json:"lost,omitempty"`
	// Connections and Answered count those of all services, listed or not.
	Connections uint64 `json:"connections,omitempty"`
	Answered    uint64 `json:"answered,omitempty"`
	// Services are those with the most connections that failed first; MoreServices are not
	// listed.
	Services     []FollowedService `json:"services"`
	MoreServices int64             `json:"more_services,omitempty"`
}

// Step is how far a connection came, as the first packets of it and of its answer show.
type Step string

// The steps. "Here" is this namespace, what is beyond it is on the server's side.
const (
	// StepAnswered: the answer left for the client. StepWaiting: too young to say.
	StepAnswered Step = "answered"
	StepWaiting  Step = "waiting"
	// StepOneWay: a datagram of a tunnel that ends here, to which no answer is meant to come.
	StepOneWay Step = "one-way"
	// StepLostHere: it came in, and did not leave.
	StepLostHere Step = "lost-here"
	// StepRefusedHere and StepUnreachableHere: this host answered by a RST, or an ICMP error.
	StepRefusedHere     Step = "refused-here"
	StepUnreachableHere Step = "unreachable-here"
	// StepNoAnswer: it left, and nothing came back.
	StepNoAnswer Step = "no-answer"
	// StepRefused and StepUnreachable: a RST or an ICMP error came back.
	StepRefused     Step = "refused"
	StepUnreachable Step = "unreachable"
	// StepOtherSource: an answer came from another address or port than it was sent to.
	StepOtherSource Step = "answered-by-another"
	// StepAnswerLost: an answer came, and did not leave. StepAnswerUntranslated: it left, and not
	// as an answer to what the client sent.
	StepAnswerLost         Step = "answer-lost-here"
	StepAnswerUntranslated Step = "answer-untranslated"
	// StepClientSilent: the answer left, and the client asked again.
	StepClientSilent Step = "client-asks-again"
	// Of connections that were opened: StepDataLost: data of one side came in again and again, and did
	// not leave. StepDataUnanswered: it left again and again, and was not acknowledged. StepResetHere:
	// this host sent a RST of its own. StepReset: a RST came in place of the answer to a request.
	StepDataLost       Step = "data-lost-here"
	StepDataUnanswered Step = "data-unanswered"
	StepResetHere      Step = "reset-here"
	StepReset          Step = "reset"
	// StepDataMissing: the client gave up waiting for data of the server that did not come here: it is too large for
	// the way, or what came behind it shows a gap.
	StepDataMissing Step = "data-missing"
	// StepPartLost: datagrams of a flow came in, of which a part left alone.
	StepPartLost Step = "datagrams-lost-here"
)

// Here reports whether a connection that came so far ended on this host.
func (s Step) Here() bool {
	switch s {
	case StepLostHere, StepRefusedHere, StepUnreachableHere, StepAnswerLost, StepAnswerUntranslated, StepDataLost, StepResetHere, StepPartLost:
		return true
	}
	return false
}

// Later reports whether a connection that came so far was opened.
func (s Step) Later() bool {
	switch s {
	case StepDataLost, StepDataUnanswered, StepResetHere, StepReset, StepPartLost, StepDataMissing:
		return true
	}
	return false
}

// Fails reports whether a connection that came so far came to nothing.
func (s Step) Fails() bool { return s != StepAnswered && s != StepWaiting && s != StepOneWay }

// FollowedService is the connections to one destination that became the same, and left by the same
// interface; those that did not leave are one of their own.
type FollowedService struct {
	Protocol string `json:"protocol"`
	// Service is the destination as clients name it.
	Service netip.AddrPort `json:"service"`
	// Target is what it became, Given what the source became; not valid where that is the same.
	Target netip.AddrPort `json:"target,omitzero"`
	Given  netip.Addr     `json:"given,omitzero"`
	// In and Out are the interfaces by which its packets came and left; empty for those of this
	// host, and where none left.
	In  string `json:"in,omitempty"`
	Out string `json:"out,omitempty"`
	// InOnly is true where all that came in by In failed, and what others did not.
	InOnly bool `json:"in_only,omitempty"`
	// Fragmented is true where it is about datagrams that came in fragments alone.
	Fragmented bool `json:"fragmented,omitempty"`
	// Bridged is true where its packets pass a bridge, and are for other hosts.
	Bridged bool `json:"bridged,omitempty"`
	// Clients counts the different addresses of clients. Mixed are the connections that failed of
	// clients of which others to the same destination were answered.
	Clients int    `json:"clients,omitempty"`
	Mixed   uint64 `json:"failed_of_answered_clients,omitempty"`
	// Steps counts connections by how far they came, Repeated their first packets that came
	// again.
	Steps    map[Step]uint64 `json:"steps"`
	Repeated uint64          `json:"repeated,omitempty"`
	// Seconds of the answered ones on average: from in to out, until the answer came, and from
	// there until it left.
	HereSeconds   float64 `json:"here_seconds,omitempty"`
	BeyondSeconds float64 `json:"beyond_seconds,omitempty"`
	BackSeconds   float64 `json:"back_seconds,omitempty"`
	// Detoured are the answered ones whose answer left by DetourOut and not by the interface that the question
	// came in by, WentOn those of them that went on after it.
	Detoured  uint64 `json:"answered_elsewhere,omitempty"`
	WentOn    uint64 `json:"answered_elsewhere_went_on,omitempty"`
	DetourOut string `json:"answers_leave_by,omitempty"`
	// Failed is one that failed, of the step that most did.
	Failed *FailedConnection `json:"failed,omitempty"`
}

// FailedConnection is an example.
type FailedConnection struct {
	Step   Step           `json:"step"`
	Client netip.AddrPort `json:"client"`
	// TTL is that of IPv4 with which it came in; 0 where it did not, or is not known.
	TTL uint8 `json:"ttl,omitempty"`
	// Left is the source and the destination with which it left; not valid where it did not.
	LeftFrom netip.AddrPort `json:"left_from,omitzero"`
	LeftTo   netip.AddrPort `json:"left_to,omitzero"`
	// AnswerIn and AnswerOut are the interfaces by which the answer came in and left, where the
	// question did not leave or come in by them.
	AnswerIn  string `json:"answer_in,omitempty"`
	AnswerOut string `json:"answer_out,omitempty"`
	// AnswerBridged is true where the answer passed a bridge of this host, for another host.
	AnswerBridged bool `json:"answer_bridged,omitempty"`
	// AstrayIn is the interface by which the answer came in, where its frame has another hardware address than the
	// interface, so that this host drops it.
	AstrayIn string `json:"astray_in,omitempty"`
	// AnswerSeconds is how long the answer took from where it left, where one came.
	AnswerSeconds float64 `json:"answer_seconds,omitempty"`
	// OneSided is true where the client went on after a SYN whose answer did not pass this host, or an answer came to
	// a SYN that did not.
	OneSided bool `json:"one_sided,omitempty"`
	// By is who refused it, or answered in place of the destination.
	By netip.Addr `json:"by,omitzero"`
	// ICMP is type and code of the error.
	ICMPType uint8 `json:"icmp_type,omitempty"`
	ICMPCode uint8 `json:"icmp_code,omitempty"`
	// Routes are those of its packets; nil where they were not asked for.
	Routes *Routes `json:"routes,omitempty"`
	// Of data of an opened connection that was lost: whether it is the server's, the interface by which it
	// came, the bytes of the packet, those of the largest one that passed, the time before it in which
	// none was seen, and the last ICMP error about the size of packets.
	Answer       bool    `json:"answer,omitempty"`
	DataIn       string  `json:"data_in,omitempty"`
	Bytes        int     `json:"bytes,omitempty"`
	PassedBytes  int     `json:"passed_bytes,omitempty"`
	PauseSeconds float64 `json:"pause_seconds,omitempty"`
	TooBig       *TooBig `json:"too_big,omitempty"`
	// Of data of the server that did not come: the MSS of the SYN that left or, where that is less, of its answer, the MTU of the interface that it left by,
	// and the bytes of a gap before what came.
	MSSBytes     int `json:"mss_bytes,omitempty"`
	LinkMTUBytes int `json:"link_mtu_bytes,omitempty"`
	GapBytes     int `json:"gap_bytes,omitempty"`
	// Of a flow of datagrams, of which Answer says the direction: how many came in, and how many left.
	DatagramsIn  uint64 `json:"datagrams_in,omitempty"`
	DatagramsOut uint64 `json:"datagrams_out,omitempty"`
	// Place is what rules and routes do to what was lost, as asked at the end; nil where they were not.
	Place *FailedPlace `json:"place,omitempty"`
}

// TooBig is an ICMP error about the size of packets.
type TooBig struct {
	By netip.Addr `json:"by"`
	// Here is true where this host sent it, Passed where it left for the sender of the packet.
	Here     bool `json:"here,omitempty"`
	MTUBytes int  `json:"mtu_bytes"`
	Passed   bool `json:"passed,omitempty"`
}

// FailedPlace is what this host does to a packet that was lost.
type FailedPlace struct {
	// To is the destination that rules give it, where that is known and another one.
	To netip.AddrPort `json:"to,omitzero"`
	// Foreign is true where a packet left that did not come in, and is from no address of this host's: one
	// of a network namespace that shares the interface.
	Foreign bool `json:"foreign,omitempty"`
	// Local is true where it is for this host itself.
	Local bool `json:"local,omitempty"`
	// Encrypted is true where a policy of IPsec takes it, so that it leaves by another name.
	Encrypted bool `json:"encrypted,omitempty"`
	// NoRoute is the error in place of a route for a packet that comes from there by that interface.
	NoRoute string `json:"no_route,omitempty"`
	// ReversePath is true where the route back to its source leads elsewhere, and rp_filter is strict.
	ReversePath bool `json:"reverse_path,omitempty"`
	// Out, OutMTUBytes and NextHop are where it is to leave, Neighbour is the state of that entry.
	Out         string     `json:"out,omitempty"`
	OutDown     bool       `json:"out_down,omitempty"`
	OutMTUBytes int        `json:"out_mtu_bytes,omitempty"`
	NextHop     netip.Addr `json:"next_hop,omitzero"`
	Neighbour   string     `json:"neighbour,omitempty"`
	// NeighbourFilter is what filters do to the answers of neighbour discovery, where that drops them.
	NeighbourFilter *Filter `json:"neighbour_filter,omitempty"`
	// Tunnel is what Out is, where it is one.
	Tunnel *Tunnel `json:"tunnel,omitempty"`
	// Uplink is true where the route is a default one.
	Uplink bool `json:"uplink,omitempty"`
	// InUplink is true where the packet came in by the interface of a default route.
	InUplink bool `json:"in_uplink,omitempty"`
	// Filter is what filters do to it; nil where that is not known. ErrorFilter is what they do to the
	// ICMP errors about its size, NoEntryFilter what they do to it where it is of no connection that the
	// tracker knows (any more).
	Filter        *Filter `json:"filter,omitempty"`
	NoEntryFilter *Filter `json:"no_entry_filter,omitempty"`
	// AnswerFilter is what filters would do to the answer, where they drop a first packet on its way through.
	AnswerFilter *Filter `json:"answer_filter,omitempty"`
	ErrorFilter  *Filter `json:"error_filter,omitempty"`
	// Of what left and got no answer: the rule that translates its source, or the one that keeps it from a
	// translation.
	Translates *RulePlace `json:"translates,omitempty"`
	Spares     *RulePlace `json:"spares,omitempty"`
	// Exempts are the rules that keep the tracker from it or from its answers, where it is to be translated.
	Exempts []RulePlace `json:"exempts,omitempty"`
}

// Tunnel is an interface that carries packets in those to a far end.
type Tunnel struct {
	Kind string `json:"kind"`
	// Remote is the far end for the next hop, not valid where that is not known, and Port that of its datagrams.
	Remote netip.Addr `json:"remote,omitzero"`
	Port   uint16     `json:"port,omitempty"`
	// Neighbour is the state of the neighbour that what is sent to Remote goes to first.
	Neighbour string `json:"neighbour,omitempty"`
}

// Count is how many connections there are, however far they came.
func (s *FollowedService) Count() (n uint64) {
	for _, count := range s.Steps {
		n += count
	}
	return n
}

// Failing counts the connections that came to nothing.
func (s *FollowedService) Failing() (n uint64) {
	for step, count := range s.Steps {
		if step.Fails() {
			n += count
		}
	}
	return n
}
