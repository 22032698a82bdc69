package socket

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// attempts bound how often a list is read that changes meanwhile.
const attempts = 5

// Whole lists until nothing changed meanwhile (NLM_F_DUMP_INTR); of the last attempt what it got.
func Whole[T any](list func() ([]T, error)) (all []T, err error) {
	for range attempts {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return all, nil
}
