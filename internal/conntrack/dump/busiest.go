package dump

import (
	"fmt"

	"github.com/natkit/natkit/internal/netns"
)

// Busiest is the network namespace that tracks the most connections, of all that
// netns.All finds: a lower nf_conntrack_max, which holds for each of them, meets
// this one first. Needs CAP_NET_ADMIN and CAP_SYS_ADMIN.
func Busiest() (name string, entries int64, err error) {
	all, err := netns.All()
	if err != nil {
		return "", 0, err
	}
	defer netns.CloseAll(all)
	for _, ns := range all {
		usage, err := Count(ns)
		if err != nil {
			return "", 0, fmt.Errorf("network namespace %s (%d): %w", ns.Name(), ns.Inode(), err)
		}
		if name == "" || usage.Entries > entries {
			name, entries = fmt.Sprintf("%s (%d)", ns.Name(), ns.Inode()), usage.Entries
		}
	}
	return name, entries, nil
}
