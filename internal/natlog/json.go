package natlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/natkit/natkit/internal/nat"
)

// timeForm is RFC 3339 in UTC, with microseconds: all lines of a log sort by time as text.
const timeForm = "2006-01-02T15:04:05.000000Z"

// before is what since has of a connection that was there when the log began.
const before = "before"

// AppendJSON writes the record as a JSON line with its end.
func (r *Record) AppendJSON(b []byte) []byte {
	b = append(b, `{"schema":"`+Schema+`","time":`...)
	b = appendTime(b, r.Time)
	b = append(append(append(b, `,"event":"`...), r.Kind...), '"')
	b = appendText(b, "node", r.Node)
	b = appendText(b, "netns", r.Netns)
	if r.IsSession() {
		b = append(append(append(b, `,"protocol":"`...), nat.ProtocolName(r.Protocol)...), '"')
		b = appendEnd(b, "src", "sport", r.Src)
		b = appendEnd(b, "nat_address", "nat_port", r.NAT)
		b = appendEnd(b, "dst", "dport", r.Dst)
		b = appendEnd(b, "server", "server_port", r.Server)
		if r.Zone != 0 || r.ReplyZone != 0 {
			b = strconv.AppendUint(append(b, `,"zone":`...), uint64(r.Zone), 10)
		}
		if r.ReplyZone != r.Zone {
			b = strconv.AppendUint(append(b, `,"reply_zone":`...), uint64(r.ReplyZone), 10)
		}
		if r.Before {
			b = append(b, `,"since":"`+before+`"`...)
		}
	}
	if !r.Started.IsZero() {
		b = appendTime(append(b, `,"started":`...), r.Started)
	}
	if !r.Ended.IsZero() {
		b = appendTime(append(b, `,"ended":`...), r.Ended)
	}
	if r.Within > 0 {
		b = strconv.AppendFloat(append(b, `,"within_s":`...), r.Within.Seconds(), 'f', 3, 64)
	}
	if r.StartedWithin > 0 {
		b = strconv.AppendFloat(append(b, `,"started_within_s":`...), r.StartedWithin.Seconds(), 'f', 3, 64)
	}
	if r.Part > 0 {
		b = strconv.AppendInt(append(b, `,"part":`...), int64(r.Part), 10)
	}
	if r.Count > 0 {
		b = strconv.AppendUint(append(b, `,"count":`...), r.Count, 10)
	}
	b = appendText(b, "reason", r.Reason)
	b = appendText(b, "without", string(r.Without))
	return append(b, '}', '\n')
}

func appendTime(b []byte, t time.Time) []byte {
	return append(t.UTC().AppendFormat(append(b, '"'), timeForm), '"')
}

// appendEnd writes an address and its port.
func appendEnd(b []byte, address, port string, a netip.AddrPort) []byte {
	if !a.IsValid() {
		return b
	}
	b = append(append(append(b, ',', '"'), address...), '"', ':', '"')
	b = append(a.Addr().AppendTo(b), '"')
	b = append(append(append(b, ',', '"'), port...), '"', ':')
	return strconv.AppendUint(b, uint64(a.Port()), 10)
}

// appendText writes a text that is not empty.
func appendText(b []byte, name, text string) []byte {
	if text == "" {
		return b
	}
	b = append(append(append(b, ',', '"'), name...), '"', ':')
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(text) // of a string it has no error
			return append(b, quoted...)
		}
	}
	return append(append(append(b, '"'), text...), '"')
}

// line is a Record as a line has it.
type line struct {
	Schema        string     `json:"schema"`
	Time          time.Time  `json:"time"`
	Event         Kind       `json:"event"`
	Node          string     `json:"node"`
	Netns         string     `json:"netns"`
	Protocol      string     `json:"protocol"`
	Src           netip.Addr `json:"src"`
	Sport         uint16     `json:"sport"`
	NAT           netip.Addr `json:"nat_address"`
	NATPort       uint16     `json:"nat_port"`
	Dst           netip.Addr `json:"dst"`
	Dport         uint16     `json:"dport"`
	Server        netip.Addr `json:"server"`
	ServerPort    uint16     `json:"server_port"`
	Zone          uint16     `json:"zone"`
	ReplyZone     *uint16    `json:"reply_zone"`
	Since         string     `json:"since"`
	Started       time.Time  `json:"started"`
	Ended         time.Time  `json:"ended"`
	Within        float64    `json:"within_s"`
	StartedWithin float64    `json:"started_within_s"`
	Part          int        `json:"part"`
	Count         uint64     `json:"count"`
	Reason        string     `json:"reason"`
	Without       Without    `json:"without"`
}

// MaxLine bounds a line: the longest one that AppendJSON writes has names of 255 characters and some hundred others.
const MaxLine = 16 << 10

var (
	errNotALine = errors.New("not a line of a NAT log (schema " + Schema + ")")
	errOddTime  = errors.New("within_s or started_within_s is no time")
)

// ParseJSON reads a line.
func ParseJSON(text []byte) (r Record, err error) {
	var l line
	if len(text) > MaxLine {
		return r, fmt.Errorf("a line of %d bytes: %w", len(text), errNotALine)
	}
	if err := json.Unmarshal(text, &l); err != nil {
		return r, fmt.Errorf("%w: %w", errNotALine, err)
	}
	if l.Schema != Schema || l.Time.IsZero() {
		return r, errNotALine
	}
	r = Record{Kind: l.Event, Time: l.Time, Node: l.Node, Netns: l.Netns, Started: l.Started, Ended: l.Ended, Count: l.Count, Reason: l.Reason, Without: l.Without,
		Src: end(l.Src, l.Sport), NAT: end(l.NAT, l.NATPort), Dst: end(l.Dst, l.Dport), Server: end(l.Server, l.ServerPort)}
	if !(l.Within >= 0 && l.Within <= 1e6 && l.StartedWithin >= 0 && l.StartedWithin <= 1e6) {
		return r, errOddTime
	}
	r.Within, r.StartedWithin = time.Duration(l.Within*float64(time.Second)), time.Duration(l.StartedWithin*float64(time.Second))
	switch r.Kind {
	case Start, End:
		if r.Protocol, err = nat.ParseProtocol(l.Protocol); err != nil {
			return r, err
		}
		if !r.Src.IsValid() || !r.Dst.IsValid() || !r.ofOneFamily() || l.Since != "" && (l.Since != before || r.Kind != Start) {
			return r, errNotALine
		}
		r.Before, r.Zone, r.ReplyZone = l.Since == before, l.Zone, l.Zone
		if l.ReplyZone != nil {
			r.ReplyZone = *l.ReplyZone
		}
	case Lost, Begin, Stop, Alive, Listed:
	case Continue:
		if r.Part = l.Part; r.Part < 2 || r.Started.IsZero() {
			return r, errNotALine
		}
	default:
		return r, fmt.Errorf("event %q: %w", l.Event, errNotALine)
	}
	return r, nil
}

// end is not valid without an address.
func end(a netip.Addr, port uint16) netip.AddrPort {
	if !a.IsValid() {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a, port)
}

// ofOneFamily reports whether all addresses are IPv4, or all are IPv6.
func (r *Record) ofOneFamily() bool {
	for _, a := range [...]netip.AddrPort{r.Src, r.Dst, r.NAT, r.Server} {
		if a.IsValid() && (a.Addr().BitLen() != r.Src.Addr().BitLen() || a.Addr().Is4In6() || a.Addr().Zone() != "") {
			return false
		}
	}
	return true
}
