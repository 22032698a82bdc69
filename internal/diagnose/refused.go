package diagnose

import (
	"fmt"
	"strings"

	"github.com/natkit/natkit/internal/units"
)

// refused is what became of packets that the connection tracker refused, or nearly,
// during a recording. It is read from the growth of four counters, none of which
// means one thing alone (__nf_conntrack_confirm and nf_ct_resolve_clash,
// net/netfilter/nf_conntrack_core.c):
//
//	drop and insert_failed, equally   the entry's tuple was taken: two packets drew the
//	                                  same port at once, or no port was free (the search
//	                                  for one gives up silently, and this fails)
//	chaintoolong and insert_failed,   a hash chain at its cap (5.15 and later); the packet
//	drop flat                         is lost all the same
//	drop alone                        no room in the table, or no memory
//	clash_resolve                     two packets of one UDP connection: merged, none lost
//	insert_failed alone               the same before 5.10, where it counted as a failure
type refused struct {
	// full packets were lost though no insertion failed.
	full int64
	// clashes were lost because their tuple was taken.
	clashes int64
	// chains were lost to the cap of hash chains; chainsKnown is false where the kernel
	// has no counter of them.
	chains      int64
	chainsKnown bool
	// merged are clashes without a loss.
	merged int64
	// blurred is true where merged clashes could have been taken for lost ones: the
	// kernel counts both in insert_failed, and something else counts in drop.
	blurred bool
}

// refused is false where the counters are not there or cannot be compared.
func (t *table) refused() (refused, bool) {
	drop, ok := t.delta("drop")
	if !ok {
		return refused{}, false
	}
	failed, _ := t.delta("insert_failed")
	r := refused{}
	r.chains, r.chainsKnown = t.delta("chaintoolong")
	merged, countsMerged := t.delta("clash_resolve")
	notChains := max(0, failed-r.chains)
	r.clashes = min(notChains, drop)
	r.full = drop - r.clashes
	r.merged = merged
	if !countsMerged {
		r.merged = notChains - r.clashes
		r.blurred = r.clashes > 0 && (r.full > 0 || r.merged > 0)
	}
	return r, true
}

// String is for the line of a check.
func (r refused) String() string {
	var parts []string
	for _, p := range []struct {
		n    int64
		what string
	}{
		{r.full, "dropped for want of room"}, {r.clashes, "lost as their tuple was taken"},
		{r.chains, "lost to long hash chains"}, {r.merged, "clashes merged without a loss"},
	} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", units.Count(p.n), p.what))
		}
	}
	if len(parts) == 0 {
		return "no insertion failed"
	}
	return strings.Join(parts, ", ")
}
