package pcap

import "testing"

// TestRejection has what tcp_timewait_state_process and tcp_paws_check decide.
func TestRejection(t *testing.T) {
	const taken = Challenged // by TIME_WAIT: then it is something else that answered
	for name, tt := range map[string]struct {
		syn              pending
		rcvNxt, tsRecent uint32
		hasTS            bool
		want             Verdict
	}{
		"timestamp behind":                     {pending{seq: 500, tsval: 9, hasTS: true}, 100, 10, true, RejectedPAWS},
		"timestamp behind, none remembered":    {pending{seq: 50, tsval: 1<<31 + 1, hasTS: true}, 100, 0, true, RejectedSequence},
		"timestamp ahead":                      {pending{seq: 50, tsval: 11, hasTS: true}, 100, 10, true, taken},
		"timestamp ahead across 0":             {pending{seq: 50, tsval: 1, hasTS: true}, 100, 1<<32 - 9, true, taken},
		"same timestamp, sequence behind":      {pending{seq: 50, tsval: 10, hasTS: true}, 100, 10, true, RejectedSequence},
		"same timestamp, sequence ahead":       {pending{seq: 101, tsval: 10, hasTS: true}, 100, 10, true, taken},
		"no timestamps, the expected sequence": {pending{seq: 100}, 100, 0, false, RejectedSequence},
		"no timestamps, sequence across 0":     {pending{seq: 5}, 1<<32 - 5, 0, false, taken},
		"the former one had none":              {pending{seq: 50, tsval: 11, hasTS: true}, 100, 0, false, RejectedSequence},
	} {
		if got := rejection(&tt.syn, tt.rcvNxt, tt.tsRecent, tt.hasTS, taken); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}
