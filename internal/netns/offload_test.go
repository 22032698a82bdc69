package netns

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// withVeth returns a namespace with both ends of a veth, a and b.
func withVeth(t *testing.T) *Handle {
	t.Helper()
	ns, err := New("veth")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	l, err := ns.Links()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.AddVeth(VethEnd{Name: "a"}, l, VethEnd{Name: "b"}); err != nil {
		t.Fatal(err)
	}
	return ns
}

// TestLeaveChecksums: what CompleteChecksums turns off is on again, segmentation included.
func TestLeaveChecksums(t *testing.T) {
	ns := withVeth(t)
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

// TestReceiveOn reads back what is written, of this namespace's interface and not of one of the same name
// outside.
func TestReceiveOn(t *testing.T) {
	ns := withVeth(t)
	if err := ns.ReceiveOn("a", []int{0}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"a": "1", "b": "0"} {
		if got := receivesOn(t, ns, name); got != want {
			t.Errorf("%s receives on %q, want %q", name, got, want)
		}
	}
	if err := ns.ReceiveOn("missing", []int{0}); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "missing") {
		t.Errorf("got %v", err)
	}
}

// receivesOn is an interface's rps_cpus without leading zeros.
func receivesOn(t *testing.T, ns *Handle, name string) (mask string) {
	t.Helper()
	if err := ns.Do(func() error {
		dir, err := openQueues(name)
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		fd, err := unix.Openat(dir, "rx-0/rps_cpus", unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		text := make([]byte, 4096)
		n, err := unix.Read(fd, text)
		if mask = strings.TrimLeft(strings.TrimSpace(string(text[:max(n, 0)])), "0,"); mask == "" {
			mask = "0"
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return mask
}

func TestCPUMask(t *testing.T) {
	for want, cpus := range map[string][]int{
		"00000000": nil, "00000001": {0}, "80000002": {1, 31}, "00000001,00000000": {32}, "00000009,00000000,80000000": {31, 64, 67},
	} {
		if got := cpuMask(cpus); got != want {
			t.Errorf("%v: %s, want %s", cpus, got, want)
		}
	}
}
