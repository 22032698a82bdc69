package dump

import (
	"context"
	"fmt"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
)

// Usage is how full the table of a namespace is.
type Usage struct {
	// Entries is nf_conntrack_count.
	Entries int64
	// Max is nf_conntrack_max; 0 where the kernel does not tell it here (before
	// Linux 4.18) or where there is no limit.
	Max int64
}

// Count reads how full the table of a namespace (nil: this one) is
// (IPCTNL_MSG_CT_GET_STATS). Needs CAP_NET_ADMIN.
func Count(ns *netns.Handle) (Usage, error) {
	u, err := count(ns)
	if err != nil {
		return u, fmt.Errorf("count the connection table's entries: %w", err)
	}
	return u, nil
}

func count(ns *netns.Handle) (Usage, error) {
	s, err := dial(ns)
	if err != nil {
		return Usage{}, err
	}
	defer s.close()
	if err := s.send(s.request(conntrack.GetStats, 0)); err != nil {
		return Usage{}, err
	}
	answer, err := s.receive(context.Background(), make([]byte, datagramMax))
	if err != nil {
		return Usage{}, err
	}
	m, _, err := conntrack.Next(answer)
	if err != nil {
		return Usage{}, err
	}
	if m.Type == unix.NLMSG_ERROR {
		errno, err := m.Errno()
		if err != nil {
			return Usage{}, err
		}
		return Usage{}, explain(errno)
	}
	c, err := conntrack.StatsGlobal(m.Body)
	if err != nil {
		return Usage{}, err
	}
	return Usage{Entries: int64(c["entries"]), Max: int64(c["max_entries"])}, nil
}
