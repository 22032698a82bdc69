package apply

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
)

// PlanPersist lists the lines in files that make the changes hold after a boot,
// with what the files hold now.
func PlanPersist(changes []tune.Change, opt Options) ([]tune.Change, error) {
	opt = opt.withDefaults()
	if err := mayPersist(changes, opt); err != nil {
		return nil, err
	}
	files := tune.Persistent(changes)
	return files, ReadBefore(files, opt)
}

// ReadBefore puts what is there now into the Before of each change.
func ReadBefore(changes []tune.Change, opt Options) error {
	opt = opt.withDefaults()
	for i := range changes {
		c := &changes[i]
		before, err := opt.Appliers[c.Kind].Read(c.Target)
		if err != nil {
			return err
		}
		c.Before = before
	}
	return nil
}

// mayPersist keeps what was tried in a network namespace of its own out of the
// files, which speak for the initial one: most of net.* is each namespace's own.
func mayPersist(changes []tune.Change, opt Options) error {
	for _, c := range changes {
		if c.Kind == tune.NATRule {
			return fmt.Errorf("persist NAT rule %s: natkit keeps no rules over a boot: %s; and apply it without --persist", c.Target, tune.NATRuleByHand(c))
		}
	}
	for _, c := range changes {
		if c.Kind != tune.Sysctl || !strings.HasPrefix(c.Target, "net.") {
			continue
		}
		here := journal.NamespaceInode(opt.ProcRoot, "net")
		if IsInitialNetns(here, opt.ProcRoot) {
			return nil
		}
		return fmt.Errorf("persist %s: this network namespace (%d) is not the initial one, whose values the files under /etc hold: the host would get them at its next boot; run natkit there (nsenter --net --target 1), or without --persist",
			c.Target, here)
	}
	return nil
}

// IsInitialNetns reports whether the network namespace of that inode is the host's
// own. It compares with the first process's. Where nobody may look at that one, the
// kernel tells by what it shows in no other namespace, for the one that natkit runs
// in (sysctl_core_init: net_core_table).
func IsInitialNetns(here uint64, procRoot string) bool {
	if initial, err := journal.InitialNamespace(procRoot, "net"); err == nil {
		return here == initial
	}
	_, err := os.Lstat(filepath.Join(procRoot, "sys/net/core/dev_weight"))
	return err == nil
}
