package snapshot

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// generations are the counters that kernels have, by /proc/net/stat/nf_conntrack and
// ctnetlink: what one lacks is not in what it grew by.
var generations = map[string][]string{
	"4.4":  {"new", "drop", "insert_failed", "early_drop", "invalid", "icmp_error", "search_restart"},
	"5.4":  {"drop", "insert_failed", "early_drop", "invalid", "icmp_error", "search_restart"},
	"5.10": {"drop", "insert_failed", "early_drop", "invalid", "icmp_error", "search_restart", "clash_resolve"},
	"6.1":  {"drop", "insert_failed", "early_drop", "invalid", "icmp_error", "search_restart", "clash_resolve", "chaintoolong"},
	"6.4":  {"drop", "insert_failed", "early_drop", "invalid", "icmp_error", "search_restart", "clash_resolve", "chaintoolong"},
}

func TestDecodeTracker(t *testing.T) {
	type grown = map[string]int64
	all := []string{"5.4", "5.10", "6.1", "6.4"}
	from5_10 := all[1:]
	for _, tt := range []struct {
		name    string
		kernels []string
		grown   grown
		logged  bool
		want    TrackerLosses
	}{
		{"nothing", all, grown{}, false, TrackerLosses{}},
		{"a full table", all, grown{"drop": 9}, true, TrackerLosses{NoRoom: 9}},
		{"a full table that was not logged", all, grown{"drop": 9}, false, TrackerLosses{NoRoom: 9}},
		{"dropped by a protocol's tracker, or a full table", all, grown{"drop": 9, "invalid": 4}, false, TrackerLosses{NoRoom: 9, OrInvalid: 4, Invalid: 4}},
		{"a full table, with INVALID beside", all, grown{"drop": 9, "invalid": 4}, true, TrackerLosses{NoRoom: 9, Invalid: 4}},
		{"a race, or no free port", all, grown{"drop": 9, "insert_failed": 9}, false, TrackerLosses{Clashes: 9}},
		{"clashes in a full table", from5_10, grown{"drop": 9, "insert_failed": 4}, true, TrackerLosses{NoRoom: 5, Clashes: 4}},
		{"clashes in a full table, or merged ones", all[:1], grown{"drop": 9, "insert_failed": 4}, true, TrackerLosses{NoRoom: 5, Clashes: 4, Blurred: true}},
		{"merged, which counted as failures", all[:1], grown{"insert_failed": 7}, false, TrackerLosses{Merged: 7}},
		{"lost and merged ones in one counter", all[:1], grown{"drop": 3, "insert_failed": 10}, false, TrackerLosses{Clashes: 3, Merged: 7, Blurred: true}},
		{"lost where drop does not count it", []string{"4.4"}, grown{"new": 900, "insert_failed": 7}, false, TrackerLosses{Clashes: 7, Blurred: true}},
		{"a full table beside these", []string{"4.4"}, grown{"new": 900, "drop": 3, "insert_failed": 7}, true, TrackerLosses{NoRoom: 3, Clashes: 7, Blurred: true}},
		{"merged", from5_10, grown{"clash_resolve": 7}, false, TrackerLosses{Merged: 7}},
		{"lost and merged ones", from5_10, grown{"drop": 3, "insert_failed": 3, "clash_resolve": 7}, false, TrackerLosses{Clashes: 3, Merged: 7}},
		{"an insertion that failed for an entry that was deleted meanwhile", from5_10, grown{"insert_failed": 2}, false, TrackerLosses{}},
		{"long chains", all[2:], grown{"insert_failed": 5, "chaintoolong": 5}, false, TrackerLosses{Chains: 5}},
		{"long chains beside clashes and a full table", all[2:], grown{"drop": 6, "insert_failed": 9, "chaintoolong": 5}, true, TrackerLosses{NoRoom: 2, Clashes: 4, Chains: 5}},
		{"evictions", all, grown{"early_drop": 8}, false, TrackerLosses{Evicted: 8}},
		{"evictions that no longer suffice", all, grown{"early_drop": 8, "drop": 2}, true, TrackerLosses{Evicted: 8, NoRoom: 2}},
		{"INVALID", all, grown{"invalid": 6}, false, TrackerLosses{Invalid: 6}},
		{"malformed", all, grown{"icmp_error": 6}, false, TrackerLosses{Malformed: 6}},
		{"a resize", all, grown{"search_restart": 3}, false, TrackerLosses{Restarts: 3}},
	} {
		for _, kernel := range tt.kernels {
			t.Run(tt.name+"/"+kernel, func(t *testing.T) {
				grown := grown{}
				for _, name := range generations[kernel] {
					grown[name] = tt.grown[name]
				}
				_, tt.want.ChainsKnown = grown["chaintoolong"]
				if diff := cmp.Diff(tt.want, DecodeTracker(grown, tt.logged)); diff != "" {
					t.Error(diff)
				}
			})
		}
	}
}
