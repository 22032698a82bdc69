package loose

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/lazyregexp"
)

// readStats reads the counters of each CPU as conntrack -S prints them.
func readStats(s *Sample, t *Text) error {
	cpus := []map[string]uint64{}
	for words := range fieldsOf(t.Data) {
		if !strings.HasPrefix(words[0], "cpu=") {
			continue
		}
		cpu := map[string]uint64{}
		for _, w := range words[1:] {
			name, value, _ := strings.Cut(w, "=")
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				return fmt.Errorf("counter %.40q of %s is no number: %.40q", name, words[0], value)
			}
			cpu[renamed(name)] = n
		}
		cpus = append(cpus, cpu)
	}
	s.Stats, s.StatsSource = cpus, "conntrack -S"
	return nil
}

// renamed is a counter's name in ctnetlink: conntrack(8) prints icmp_error as error.
func renamed(name string) string {
	if name == "error" {
		return "icmp_error"
	}
	return name
}

// readStatsSum reads the sums of all CPUs that old versions print, a name and a number in each line.
func readStatsSum(s *Sample, t *Text) error {
	sum := map[string]uint64{}
	for words := range fieldsOf(t.Data) {
		if len(words) == 2 {
			if n, err := strconv.ParseUint(words[1], 10, 64); err == nil {
				sum[renamed(words[0])] = n
			}
		}
	}
	if n, there := sum["entries"]; there {
		s.countIs(n)
		delete(sum, "entries")
	}
	s.Stats, s.StatsSource = []map[string]uint64{sum}, "conntrack -S"
	return nil
}

// groups of counters as /proc/net/snmp and netstat name them, the longer names first.
var groups = []string{"TcpExt", "IpExt", "MPTcpExt", "IcmpMsg", "Icmp", "UdpLite", "Udp", "Tcp", "Ip"}

// readNstat reads counters by name, as nstat prints them: how much they grew, with -a what they are.
func readNstat(s *Sample, t *Text) error {
	counters := map[string]uint64{}
	if bytes.Contains(t.Data, []byte(`"kernel"`)) {
		var doc struct {
			Kernel map[string]json.Number `json:"kernel"`
		}
		if err := json.Unmarshal(t.Data, &doc); err != nil {
			return fmt.Errorf("is no JSON of nstat: %w", err)
		}
		for name, value := range doc.Kernel {
			if n, err := strconv.ParseUint(value.String(), 10, 64); err == nil {
				counters[name] = n
			}
		}
	}
	for words := range fieldsOf(t.Data) {
		if len(words) < 2 {
			continue
		}
		if n, err := strconv.ParseUint(words[1], 10, 64); err == nil {
			counters[words[0]] = n
		}
	}
	switch {
	case len(counters) == 0:
		return fmt.Errorf("has no counter")
	case absolute(t, counters):
		s.addCounters(counters)
	default:
		s.grown = counters
	}
	return nil
}

// nstatFlags are those of the command that printed a text.
var nstatFlags = lazyregexp.New(`nstat[ _]+((?:-[A-Za-z]+[ _]*|--\w+[ _]*)+)`)

// absolute reports whether nstat printed what counters are (-a), and not by how much they grew since it ran before. Where
// nothing says how it was called, zeros do: -z, which is hardly used without -a.
func absolute(t *Text, counters map[string]uint64) bool {
	if m := nstatFlags.FindStringSubmatch(t.hints()); m != nil {
		for flag := range strings.FieldsFuncSeq(m[1], func(r rune) bool { return r == ' ' || r == '_' }) {
			if flag == "--ignore" || strings.HasPrefix(flag, "-") && !strings.HasPrefix(flag, "--") && strings.Contains(flag, "a") {
				return true
			}
		}
		return false
	}
	for _, n := range counters {
		if n == 0 {
			return true
		}
	}
	return false
}

// netstatSays are the words of netstat -s (net-tools 2.10, and 1.60 where they differ) for counters, without the
// number, by the group that they stand in.
var netstatSays = map[string]map[string]string{
	"Ip": {
		"total packets received": "InReceives", "with invalid headers": "InHdrErrors", "with invalid addresses": "InAddrErrors", "forwarded": "ForwDatagrams",
		"with unknown protocol": "InUnknownProtos", "incoming packets discarded": "InDiscards", "incoming packets delivered": "InDelivers",
		"requests sent out": "OutRequests", "outgoing packets dropped": "OutDiscards", "dropped because of missing route": "OutNoRoutes",
		"fragments dropped after timeout": "ReasmTimeout", "reassemblies required": "ReasmReqds", "packets reassembled ok": "ReasmOKs",
		"packet reassemblies failed": "ReasmFails", "packet reassembles failed": "ReasmFails", "fragments received ok": "FragOKs", "fragments failed": "FragFails", "fragments created": "FragCreates",
	},
	"Icmp": {"ICMP messages received": "InMsgs", "input ICMP message failed": "InErrors", "ICMP messages sent": "OutMsgs", "ICMP messages failed": "OutErrors"},
	"Tcp": {
		"active connection openings": "ActiveOpens", "active connections openings": "ActiveOpens", "passive connection openings": "PassiveOpens",
		"failed connection attempts": "AttemptFails", "connection resets received": "EstabResets", "connections established": "CurrEstab",
		"segments received": "InSegs", "segments sent out": "OutSegs", "segments send out": "OutSegs", "segments retransmitted": "RetransSegs", "segments retransmited": "RetransSegs",
		"bad segments received": "InErrs", "resets sent": "OutRsts",
	},
	"Udp": {
		"packets received": "InDatagrams", "packets to unknown port received": "NoPorts", "packet receive errors": "InErrors", "packets sent": "OutDatagrams",
		"receive buffer errors": "RcvbufErrors", "send buffer errors": "SndbufErrors",
	},
	"TcpExt": {
		"SYN cookies sent": "SyncookiesSent", "SYN cookies received": "SyncookiesRecv", "invalid SYN cookies received": "SyncookiesFailed",
		"resets received for embryonic SYN_RECV sockets": "EmbryonicRsts", "times the listen queue of a socket overflowed": "ListenOverflows",
		"SYNs to LISTEN sockets dropped": "ListenDrops", "SYNs to LISTEN sockets ignored": "ListenDrops",
		"passive connections rejected because of time stamp": "PAWSPassive", "active connections rejected because of time stamp": "PAWSActive",
		"packets rejects in established connections because of timestamp": "PAWSEstab", "packets rejected in established connections because of timestamp": "PAWSEstab",
		"TCP sockets finished time wait in fast timer": "TW", "time wait sockets recycled by time stamp": "TWRecycled", "TCP sockets finished time wait in slow timer": "TWKilled",
		"packets pruned from receive queue because of socket buffer overrun": "PruneCalled", "packets pruned from receive queue": "RcvPruned",
		"packets dropped from out-of-order queue because of socket buffer overrun": "OfoPruned", "delayed acks sent": "DelayedACKs",
		"connections aborted due to memory pressure": "TCPAbortOnMemory", "connections aborted due to timeout": "TCPAbortOnTimeout",
		"times unable to send RST due to no memory": "TCPAbortFailed",
	},
}

// netstatHistogram are the lines of ICMP that begin with words, by what is counted.
var netstatHistogram = map[string]map[string]string{
	"ICMP input histogram":  {"destination unreachable": "InDestUnreachs", "timeout in transit": "InTimeExcds", "redirects": "InRedirects", "echo requests": "InEchos", "echo replies": "InEchoReps"},
	"ICMP output histogram": {"destination unreachable": "OutDestUnreachs", "time exceeded": "OutTimeExcds", "redirect": "OutRedirects", "echo requests": "OutEchos", "echo replies": "OutEchoReps"},
}

// netstatAlone are words that are of one group, whatever stands above them: people send what grep left.
func netstatAlone(words string) (group, name string) {
	for _, group := range []string{"TcpExt", "Tcp", "Udp", "Ip"} {
		if name, known := netstatSays[group][words]; known {
			return group, name
		}
	}
	return "", ""
}

func netstatMarks() []string {
	return []string{"Tcp:", "TcpExt:", "SYNs to LISTEN", "listen queue of a socket", "because of time", "packet receive errors", "receive buffer errors", "segments retransmi", "TCPTimeWaitOverflow", "failed connection attempts", "SYN cookies"}
}

func netstatLine() *regexp.Regexp {
	var words []string
	for _, group := range netstatSays {
		for w := range group {
			if len(w) > 12 {
				words = append(words, regexp.QuoteMeta(w))
			}
		}
	}
	slices.Sort(words)
	return regexp.MustCompile(`(?m)^\s*(?:Ip|Icmp|Tcp|Udp|TcpExt|IpExt):\s*$|^\s*\d+ (?:` + strings.Join(words, "|") + `)|^\s+TCP\w+: \d+\s*$`)
}

// readNetstat reads what netstat -s says in English; in other languages it has the counters alone that it prints by
// name, and so has this.
func readNetstat(s *Sample, t *Text) error {
	counters := map[string]uint64{}
	group, histogram, foreign := "", "", 0
	for line := range strings.Lines(string(t.Data)) {
		words := strings.TrimSuffix(strings.TrimSpace(line), ".")
		if title, is := strings.CutSuffix(words, ":"); is {
			if histogram = ""; netstatHistogram[title] != nil {
				histogram = title
			} else {
				group = title
			}
			continue
		}
		if name, n, ok := namedCounter(words); ok {
			if known := netstatHistogram[histogram][name]; known != "" {
				counters["Icmp"+known] = n
				continue
			}
			if !strings.Contains(name, " ") {
				g := group
				if g == "" && strings.HasPrefix(name, "TCP") {
					g = "TcpExt"
				}
				counters[g+name] = n
			}
			continue
		}
		number, rest, _ := strings.Cut(words, " ")
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			continue
		}
		name, g := netstatSays[group][rest], group
		if name == "" {
			g, name = netstatAlone(rest)
		}
		if name == "" {
			if !ascii(rest) || germanOrSo.MatchString(rest) {
				foreign++
			}
			continue
		}
		counters[g+name] = n
	}
	if foreign > 0 {
		s.note("%s: %d lines are in a language that natkit does not read and are passed over; LC_ALL=C netstat -s is English, nstat -az has all counters", t, foreign)
	}
	if len(counters) == 0 {
		return fmt.Errorf("has no counter that natkit knows")
	}
	s.addCounters(counters)
	return nil
}

// germanOrSo are words that English lines of netstat do not have.
var germanOrSo = lazyregexp.New(`(?i)\b(?:pakete?|empfangen|gesendet|verbindung\w*|paquets?|re[cç]us?|segmentos?|paquetes?|recibid\w+|enviad\w+|pacchetti|ricevuti)\b`)

func ascii(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r >= 0x80 })
}

// namedCounter is a line with a name before its number.
func namedCounter(line string) (name string, n uint64, ok bool) {
	at := strings.LastIndex(line, ": ")
	if at < 0 {
		return "", 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(line[at+2:]), 10, 64)
	return line[:at], n, err == nil
}

// snmpFile writes counters as /proc/net/snmp and netstat have them: the names of a group above their values.
func snmpFile(counters map[string]uint64, of ...string) []byte {
	var b bytes.Buffer
	for _, group := range of {
		var names []string
		for name := range counters {
			if groupOf(name) == group {
				names = append(names, name)
			}
		}
		if len(names) == 0 {
			continue
		}
		slices.Sort(names)
		for _, value := range []bool{false, true} {
			b.WriteString(group + ":")
			for _, name := range names {
				if value {
					fmt.Fprintf(&b, " %d", counters[name])
				} else {
					b.WriteString(" " + strings.TrimPrefix(name, group))
				}
			}
			b.WriteByte('\n')
		}
	}
	return b.Bytes()
}

// groupOf is the group of a counter's name; empty of IPv6, which has a file of another form.
func groupOf(name string) string {
	for _, g := range []string{"Ip6", "Icmp6", "Udp6", "UdpLite6"} {
		if strings.HasPrefix(name, g) {
			return ""
		}
	}
	for _, g := range groups {
		if len(name) > len(g) && strings.HasPrefix(name, g) {
			return g
		}
	}
	return ""
}

// readSocketSums reads the numbers of ss -s: what sockstat has but memory.
func readSocketSums(s *Sample, t *Text) error {
	sums := map[string]uint64{}
	var inet, inet6 uint64
	for words := range fieldsOf(t.Data) {
		line := strings.Join(words, " ")
		if rest, is := strings.CutPrefix(line, "TCP: "); is {
			for part := range strings.SplitSeq(strings.NewReplacer("(", ",", ")", "").Replace(rest), ",") {
				name, value, _ := strings.Cut(strings.TrimSpace(part), " ")
				value, _, _ = strings.Cut(value, "/") // timewait 3/0 of old versions
				if n, err := strconv.ParseUint(value, 10, 63); err == nil {
					sums[name] = n
				}
			}
		}
		if words[0] == "TCP" && len(words) == 4 {
			inet, _ = strconv.ParseUint(words[2], 10, 63)
			inet6, _ = strconv.ParseUint(words[3], 10, 63)
		}
	}
	if _, known := sums["timewait"]; !known {
		return fmt.Errorf("has no line TCP: … timewait N")
	}
	s.addFile("/proc/net/sockstat", fmt.Appendf(nil, "TCP: inuse %d orphan %d tw %d\n", inet, sums["orphaned"], sums["timewait"]))
	s.addFile("/proc/net/sockstat6", fmt.Appendf(nil, "TCP6: inuse %d\n", inet6))
	return nil
}
