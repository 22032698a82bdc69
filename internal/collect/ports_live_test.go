package collect

import (
	"bytes"
	"context"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

// fillPorts puts flows that keep their ports, from first on, behind one address.
func fillPorts(t *testing.T, ns *netns.Handle, first, n int) {
	t.Helper()
	client, server, gateway := netip.MustParseAddr("198.18.0.2"), netip.MustParseAddr("198.19.0.1"), netip.MustParseAddr("203.0.113.1")
	i := first
	if _, err := dump.Insert(t.Context(), ns, func(e *conntrack.Entry) bool {
		if i == first+n {
			return false
		}
		*e = conntrack.Entry{Family: unix.AF_INET, Timeout: 600,
			Orig:  conntrack.Tuple{Src: client, Dst: server, Proto: unix.IPPROTO_UDP, SrcPort: uint16(i), DstPort: 53},
			Reply: conntrack.Tuple{Src: server, Dst: gateway, Proto: unix.IPPROTO_UDP, SrcPort: 53, DstPort: uint16(i)}}
		i++
		return true
	}); err != nil {
		t.Fatal(err)
	}
}

// Ports are in both snapshots, the second one with rates, and a bundle gives the
// same, by the messages of its tables.
func TestPortsInRecordingAndBundle(t *testing.T) {
	ns := testutil.Namespace(t)
	testutil.ShareHost(t)
	fillPorts(t, ns, 1024, 20000)
	var bundle bytes.Buffer
	added := false
	rec, err := WriteBundle(t.Context(), &bundle, RecordOptions{Options: Options{Netns: ns}, For: 200 * time.Millisecond,
		Trace: func(context.Context, *snapshot.Snapshot) func() snapshot.Trace {
			return func() snapshot.Trace {
				fillPorts(t, ns, 30000, 500)
				added = true
				return snapshot.Trace{}
			}
		}})
	if err != nil || !added {
		t.Fatal(err, added)
	}
	first, last := rec.First().Ports, rec.Last().Ports
	if first == nil || len(first.Pools) != 1 || first.Pools[0].Used != 20000 || first.Pools[0].RateKnown || !first.Complete {
		t.Fatalf("first: %+v (%s)", first, rec.First().PartError("ports"))
	}
	p := last.Pools[0]
	if p.Used != 20500 || !p.RateKnown || math.Round(p.NewPerSecond*last.Seconds) != 500 || p.SecondsLeft < 0 || !p.Known || p.FailsIfTaken <= 0 ||
		len(p.Users) != 1 || p.Users[0] != (snapshot.Talker{Who: "198.18.0.2", Entries: 20500}) {
		t.Errorf("last: %+v", p)
	}
	again, err := ReadBundle(&bundle, nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]*snapshot.Ports{first, last}, []*snapshot.Ports{again.First().Ports, again.Last().Ports}); diff != "" {
		t.Error(diff)
	}
}

// An incomplete reading is scaled, and gives no chance.
func TestPortsOfSampledTable(t *testing.T) {
	ns := testutil.Namespace(t)
	testutil.ShareHost(t)
	fillPorts(t, ns, 1024, 20000)
	s, err := Read(t.Context(), Options{Netns: ns, MaxEntries: 5000})
	if err != nil {
		t.Fatal(err)
	}
	p := s.Ports.Pools[0]
	if s.Ports.Complete || p.Used < 19900 || p.Used > 20000 || p.Known || p.RateKnown {
		t.Errorf("%+v", p)
	}
}
