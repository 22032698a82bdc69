package dump

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/match"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
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

// TestDeletedCountsAnswers has a kernel that refuses some of a batch of ten.
func TestDeletedCountsAnswers(t *testing.T) {
	answer := func(seq uint32, errno unix.Errno) []byte {
		b := control(unix.NLMSG_ERROR, errno)
		binary.NativeEndian.PutUint32(b[8:], seq)
		return b
	}
	for name, c := range map[string]struct {
		answers [][]byte
		want    Deleted
		err     error
	}{
		"all":          {[][]byte{answer(10, 0)}, Deleted{Deleted: 10}, nil},
		"gone":         {[][]byte{answer(2, unix.ENOENT), answer(5, unix.ENOENT), answer(10, 0)}, Deleted{Deleted: 8, Gone: 2}, nil},
		"last is gone": {[][]byte{answer(10, unix.ENOENT)}, Deleted{Deleted: 9, Gone: 1}, nil},
		"offloaded":    {[][]byte{answer(1, unix.EBUSY), append(answer(2, unix.EBUSY), answer(10, unix.EBUSY)...)}, Deleted{Deleted: 7, Busy: 3}, nil},
		"no privilege": {[][]byte{answer(1, unix.EPERM), answer(10, unix.EPERM)}, Deleted{Deleted: 8}, unix.EPERM},
	} {
		s := kernelSays(t, c.answers...)
		s.seq = 10
		var d Deleted
		err := d.count(t.Context(), s, 10, make([]byte, datagramMax))
		if d != c.want || !errors.Is(err, c.err) {
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
