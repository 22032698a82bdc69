package nft

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
)

// checkFlowtable asks the kernel of a namespace (nil: this one) whether it would take a
// flowtable, without making one. It asks for one over lo, as kernels before 5.8 take none
// without interfaces (05abe4456fa3). What modules that needs are loaded by it, and stay.
// Needs CAP_NET_ADMIN in that namespace and, unlike a try in one of its own, nothing
// else. It wraps *Missing where the kernel has no flowtables.
func checkFlowtable(ns *netns.Handle) error {
	messages := []message{tableMessage(unix.NFT_MSG_NEWTABLE), (&flowtable{name: flowtableName, devices: []string{"lo"}}).message()}
	refused, err := probe(ns, messages)
	if err == nil {
		err = inWords(ns, messages, refused)
	}
	if err != nil {
		return fmt.Errorf("ask for a flowtable: %w", err)
	}
	return nil
}
