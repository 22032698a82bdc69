package bpf

import (
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/natkit/natkit/internal/testutil"
)

func TestName(t *testing.T) {
	table := MakeReasons(map[uint32]string{12: "NETFILTER_DROP", 3 << 16: "OPENVSWITCH", 3<<16 | 1: "OVS_DROP_LAST_ACTION"})
	for number, want := range map[uint32]string{
		12: "NETFILTER_DROP", 3<<16 | 1: "OVS_DROP_LAST_ACTION", 3<<16 | 9: "OPENVSWITCH 9", 99: "reason 99", 5<<16 | 1: "reason 327681",
	} {
		if got := table.Name(number); got != want {
			t.Errorf("Name(%#x) = %q, want %q", number, got, want)
		}
	}
	if got := new(Reasons).Name(12); got != "" {
		t.Errorf("a kernel without reasons gives %q", got)
	}
	if got := table.Number("NETFILTER_DROP"); got != 12 {
		t.Errorf("NETFILTER_DROP is %d", got)
	}
	if got := table.Number("NO_SUCH"); got != 0 {
		t.Errorf("what there is not is %d", got)
	}
}

// TestRead: where the running kernel has reasons, it has those that natkit goes by.
func TestRead(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.BTF)
	table, err := ReadReasons(btf.NewCache())
	if err != nil {
		t.Fatal(err)
	}
	if table.Carried != (table.Name(2) != "") {
		t.Errorf("reasons: %v, but 2 is %q", table.Carried, table.Name(2))
	}
	if table.Carried && (table.Number("NOT_SPECIFIED") == 0 || table.Number("NETFILTER_DROP") == 0) {
		t.Errorf("reasons without NOT_SPECIFIED or NETFILTER_DROP: %v", table.names)
	}
}
