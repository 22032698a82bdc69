package nft

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// explain says in one line why the kernel refused a transaction: which rule it was and,
// where something is missing, which option of the kernel's configuration brings it.
func explain(messages []message, refused []refusal) error {
	if len(refused) == 0 {
		return nil
	}
	first := refused[0] // the others follow from it
	if errors.Is(first, unix.EPERM) {
		return fmt.Errorf("%w: it needs CAP_NET_ADMIN in that network namespace", first)
	}
	if first.index < 0 || first.index >= len(messages) {
		return fmt.Errorf("the kernel refuses: %w", first)
	}
	m := messages[first.index]
	return fmt.Errorf("%s: the kernel refuses it: %w", m.about, first)
}
