package dump

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

func keys(t testing.TB, all []conntrack.Entry, f *conntrack.Filter) (keys []conntrack.Key) {
	t.Helper()
	for _, e := range all {
		if f.Match(&e) {
			keys = append(keys, e.Key())
		}
	}
	return keys
}

// TestDeleteKeysDeletesExactlyThese deletes half of a table with all kinds of entries,
// of which some are gone and some have another entry in their place.
func TestDeleteKeysDeletesExactlyThese(t *testing.T) {
	ns := testutil.Namespace(t)
	testutil.ShareHost(t)
	mixed(t, ns)
	all := entries(t, ns)
	doomed := keys(t, all[:len(all)/2], nil)
	const gone, replaced = 5, 7
	if d, err := DeleteKeys(t.Context(), ns, doomed[:gone]); err != nil || d != (Deleted{Deleted: gone}) {
		t.Fatalf("DeleteKeys = %+v, %v", d, err)
	}
	want := map[conntrack.Key]bool{}
	for i := gone; i < gone+replaced; i++ {
		doomed[i].ID++ // as if it were another one
		want[all[i].Key()] = true
	}
	d, err := DeleteKeys(t.Context(), ns, doomed)
	if err != nil || d != (Deleted{Deleted: int64(len(doomed) - gone - replaced), Gone: gone + replaced}) {
		t.Errorf("DeleteKeys = %+v, %v of %d", d, err, len(doomed))
	}
	for _, k := range keys(t, all[len(all)/2:], nil) {
		want[k] = true
	}
	left := entries(t, ns)
	if len(left) != len(want) || slices.ContainsFunc(left, func(e conntrack.Entry) bool { return !want[e.Key()] }) {
		t.Errorf("%d entries are left, want %d", len(left), len(want))
	}
}

// TestFlush empties one namespace's table, and no other's.
func TestFlush(t *testing.T) {
	ns, other := testutil.Namespace(t), testutil.Namespace(t)
	testutil.ShareHost(t)
	mixed(t, ns)
	mixed(t, other)
	there := len(entries(t, other))
	if err := Flush(ns); err != nil {
		t.Fatal(err)
	}
	if left := len(entries(t, ns)); left != 0 {
		t.Errorf("%d entries are left", left)
	}
	if left := len(entries(t, other)); left != there || there == 0 {
		t.Errorf("%d entries are left of the %d in another namespace", left, there)
	}
}

func TestDeletedCountsRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		refused []unix.Errno
		want    Deleted
		err     error
	}{
		"all":          {nil, Deleted{Deleted: 10}, nil},
		"gone":         {[]unix.Errno{unix.ENOENT, unix.ENOENT}, Deleted{Deleted: 8, Gone: 2}, nil},
		"offloaded":    {[]unix.Errno{unix.EBUSY, unix.EBUSY, unix.ENOENT}, Deleted{Deleted: 7, Busy: 2, Gone: 1}, nil},
		"no privilege": {[]unix.Errno{unix.EPERM, unix.EPERM}, Deleted{Deleted: 8}, unix.EPERM},
	} {
		var d Deleted
		var refused []netlink.Refusal
		for _, errno := range c.refused {
			refused = append(refused, netlink.Refusal{Errno: errno})
		}
		if err := d.count(10, refused); d != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
	}
}

func TestDeleteKeysStops(t *testing.T) {
	ns := testutil.Namespace(t)
	testutil.ShareHost(t)
	mixed(t, ns)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d, err := DeleteKeys(ctx, ns, keys(t, entries(t, ns), nil))
	if !errors.Is(err, context.Canceled) || d != (Deleted{}) {
		t.Errorf("DeleteKeys = %+v, %v", d, err)
	}
	if d, err := DeleteKeys(t.Context(), ns, nil); err != nil || d != (Deleted{}) {
		t.Errorf("none to delete: %+v, %v", d, err)
	}
}
