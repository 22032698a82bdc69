package nft

import (
	"testing"

	"github.com/natkit/natkit/internal/testutil"
)

func TestFlowtableIsToldAsItIs(t *testing.T) {
	testutil.NeedRoot(t)
	s := Engine{}.Flowtable(nil)
	if s.OK == (s.Reason != "") {
		t.Errorf("%+v", s)
	}
	t.Logf("%+v", s)
	if !s.OK {
		testutil.NeedFeature(t, testutil.FlowTable)
		t.Errorf("this kernel has flowtables, and natkit says: %s", s.Reason)
	}
}
