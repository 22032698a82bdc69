package main

import (
	"testing"
	"time"

	"github.com/natkit/natkit/internal/testutil"
)

// TestBulk: all that is sent arrives, through each of the subjects.
func TestBulk(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "nft")
	b := &bulk{time: 300 * time.Millisecond} // a busy machine sends nothing in a hundredth of it
	b.inNamespaces(t)
	testutil.Addresses(t, testutil.Links(t, b.server), "lo", bulkInside.Addr().String()+"/32")
	for _, s := range b.subjects(traffic{mappings: 10}) {
		sample, err := s.Run(t.Context())
		if err != nil || sample.Failures != 0 || sample.Values[bitRate] <= 0 {
			t.Errorf("%s: %+v, %v", s.Name, sample, err)
		}
	}
}
