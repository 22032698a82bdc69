package dump

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/match"
)

func keys(t testing.TB, all []conntrack.Entry, f *match.Filter) (keys []conntrack.Key) {
	t.Helper()
	for _, e := range all {
		if f.Match(&e) {
			keys = append(keys, e.Key())
		}
	}
	return keys
}

// TestKeysDeletesExactlyThese deletes half of a table with all kinds of entries,
// of which some are gone and some have another entry in their place.
func TestKeysDeletesExactlyThese(t *testing.T) {
	ns := newNetns(t)
	mixed(t, ns)
	all := entries(t, ns)
	doomed := keys(t, all[:len(all)/2], nil)
	const gone, replaced = 5, 7
	if d, err := Keys(t.Context(), ns, doomed[:gone]); err != nil || d != (Deleted{Deleted: gone}) {
		t.Fatalf("Keys = %+v, %v", d, err)
	}
	want := map[conntrack.Key]bool{}
	for i := gone; i < gone+replaced; i++ {
		doomed[i].ID++ // as if it were another one
		want[all[i].Key()] = true
	}
	d, err := Keys(t.Context(), ns, doomed)
	if err != nil || d != (Deleted{Deleted: int64(len(doomed) - gone - replaced), Gone: gone + replaced}) {
		t.Errorf("Keys = %+v, %v of %d", d, err, len(doomed))
	}
	for _, k := range keys(t, all[len(all)/2:], nil) {
		want[k] = true
	}
	left := entries(t, ns)
	if len(left) != len(want) || slices.ContainsFunc(left, func(e conntrack.Entry) bool { return !want[e.Key()] }) {
		t.Errorf("%d entries are left, want %d", len(left), len(want))
	}
}

func TestKeysStops(t *testing.T) {
	ns := newNetns(t)
	mixed(t, ns)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d, err := Keys(ctx, ns, keys(t, entries(t, ns), nil))
	if !errors.Is(err, context.Canceled) || d != (Deleted{}) {
		t.Errorf("Keys = %+v, %v", d, err)
	}
	if d, err := Keys(t.Context(), ns, nil); err != nil || d != (Deleted{}) {
		t.Errorf("none to delete: %+v, %v", d, err)
	}
}
