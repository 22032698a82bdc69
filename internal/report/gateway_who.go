package report

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/units"
)

// GatewayWho is the document of `natkit gateway who`.
type GatewayWho struct {
	Schema   string     `json:"schema"`
	Address  netip.Addr `json:"address"`
	Port     uint16     `json:"port,omitempty"`
	Protocol string     `json:"protocol,omitempty"`
	At       *time.Time `json:"at,omitempty"`
	// Inside: the question is what a host inside has outside.
	Inside bool `json:"inside,omitempty"`
	// Hosts are the answer, each once: hosts inside, or addresses outside. Ambiguous: several are possible.
	Hosts     []string `json:"hosts"`
	Ambiguous bool     `json:"ambiguous"`
	// Answer is one of the four.
	Answer WhoAnswer `json:"answer"`
	// Owners are what was found, Sources where it was looked for.
	Owners  []NATOwner  `json:"owners"`
	Sources []WhoSource `json:"sources"`
	// zones are those of Hosts, where that is for what it is ambiguous: one address is another host in another zone.
	zones []uint16
}

// WhoAnswer is how far the question was answered.
type WhoAnswer string

// The answers. WhoUnknown: none or one was found, and there may be another one for all that the sources know.
const (
	WhoOne     WhoAnswer = "one"
	WhoSeveral WhoAnswer = "several"
	WhoNone    WhoAnswer = "none"
	WhoUnknown WhoAnswer = "unknown"
)

// DoubtRulesNewer: the rules were not in force at that time, or not as far as is known.
const DoubtRulesNewer = "rules-newer"

// NATOwner is a host inside with what it has outside.
type NATOwner struct {
	// Source is rules, table or log.
	Source string `json:"source"`
	Rule   string `json:"rule,omitempty"`
	// Certain is false where a rule names several hosts that may have it, and where the log does not show it, for Doubt.
	Certain bool   `json:"certain"`
	Doubt   string `json:"doubt,omitempty"`
	// Incoming: a connection from outside that was led inside.
	Incoming    bool   `json:"incoming,omitempty"`
	Protocol    string `json:"protocol,omitempty"`
	Inside      string `json:"inside"`
	InsidePort  uint16 `json:"inside_port,omitempty"`
	Outside     string `json:"outside"`
	OutsidePort uint16 `json:"outside_port,omitempty"`
	// Ports are those that a rule gives.
	Ports    string     `json:"ports,omitempty"`
	Peer     string     `json:"peer,omitempty"`
	PeerPort uint16     `json:"peer_port,omitempty"`
	Since    *time.Time `json:"since,omitempty"`
	Until    *time.Time `json:"until,omitempty"`
	Node     string     `json:"node,omitempty"`
	// Zone is the conntrack zone of the host inside, 0 for the default one.
	Zone uint16 `json:"zone,omitempty"`
	Text string `json:"text,omitempty"`
}

// WhoSource is where it was looked for.
type WhoSource struct {
	// Kind is rules, table or log; Name the file.
	Kind  string `json:"kind"`
	Name  string `json:"name,omitempty"`
	Read  bool   `json:"read"`
	Found int    `json:"found"`
	// Files had records, from From to To. Lost are records that the log says it lacks, More what was found beyond what is shown.
	Files int        `json:"files,omitempty"`
	From  *time.Time `json:"from,omitempty"`
	To    *time.Time `json:"to,omitempty"`
	Lost  uint64     `json:"lost,omitempty"`
	More  int        `json:"more,omitempty"`
	// Doubt is why it cannot answer for sure (natlog.Doubt, and no-log, rules-newer and unknown-addresses), GapFrom and GapTo the times
	// that the log has around one that it lacks. Gaps is how many it has.
	Doubt   string     `json:"doubt,omitempty"`
	GapFrom *time.Time `json:"gap_from,omitempty"`
	GapTo   *time.Time `json:"gap_to,omitempty"`
	Gaps    int        `json:"gaps,omitempty"`
	Error   string     `json:"error,omitempty"`
	Note    string     `json:"note,omitempty"`
}

// Settle finds the answer: what is certain or in a log, and only without that what is possible by the rules. Who is reached from
// outside is an answer where nobody sends by the address.
func (g *GatewayWho) Settle() {
	g.Hosts = []string{}
	ruled, doubted := false, false
	var zones []uint16
	for _, wanted := range [...]func(*NATOwner) bool{
		func(o *NATOwner) bool { return (o.Certain || o.Source == "log") && !o.Incoming },
		func(o *NATOwner) bool { return !o.Certain && !o.Incoming },
		func(o *NATOwner) bool { return o.Incoming },
	} {
		for i := range g.Owners {
			o := &g.Owners[i]
			if !wanted(o) {
				continue
			}
			host := o.Inside
			if g.Inside {
				host = o.Outside
			}
			if !slices.Contains(g.Hosts, host) {
				g.Hosts = append(g.Hosts, host)
			}
			g.Ambiguous = g.Ambiguous || !o.Certain && !o.Incoming && o.Source == "rules" && o.Doubt == ""
			if o.Source != "rules" && !slices.Contains(zones, o.Zone) { // rules know none
				zones = append(zones, o.Zone)
			}
			ruled = ruled || o.Certain && o.Source == "rules"
			doubted = doubted || o.InDoubt(g.Owners)
		}
		if len(g.Hosts) > 0 {
			break
		}
	}
	if !g.Ambiguous && len(g.Hosts) == 1 && len(zones) > 1 {
		slices.Sort(zones)
		g.zones = zones
	}
	g.Ambiguous = g.Ambiguous || len(g.Hosts) > 1 || len(zones) > 1
	switch {
	case g.Ambiguous:
		g.Answer = WhoSeveral
	case len(g.Hosts) == 1 && (ruled || !doubted && !slices.ContainsFunc(g.Sources, func(s WhoSource) bool { return s.Kind == "log" && s.lacks() })):
		g.Answer = WhoOne
	case len(g.Hosts) == 1 || slices.ContainsFunc(g.Sources, WhoSource.lacks):
		g.Answer = WhoUnknown
	default:
		g.Answer = WhoNone
	}
}

// InDoubt reports whether there is a doubt about an owner, and no other connection of the same host is certain.
func (o *NATOwner) InDoubt(all []NATOwner) bool {
	return o.Doubt != "" && !slices.ContainsFunc(all, func(c NATOwner) bool {
		return c.Certain && !c.Incoming && c.Inside == o.Inside && c.Outside == o.Outside && c.Zone == o.Zone
	})
}

// lacks reports whether a source does not know all that was asked.
func (s WhoSource) lacks() bool { return s.Error != "" || s.Doubt != "" }

// mostOwners bounds the rows of the text.
const mostOwners = 100

// Text writes the answer, what it is from, and where it was looked for.
func (g GatewayWho) Text(w io.Writer, style Style) error {
	p := &printer{w: w, style: style}
	p.line(g.answer())
	t := &Table{Columns: []Column{{Head: "FROM"}, {Head: "INSIDE"}, {Head: "OUTSIDE"}, {Head: "PROTOCOL"}, {Head: "PEER"}, {Head: "SINCE"}, {Head: "UNTIL"}, {Head: "RULE", Wrap: true}}}
	for i := range g.Owners {
		if i == mostOwners {
			break
		}
		o := &g.Owners[i]
		t.Row(o.Source, o.inside(), g.outside(o), o.Protocol, end(o.Peer, o.PeerPort), moment(o.Since), moment(o.Until), o.rule())
	}
	if p.err == nil && len(g.Owners) > 0 {
		p.err = t.Write(w, style)
	}
	if more := len(g.Owners) - mostOwners; more > 0 {
		p.line(fmt.Sprintf("… and %s more; --json has all", units.Count(int64(more))))
	}
	for i := range g.Sources {
		p.line(g.Sources[i].line())
	}
	return p.err
}

func (g *GatewayWho) answer() string {
	what := end(g.Address.String(), g.Port)
	switch {
	case g.Answer == WhoUnknown && len(g.Hosts) == 0:
		return what + ": could not be answered" + g.reason()
	case g.Answer == WhoUnknown && g.isCertain():
		return what + ": " + g.Hosts[0] + " is certain, but another one cannot be excluded" + g.reason()
	case g.Answer == WhoUnknown:
		return what + ": " + g.Hosts[0] + " is possible, but that could not be answered for sure" + g.reason()
	case len(g.Hosts) == 0 && g.Inside:
		return what + " has nothing outside that was found"
	case len(g.Hosts) == 0:
		return "nobody was found that has " + what
	case len(g.zones) > 0:
		return fmt.Sprintf("%s: ambiguous, %s in several conntrack zones (%s)", what, g.Hosts[0], strings.Trim(strings.ReplaceAll(fmt.Sprint(g.zones), " ", ", "), "[]"))
	case g.Ambiguous && len(g.Hosts) == 1:
		return what + ": ambiguous, one of " + g.Hosts[0]
	case g.Ambiguous:
		return fmt.Sprintf("%s: ambiguous, %d possible answers%s", what, len(g.Hosts), g.reason())
	}
	return what + ": " + g.Hosts[0]
}

// isCertain reports whether the sources show the one that was found; what they lack is then whether it was the only one.
func (g *GatewayWho) isCertain() bool {
	return slices.ContainsFunc(g.Owners, func(o NATOwner) bool { return o.Certain && !o.Incoming })
}

// reason is the first one for which a source does not know more.
func (g *GatewayWho) reason() string {
	for i := range g.Sources {
		if text := g.Sources[i].doubt(); text != "" {
			return ": " + text
		}
	}
	for i := range g.Sources {
		if g.Sources[i].Error != "" {
			return ": see below"
		}
	}
	return ""
}

// doubt is in words why a source does not know more.
func (s *WhoSource) doubt() string {
	switch s.Doubt {
	case "":
		return ""
	case "no-log":
		return "only a log knows what was at that time; give --log"
	case "no-records":
		return s.Name + " has no records of a NAT log"
	case "before-log":
		return "the log begins at " + moment(s.GapTo)
	case "after-log":
		return "the log ends at " + moment(s.GapFrom)
	case "gap":
		return fmt.Sprintf("the log has a gap from %s to %s", moment(s.GapFrom), moment(s.GapTo))
	case "silent":
		return fmt.Sprintf("the log has no record from %s to %s, although one is written each minute", moment(s.GapFrom), moment(s.GapTo))
	case "lost-records":
		return "the log lacks " + units.Plural(int64(s.Lost), "record", "records")
	case "no-begin":
		return "these files lack the begin of that run of the log: a connection from before " + moment(s.From) + " may be in older ones alone; read these, too, unless --keep or logrotate removed them"
	case "rows-alone":
		return "these are rows of tables, which do not say what they lack (lost records, when the log was written); ask its JSON lines"
	case "not-all":
		return "that run of the log may lack connections that were there when it began (--ends-only, --no-present, or it had not read them to their end)"
	case "no-end":
		return "the log does not have its end"
	case "no-start":
		return "the log does not have its start"
	case "between-readings":
		return "the log is of readings of the table, and lacks what came and went between two of them, or when what it has began and ended"
	case "clock-stepped":
		return "the clock stepped: it was set back between a start and its end"
	}
	return s.Note
}

func (g *GatewayWho) outside(o *NATOwner) string {
	if o.Ports != "" {
		return o.Outside + " ports " + o.Ports
	}
	return end(o.Outside, o.OutsidePort)
}

func (o *NATOwner) inside() string {
	if o.Zone == 0 {
		return end(o.Inside, o.InsidePort)
	}
	return fmt.Sprintf("%s zone %d", end(o.Inside, o.InsidePort), o.Zone)
}

func (o *NATOwner) rule() string {
	text := o.Rule
	if o.Incoming {
		text += " (connections from outside)"
	}
	if o.Source == "rules" && !o.Certain && !o.Incoming {
		text += " (one of them)"
	}
	return text
}

func end(address string, port uint16) string {
	a, err := netip.ParseAddr(address)
	if port == 0 || err != nil {
		if port != 0 {
			return address + " port " + strconv.Itoa(int(port))
		}
		return address
	}
	return netip.AddrPortFrom(a, port).String()
}

func moment(t *time.Time) string {
	if t == nil {
		return "?"
	}
	return local(*t)
}

// line says what came of a source.
func (s *WhoSource) line() string {
	text := s.Kind
	if s.Name != "" {
		text += " " + s.Name
	}
	switch {
	case s.Error != "" && s.Files == 0:
		return text + ": not read: " + s.Error
	case !s.Read && s.Error == "":
		return text + ": " + s.Note
	}
	text += fmt.Sprintf(": %d found", s.Found)
	if s.From != nil && s.To != nil {
		text += fmt.Sprintf(", records from %s to %s", local(*s.From), local(*s.To))
	}
	if s.Error != "" {
		text += "; not read to the end: " + s.Error
	}
	if doubt := s.doubt(); doubt != "" && doubt != s.Note {
		text += "; " + doubt
	}
	if s.Gaps > 0 {
		text += fmt.Sprintf("; the log has %s", units.Plural(int64(s.Gaps), "gap", "gaps"))
	}
	if s.Lost > 0 && s.Doubt != "lost-records" {
		text += fmt.Sprintf("; the log lacks %s", units.Plural(int64(s.Lost), "record", "records"))
	}
	if s.More > 0 {
		text += fmt.Sprintf("; %s more are not shown", units.Count(int64(s.More)))
	}
	if s.Note != "" {
		text += "; " + s.Note
	}
	return text
}
