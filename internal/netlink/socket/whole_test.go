package socket

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestListsThatChangeAreReadAgain(t *testing.T) {
	calls := 0
	list := func() ([]int, error) {
		if calls++; calls < 3 {
			return []int{1}, netlink.ErrDumpInterrupted
		}
		return []int{1, 2}, nil
	}
	if all, err := Whole(list); err != nil || len(all) != 2 || calls != 3 {
		t.Errorf("%v, %v after %d", all, err, calls)
	}
	always := func() ([]int, error) { return []int{1}, netlink.ErrDumpInterrupted }
	if all, err := Whole(always); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
	if _, err := Whole(func() ([]int, error) { return nil, unix.EPERM }); !errors.Is(err, unix.EPERM) {
		t.Errorf("%v", err)
	}
}
