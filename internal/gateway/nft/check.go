package nft

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/netns"
)

// check asks the kernel of a namespace whether it would take all of a plan, without
// carrying it out; a flowtable over lo stands for the plan's. The error is Apply's; nil
// also where natkit may not ask.
func check(ns *netns.Handle, p *gateway.Plan) error {
	var flowtable []string
	if len(p.Flowtable) > 0 {
		flowtable = []string{"lo"}
	}
	err := write(p, flowtable, func(t *table) error {
		messages, err := t.messages(nil)
		if err != nil {
			return err
		}
		return asked(ns, messages)
	})
	if errors.Is(err, fs.ErrPermission) { // with CAP_SYS_ADMIN for the namespace, and without CAP_NET_ADMIN in it
		return nil
	}
	return err
}

// checkFlowtable asks the kernel of a namespace (nil: this one) whether it would take a
// flowtable, without making one. It asks for one over lo, as kernels before 5.8 take none
// without interfaces (05abe4456fa3). What modules that needs are loaded by it, and stay.
// Needs CAP_NET_ADMIN in that namespace and, unlike a try in one of its own, nothing
// else. It wraps *Missing where the kernel has no flowtables.
func checkFlowtable(ns *netns.Handle) error {
	messages := []message{tableMessage(unix.NFT_MSG_NEWTABLE), (&flowtable{name: flowtableName, devices: []string{"lo"}}).message()}
	if err := asked(ns, messages); err != nil {
		return fmt.Errorf("ask for a flowtable: %w", err)
	}
	return nil
}

// asked says why the kernel would refuse a transaction.
func asked(ns *netns.Handle, messages []message) error {
	refused, err := probe(ns, messages)
	if err != nil {
		return err
	}
	return inWords(ns, messages, refused)
}
