package netns

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestLeaveChecksums: what CompleteChecksums turns off is on again, segmentation included.
func TestLeaveChecksums(t *testing.T) {
	ns, err := New("offload")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	l, err := ns.Links()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.AddVeth(VethEnd{Name: "a"}, l, VethEnd{Name: "b"}); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		change func(string) error
		want   uint32
	}{{nil, 1}, {ns.CompleteChecksums, 0}, {ns.LeaveChecksums, 1}} {
		if step.change != nil {
			if err := step.change("a"); err != nil {
				t.Fatal(err)
			}
		}
		for name, cmd := range map[string]uint32{"checksums": unix.ETHTOOL_GTXCSUM, "segmentation": unix.ETHTOOL_GTSO} {
			v := ethtoolValue{cmd: cmd}
			if err := ns.ethtool("a", &v); err != nil || v.data != step.want {
				t.Errorf("offload of %s is %d, want %d: %v", name, v.data, step.want, err)
			}
		}
	}
}
