package pcap

// About holds the texts about a kind of incident, wherever it is shown.
type About struct {
	// What it is, in a few words, and what is the Evidence of it.
	What     string `json:"what"`
	Evidence string `json:"evidence,omitempty"`
	// Fault is a kind that costs connections. The others can be what is meant to happen: a
	// port where nothing listens, a path with a smaller MTU.
	Fault bool `json:"fault"`
	// Happened and Cause are whole sentences.
	Happened string `json:"happened"`
	Cause    string `json:"cause,omitempty"`
	// Advice is what to do, the best first.
	Advice []string `json:"advice,omitempty"`
}

// About returns the texts about the kind.
func (k Kind) About() About { return about[k] }

// portReuseAdvice helps wherever TIME_WAIT rejects. Its effects are measured by the lab's
// scenario; the hold-down is that of RFC 6888, REQ-8.
func portReuseAdvice(more ...string) []string {
	return append([]string{
		"More addresses, at the NAT or at the servers: a port is then reused later.",
		"A NAT that holds a closed port back for longer than the servers' TIME_WAIT (RFC 6888 asks for 120 s).",
		"Fewer connections (keep-alive), or ones that the client closes first: TIME_WAIT is then on its side, and counts only one machine's ports.",
		"Fewer TIME_WAIT sockets on the servers (net.ipv4.tcp_max_tw_buckets): rarer, at the cost of what TIME_WAIT protects from.",
		"'sudo natkit lab run port-reuse-paws' shows the fault and the effect of each of these.",
	}, more...)
}

const compareBothSides = "Capture on both sides of the NAT and compare: 'natkit pcap inside.pcap outside.pcap'."

var about = map[Kind]About{
	SYNRejectedPAWS: {
		What:     "SYN that TIME_WAIT rejected because its timestamp went back (PAWS)",
		Evidence: "the former connection's ACK answers the SYN. Where the connection's end was not captured, the ACK's IPv4 ID is 0, as Linux (4.19 and later) sends it from TIME_WAIT. Without an ACK (the kernel sends at most one in 0.5 s) it is inferred from the former connection, and marked as such",
		Fault:    true,
		Happened: "The port was reused while the server still had the former connection in TIME_WAIT. The SYN's timestamp is behind the last one of that connection, so the server takes the SYN for an old duplicate, drops it, and repeats its last ACK. The client has no such connection and answers with RST; it has to try again, or gives up.",
		Cause:    "Within one connection timestamps never go back (PAWS, RFC 7323 section 5), and a SYN with a later one ends TIME_WAIT at once (RFC 6191). Behind a NAT they do: the port was given to another machine with its own clock, or to the same one, whose clock differs from port to port (Linux of 2026 and others), while the server still had the former connection.",
		Advice: portReuseAdvice("On a server 'sudo natkit doctor' finds it live (tw-paws-reject).",
			"Not this: net.ipv4.tcp_timestamps=0 hides the counter, not the fault; TIME_WAIT then rejects by sequence number."),
	},
	SYNRejectedSeq: {
		What:     "SYN that TIME_WAIT rejected because its sequence number went back",
		Evidence: "the same; the SYN has no timestamp to compare",
		Fault:    true,
		Happened: "The port was reused while the server still had the former connection in TIME_WAIT. No timestamp shows that the SYN is newer, and its sequence number is not after the former connection's, so the server takes the SYN for an old duplicate, drops it, and repeats its last ACK. The client has no such connection and answers with RST; it has to try again, or gives up.",
		Cause:    "TIME_WAIT accepts a SYN only if its sequence number is after the former connection's last, or its timestamp is later (RFC 1122 section 4.2.2.13, RFC 6191). One machine's sequence numbers grow; behind a NAT the next connection is another machine's, and about half of them are behind. No counter of the server shows this.",
		Advice:   portReuseAdvice("On a server 'sudo natkit doctor' checks for it live (tw-seq-reject)."),
	},
	SYNOnOpen: {
		What:     "SYN on a connection that is still open at the server",
		Evidence: "an ACK of the connection answers the SYN, without a FIN before. Where the connection's end may have been before the capture, the ACK's IPv4 ID is not 0, or TIME_WAIT would have accepted the SYN",
		Fault:    true,
		Happened: "The server has an open connection of these addresses and ports. It answers a SYN on it with an ACK of that connection (a challenge ACK, RFC 5961 section 4); the client answers with RST, which ends the old connection, and its next SYN is accepted.",
		Cause:    "The NAT forgot the connection and reused its port, or the client went away without closing.",
		Advice: []string{"NAT timeouts of open connections that are longer than their silence (RFC 5382 asks for 2 h 4 min), or more frequent keepalives.",
			"'sudo natkit doctor' on the NAT finds entries that expire too early."},
	},
	SYNOnFormer: {
		What:     "SYN that an ACK of the former connection answers: TIME_WAIT, or still open at the server",
		Evidence: "the former connection's ACK answers the SYN; the capture has neither that connection's end nor an IPv4 ID that shows which it is",
		Fault:    true,
		Happened: "The server has a former connection of these addresses and ports, and answers the SYN with its ACK; the client answers with RST, and has to try again. The connection's end was not captured: the server has it either in TIME_WAIT or still open, and answers alike in both.",
		Cause:    "In TIME_WAIT: the port was reused too early (as in syn-rejected-paws and syn-rejected-seq). Open: the NAT forgot the connection, or the client went away without closing (as in syn-on-open-connection).",
		Advice: []string{"'ss -tan' on the server, with the client's address and port, before the SYN: TIME-WAIT or ESTAB (or CLOSE-WAIT).",
			"'sudo natkit doctor' on the server asks its kernel for the state, and finds what TIME_WAIT rejects (tw-paws-reject, tw-seq-reject); the counter TcpExtPAWSTimewait (Linux 6.16 and later) grows with TIME_WAIT only.",
			"Capture for longer than a minute: of connections whose end is in the capture the report says which it was."},
	},
	SYNUnanswered: {
		What:     "SYN, with its retransmissions, without an answer",
		Evidence: "no answer within a second",
		Fault:    true,
		Happened: "The SYN was sent, mostly several times with growing pauses, and no packet came back.",
		Cause:    "It was dropped on its way (a full connection table, a NAT without a free port, a rule), by the server (a full listen queue), or its answer was.",
		Advice:   []string{compareBothSides, "'sudo natkit doctor' and 'sudo natkit drops tcp' on each machine on the way."},
	},
	SYNNotAccepted: {
		What:     "SYN, with its retransmissions, to which the file has neither SYN-ACK nor RST",
		Evidence: "no SYN-ACK and no RST within a second, in headers of SYNs, FINs, RSTs and ICMP alone (natkit record): answers by ACK alone are not in the file",
		Fault:    true,
		Happened: "The SYN was sent, mostly several times with growing pauses, and neither SYN-ACK nor RST came back; answers by ACK alone are not in this file.",
		Cause:    "It, or its answer, was dropped on its way or by the server, as in syn-unanswered. Or the server answered with the ACK of a former connection of these addresses and ports, as in syn-rejected-paws, syn-rejected-seq and syn-on-open-connection. Where there were more packets than a recorder keeps, the answer may be one of the others.",
		Advice:   []string{"Capture all packets of TCP on the server: 'sudo tcpdump -i IFACE -s 128 -w FILE tcp or icmp', and read them with 'natkit pcap FILE': it tells these apart.", "'sudo natkit doctor' and 'sudo natkit drops tcp' on each machine on the way."},
	},
	RSTOutOfWindow: {
		What:     "RST outside its receiver's window, which ignores it",
		Evidence: "sequence number, window; no other RST of that side that is accepted",
		Fault:    true,
		Happened: "The RST's sequence number is not one that the receiver expects: it ignores the RST, and the connection stays open on one side.",
		Cause:    "It belongs to an earlier connection of these addresses and ports, or is from a machine that does not know the connection: often a packet that conntrack found INVALID passed a NAT without translation.",
		Advice: []string{"Drop what conntrack finds INVALID before it leaves ('ct state invalid drop'); where that hits good packets, net.netfilter.nf_conntrack_tcp_be_liberal=1.",
			"'sudo natkit doctor' on the NAT shows whether the counter invalid grows."},
	},
	RetransmissionBackoff: {
		What:     "segment that was sent three times or more",
		Evidence: "sequence numbers",
		Fault:    true,
		Happened: "The sender got no acknowledgement and repeated the segment with growing pauses.",
		Cause:    "The segment or its acknowledgement is lost on the way. If only long segments are, the path has a smaller MTU than the sender assumes; if all are, after a silence, the NAT forgot the connection.",
		Advice:   []string{compareBothSides, "'sudo natkit drops' where they get lost; 'sudo natkit doctor' on the NAT."},
	},
	ICMPErrorKind: {
		What:     "ICMP error about a connection",
		Evidence: "the packet that it quotes",
		Happened: "A machine on the way, or the server, could not deliver a packet and reported it; see the table of ICMP errors.",
	},
	SYNRefused: {
		What:     "SYN that was answered by RST",
		Happened: "Nothing listens on the port, or a rule rejects.",
	},
	TimestampBack: {
		What:     "port that was reused with an earlier timestamp, and was accepted",
		Happened: "The port was reused with another machine's clock, when the server no longer had the former connection, or did not hold TIME_WAIT (an RST ends that, too). It did no harm; a little earlier it would have been rejected.",
	},
}
