package natlog

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/unix"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)

var equal = cmp.Options{cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })}

func at(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

// samples are one record of each kind.
func samples() []Record {
	return []Record{
		{Kind: Begin, Time: noon, Node: "gw1", Reason: `tracepoints "x"]\ and more`, Without: WithoutStarts, Within: 5 * time.Second},
		{Kind: Start, Time: noon, Node: "gw1", Netns: "red", Protocol: unix.IPPROTO_TCP, Src: at("10.0.0.7:40001"), NAT: at("203.0.113.9:1024"), Dst: at("198.51.100.1:443"), Started: noon},
		{Kind: End, Time: noon.Add(time.Second), Node: "gw1", Protocol: unix.IPPROTO_UDP, Src: at("198.51.100.1:5000"), Dst: at("203.0.113.9:53"), Server: at("10.0.0.9:5353"), Started: noon, Ended: noon.Add(time.Second), Within: 5 * time.Second, StartedWithin: 7 * time.Second},
		{Kind: Start, Time: noon, Node: "gw1", Protocol: unix.IPPROTO_UDP, Src: at("[fd00::7]:40001"), NAT: at("[2001:db8::9]:1024"), Dst: at("[2001:db8:1::1]:443")},
		{Kind: Lost, Time: noon, Node: "gw1", Count: 7, Reason: "ring"},
		{Kind: Stop, Time: noon, Node: "gw1"},
		{Kind: Start, Time: noon, Node: "gw1", Protocol: unix.IPPROTO_TCP, Src: at("10.0.0.7:40002"), NAT: at("203.0.113.9:1025"), Dst: at("198.51.100.1:443"), Zone: 5, Before: true, Started: noon.Add(-time.Hour)},
		{Kind: Alive, Time: noon, Node: "gw1"},
		{Kind: Listed, Time: noon, Node: "gw1"},
		{Kind: Start, Time: noon, Node: "gw1", Protocol: unix.IPPROTO_TCP, Src: at("10.0.0.7:40003"), NAT: at("203.0.113.9:1026"), Dst: at("198.51.100.1:443"), Zone: 5, ReplyZone: 5, Started: noon},
		{Kind: Continue, Time: noon.Add(time.Hour), Node: "gw1", Started: noon, Reason: "tracepoints", Part: 2},
	}
}

func TestJSONComesBack(t *testing.T) {
	for _, r := range samples() {
		line := r.AppendJSON(nil)
		got, err := ParseJSON(line[:len(line)-1])
		if err != nil {
			t.Errorf("%s: %v", line, err)
		}
		if d := cmp.Diff(r, got, equal); d != "" {
			t.Errorf("%s: (-want +got)\n%s", line, d)
		}
		if strings.Count(string(line), "\n") != 1 {
			t.Errorf("more than one line: %q", line)
		}
	}
}

func TestWhatIsNoLine(t *testing.T) {
	for _, text := range []string{
		"", "{}", `{"schema":"natkit.nat-log/2","time":"2026-03-01T12:00:00Z","event":"begin"}`,
		`{"schema":"natkit.nat-log/1","event":"begin"}`,
		`{"schema":"natkit.nat-log/1","time":"2026-03-01T12:00:00Z","event":"block"}`,
		`{"schema":"natkit.nat-log/1","time":"2026-03-01T12:00:00Z","event":"start","protocol":"tcp"}`,
		`{"schema":"natkit.nat-log/1","time":"2026-03-01T12:00:00Z","event":"start","protocol":"tcp","src":"10.0.0.1","dst":"fd00::1"}`,
		`{"schema":"natkit.nat-log/1","time":"2026-03-01T12:00:00Z","event":"begin","within_s":-1}`,
		`{"schema":"natkit.nat-log/1","time":"2026-03-01T12:00:00Z","event":"end","started_within_s":-1}`,
		`{"schema":"natkit.nat-log/1","time":"2026-03-01T12:00:00Z","event":"continue","started":"2026-03-01T11:00:00Z"}`,
		`{"schema":"natkit.nat-log/1","time":"2026-03-01T12:00:00Z","event":"continue","part":2}`,
		`{"schema":"natkit.nat-log/1","time":"2026-03-01T12:00:00Z","event":"start","protocol":"tcp","src":"10.0.0.1","dst":"10.0.0.2","since":"ever"}`,
		`{"schema":"natkit.nat-log/1","time":"2026-03-01T12:00:00Z","event":"end","protocol":"tcp","src":"10.0.0.1","dst":"10.0.0.2","since":"before"}`,
		`{"schema":"natkit.nat-log/1","time":"2026-03-01T12:00:00Z","event":"start","protocol":"tcp","src":"10.0.0.1","dst":"10.0.0.2","zone":65536}`,
		`{"schema":"natkit.nat-log/1","time":"2026-03-01T12:00:00Z","event":"begin","reason":"` + strings.Repeat("x", MaxLine) + `"}`,
	} {
		if r, err := ParseJSON([]byte(text)); err == nil {
			t.Errorf("%.100s was read as %+v", text, r)
		}
	}
}

func FuzzParseJSON(f *testing.F) {
	for _, r := range samples() {
		f.Add(r.AppendJSON(nil))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := ParseJSON(text)
		if err != nil {
			return
		}
		r.Node, r.Netns, r.Reason = "n", "", ""
		r.Time, r.Started, r.Ended, r.Within, r.StartedWithin = noon, noon, time.Time{}, 0, 0
		line := r.AppendJSON(nil)
		again, err := ParseJSON(line[:len(line)-1])
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if !r.IsSession() {
			return
		}
		if d := cmp.Diff(r, again, equal); d != "" {
			t.Error(d)
		}
		x := IPFIX{MaxMessage: UsualMessage}
		if _, err := x.Messages([]Record{r}, func(m []byte) error { return checkMessage(m) }); err != nil {
			t.Error(err)
		}
		if !rfc5424.Match(r.AppendSyslog(nil, 1)) {
			t.Errorf("%q is no message of syslog", r.AppendSyslog(nil, 1))
		}
	})
}

// rfc5424 is the grammar of section 6 for messages with structured data and no text, strictly.
var rfc5424 = regexp.MustCompile(`^<(?:[0-9]|[1-9][0-9]|1[0-8][0-9]|19[01])>1 ` +
	`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,6}Z ` + // TIMESTAMP
	`[!-~]{1,255} [!-~]{1,48} [!-~]{1,128} [!-~]{1,32} ` + // HOSTNAME APP-NAME PROCID MSGID
	`\[[!#-<>-\\^-~]{1,32}(?: [!#-<>-\\^-~]{1,32}="(?:[^"\\\]]|\\["\\\]])*")*\]$`)

var parameters = regexp.MustCompile(` ([!#-<>-\\^-~]{1,32})="((?:[^"\\\]]|\\["\\\]])*)"`)

func TestSyslog(t *testing.T) {
	var got []map[string]string
	for _, r := range samples() {
		text := r.AppendSyslog(nil, 4711)
		if !rfc5424.Match(text) {
			t.Errorf("%q is no message of RFC 5424", text)
		}
		values := map[string]string{}
		for _, m := range parameters.FindAllStringSubmatch(string(text), -1) {
			values[m[1]] = strings.NewReplacer(`\"`, `"`, `\\`, `\`, `\]`, `]`).Replace(m[2])
		}
		got = append(got, values)
	}
	if got[0]["reason"] != samples()[0].Reason {
		t.Errorf("reason %q", got[0]["reason"])
	}
	want := map[string]string{"natEvent": "4", "protocolIdentifier": "6", "sourceIPv4Address": "10.0.0.7", "sourceTransportPort": "40001",
		"postNATSourceIPv4Address": "203.0.113.9", "postNAPTSourceTransportPort": "1024", "destinationIPv4Address": "198.51.100.1", "destinationTransportPort": "443",
		"flowStart": "2026-03-01T12:00:00.123456Z", "natInstance": "red"}
	if d := cmp.Diff(want, got[1]); d != "" {
		t.Error(d)
	}
	if got[2]["natEvent"] != "5" || got[2]["postNAPTDestinationTransportPort"] != "5353" || got[4]["notSentFlowTotalCount"] != "7" {
		t.Error(got)
	}
	if got[6]["internalAddressRealm"] != "5" || got[6]["externalAddressRealm"] != "0" || got[9]["externalAddressRealm"] != "5" {
		t.Errorf("zones: %v, %v", got[6], got[9])
	}
	all := samples()
	for i, want := range map[int]string{1: " session-create ", 2: " session-delete ", 6: " session-present ", 7: " alive ", 8: " listed "} {
		if text := string(all[i].AppendSyslog(nil, 1)); !strings.Contains(text, want) {
			t.Errorf("%q has not%q", text, want)
		}
	}
}

// checkMessage reads a message by the lengths that it says.
func checkMessage(m []byte) error {
	if len(m) < 16 || binary.BigEndian.Uint16(m) != 10 || int(binary.BigEndian.Uint16(m[2:])) != len(m) {
		return fmt.Errorf("no header: %x", m)
	}
	for rest := m[16:]; len(rest) > 0; {
		if len(rest) < 4 {
			return fmt.Errorf("%d bytes behind the sets", len(rest))
		}
		id, n := binary.BigEndian.Uint16(rest), int(binary.BigEndian.Uint16(rest[2:]))
		size := map[uint16]int{256: 34, 257: 82, 258: 12}[id]
		if n < 4 || n > len(rest) || size > 0 && ((n-4)%size != 0 || n == 4) || size == 0 && id > 3 {
			return fmt.Errorf("set %d of %d bytes, %d are left", id, n, len(rest))
		}
		rest = rest[n:]
	}
	return nil
}

func TestIPFIX(t *testing.T) {
	x := IPFIX{Domain: 9, MaxMessage: 200}
	templates := x.Templates(noon)
	if err := checkMessage(templates); err != nil {
		t.Fatal(err)
	}
	var records []Record
	for range 5 {
		records = append(records, samples()...)
	}
	sequence, sets := uint32(0), map[uint16]int{}
	sent, err := x.Messages(records, func(m []byte) error {
		if err := checkMessage(m); err != nil {
			return err
		}
		if got := binary.BigEndian.Uint32(m[8:]); got != sequence {
			return fmt.Errorf("sequence %d, want %d", got, sequence)
		}
		if len(m) > 200 {
			return fmt.Errorf("%d bytes", len(m))
		}
		for rest := m[16:]; len(rest) > 0; rest = rest[binary.BigEndian.Uint16(rest[2:]):] {
			id, n := binary.BigEndian.Uint16(rest), (int(binary.BigEndian.Uint16(rest[2:]))-4)/map[uint16]int{256: 34, 257: 82, 258: 12}[binary.BigEndian.Uint16(rest)]
			sets[id] += n
			sequence += uint32(n)
		}
		return nil
	})
	if err != nil || sent != len(records) {
		t.Fatal(sent, err)
	}
	if d := cmp.Diff(map[uint16]int{256: 20, 257: 5, 258: 5}, sets); d != "" {
		t.Error(d)
	}
	one := records[1]
	got := one.appendIPFIX(nil)
	want := binary.BigEndian.AppendUint64(nil, uint64(noon.UnixMilli()))
	want = append(want, 4, 6, 10, 0, 0, 7, 0x9c, 0x41, 203, 0, 113, 9, 4, 0, 198, 51, 100, 1, 1, 0xbb, 198, 51, 100, 1, 1, 0xbb)
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	// Of messages that are refused nothing counts.
	failing := IPFIX{MaxMessage: 200}
	n := 0
	sent, err = failing.Messages(records, func([]byte) error {
		if n++; n > 2 {
			return fmt.Errorf("refused")
		}
		return nil
	})
	if err == nil || sent == 0 || sent >= len(records) {
		t.Errorf("sent %d: %v", sent, err)
	}
}

func TestOfAnEntry(t *testing.T) {
	e := conntrack.Entry{Orig: conntrack.Tuple{Src: netip.MustParseAddr("10.0.0.7"), Dst: netip.MustParseAddr("198.51.100.1"), Proto: unix.IPPROTO_ICMP, ICMPID: 7, ICMPType: 8}}
	e.Reply = e.Orig.Mirror()
	if r := Of(Start, &e); r.IsTranslated() {
		t.Errorf("%+v", r)
	}
	e.Reply.Dst, e.Reply.ICMPID = netip.MustParseAddr("203.0.113.9"), 9
	if r := Of(Start, &e); r.NAT != at("203.0.113.9:9") || r.Src.Port() != 7 || r.Server.IsValid() {
		t.Errorf("%+v", r)
	}
}

func held(h *History) (all []string) {
	for _, one := range h.Held() {
		all = append(all, fmt.Sprintf("%s %s-%s", h.query.Owner(&one.Record), one.Since.Format("05"), one.Until.Format("05")))
	}
	return all
}

func TestHistory(t *testing.T) {
	session := func(kind Kind, src string, second int) *Record {
		r := Record{Kind: kind, Time: time.Unix(int64(second), 0).UTC(), Protocol: unix.IPPROTO_TCP, Src: at(src), NAT: at("203.0.113.9:1024"), Dst: at("198.51.100.1:443")}
		return &r
	}
	log := []*Record{
		session(End, "10.0.0.1:1", 5),                                                                                                      // began before the log
		session(Start, "10.0.0.2:2", 10), session(Start, "10.0.0.2:2", 10), session(End, "10.0.0.2:2", 20), session(End, "10.0.0.2:2", 20), // delivered twice
		session(Start, "10.0.0.3:3", 30),
		{Kind: Lost, Time: time.Unix(31, 0), Count: 3},
	}
	for _, tt := range []struct {
		q      Query
		second int
		want   []string
	}{
		{Query{Address: netip.MustParseAddr("203.0.113.9"), Port: 1024}, 0, []string{"10.0.0.1:1 00-05", "10.0.0.2:2 10-20", "10.0.0.3:3 30-00"}},
		{Query{Address: netip.MustParseAddr("203.0.113.9"), Port: 1024, Protocol: unix.IPPROTO_TCP}, 15, []string{"10.0.0.2:2 10-20"}},
		{Query{Address: netip.MustParseAddr("203.0.113.9")}, 3, []string{"10.0.0.1:1 00-05"}},
		{Query{Address: netip.MustParseAddr("203.0.113.9")}, 40, []string{"10.0.0.3:3 30-00"}},
		{Query{Address: netip.MustParseAddr("203.0.113.9"), Port: 1025}, 0, nil},
		{Query{Address: netip.MustParseAddr("203.0.113.9"), Protocol: unix.IPPROTO_UDP}, 0, nil},
	} {
		when := time.Time{}
		if tt.second > 0 {
			when = time.Unix(int64(tt.second), 0)
		}
		h := NewHistory(tt.q, false, when)
		for _, r := range log {
			h.Add(r)
		}
		if d := cmp.Diff(tt.want, held(h)); d != "" || h.Lost != 3 {
			t.Errorf("%+v at %d: lost %d %s", tt.q, tt.second, h.Lost, d)
		}
	}
}

const rulesText = `
gateway:
  interfaces: {wan: eth0, lan: eth1}
  nat:
    - snat: {from: 10.0.0.1, to: 203.0.113.1, ports: 1024-2047}
    - snat: {from: 10.0.0.2, to: 203.0.113.1, ports: 2048-3071}
    - snat: {from: 10.0.0.0/24, to: 203.0.113.1, ports: 4096-65535}
    - static: {inside: 10.0.1.1, outside: 203.0.113.2}
    - netmap: {inside: 10.2.0.0/24, outside: 198.51.100.0/24}
    - netmap: {inside: 10.3.0.0/24, outside: 198.51.101.0/24, stateless: on}
    - dnat: {on: 203.0.113.1, port: tcp/80, to: 10.0.0.9:8080}
    - masquerade: {from: 10.9.0.0/16}
`

func TestOwnersByRule(t *testing.T) {
	file, err := gateway.Parse("x", []byte(rulesText))
	if err != nil {
		t.Fatal(err)
	}
	facts := gateway.Facts{Interfaces: []gateway.Interface{{Name: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}}, {Name: "eth1", Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.254/24")}}}}
	plan, err := gateway.Compile(&file.Config, facts)
	if err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string][]string{
		"203.0.113.1:1500":   {"nat[0] snat 10.0.0.1 true"},
		"203.0.113.1:2048":   {"nat[1] snat 10.0.0.2 true"},
		"203.0.113.1:3500":   nil,
		"203.0.113.1:5000":   {"nat[2] snat 10.0.0.0,10.0.0.3-10.0.0.255 false"},
		"203.0.113.1:80":     {"nat[6] dnat 10.0.0.9 true incoming 8080"},
		"203.0.113.2:9":      {"nat[3] static 10.0.1.1 true", "nat[3] static 10.0.1.1 true incoming 9"},
		"198.51.100.77:1":    {"nat[4] netmap 10.2.0.77 true", "nat[4] netmap 10.2.0.77 true incoming 1"},
		"198.51.101.77:1":    {"nat[5] netmap 10.3.0.77 true"},
		"192.0.2.1:40000":    {"nat[7] masquerade 10.9.0.0-10.9.255.255 false"},
		"10.0.0.254:40000":   nil,
		"[2001:db8::1]:4000": nil,
	} {
		q := Query{Address: at(query).Addr(), Port: at(query).Port(), Protocol: unix.IPPROTO_TCP}
		var got []string
		owners, _ := Owners(plan, &facts, q)
		for _, b := range owners {
			text := fmt.Sprintf("%s %s %t", b.Rule, strings.ReplaceAll(b.Inside.String(), ", ", ","), b.IsExact())
			if b.Incoming {
				text += fmt.Sprintf(" incoming %d", b.InsidePort)
			}
			got = append(got, text)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", query, d)
		}
	}
	for inside, want := range map[string][]string{
		"10.0.0.1":  {"nat[0] snat 203.0.113.1 1024-2047"},
		"10.0.0.77": {"nat[2] snat 203.0.113.1 4096-65535"},
		"10.2.0.5":  {"nat[4] netmap 198.51.100.5 "},
		"10.3.0.5":  {"nat[5] netmap 198.51.101.5 "},
		"10.9.1.1":  {"nat[7] masquerade 192.0.2.1 "},
		"10.8.1.1":  nil,
	} {
		var got []string
		outward, _ := Outward(plan, &facts, netip.MustParseAddr(inside))
		for _, b := range outward {
			got = append(got, fmt.Sprintf("%s %s %s", b.Rule, b.Outside, b.Ports))
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", inside, d)
		}
	}
}

// TestWhatALogDoesNotSay asks logs with gaps: a run ends with its stop, with the next begin and with the log, and nothing of it is
// certain after that.
func TestWhatALogDoesNotSay(t *testing.T) {
	when := func(second int) time.Time { return time.Unix(int64(1000+second), 0).UTC() }
	session := func(kind Kind, host, second int) Record {
		src := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 77, 0, byte(host)}), 44444)
		return Record{Kind: kind, Time: when(second), Node: "gw", Protocol: unix.IPPROTO_UDP, Src: src, NAT: at("203.0.113.9:44444"), Dst: at("198.51.100.1:53")}
	}
	of := func(kind Kind, second int) Record {
		return Record{Kind: kind, Time: when(second), Node: "gw", Count: 1}
	}
	numbered, after := of(Begin, 0), of(Begin, 20)
	numbered.Netns, after.Netns = "4026531840", "4026532000"
	other := of(Begin, 0)
	other.Node = "elsewhere"
	present := func(host, second int) Record {
		r := session(Start, host, second)
		r.Before = true
		return r
	}
	zoned := func(host, second int, zone, reply uint16) Record {
		r := session(Start, host, second)
		r.Zone, r.ReplyZone = zone, reply
		return r
	}
	row := func(r Record, since int) Record {
		r.Started = when(since)
		return r
	}
	read := func(kind Kind, host, second, within int) Record { // by a reading of the table
		r := session(kind, host, second)
		r.Within = time.Duration(within) * time.Second
		return r
	}
	within := func(r Record, started, seconds int) Record { // what began by a reading of the table
		r.StartedWithin = time.Duration(seconds) * time.Second
		return row(r, started)
	}
	spans := func(r Record, seconds int) Record {
		r.Within = time.Duration(seconds) * time.Second
		return r
	}
	proceeds := func(second, part int) Record {
		r := of(Continue, second)
		r.Part, r.Started = part, when(0)
		return r
	}
	killed := []Record{of(Begin, 0), session(Start, 2, 10), session(Start, 2, 10), of(Begin, 30), of(Begin, 30)}
	first := []Record{of(Begin, 0), of(Listed, 1), session(Start, 2, 10), of(Alive, 20)} // and what a second run has after it
	second := func(more ...Record) []Record { return append(slices.Clone(first), more...) }
	without := of(Begin, 30)
	without.Without = WithoutPresent
	elsewhere := of(Begin, 30)
	elsewhere.Netns = "red"
	ofElsewhere := of(Listed, 31)
	ofElsewhere.Netns = "red"
	for name, tt := range map[string]struct {
		log    []Record
		tables bool
		at     int
		// want are hosts with their doubts, covers that of the log with the times around it.
		want     []string
		covers   Doubt
		from, to int
	}{
		"before a reading had it":         {log: []Record{of(Begin, 0), read(Start, 2, 10, 5), of(Stop, 20)}, at: 7, want: []string{"2 between-readings"}},
		"when a reading had it":           {log: []Record{of(Begin, 0), read(Start, 2, 10, 5), read(End, 2, 15, 5), of(Stop, 20)}, at: 10, want: []string{"2 "}},
		"after a reading had it":          {log: []Record{of(Begin, 0), read(Start, 2, 10, 5), read(End, 2, 15, 5), of(Stop, 20)}, at: 12, want: []string{"2 between-readings"}},
		"killed, before":                  {log: killed, at: 10, want: []string{"2 "}},
		"killed, in the gap":              {log: killed, at: 20, want: []string{"2 gap"}, covers: Gap, from: 10, to: 30},
		"killed, in the next run":         {log: append(killed, of(Stop, 50)), at: 40, want: []string{"2 gap"}},
		"killed, after the log":           {log: killed, at: 90, want: []string{"2 after-log"}, covers: AfterLog, from: 30},
		"stopped":                         {log: []Record{of(Begin, 0), session(Start, 2, 10), of(Stop, 12), of(Begin, 30), of(Stop, 50)}, at: 20, want: []string{"2 gap"}, covers: Gap, from: 12, to: 30},
		"open in its run":                 {log: []Record{of(Begin, 0), session(Start, 2, 10), of(Stop, 20)}, at: 15, want: []string{"2 "}},
		"an end in the next run":          {log: []Record{of(Begin, 0), session(Start, 2, 10), of(Begin, 30), session(End, 2, 40)}, at: 35, want: []string{"2 "}},
		"given again in the next run":     {log: append(killed, session(End, 3, 45), of(Stop, 50)), at: 40, want: []string{"3 "}},
		"given again in the gap":          {log: append(killed, session(End, 3, 45), of(Stop, 50)), at: 20, want: []string{"3 gap", "2 gap"}, covers: Gap, from: 10, to: 30},
		"an end without its start":        {log: []Record{of(Begin, 0), session(End, 2, 10), of(Stop, 20)}, at: 5, want: []string{"2 "}},
		"before the log":                  {log: []Record{of(Begin, 10), session(End, 2, 20)}, at: 5, want: []string{"2 before-log"}, covers: BeforeLog, to: 10},
		"records were lost":               {log: []Record{of(Begin, 0), session(Start, 2, 10), of(Lost, 12), of(Stop, 20)}, at: 15, want: []string{"2 lost-records"}},
		"records were lost later":         {log: []Record{of(Begin, 0), session(Start, 2, 10), of(Alive, 30), of(Lost, 100), of(Stop, 110)}, at: 15, want: []string{"2 "}},
		"records were lost until later":   {log: []Record{of(Begin, 0), session(Start, 2, 10), of(Lost, 18), of(Stop, 20)}, at: 15, want: []string{"2 lost-records"}},
		"an end alone, and a lost start":  {log: []Record{of(Begin, 0), of(Lost, 8), session(End, 2, 10), of(Stop, 20)}, at: 5, want: []string{"2 lost-records"}},
		"lost before another one's end":   {log: []Record{of(Begin, 0), session(Start, 2, 10), of(Lost, 12), row(session(End, 2, 40), 30), of(Stop, 50)}, at: 25, want: []string{"2 lost-records"}},
		"an end that is missing":          {log: []Record{of(Begin, 0), session(Start, 2, 10), session(Start, 3, 18), of(Stop, 20)}, at: 15, want: []string{"2 no-end"}},
		"the gap of another host":         {log: []Record{other, of(Begin, 0), session(Start, 2, 10), of(Stop, 20)}, at: 15, want: []string{"2 "}},
		"a number after a boot":           {log: []Record{numbered, session(Start, 2, 10), of(Stop, 12), after, session(Start, 3, 30), of(Stop, 40)}, at: 35, want: []string{"3 "}},
		"delivered twice":                 {log: []Record{of(Begin, 0), session(Start, 2, 10), session(End, 2, 12), session(Start, 2, 10), session(End, 2, 12), of(Stop, 20)}, at: 15},
		"its begin is not in the log":     {log: []Record{session(Start, 2, 10), session(Start, 4, 20)}, at: 30, want: []string{"4 after-log"}, covers: AfterLog, from: 20},
		"rows with start and end":         {log: []Record{session(Start, 2, 10), session(End, 2, 20), session(Start, 3, 25)}, tables: true, at: 15, want: []string{"2 "}},
		"rows without an end":             {log: []Record{session(Start, 2, 10), session(Start, 3, 25)}, tables: true, at: 15, want: []string{"2 no-end"}},
		"nothing":                         {at: 15, covers: NoRecords},
		"idle":                            {log: []Record{of(Begin, 0), session(Start, 2, 10), of(Alive, 70)}, at: 60, want: []string{"2 "}},
		"idle, after the log":             {log: []Record{of(Begin, 0), session(Start, 2, 10), of(Alive, 70)}, at: 90, want: []string{"2 after-log"}, covers: AfterLog, from: 70},
		"killed while idle":               {log: []Record{of(Begin, 0), session(Start, 2, 10), of(Alive, 70), of(Begin, 100)}, at: 80, want: []string{"2 gap"}, covers: Gap, from: 70, to: 100},
		"present":                         {log: []Record{of(Begin, 10), present(2, 10), of(Stop, 50)}, at: 30, want: []string{"2 "}},
		"present, then it ends":           {log: []Record{of(Begin, 10), present(2, 11), session(End, 2, 40), of(Stop, 50)}, at: 30, want: []string{"2 "}},
		"present, after its end":          {log: []Record{of(Begin, 10), present(2, 11), session(End, 2, 40), of(Stop, 50)}, at: 45},
		"present, before it was seen":     {log: []Record{of(Begin, 10), present(2, 20), of(Stop, 50)}, at: 15, want: []string{"2 no-start"}},
		"present, since a known time":     {log: []Record{of(Begin, 10), row(present(2, 20), 4), of(Stop, 50)}, at: 15, want: []string{"2 "}},
		"present, before its start":       {log: []Record{of(Begin, 10), row(present(2, 20), 4), of(Stop, 50)}, at: 3, covers: BeforeLog, to: 10},
		"present, before the log":         {log: []Record{of(Begin, 10), present(2, 10), of(Stop, 50)}, at: 5, want: []string{"2 before-log"}, covers: BeforeLog, to: 10},
		"present, and records lost":       {log: []Record{of(Begin, 10), present(2, 10), of(Lost, 20), of(Stop, 50)}, at: 30, want: []string{"2 lost-records"}},
		"present in the next run":         {log: append(killed, present(2, 31), of(Stop, 50)), at: 40, want: []string{"2 "}},
		"present in it, in the gap":       {log: append(killed, present(2, 31), of(Stop, 50)), at: 20, want: []string{"2 gap"}, covers: Gap, from: 10, to: 30},
		"present in it, in the first":     {log: append(killed, present(2, 31), of(Stop, 50)), at: 10, want: []string{"2 "}},
		"present in a third":              {log: append(killed, of(Alive, 50), of(Begin, 60), present(2, 60), of(Stop, 90)), at: 40, want: []string{"2 gap"}},
		"another one is present":          {log: append(killed, present(3, 31), of(Stop, 50)), at: 40, want: []string{"3 "}},
		"present, delivered twice":        {log: []Record{of(Begin, 10), present(2, 11), session(End, 2, 20), present(2, 11), session(End, 2, 20), of(Stop, 50)}, at: 30},
		"again present after its end":     {log: []Record{of(Begin, 10), present(2, 11), session(End, 2, 20), of(Stop, 25), of(Begin, 30), present(2, 30), of(Stop, 50)}, at: 40, want: []string{"2 "}},
		"present meanwhile another":       {log: []Record{of(Begin, 0), session(Start, 2, 10), of(Begin, 30), present(3, 30), session(End, 3, 35), of(Begin, 40), present(2, 40), session(End, 2, 45), of(Stop, 50)}, at: 32, want: []string{"3 ", "2 no-start"}},
		"not listed in the next run":      {log: second(of(Begin, 30), session(Start, 4, 30), of(Listed, 31), of(Stop, 50)), at: 40, want: []string{"4 "}},
		"not listed, nobody":              {log: second(of(Begin, 30), of(Listed, 31), of(Stop, 50)), at: 40},
		"not listed, in the gap":          {log: second(of(Begin, 30), of(Listed, 31), of(Stop, 50)), at: 25, want: []string{"2 gap"}, covers: Gap, from: 20, to: 30},
		"not listed, in a third":          {log: second(of(Begin, 30), of(Listed, 31), of(Stop, 50), of(Begin, 60), of(Stop, 70)), at: 65},
		"the list has no end":             {log: second(of(Begin, 30), of(Stop, 50)), at: 40, want: []string{"2 gap"}},
		"the list, and records lost":      {log: second(of(Begin, 30), of(Listed, 31), of(Lost, 32), of(Stop, 50)), at: 40, want: []string{"2 gap"}},
		"a list of another namespace":     {log: second(of(Begin, 30), ofElsewhere, of(Stop, 50)), at: 40, want: []string{"2 gap"}},
		"another namespace has its own":   {log: second(elsewhere, ofElsewhere, of(Stop, 50)), at: 15, want: []string{"2 "}},
		"a list without its run":          {log: second(without, of(Listed, 31), of(Stop, 50)), at: 40, want: []string{"2 gap"}},
		"a list delivered twice":          {log: second(of(Begin, 30), of(Listed, 1), of(Stop, 20), of(Alive, 50)), at: 40, want: []string{"2 gap"}},
		"not listed, then an end":         {log: second(of(Begin, 30), of(Listed, 31), of(Alive, 50), of(Begin, 60), session(End, 2, 70), of(Stop, 80)), at: 40},
		"not listed, then present":        {log: second(of(Begin, 30), of(Listed, 31), of(Alive, 50), of(Begin, 60), present(2, 60), of(Listed, 61), of(Stop, 80)), at: 40},
		"its end before the list":         {log: second(of(Begin, 30), session(End, 2, 31), of(Listed, 32), of(Stop, 80)), at: 30, want: []string{"2 "}},
		"first seen in the next run":      {log: second(of(Begin, 30), present(4, 30), of(Listed, 31), of(Stop, 50)), at: 5},
		"seen in the next, but no list":   {log: []Record{of(Begin, 0), of(Alive, 20), of(Begin, 30), present(4, 30), of(Listed, 31), of(Stop, 50)}, at: 5, want: []string{"4 no-start"}},
		"seen in the next, in the gap":    {log: second(of(Begin, 30), present(4, 30), of(Listed, 31), of(Stop, 50)), at: 25, want: []string{"4 gap", "2 gap"}, covers: Gap, from: 20, to: 30},
		"seen in the next, before":        {log: []Record{of(Begin, 10), of(Listed, 11), of(Alive, 20), of(Begin, 30), present(4, 30), of(Stop, 50)}, at: 5, covers: BeforeLog, to: 10},
		"an end alone in the next":        {log: []Record{of(Begin, 0), of(Listed, 1), of(Alive, 20), of(Begin, 30), session(End, 4, 40)}, at: 15},
		"seen in it, since a known time":  {log: []Record{of(Begin, 0), of(Alive, 20), of(Begin, 30), row(present(4, 30), 8), of(Stop, 50)}, at: 15, want: []string{"4 "}},
		"present meanwhile, and listed":   {log: []Record{of(Begin, 0), session(Start, 2, 10), of(Begin, 30), present(3, 30), of(Listed, 31), session(End, 3, 35), of(Begin, 40), present(2, 40), session(End, 2, 45), of(Stop, 50)}, at: 32, want: []string{"3 "}},
		"rows of present ones":            {log: []Record{present(2, 10), session(End, 2, 20), session(Start, 3, 25)}, tables: true, at: 15, want: []string{"2 "}},
		"rows of them, before":            {log: []Record{session(Start, 4, 5), present(2, 10), session(End, 2, 20)}, tables: true, at: 7, want: []string{"2 no-start", "4 no-end"}},
		"given again later, in the first": {log: second(of(Begin, 30), session(Start, 3, 40), of(Stop, 50)), at: 15, want: []string{"2 "}},
		"given again later, before":       {log: second(of(Begin, 30), session(Start, 3, 40), of(Stop, 50)), at: 35, want: []string{"2 gap"}},
		"its end is missing later":        {log: second(of(Begin, 30), present(2, 30), session(Start, 3, 40), of(Stop, 50)), at: 15, want: []string{"2 "}},
		"its end is missing later, there": {log: second(of(Begin, 30), present(2, 30), session(Start, 3, 40), of(Stop, 50)), at: 35, want: []string{"2 no-end"}},
		"the same on both sides of a gap": {log: second(of(Begin, 30), row(present(2, 30), 10), of(Stop, 50)), at: 25, want: []string{"2 "}, covers: Gap, from: 20, to: 30},
		"the same, by its end":            {log: second(of(Begin, 30), row(session(End, 2, 40), 10), of(Stop, 50)), at: 25, want: []string{"2 "}, covers: Gap, from: 20, to: 30},
		"another on the other side":       {log: second(of(Begin, 30), row(present(2, 30), 24), of(Stop, 50)), at: 22, want: []string{"2 gap"}, covers: Gap, from: 20, to: 30},
		"another, since it began":         {log: second(of(Begin, 30), row(present(2, 30), 24), of(Stop, 50)), at: 27, want: []string{"2 "}, covers: Gap, from: 20, to: 30},
		"another, by its end":             {log: second(of(Begin, 30), row(session(End, 2, 40), 24), of(Stop, 50)), at: 22, want: []string{"2 gap"}, covers: Gap, from: 20, to: 30},
		"another, in the first":           {log: second(of(Begin, 30), row(present(2, 30), 24), of(Stop, 50)), at: 15, want: []string{"2 "}},
		"lost, but its end has its start": {log: []Record{of(Begin, 0), session(Start, 2, 10), of(Lost, 12), row(session(End, 2, 40), 10), of(Stop, 50)}, at: 25, want: []string{"2 "}},
		"an end alone, by readings":       {log: []Record{of(Begin, 0), within(read(End, 2, 30, 5), 10, 5), of(Stop, 50)}, at: 7, want: []string{"2 between-readings"}},
		"an end alone, of a reading":      {log: []Record{of(Begin, 0), within(read(End, 2, 30, 5), 10, 5), of(Stop, 50)}, at: 10, want: []string{"2 "}},
		"an end alone, before":            {log: []Record{of(Begin, 0), within(read(End, 2, 30, 5), 10, 5), of(Stop, 50)}, at: 4},
		"a list of readings, its start":   {log: []Record{proceeds(30, 2), within(present(2, 30), 10, 5), of(Listed, 31), of(Stop, 50)}, at: 40, want: []string{"2 "}},
		"silent":                          {log: []Record{of(Begin, 0), session(Start, 2, 10), of(Alive, 60), of(Alive, 300), of(Stop, 310)}, at: 200, want: []string{"2 silent"}, covers: Silent, from: 60, to: 300},
		"silent, then":                    {log: []Record{of(Begin, 0), session(Start, 2, 10), of(Alive, 60), of(Alive, 300), of(Stop, 310)}, at: 305, want: []string{"2 "}},
		"silent, before":                  {log: []Record{of(Begin, 0), session(Start, 2, 10), of(Alive, 60), of(Alive, 300), of(Stop, 310)}, at: 60, want: []string{"2 "}},
		"silent, but its end has a start": {log: []Record{of(Begin, 0), session(Start, 2, 10), of(Alive, 60), row(session(End, 2, 300), 10), of(Stop, 310)}, at: 200, want: []string{"2 "}, covers: Silent, from: 60, to: 300},
		"silent by its interval":          {log: []Record{of(Begin, 0), session(Start, 2, 10), of(Alive, 60), of(Alive, 180), of(Stop, 310)}, at: 100, want: []string{"2 "}},
		"a reading that spans it":         {log: []Record{of(Begin, 0), session(Start, 2, 10), of(Alive, 60), spans(of(Alive, 300), 240), of(Stop, 310)}, at: 200, want: []string{"2 "}},
		"readings that span it, a start":  {log: []Record{of(Begin, 0), session(Start, 2, 10), of(Alive, 60), session(Start, 3, 290), spans(of(Alive, 300), 240), of(Stop, 310)}, at: 200, want: []string{"2 no-end"}},
		"rows are silent":                 {log: []Record{session(Start, 2, 10), session(Start, 3, 400), session(End, 3, 500)}, tables: true, at: 200, want: []string{"2 no-end"}},
		"a file alone":                    {log: []Record{proceeds(30, 2), present(2, 31), of(Listed, 32), of(Alive, 60)}, at: 40, want: []string{"2 "}},
		"a file alone, before its list":   {log: []Record{proceeds(30, 2), present(2, 32), of(Listed, 32), of(Alive, 60)}, at: 31, want: []string{"2 no-start"}},
		"a file alone, before it":         {log: []Record{proceeds(30, 2), present(2, 32), of(Listed, 32), of(Alive, 60)}, at: 20, want: []string{"2 before-log"}, covers: BeforeLog, to: 30},
		"the next file":                   {log: second(proceeds(20, 2), of(Alive, 60)), at: 40, want: []string{"2 "}},
		"the next file, with its list":    {log: second(proceeds(20, 2), present(2, 21), of(Listed, 22), of(Alive, 60)), at: 40, want: []string{"2 "}},
		"the next file, then an end":      {log: second(proceeds(20, 2), session(End, 2, 30), of(Listed, 31), of(Alive, 60)), at: 25, want: []string{"2 "}},
		"the next file, twice":            {log: second(proceeds(20, 2), of(Alive, 40), proceeds(20, 2), of(Alive, 40), proceeds(40, 3), of(Alive, 60)), at: 50, want: []string{"2 "}},
		"a file is missing":               {log: second(proceeds(40, 3), present(2, 40), of(Listed, 41), of(Alive, 60)), at: 30, want: []string{"2 gap"}, covers: Gap, from: 20, to: 40},
		"a file is missing, then":         {log: second(proceeds(40, 3), present(2, 40), of(Listed, 41), of(Alive, 60)), at: 50, want: []string{"2 "}},
		"a file is missing, with its end": {log: second(proceeds(40, 3), of(Listed, 41), of(Alive, 60)), at: 50},
		"a file is missing, and no list":  {log: second(proceeds(40, 3), of(Alive, 60)), at: 50, want: []string{"2 gap"}},
		"a file of another run":           {log: second(of(Begin, 30), of(Stop, 40), proceeds(50, 2), of(Alive, 60)), at: 45, want: []string{"2 gap"}, covers: Gap, from: 40, to: 50},
		"its end was lost, then a list":   {log: second(of(Lost, 25), proceeds(100, 2), of(Listed, 101), of(Alive, 200)), at: 110},
		"its end was lost, before a list": {log: second(of(Lost, 25), proceeds(100, 2), of(Listed, 101), of(Alive, 200)), at: 90, want: []string{"2 lost-records"}},
		"lost, but a list has it":         {log: second(of(Lost, 25), proceeds(100, 2), present(2, 100), of(Listed, 101), of(Alive, 200)), at: 110, want: []string{"2 "}},
		"listed by a reading before it":   {log: second(proceeds(22, 2), present(2, 18), of(Listed, 23), of(Alive, 60)), at: 40, want: []string{"2 "}},
		"started before it, in its order": {log: []Record{of(Begin, 0), of(Listed, 1), proceeds(12, 2), session(Start, 2, 10), of(Listed, 13), of(Alive, 60)}, at: 40, want: []string{"2 "}},
		"in a log of two files":           {log: second(proceeds(20, 2), session(Start, 2, 10), of(Listed, 22), of(Alive, 60)), at: 40, want: []string{"2 "}},
		"lost with the list":              {log: second(of(Lost, 25), proceeds(100, 2), of(Listed, 101), of(Lost, 105), of(Alive, 200)), at: 110, want: []string{"2 lost-records"}},
		"zones":                           {log: []Record{of(Begin, 0), zoned(2, 10, 5, 5), zoned(3, 12, 6, 6), of(Stop, 20)}, at: 15, want: []string{"2 ", "3 "}},
		"zones of one side":               {log: []Record{of(Begin, 0), zoned(2, 10, 5, 0), zoned(3, 12, 6, 0), of(Stop, 20)}, at: 15, want: []string{"3 "}},
		"the clock was set back":          {log: []Record{session(Start, 1, 90), session(End, 1, 40), session(Start, 2, 50)}, at: 92, want: []string{"2 after-log", "1 clock-stepped"}, covers: AfterLog, from: 90},
		"the clock was set back, then":    {log: []Record{session(Start, 1, 90), session(End, 1, 40), session(Start, 2, 50)}, at: 45, want: nil},
	} {
		t.Run(name, func(t *testing.T) {
			h := NewHistory(Query{Address: netip.MustParseAddr("203.0.113.9"), Port: 44444}, false, when(tt.at))
			for i := range tt.log {
				h.Add(&tt.log[i])
			}
			h.Tables = tt.tables
			var got []string
			for _, one := range h.Held() {
				got = append(got, fmt.Sprintf("%d %s", one.Src.Addr().As4()[3], one.Doubt))
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
			second := func(at time.Time) int {
				if at.IsZero() {
					return 0
				}
				return int(at.Unix()) - 1000
			}
			if covers, from, to := h.Covers(); covers != tt.covers || tt.covers != "" && (second(from) != tt.from || second(to) != tt.to) {
				t.Errorf("%q from %d to %d", covers, second(from), second(to))
			}
		})
	}
}

// TestWhatARunLeavesOut: that nobody was found says that nobody was there in a run alone that lists what was there when it began.
func TestWhatARunLeavesOut(t *testing.T) {
	of := func(kind Kind, second int64, without Without) Record {
		return Record{Kind: kind, Time: time.Unix(second, 0), Node: "gw", Without: without}
	}
	proceeds := func(second int64, every time.Duration) Record {
		r := of(Continue, second, "")
		r.Started, r.Part, r.Within = time.Unix(0, 0), 2, every
		return r
	}
	for name, tt := range map[string]struct {
		log  []Record
		want Doubt
	}{
		"listed":                   {[]Record{of(Begin, 10, ""), of(Listed, 11, ""), of(Stop, 50, "")}, ""},
		"the reading is under way": {[]Record{of(Begin, 10, ""), of(Alive, 50, "")}, NotAll},
		"the reading was stopped":  {[]Record{of(Begin, 10, ""), of(Lost, 20, ""), of(Stop, 50, "")}, NotAll},
		"without present":          {[]Record{of(Begin, 10, WithoutPresent), of(Stop, 50, "")}, NotAll},
		"without starts":           {[]Record{of(Begin, 10, WithoutStarts), of(Stop, 50, "")}, NotAll},
		"no begin":                 {[]Record{of(Listed, 11, ""), of(Stop, 50, "")}, NoBegin},
		"a file of it":             {[]Record{proceeds(10, 0), of(Listed, 11, ""), of(Stop, 50, "")}, ""},
		"a file without its list":  {[]Record{proceeds(10, 0), of(Stop, 50, "")}, NotAll},
		"the list of a file later": {[]Record{of(Begin, 0, ""), proceeds(40, 0), of(Listed, 41, ""), of(Stop, 50, "")}, ""},
		"by readings":              {[]Record{proceeds(10, time.Second), of(Listed, 11, ""), of(Stop, 50, "")}, BetweenReadings},
		"lost":                     {[]Record{of(Begin, 0, ""), of(Listed, 1, ""), of(Lost, 2, ""), of(Stop, 50, "")}, LostRecords},
		"lost before the list":     {[]Record{of(Begin, 0, ""), of(Listed, 1, ""), of(Lost, 2, ""), proceeds(10, 0), of(Listed, 11, ""), of(Stop, 50, "")}, ""},
		"listed in the run before": {[]Record{of(Begin, 1, ""), of(Listed, 2, ""), of(Stop, 3, ""), of(Begin, 10, ""), of(Stop, 50, "")}, NotAll},
	} {
		h := NewHistory(Query{Address: netip.MustParseAddr("203.0.113.9"), Port: 44444}, false, time.Unix(30, 0))
		for i := range tt.log {
			h.Add(&tt.log[i])
		}
		if got := h.Omits(); got != tt.want || h.IsOfRows() {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
		if h.Tables = true; tt.want == NoBegin && (h.Omits() != RowsAlone || !h.IsOfRows()) {
			t.Errorf("%s of tables: %q, want %q", name, h.Omits(), RowsAlone)
		}
	}
}

// TestTheGapAfterIt has a connection in the first run that the second one confirms, in logs of four.
func TestTheGapAfterIt(t *testing.T) {
	one := Record{Kind: Start, Node: "gw", Protocol: unix.IPPROTO_UDP, Src: at("10.77.0.2:44444"), NAT: at("203.0.113.9:44444"), Dst: at("198.51.100.1:53")}
	start := func(second int64, before bool) Record {
		r := one
		r.Time, r.Before = time.Unix(second, 0), before
		return r
	}
	of := func(kind Kind, second int64) Record {
		return Record{Kind: kind, Time: time.Unix(second, 0), Node: "gw"}
	}
	runs := func(a, b, c Record) []Record {
		return []Record{of(Begin, 10), a, of(Stop, 19), of(Begin, 20), b, of(Stop, 29), of(Begin, 30), c, of(Stop, 39), of(Begin, 40), of(Stop, 49)}
	}
	alive := func(second int64) Record { return of(Alive, second) }
	for name, tt := range map[string]struct {
		log      []Record
		at       int64
		from, to int64
	}{
		"confirmed by the second":       {runs(start(11, false), start(21, true), alive(31)), 35, 29, 30},
		"confirmed by it, asked later":  {runs(start(11, false), start(21, true), alive(31)), 45, 29, 30},
		"confirmed by none":             {runs(start(11, false), alive(21), alive(31)), 35, 19, 20},
		"confirmed by the third":        {runs(start(11, false), alive(21), start(31, true)), 45, 39, 40},
		"first seen in the second":      {runs(alive(11), start(21, true), alive(31)), 15, 0, 0},
		"first seen in it, asked later": {runs(alive(11), start(21, true), alive(31)), 35, 29, 30},
	} {
		h := NewHistory(Query{Address: one.NAT.Addr(), Port: one.NAT.Port()}, false, time.Unix(tt.at, 0))
		for i := range tt.log {
			h.Add(&tt.log[i])
		}
		all := h.Held()
		if len(all) != 1 {
			t.Errorf("%s: %+v", name, all)
			continue
		}
		second := func(at time.Time) int64 { return max(at.Unix(), 0) }
		if from, to := h.GapAfter(&all[0]); second(from) != tt.from || second(to) != tt.to {
			t.Errorf("%s: the gap is from %d to %d, want %d to %d", name, second(from), second(to), tt.from, tt.to)
		}
	}
}
