package collect

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

// arp618 is of Linux 6.18 with two CPUs, arp318 of a kernel without table_fulls.
const (
	arp618 = `entries  allocs   destroys hash_grows lookups  hits     res_failed rcv_probes_mcast rcv_probes_ucast periodic_gc_runs forced_gc_runs unresolved_discards table_fulls
00000402 0012c368 00131bd0 00000005   0000e191 00006366 00000a07   00000000         00000000         00000a35         00000004       0000baa0            00000011
00000402 00114ab2 0010f248 00000007   00002fde 00006838 00000c3b   00000000         00000000         00000000         00000006       00000abe            00000002
`
	arp318 = `entries  allocs destroys hash_grows  lookups hits  res_failed  rcv_probes_mcast rcv_probes_ucast  periodic_gc_runs forced_gc_runs unresolved_discards
00000003  00000005 00000002 00000000  00000010 0000000f  00000001  00000000 00000000  00000007 00000000 00000002
`
)

func TestNeighbours(t *testing.T) {
	o := newObservation(&fixture{files: map[string]string{procARP: arp618, procNDisc: arp318}})
	o.collect(t.Context(), only("neighbours"))
	want := &snapshot.Neighbours{
		ARP: &snapshot.NeighbourTable{Entries: 1026, Lookups: 0xe191 + 0x2fde, Hits: 0x6366 + 0x6838, ResolutionsFailed: 0xa07 + 0xc3b,
			UnresolvedDiscards: 0xbaa0 + 0xabe, GCRuns: 10, TableFulls: 19},
		NDisc: &snapshot.NeighbourTable{Entries: 3, Lookups: 16, Hits: 15, ResolutionsFailed: 1, UnresolvedDiscards: 2},
	}
	if d := cmp.Diff(want, o.Neighbours); d != "" || o.PartError("neighbours") != "" {
		t.Errorf("%v\n%s", o.Parts, d)
	}
}

func TestNoNeighbours(t *testing.T) {
	o := newObservation(&fixture{})
	if o.collect(t.Context(), only("neighbours")); o.Neighbours != nil || len(o.Parts) != 0 {
		t.Errorf("%+v, %+v", o.Neighbours, o.Parts)
	}
	o = newObservation(&fixture{files: map[string]string{procARP: "entries lookups\n1 x\n"}})
	if o.collect(t.Context(), only("neighbours")); o.Neighbours != nil || !strings.Contains(o.PartError("neighbours"), procARP) {
		t.Errorf("%+v, %+v", o.Neighbours, o.Parts)
	}
}

// TestNeighboursOfThisKernel: only the initial network namespace shows them.
func TestNeighboursOfThisKernel(t *testing.T) {
	for _, path := range []string{procARP, procNDisc} {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if _, err := parseNeighbours(strings.NewReader(string(text)), path); err != nil {
			t.Error(err)
		}
	}
	testutil.NeedRoot(t)
	if s, err := Read(t.Context(), Options{Netns: testutil.Namespace(t)}); err != nil || s.Neighbours != nil || s.PartError("neighbours") != "" {
		t.Errorf("%v, %+v", err, s.Neighbours)
	}
}

func FuzzStatTable(f *testing.F) {
	f.Add(arp618)
	f.Add(arp318)
	f.Fuzz(func(t *testing.T, text string) {
		defer testutil.Bounded(t, len(text))()
		if n, err := parseNeighbours(strings.NewReader(text), procARP); (n == nil) != (err != nil) {
			t.Errorf("%+v, %v", n, err)
		}
	})
}
