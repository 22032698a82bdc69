package snapshot

import (
	"maps"
	"testing"
)

func TestCounters(t *testing.T) {
	before := Counters{"TcpPassiveOpens": 10, "TcpRetransSegs": 4294967290, "TcpCurrEstab": 5, "TcpExtPAWSEstab": 7, "TcpInSegs": 1 << 40}
	after := Counters{"TcpPassiveOpens": 12, "TcpRetransSegs": 4, "TcpCurrEstab": 9, "TcpExtPAWSEstab": 7, "TcpInSegs": 3, "TcpExtPAWSTimewait": 1}
	for name, want := range map[string]uint64{"TcpPassiveOpens": 2, "TcpRetransSegs": 10, "TcpExtPAWSEstab": 0} {
		if got, ok := after.Delta(before, name); !ok || got != want {
			t.Errorf("%s grew by %d, %v; want %d", name, got, ok, want)
		}
	}
	for _, name := range []string{"TcpExtPAWSTimewait", "TcpInSegs", "nothing"} {
		if got, ok := after.Delta(before, name); ok {
			t.Errorf("%s grew by %d, which cannot be known", name, got)
		}
	}
	if got, want := after.Grown(before), (Counters{"TcpPassiveOpens": 2, "TcpRetransSegs": 10}); !maps.Equal(got, want) {
		t.Errorf("grown %v, want %v", got, want)
	}
	if _, ok := Counters(nil).Delta(nil, "TcpPassiveOpens"); ok {
		t.Error("nothing grew")
	}
}

func TestRejected(t *testing.T) {
	s := &SYNs{Sources: []SYNSource{{ByTimestamp: 3, BySequence: 1}, {ByTimestamp: 2}}}
	if ts, seq := s.Rejected(); ts != 5 || seq != 1 {
		t.Errorf("%d by timestamp, %d by sequence number", ts, seq)
	}
}
