package pcap

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
)

// gistOf is an incident in one line.
func gistOf(i *Incident) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s @%d", i.Kind, i.Frame)
	for _, s := range i.SYNs {
		fmt.Fprintf(&b, " [%d %s", s.Frame, s.Verdict)
		if s.Inferred {
			b.WriteString(" inferred")
		}
		if s.Answer != 0 || s.Reset != 0 {
			fmt.Fprintf(&b, " answer %d reset %d", s.Answer, s.Reset)
		}
		b.WriteString("]")
	}
	if i.Outcome != "" {
		fmt.Fprintf(&b, " %s", i.Outcome)
	}
	if i.ConnectSeconds > 0 {
		fmt.Fprintf(&b, " after %.3f", i.ConnectSeconds)
	}
	return b.String()
}

func TestIncidents(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		want         []string
		paws, seq    int64
	}{
		{"nothing", serverFirst, nil, 0, 0},
		{"rejected by PAWS, then accepted", serverFirst + `
			30005 > S   5000 0   0  4000 0
			30006 < A   922  112 0  37000 5002
			30007 > R   112  0   0
			31005 > S   5000 0   0  5000 0
			31006 < SA  77   5001 0 38000 5000`,
			[]string{"syn-rejected-paws @7 [7 rejected-paws answer 8 reset 9] [10 accepted] connected after 1.001"}, 1, 0},
		{"rejected again and again", serverFirst + `
			30005 > S   5000 0   0  4000 0
			30006 < A   922  112 0  37000 5002
			31005 > S   5000 0   0  5000 0
			31006 < A   922  112 0  37000 5002
			33005 > S   5000 0   0  5001 0
			33006 < A   922  112 0  37000 5002
			39000 > A   1 1 0 1 1`,
			[]string{"syn-rejected-paws @7 [7 rejected-paws answer 8 reset 0] [9 rejected-paws answer 10 reset 0] [11 rejected-paws answer 12 reset 0] failed"}, 3, 0},
		{"rejected by its sequence number", noTimestamps + `
			30005 > S   50   0   0
			30006 < A   922  112 0
			30007 > R   112  0   0
			31005 > S   50   0   0
			31006 < SA  77   51  0`,
			[]string{"syn-rejected-seq @7 [7 rejected-seq answer 8 reset 9] [10 accepted] connected after 1.001"}, 0, 1},
		{"the server has no timestamps", noTimestamps + `
			30005 > S   50   0   0  1 0
			30006 < A   922  112 0
			30007 > R   112  0   0`,
			[]string{"syn-rejected-seq @7 [7 rejected-seq answer 8 reset 9] open-at-end"}, 0, 1},
		{"timestamp ahead, sequence number behind", serverFirst + `
			30005 > S   50   0   0  9000 0
			30006 < SA  922  51  0  37000 9000`, nil, 0, 0},
		{"timestamps wrap", `
			0   > S   100  0    0   4294967290 0
			1   < SA  900  101  0   7000 4294967290
			3   < FA  901  101  20  7001 4294967290
			4   > FA  101  922  0   4294967292 7001
			5   < A   922  102  0   7002 4294967292
			2005 > S  50   0    0   5    0
			2006 < SA 77   51   0   9000 5`, nil, 0, 0},
		{"the client closed first", clientFirst + `
			30005 > S   5000 0   0  4000 0
			30006 < SA  77   5001 0 37000 4000`,
			[]string{"timestamp-back-accepted @6 [6 accepted] connected after 0.001"}, 0, 0},
		{"the server answers none: it does so every 500 ms only", serverFirst + `
			30005 > S   5000 0   0  4000 0
			32000 > S   6000 0   0  9000 0
			32001 < SA  77   6001 0 9000 9000`,
			[]string{"syn-rejected-paws @7 [7 rejected-paws inferred] failed"}, 1, 0},
		{"TIME_WAIT was ended by a reset", serverFirst + `
			30005 > S   5000 0   0  4000 0
			30006 < A   922  112 0  37000 5002
			30007 > R   112  0   0
			31005 > S   5000 0   0  4500 0
			39000 > S   7000 0   0  4600 0
			39001 < SA  77   7001 0 9000 4600`,
			[]string{"syn-rejected-paws @7 [7 rejected-paws answer 8 reset 9] [10 unanswered] failed", "timestamp-back-accepted @11 [11 accepted] connected after 0.001"}, 1, 0},
		{"TIME_WAIT is over", serverFirst + `
			70005 > S   5000 0   0  4000 0
			75000 > S   7000 0   0  4600 0
			75001 < SA  77   7001 0 9000 4600`,
			[]string{"syn-unanswered @7 [7 unanswered] failed", "timestamp-back-accepted @8 [8 accepted] connected after 0.001"}, 0, 0},
		{"a reject starts TIME_WAIT anew", serverFirst + `
			50005 > S   5000 0   0  4000 0
			50006 < A   922  112 0  37000 5002
			90000 > S   7000 0   0  4600 0
			95000 > S   8000 0   0  9600 0
			95001 < SA  77   8001 0 9000 9600`,
			[]string{"syn-rejected-paws @7 [7 rejected-paws answer 8 reset 0] failed", "syn-rejected-paws @9 [9 rejected-paws inferred] failed"}, 2, 0},
		{"an ACK that was late", serverFirst + `
			6     > S   5000 0   0  9000 0
			6.1   < A   922  112 0  7003 5002
			6.2   < SA  77   5001 0 7003 9000`, nil, 0, 0},
		{"the former connection is not in the capture", `
			0 > S   5000 0   0  4000 0
			1 < A   922  112 0  37000 5002
			2 > R   112  0   0`,
			[]string{"syn-rejected-paws @1 [1 rejected-paws answer 2 reset 3] open-at-end"}, 1, 0},
		{"not in the capture, and the answer is numbered as those of a connection that is open", `
			0    > S   5000 0   0  4000 0
			1    < A   922  112 0  37000 5002 id=4711
			2    > R   112  0   0
			1000 > S   5000 0   0  5000 0
			1001 < SA  77   5001 0 38000 5000`,
			[]string{"syn-on-open-connection @1 [1 challenged answer 2 reset 3] [4 accepted] connected after 1.001"}, 0, 0},
		{"not in the capture, without timestamps, and numbered", `
			0 > S   50   0   0
			1 < A   922  112 0 id=4711
			2 > R   112  0   0`,
			[]string{"syn-on-open-connection @1 [1 challenged answer 2 reset 3] open-at-end"}, 0, 0},
		{"not in the capture, and TIME_WAIT would have accepted the SYN", `
			0 > S   5000 0   0  6000 0
			1 < A   922  112 0  37000 5002
			2 > R   112  0   0`,
			[]string{"syn-on-open-connection @1 [1 challenged answer 2 reset 3] open-at-end"}, 0, 0},
		{"the former connection is open", `
			0   > S   100  0    0   5000 0
			1   < SA  900  101  0   7000 5000
			2   > A   101  901  10  5001 7000
			3   < A   901  111  20  7001 5001
			900 > S   5000 0    0   4000 0
			901 < A   921  111  0   7900 5001
			902 > R   111  0    0`,
			[]string{"syn-on-open-connection @5 [5 challenged answer 6 reset 7] open-at-end"}, 0, 0},
		{"no answer", `
			0    > S 100 0 0 5000 0
			1000 > S 100 0 0 6000 0
			3000 > S 100 0 0 8000 0
			7000 > S 100 0 0 12000 0
			9000 > A 1 1 0`,
			[]string{"syn-unanswered @1 [1 unanswered] [2 unanswered] [3 unanswered] [4 unanswered] failed"}, 0, 0},
		{"an answer to the second", `
			0    > S 100 0 0 5000 0
			1000 > S 100 0 0 6000 0
			1001 < SA 900 101 0 1 6000`,
			[]string{"syn-unanswered @1 [1 unanswered] [2 accepted] connected after 1.001"}, 0, 0},
		{"too young to say", "0 > S 100 0 0 5000 0\n 500 > A 1 1 0", nil, 0, 0},
		{"refused", "0 > S 100 0 0 5000 0\n 1 < RA 0 101 0", []string{"syn-refused @1 [1 refused answer 2 reset 0] open-at-end"}, 0, 0},
		{"a SYN that was captured twice", "0 > S 100 0 0 5000 0\n 0.01 > S 100 0 0 5000 0\n 1 < SA 900 101 0 1 5000", nil, 0, 0},
		{"SYN with data (TCP Fast Open)", "0 > S 100 0 20 5000 0\n 1 < SA 900 121 0 1 5000\n 2 > A 121 901 0 5001 1", nil, 0, 0},
		{"RST out of window", `
			0   > S   100  0    0   5000 0
			1   < SA  900  101  0   7000 5000
			2   > A   101  901  10  5001 7000
			3   < A   901  111  20  7001 5001
			4   < R   99999 0   0
			5   > R   111  0    0`,
			[]string{"rst-out-of-window @5"}, 0, 0},
		{"RST out of window when both sides have closed", serverFirst + `
			6   > R   111  0    0`, nil, 0, 0},
		{"RST out of window, then one that is taken", `
			0   > S   100  0    0   5000 0
			1   < SA  900  101  0   7000 5000
			2   > FA  101  901  10  5001 7000
			3   < A   901  101  20  7001 5001
			4   < A   921  112  0   7001 5001
			5   > R   101  0    0
			6   < A   921  112  20  7001 5001
			7   > R   112  0    0`, nil, 0, 0},
		{"RSTs out of window, one connection", `
			0   > S   100  0    0   5000 0
			1   < SA  900  101  0   7000 5000
			2   > A   101  901  10  5001 7000
			3   < R   99999 0   0
			9   < R   99998 0   0`,
			[]string{"rst-out-of-window @4"}, 0, 0},
		{"half closed, and the beginning is not in the capture", `
			4     > FA  111  922  0   5002 7001
			5     < A   922  112  0   7002 5002
			30005 > S   5000 0    0   4000 0
			30006 < A   922  112  0   37000 5002
			30007 > R   112  0    0`,
			[]string{"syn-rejected-paws @3 [3 rejected-paws answer 4 reset 5] open-at-end"}, 1, 0},
		{"half closed, the beginning is not in the capture, and the answer is numbered", `
			4     > FA  111  922  0   5002 7001
			5     < A   922  112  0   7002 5002 id=1
			30005 > S   5000 0    0   4000 0
			30006 < A   922  112  0   37000 5002 id=2
			30007 > R   112  0    0`,
			[]string{"syn-on-open-connection @3 [3 challenged answer 4 reset 5] open-at-end"}, 0, 0},
		{"half closed from the beginning on", `
			0   > S   100  0    0   5000 0
			1   < SA  900  101  0   7000 5000
			2   > FA  101  901  10  5001 7000
			3   < A   901  112  20  7001 5001
			900 > S   5000 0    0   4000 0
			901 < A   921  112  0   7900 5001
			902 > R   112  0    0`,
			[]string{"syn-on-open-connection @5 [5 challenged answer 6 reset 7] open-at-end"}, 0, 0},
		{"both ends open", `
			0    > S  100  0   0  5000 0
			0.5  < S  900  0   0  7000 0
			1    > SA 100  901 0  5001 7000
			1.5  < SA 900  101 0  7001 5000
			2    > A  101  901 9  5002 7001
			3000 > FA 110  901 0  5003 7001`, nil, 0, 0},
		{"a copy that was captured late", `
			0    > S 100 0 0 5000 0
			30   > S 100 0 0 5000 0
			31   < SA 900 101 0 1 5000
			90   < SA 900 101 0 1 5000`, nil, 0, 0},
		{"a SYN that was sent again at once", `
			0    > S 100 0 0 5000 0
			11   > S 100 0 0 5011 0
			12   < SA 900 101 0 1 5011`,
			[]string{"syn-unanswered @1 [1 unanswered] [2 accepted] connected after 0.012"}, 0, 0},
		{"probes of a window that is closed", `
			0    > S   100  0    0   5000 0
			1    < SA  900  101  0   7000 5000
			2    > A   101  901 1000 5001 7000
			3    < A   901  101  0   7001 5001
			4    > A   1101 901  1   5003 7001
			1004 > A   1101 901  1   6003 7001
			3004 > A   1101 901  1   8003 7001
			7004 > A   1101 901  1   12003 7001`, nil, 0, 0},
		{"RST in window", `
			0   > S   100  0    0   5000 0
			1   < SA  900  101  0   7000 5000
			2   > A   101  901  10  5001 7000
			4   < R   901 0   0`, nil, 0, 0},
		{"data sent again", `
			0    > S   100  0    0   5000 0
			1    < SA  900  101  0   7000 5000
			2    > A   101  901  10  5001 7000
			202  > A   101  901  10  5201 7000
			602  > A   101  901  10  5601 7000
			1402 > A   101  901  10  6401 7000`,
			[]string{"retransmission-backoff @4"}, 0, 0},
		{"data sent again by SACK", `
			0    > S   100  0    0   5000 0
			1    < SA  900  101  0   7000 5000
			2    > A   101  901  10  5001 7000
			12   > A   101  901  10  5011 7000
			22   > A   101  901  10  5021 7000`, nil, 0, 0},
		{"ICMP error", "0 > S 100 0 0 5000 0\n 1 < icmp 3 13 100",
			[]string{"icmp-error @2"}, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := reportOf(t, scripted(t, parseScript(t, clientA, serverA, tt.script)), Options{})
			var got []string
			for i := range r.Incidents {
				got = append(got, gistOf(&r.Incidents[i]))
			}
			if strings.Join(got, "\n") != strings.Join(tt.want, "\n") {
				t.Errorf("incidents:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
			}
			if r.RejectedByPAWS != tt.paws || r.RejectedBySequence != tt.seq {
				t.Errorf("%d rejected by PAWS, %d by sequence; want %d and %d", r.RejectedByPAWS, r.RejectedBySequence, tt.paws, tt.seq)
			}
		})
	}
}

// TestFormerNotCaptured: over IPv6 nothing in the answer tells TIME_WAIT from an open connection.
func TestFormerNotCaptured(t *testing.T) {
	client, server := netip.MustParseAddrPort("[2001:db8::9]:40000"), netip.MustParseAddrPort("[2001:db8::1]:80")
	for name, tt := range map[string]struct{ script, want string }{
		"timestamp behind": {`
			0 > S   5000 0   0  4000 0
			1 < A   922  112 0  37000 5002
			2 > R   112  0   0`, "syn-on-former-connection @1 [1 rejected-or-challenged answer 2 reset 3] open-at-end"},
		"sequence number behind": {`
			0 > S   50   0   0
			1 < A   922  112 0
			2 > R   112  0   0`, "syn-on-former-connection @1 [1 rejected-or-challenged answer 2 reset 3] open-at-end"},
		"TIME_WAIT would have accepted it": {`
			0 > S   5000 0   0  6000 0
			1 < A   922  112 0  37000 5002
			2 > R   112  0   0`, "syn-on-open-connection @1 [1 challenged answer 2 reset 3] open-at-end"},
		"only the end is in the capture": {`
			3 < FA  901  111  20  7001 5001
			4 > FA  111  922  0   5002 7001
			5 < A   922  112  0   7002 5002
			30005 > S   5000 0   0  4000 0
			30006 < A   922  112 0  37000 5002
			30007 > R   112  0   0`, "syn-rejected-paws @4 [4 rejected-paws answer 5 reset 6] open-at-end"},
	} {
		r := reportOf(t, scripted(t, parseScript(t, client, server, tt.script)), Options{})
		if len(r.Incidents) != 1 || gistOf(&r.Incidents[0]) != tt.want {
			t.Errorf("%s: %+v, want %s", name, r.Incidents, tt.want)
		}
		undecided := strings.Contains(tt.want, string(Undecided))
		if undecided && r.RejectedByPAWS+r.RejectedBySequence > 0 {
			t.Errorf("%s: counted as rejected", name)
		}
	}
}

// TestIncidentInFull checks all fields of one incident.
func TestIncidentInFull(t *testing.T) {
	for _, ends := range [][2]string{{"198.18.0.1:40000", "198.18.1.1:80"}, {"[2001:db8::9]:40000", "[2001:db8::1]:80"}} {
		client, server := netip.MustParseAddrPort(ends[0]), netip.MustParseAddrPort(ends[1])
		r := reportOf(t, scripted(t, parseScript(t, client, server, serverFirst+`
			30005 > S   5000 0   0  4000 0
			30006 < A   922  112 0  37000 5002
			30007 > R   112  0   0
			31005 > S   5000 0   0  5000 0
			31006 < SA  77   5001 0 38000 5000`)), Options{})
		i := r.Incidents[0]
		if i.Client != client || i.Server != server {
			t.Errorf("between %v and %v", i.Client, i.Server)
		}
		f := i.Former
		if f == nil || f.LastFrame != 6 || f.After != 30 || f.Closed != ClosedByServer || *f.LastTSVal != 5002 || f.RcvNxt != 112 || f.SndNxt != 922 {
			t.Errorf("former %+v", f)
		}
		s := i.SYNs[0]
		if *s.TSVal != 4000 || *s.TSRecent != 5002 || s.Seq != 5000 || *s.RcvNxt != 112 {
			t.Errorf("SYN %+v", s)
		}
		var roles []string
		for _, step := range i.Ladder {
			roles = append(roles, fmt.Sprintf("%d%s", step.Frame, step.Role))
		}
		if got, want := strings.Join(roles, " "), "1former 2former 3former 4former 5former 6former 7syn 8old-ack 9reset 10syn 11syn-ack"; got != want {
			t.Errorf("ladder %s\nwant   %s", got, want)
		}
		if math.Abs(i.Intervals[0]-1) > 1e-9 || !i.Time.Equal(start.Add(30005e6)) {
			t.Errorf("intervals %v at %v", i.Intervals, i.Time)
		}
		c := r.Connections
		if c.Total != 2 || c.Begun != 2 || c.Established != 2 || c.ServerClosedFirst != 1 {
			t.Errorf("connections %+v", c)
		}
		if r.Reuse.Tuples != 1 || r.Reuse.TimestampsBack != 1 || r.Reuse.Rejected != 1 || math.Abs(r.Reuse.After.Median-30) > 0.1 {
			t.Errorf("reuse %+v", r.Reuse)
		}
	}
}
