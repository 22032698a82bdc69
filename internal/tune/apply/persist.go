package apply

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
)

// PlanPersist lists the lines in files that make the changes hold after a boot,
// with what the files hold now.
func PlanPersist(changes []tune.Change, opt Options) ([]tune.Change, error) {
	opt = opt.withDefaults()
	// Who may not look at the first process may see the plan; Apply refuses.
	if err := mayPersist(changes, opt); err != nil && !errors.Is(err, fs.ErrPermission) {
		return nil, err
	}
	files := tune.Persistent(changes)
	for i := range files {
		c := &files[i]
		before, err := opt.Appliers[c.Kind].Read(c.Target)
		if err != nil {
			return nil, err
		}
		c.Before = before
	}
	return files, nil
}

// mayPersist keeps what was tried in a network namespace of its own out of the
// files, which speak for the initial one: most of net.* is each namespace's own.
func mayPersist(changes []tune.Change, opt Options) error {
	for _, c := range changes {
		if c.Kind != tune.Sysctl || !strings.HasPrefix(c.Target, "net.") {
			continue
		}
		initial, err := journal.InitialNamespace(opt.ProcRoot, "net")
		if err != nil {
			return fmt.Errorf("persist %s: cannot tell whether this is the initial network namespace, whose values the files under /etc hold: %w; run as root, or without --persist", c.Target, err)
		}
		if here := journal.NamespaceInode(opt.ProcRoot, "net"); here != initial {
			return fmt.Errorf("persist %s: this is network namespace %d, and the files under /etc hold the values of the initial one (%d): the host would get them at its next boot; run natkit there (nsenter --net --target 1), or without --persist",
				c.Target, here, initial)
		}
		return nil
	}
	return nil
}
