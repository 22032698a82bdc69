package host

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/nft"
	"github.com/natkit/natkit/internal/netns"
)

// flowtable tries a table with a flowtable in a namespace that ends with it, or asks,
// where natkit may not make one. The host's rules are not touched.
func flowtable(here *netns.Handle) gateway.Support {
	ns, err := netns.New("flowtable-probe")
	if err != nil {
		return asked(nft.CheckFlowtable(here))
	}
	defer ns.Close()
	return asked(tryFlowtable(ns))
}

func asked(err error) gateway.Support {
	var missing *nft.Missing
	switch {
	case err == nil:
		return gateway.Support{OK: true}
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL), errors.As(err, &missing):
		return gateway.Support{Reason: "this kernel has no flowtables, or their module is not installed (CONFIG_NF_FLOW_TABLE, CONFIG_NF_FLOW_TABLE_INET; Linux 4.16)"}
	default:
		return gateway.Support{Unknown: true, Reason: fmt.Sprintf("it could not be tried whether this kernel has flowtables: %v", err)}
	}
}

func tryFlowtable(ns *netns.Handle) error {
	c, err := nftables.New(nftables.WithNetNSFd(ns.Fd()))
	if err != nil {
		return err
	}
	table := c.AddTable(&nftables.Table{Name: "probe", Family: nftables.TableFamilyINet})
	c.AddFlowtable(&nftables.Flowtable{Table: table, Name: "probe",
		Hooknum: nftables.FlowtableHookIngress, Priority: nftables.FlowtablePriorityFilter})
	return c.Flush()
}
