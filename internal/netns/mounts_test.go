package netns_test

import (
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// FuzzMountPlaces reads mountinfo.
func FuzzMountPlaces(f *testing.F) {
	f.Add("1 2 0:4 net:[4026532250] /run/netns/gw rw shared:1 - nsfs nsfs rw\n22 1 0:20 / /proc rw - proc proc rw\n")
	f.Fuzz(func(t *testing.T, text string) {
		defer testutil.Bounded(t, len(text))()
		for _, place := range netns.MountPlaces(text) {
			if place == "" || !strings.Contains(text, place) {
				t.Errorf("place %q", place)
			}
		}
	})
}
