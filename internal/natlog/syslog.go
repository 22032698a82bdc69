package natlog

import (
	"net/netip"
	"strconv"
)

// Facility and severities of syslog (RFC 5424, section 6.2.1).
const (
	facilityDaemon = 3
	severityNotice = 5
	severityInfo   = 6
	severityWarn   = 4
)

// The words of syslog are those of IPFIX (RFC 8158, section 5), with which a receiver may know them already.
const (
	// appName is APP-NAME, structuredID is the SD-ID. natkit has no enterprise number: that is the one of RFC 5612 for
	// examples.
	appName      = "natkit"
	structuredID = "nat@32473"
)

// AppendSyslog writes the record as a message of RFC 5424, without an end of line. pid is PROCID.
func (r *Record) AppendSyslog(b []byte, pid int) []byte {
	severity := severityInfo
	switch r.Kind {
	case Lost:
		severity = severityWarn
	case Begin, Stop, Continue:
		severity = severityNotice
	}
	b = append(strconv.AppendInt(append(b, '<'), int64(facilityDaemon<<3|severity), 10), ">1 "...)
	b = append(r.Time.UTC().AppendFormat(b, timeForm), ' ')
	b = append(appendName(b, r.Node, 255), ' ')
	b = append(append(b, appName...), ' ')
	b = append(strconv.AppendInt(b, int64(pid), 10), ' ')
	b = append(append(b, messageIDs[r.messageID()]...), " ["+structuredID...)
	if r.IsSession() {
		b = parameter(b, "natEvent", strconv.Itoa(int(r.natEvent())))
		b = parameter(b, "protocolIdentifier", strconv.Itoa(int(r.Protocol)))
		version := "4"
		if r.Src.Addr().Is6() {
			version = "6"
		}
		b = ends(b, "sourceIPv"+version+"Address", "sourceTransportPort", r.Src)
		b = ends(b, "postNATSourceIPv"+version+"Address", "postNAPTSourceTransportPort", r.NAT)
		b = ends(b, "destinationIPv"+version+"Address", "destinationTransportPort", r.Dst)
		b = ends(b, "postNATDestinationIPv"+version+"Address", "postNAPTDestinationTransportPort", r.Server)
		if !r.Started.IsZero() {
			b = parameter(b, "flowStart", r.Started.UTC().Format(timeForm))
		}
		if !r.Ended.IsZero() {
			b = parameter(b, "flowEnd", r.Ended.UTC().Format(timeForm))
		}
		if r.Zone != 0 || r.ReplyZone != 0 {
			b = parameter(b, "internalAddressRealm", strconv.Itoa(int(r.Zone)))
			b = parameter(b, "externalAddressRealm", strconv.Itoa(int(r.ReplyZone)))
		}
		if r.StartedWithin > 0 {
			b = parameter(b, "flowStartWithin", strconv.FormatFloat(r.StartedWithin.Seconds(), 'f', 3, 64))
		}
	}
	if r.Within > 0 {
		b = parameter(b, "within", strconv.FormatFloat(r.Within.Seconds(), 'f', 3, 64))
	}
	if r.Netns != "" {
		b = parameter(b, "natInstance", r.Netns)
	}
	if r.Count > 0 {
		b = parameter(b, "notSentFlowTotalCount", strconv.FormatUint(r.Count, 10))
	}
	if r.Reason != "" {
		b = parameter(b, "reason", r.Reason)
	}
	if r.Without != "" {
		b = parameter(b, "without", string(r.Without))
	}
	return append(b, ']')
}

// messageIDs are what MSGID has: at most 32 printable characters.
var messageIDs = [...]string{"nat-log", "session-create", "session-delete", "lost", "session-present", "alive", "listed"}

func (r *Record) messageID() int {
	switch r.Kind {
	case Start:
		if r.Before {
			return 4
		}
		return 1
	case End:
		return 2
	case Lost:
		return 3
	case Alive:
		return 5
	case Listed:
		return 6
	}
	return 0
}

// appendName writes a field of the header: printable ASCII without spaces, "-" for none.
func appendName(b []byte, name string, most int) []byte {
	if name == "" {
		return append(b, '-')
	}
	for i := range min(len(name), most) {
		c := name[i]
		if c <= ' ' || c > '~' {
			c = '_'
		}
		b = append(b, c)
	}
	return b
}

// ends writes an address with its port.
func ends(b []byte, address, port string, a netip.AddrPort) []byte {
	if !a.IsValid() {
		return b
	}
	return parameter(parameter(b, address, a.Addr().String()), port, strconv.Itoa(int(a.Port())))
}

// parameter writes a value with what section 6.3.3 has escaped; control characters become spaces.
func parameter(b []byte, name, value string) []byte {
	b = append(append(append(b, ' '), name...), '=', '"')
	for i := range len(value) {
		switch c := value[i]; {
		case c == '"' || c == '\\' || c == ']':
			b = append(b, '\\', c)
		case c < ' ' || c == 0x7f:
			b = append(b, ' ')
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}
