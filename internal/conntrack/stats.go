package conntrack

import "fmt"

// StatsCPU decodes the body of an IPCTNL_MSG_CT_GET_STATS_CPU answer: the
// counters of one CPU (ctnetlink_ct_stat_cpu_fill_info).
func StatsCPU(body []byte) (map[string]uint64, error) {
	return counters(body, statsCPUNames[:])
}

// statsCPUNames are the kernel's names by attribute number (enum
// ctattr_stats_cpu); CTA_STATS_ERROR is the column icmp_error of
// /proc/net/stat/nf_conntrack.
var statsCPUNames = [...]string{
	1: "searched", 2: "found", 3: "new", 4: "invalid", 5: "ignore", 6: "delete",
	7: "delete_list", 8: "insert", 9: "insert_failed", 10: "drop", 11: "early_drop",
	12: "icmp_error", 13: "search_restart", 14: "clash_resolve", 15: "chaintoolong",
}

// StatsGlobal decodes the body of an IPCTNL_MSG_CT_GET_STATS answer: "entries"
// and, since Linux 4.18, "max_entries" (enum ctattr_stats_global).
func StatsGlobal(body []byte) (map[string]uint64, error) {
	return counters(body, []string{1: "entries", 2: "max_entries"})
}

func counters(body []byte, names []string) (map[string]uint64, error) {
	if len(body) < nfgenLen {
		return nil, fmt.Errorf("conntrack counters: %w", errTruncated)
	}
	out := make(map[string]uint64, len(names))
	for b := body[nfgenLen:]; len(b) > 0; {
		typ, v, rest, err := nextAttr(b)
		var n uint32
		if err == nil && int(typ) < len(names) && names[typ] != "" {
			if err = getU32(v, &n); err == nil {
				out[names[typ]] = uint64(n)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("conntrack counters, attribute %d: %w", typ, err)
		}
		b = rest
	}
	return out, nil
}
