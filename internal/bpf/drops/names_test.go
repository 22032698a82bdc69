package drops

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/snapshot"
)

func TestProtocolName(t *testing.T) {
	for number, want := range map[uint32]string{
		0:                       "-",
		0x0800<<16 | 1<<8 | 6:   "tcp",
		0x86dd<<16 | 1<<8 | 58:  "icmp6",
		0x86dd<<16 | 1<<8:       "hopopt",
		0x0800<<16 | 1<<8 | 200: "ip proto 200",
		0x0800 << 16:            "ip", // the header could not be read
		0x86dd << 16:            "ip6",
		0x0806 << 16:            "arp",
		0x1234 << 16:            "ethertype 0x1234",
		0x0004 << 16:            "802.2",
	} {
		if got := protocolName(number); got != want {
			t.Errorf("protocolName(%#x) = %q, want %q", number, got, want)
		}
	}
}

func TestTCPFlags(t *testing.T) {
	for bits, want := range map[uint8]string{0: "", 0x02: "SYN", 0x12: "SYN,ACK", 0x14: "RST,ACK", 0xff: "FIN,SYN,RST,PSH,ACK,URG,ECE,CWR"} {
		if got := tcpFlags(bits); got != want {
			t.Errorf("tcpFlags(%#x) = %q, want %q", bits, got, want)
		}
	}
}

// TestShares is the arithmetic of counters: kernel counters, and what they leave to
// rules.
func TestShares(t *testing.T) {
	full, missed, rule := snapshot.CauseTableFull, snapshot.CauseNotInserted, snapshot.CauseRule
	for _, tt := range []struct {
		name   string
		grown  tally
		hooked uint64
		want   map[string]uint64
	}{
		{"nothing", tally{}, 0, map[string]uint64{}},
		{"a rule", tally{}, 5, map[string]uint64{rule: 5}},
		{"a full table", tally{drop: 5}, 5, map[string]uint64{full: 5}},
		{"a full table and a rule", tally{drop: 5}, 8, map[string]uint64{full: 5, rule: 3}},
		{"clashes", tally{drop: 4, insertFailed: 4}, 4, map[string]uint64{missed: 4}},
		{"long chains", tally{insertFailed: 4, chainTooLong: 4}, 4, map[string]uint64{missed: 4}},
		{"all", tally{drop: 10, insertFailed: 7, chainTooLong: 3}, 15, map[string]uint64{full: 6, missed: 7, rule: 2}},
		{"insert_failed of Linux 5.4, where clashes that were resolved count", tally{insertFailed: 9}, 2, map[string]uint64{missed: 2}},
		{"more than was seen", tally{drop: 9}, 2, map[string]uint64{full: 2}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := map[string]uint64{}
			for _, s := range tt.grown.shares(tt.hooked) {
				if s.packets > 0 {
					got[s.cause] += s.packets
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
