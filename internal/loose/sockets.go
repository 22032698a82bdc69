package loose

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/lazyregexp"
)

// Socket is a socket of TCP or UDP.
type Socket struct {
	// Protocol is tcp or udp, State as ss prints it.
	Protocol, State string
	// Local and Remote are not valid, or have port 0, where the text has a *.
	Local, Remote netip.AddrPort
	// Queue and Limit are what ss prints as Recv-Q and Send-Q: of a listening socket the connections that wait
	// for accept(2), and how many may.
	Queue, Limit uint32
}

// netstatStates are the states of netstat in the words of ss.
var netstatStates = map[string]string{
	"LISTEN": "LISTEN", "ESTABLISHED": "ESTAB", "TIME_WAIT": "TIME-WAIT", "SYN_SENT": "SYN-SENT", "SYN_RECV": "SYN-RECV",
	"FIN_WAIT1": "FIN-WAIT-1", "FIN_WAIT2": "FIN-WAIT-2", "CLOSE_WAIT": "CLOSE-WAIT", "LAST_ACK": "LAST-ACK", "CLOSING": "CLOSING", "CLOSE": "UNCONN",
}

var socketStates = map[string]bool{"LISTEN": true, "ESTAB": true, "TIME-WAIT": true, "SYN-SENT": true, "SYN-RECV": true, "FIN-WAIT-1": true,
	"FIN-WAIT-2": true, "CLOSE-WAIT": true, "LAST-ACK": true, "CLOSING": true, "UNCONN": true}

// readSockets reads the lines of ss and of netstat -an about TCP and UDP.
func readSockets(s *Sample, t *Text) error {
	protocol := "tcp"
	if strings.Contains(t.Command, "-u") || strings.Contains(t.Command, "ss -lu") {
		protocol = "udp"
	}
	n, connected := 0, withConnected.MatchString(t.hints())
	for words := range fieldsOf(t.Data) {
		if one, ok := socketOf(words, protocol); ok {
			s.Sockets = append(s.Sockets, one)
			s.Listening = s.Listening || one.State == "LISTEN"
			connected = connected || one.State != "LISTEN" && one.State != "UNCONN"
			n++
		}
	}
	if allSockets.MatchString(t.hints()) { // a host that listens nowhere has none
		s.Listening, s.listed = true, true
	}
	head := strings.Contains(string(t.Data[:min(len(t.Data), headBytes)]), "Recv-Q")
	if n == 0 && !head {
		return fmt.Errorf("has no socket of TCP or UDP")
	}
	s.HasSockets = s.HasSockets || connected
	return nil
}

// withConnected are commands that print all states: ss -tan, netstat -an. Those of ss -tln say nothing about connections.
var withConnected = lazyregexp.New(`\b(?:ss|netstat)[ _]-\w*a`)

// ListedSockets reports whether a text has all sockets of a protocol, the listening ones of TCP among them.
func (s *Sample) ListedSockets(protocol string) bool {
	if protocol == "tcp" {
		return s.Listening
	}
	return s.listed || slices.ContainsFunc(s.Sockets, func(one Socket) bool { return one.Protocol == protocol })
}

// allSockets are commands that print all sockets of TCP and UDP, the listening ones among them.
var allSockets = lazyregexp.New(`\b(?:ss|netstat)[ _]-(?:\w*a\w*t\w*u|\w*a\w*u\w*t|\w*t\w*u\w*a|\w*t\w*a\w*u|\w*u\w*t\w*a|\w*u\w*a\w*t|peaonmi|neopa)`)

func socketOf(words []string, protocol string) (one Socket, ok bool) {
	if len(words) < 5 {
		return one, false
	}
	netid, netstat := "", false
	switch words[0] {
	case "tcp", "udp", "tcp6", "udp6":
		netid = strings.TrimSuffix(words[0], "6")
	}
	switch {
	case netid != "" && socketStates[words[1]] && len(words) > 5: // ss with several kinds
		one, words = Socket{Protocol: netid, State: words[1]}, words[2:]
	case socketStates[words[0]]: // ss with one kind
		one, words = Socket{Protocol: protocol, State: words[0]}, words[1:]
	case netid != "": // netstat
		one, words, netstat = Socket{Protocol: netid, State: "UNCONN"}, words[1:], true
		if len(words) > 4 && netstatStates[words[4]] != "" {
			one.State = netstatStates[words[4]]
		}
		if one.Protocol == "udp" && len(words) > 4 && words[4] == "ESTABLISHED" {
			one.State = "ESTAB"
		}
	default:
		return one, false
	}
	q, err1 := strconv.ParseUint(words[0], 10, 32)
	limit, err2 := strconv.ParseUint(words[1], 10, 32)
	local, ok1 := endpoint(words[2])
	remote, ok2 := endpoint(words[3])
	one.Local, one.Remote = local, remote
	if !netstat { // which has no limit
		one.Queue, one.Limit = uint32(q), uint32(limit)
	}
	return one, err1 == nil && err2 == nil && ok1 && ok2
}

// endpoint reads 198.18.0.1:80, 127.0.0.1%lo:53, [::1]:80, *:80, 0.0.0.0:*, :::80 of netstat; names of services
// (ss without -n) are not known.
func endpoint(text string) (netip.AddrPort, bool) {
	at := strings.LastIndexByte(text, ':')
	if at < 0 {
		return netip.AddrPort{}, false
	}
	host, portText := text[:at], text[at+1:]
	port := uint64(0)
	if portText != "*" {
		var err error
		if port, err = strconv.ParseUint(portText, 10, 16); err != nil {
			return netip.AddrPort{}, false
		}
	}
	host = strings.Trim(host, "[]")
	host, _, _ = strings.Cut(host, "%")
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if host == "*" {
		return netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(port)), true
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(port)), true
}
