package fill

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// queries inserts n DNS queries from port on without an answer: entries that the
// kernel evicts when the table is full.
func queries(t *testing.T, ns *netns.Handle, port, n uint16) {
	t.Helper()
	end := port + n
	_, err := dump.Insert(t.Context(), ns, func(e *conntrack.Entry) bool {
		orig := conntrack.Tuple{Src: netip.MustParseAddr("198.18.0.1"), Dst: netip.MustParseAddr("198.18.0.2"), Proto: unix.IPPROTO_UDP, SrcPort: port, DstPort: 53}
		*e = conntrack.Entry{Family: unix.AF_INET, Orig: orig, Reply: orig.Mirror(), Timeout: 600}
		port++
		return port <= end
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestConnectionsMeanwhileAreNotEvicted fills a table up to the kernel's limit,
// while real connections come into it.
func TestConnectionsMeanwhileAreNotEvicted(t *testing.T) {
	testutil.LockHost(t)
	ns := testutil.Namespace(t)
	limit, err := Max()
	if err != nil {
		t.Fatal(err)
	}
	if limit == 0 || limit > 1<<20 {
		testutil.Missing(t, "needs nf_conntrack_max from 1 to 1048576: as many entries are made")
	}
	const each = 5000
	queries(t, ns, 1000, each)
	came := false
	o := options(t, ns, "established", limit)
	o.Progress = func(made, of int64) {
		if !came && made > of/2 {
			came = true
			queries(t, ns, 1000+each, each)
		}
	}
	f := start(t, o)
	if !came || f.Made < limit-2*each || f.Table.Entries > limit {
		t.Errorf("made %d, the table holds %d; want %d beside %d of others", f.Made, f.Table.Entries, limit-2*each, 2*each)
	}
	if removed, err := f.Remove(t.Context()); err != nil || removed.Entries != f.Made {
		t.Errorf("removed %+v of %d, error %v", removed, f.Made, err)
	}
	// From 95 % of the limit on the kernel's own sweep, which may come any time, removes
	// such queries and does not count them (gc_worker, net/netfilter/nf_conntrack_core.c).
	if left := count(t, ns); left+f.Made > limit {
		t.Errorf("made %d beside %d of others where %d have room", f.Made, left, limit)
	}
	if evicted := earlyDrops(t, ns); evicted != 0 {
		t.Errorf("%d entries of others were evicted", evicted)
	}
}

func earlyDrops(t *testing.T, ns *netns.Handle) (n uint64) {
	t.Helper()
	cpus, err := dump.Stats(ns)
	if err != nil || len(cpus) == 0 {
		t.Fatalf("counters of %d CPUs, error %v", len(cpus), err)
	}
	for _, cpu := range cpus {
		n += cpu["early_drop"]
	}
	return n
}
