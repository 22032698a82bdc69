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
)

// Fails reports whether a connection that came so far came to nothing.
func (s Step) Fails() bool { return s != StepAnswered && s != StepWaiting }

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
	// Failed is one that failed, of the step that most did.
	Failed *FailedConnection `json:"failed,omitempty"`
}

// FailedConnection is an example.
type FailedConnection struct {
	Step   Step           `json:"step"`
	Client netip.AddrPort `json:"client"`
	// Left is the source and the destination with which it left; not valid where it did not.
	LeftFrom netip.AddrPort `json:"left_from,omitzero"`
	LeftTo   netip.AddrPort `json:"left_to,omitzero"`
	// AnswerIn and AnswerOut are the interfaces by which the answer came in and left, where the
	// question did not leave or come in by them.
	AnswerIn  string `json:"answer_in,omitempty"`
	AnswerOut string `json:"answer_out,omitempty"`
	// By is who refused it, or answered in place of the destination.
	By netip.Addr `json:"by,omitzero"`
	// ICMP is type and code of the error.
	ICMPType uint8 `json:"icmp_type,omitempty"`
	ICMPCode uint8 `json:"icmp_code,omitempty"`
	// Routes are those of its packets; nil where they were not asked for.
	Routes *Routes `json:"routes,omitempty"`
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
