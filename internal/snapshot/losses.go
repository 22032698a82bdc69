package snapshot

// TrackerLosses is what became of packets that the connection tracker refused, or nearly. It is
// decoded from the growth of its counters, none of which means one thing alone
// (__nf_conntrack_confirm, nf_ct_resolve_clash, nf_conntrack_in and resolve_normal_ct,
// net/netfilter/nf_conntrack_core.c).
type TrackerLosses struct {
	// NoRoom packets were dropped though no insertion failed: the table is full, or there is no
	// memory. Of these OrInvalid may as well have been dropped as INVALID, by a protocol's
	// tracker that answers NF_DROP, which counts in drop and invalid.
	NoRoom    int64
	OrInvalid int64
	// Clashes were lost because their tuple was taken: two packets drew the same port at once,
	// or no port was free. The search for one gives up silently; how many ports are in use
	// distinguishes the two.
	Clashes int64
	// Chains were lost to the cap of hash chains (5.15 and later); ChainsKnown is false where
	// the kernel has no counter of them.
	Chains      int64
	ChainsKnown bool
	// Merged are two packets of one connection, of which none was lost.
	Merged int64
	// Blurred is true where merged clashes could have been taken for lost ones: the kernel
	// counts both in insert_failed (before 5.10), and something else counts in drop.
	Blurred bool
	// Evicted are entries without an answer that made room for others: no new one is lost yet.
	Evicted int64
	// Invalid packets passed without translation, unless a rule drops them.
	Invalid int64
	// Malformed are packets with a wrong checksum or header, Restarts lookups that began anew as
	// an entry moved (a resize, or an entry used again): usual.
	Malformed int64
	Restarts  int64
}

// DecodeTracker returns what the growth of the tracker's counters means; one that the kernel
// lacks is absent. logged is whether it logged a full table meanwhile.
//
//	drop and insert_failed, equally   Clashes
//	chaintoolong and insert_failed,   Chains; the packet is lost all the same
//	drop flat
//	drop alone                        NoRoom
//	drop and invalid, nothing logged  NoRoom, OrInvalid
//	clash_resolve                     Merged
//	insert_failed alone               Merged before 5.10, where it counted as a failure
//	insert_failed, and new grew       Clashes, perhaps Merged: a kernel from before clashes were
//	                                  resolved (nf_ct_resolve_clash) or soon after; drop is NoRoom
func DecodeTracker(grown map[string]int64, logged bool) TrackerLosses {
	chains, chainsKnown := grown["chaintoolong"]
	merged, countsMerged := grown["clash_resolve"]
	drop, notChains := grown["drop"], max(0, grown["insert_failed"]-chains)
	l := TrackerLosses{
		Clashes: min(notChains, drop), Chains: chains, ChainsKnown: chainsKnown, Merged: merged,
		Evicted: grown["early_drop"], Invalid: grown["invalid"], Malformed: grown["error"] + grown["icmp_error"],
		Restarts: grown["search_restart"],
	}
	l.NoRoom = drop - l.Clashes
	old := !countsMerged && grown["new"] > 0
	if old {
		l.NoRoom, l.Clashes, l.Blurred = drop, notChains, notChains > 0
	}
	if !logged {
		l.OrInvalid = min(l.NoRoom, l.Invalid)
	}
	if !countsMerged && !old {
		l.Merged = notChains - l.Clashes
		l.Blurred = l.Clashes > 0 && (l.NoRoom > 0 || l.Merged > 0)
	}
	return l
}

// Grown returns how much each counter grew since before; nil where they cannot be compared.
func (c *ConntrackStat) Grown(before *ConntrackStat) map[string]int64 {
	if c == nil || before == nil || len(c.PerCPU) != len(before.PerCPU) {
		return nil
	}
	grown := map[string]int64{}
	for _, cpu := range c.PerCPU {
		for name := range cpu {
			if _, done := grown[name]; done {
				continue
			}
			if n, ok := c.Delta(before, name); ok {
				grown[name] = int64(n)
			}
		}
	}
	return grown
}
