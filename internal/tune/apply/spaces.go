package apply

import (
	"fmt"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/tune/journal"
)

// enter opens the network namespace of a change, and makes sure that it is the one in
// which it was made; nil stands for the thread's own, or for none. The error is
// fs.ErrNotExist where that one is gone, and its values with it.
func (u *undoing) enter(c journal.Change) (*netns.Handle, error) {
	id := u.tx.In(c)
	if err := u.reaches(u.tx, id); err != nil {
		return nil, err
	}
	if id.Inode == 0 {
		return nil, nil
	}
	if u.opt.ProcRoot != "/proc" { // where namespaces are not looked for
		here := journal.NamespaceInode(u.opt.ProcRoot, "net")
		if c.Netns() == 0 && here != 0 && here != id.Inode {
			return nil, fmt.Errorf("it was changed in network namespace %d, this is %d; run natkit there (nsenter --net)", id.Inode, here)
		}
		return nil, nil
	}
	if ns, ok := u.spaces[id]; ok {
		return ns, nil
	}
	here, err := netns.InodeOf(nil)
	if err != nil {
		return nil, err
	}
	ns, err := netns.Open(id)
	if err == nil {
		err = u.certain(id, ns, here)
	}
	if err != nil || ns.Inode() == here {
		ns.Close()
		ns = nil
	}
	if err == nil {
		u.spaces[id] = ns
	}
	return ns, err
}

// reaches refuses a namespace that who wrote the transaction could not enter: a service
// that is not root stays in the host's own.
func (u *undoing) reaches(tx *journal.Transaction, id netns.ID) error {
	if !tx.Foreign() {
		return nil
	}
	initial, err := journal.InitialNamespace(u.opt.ProcRoot, "net")
	if err != nil {
		return fmt.Errorf("which network namespace is the host's, the only one that uid %d, who wrote it, can change: %w; run natkit outside the container", tx.UID, err)
	}
	if id.Inode != initial {
		return fmt.Errorf("uid %d, who wrote it, cannot change network namespace %d", tx.UID, id.Inode)
	}
	return nil
}

// certain refuses a namespace of which only the number is known, as in journals of
// earlier versions, where the kernel could have told more. The host's own never goes.
func (u *undoing) certain(id netns.ID, ns *netns.Handle, here uint64) error {
	initial, err := journal.InitialNamespace(u.opt.ProcRoot, "net")
	isInitial := err == nil && id.Inode == initial || id.Inode == here && IsInitialNetns(here, u.opt.ProcRoot)
	if isInitial {
		return nil
	}
	if err := id.Certain(ns); err != nil {
		return fmt.Errorf("%w; 'natkit tune undo --force %s' gives it up", err, u.tx.ID)
	}
	return nil
}

// inside runs fn in a namespace; nil stands for the thread's own.
func inside(ns *netns.Handle, fn func() error) error {
	if ns == nil {
		return fn()
	}
	return ns.Do(fn)
}

func (u *undoing) close() {
	for _, ns := range u.spaces {
		ns.Close()
	}
}
