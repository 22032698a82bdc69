package nft

import (
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/netns"
)

// ApplyByHand applies as on a kernel without NF_NAT_RANGE_NETMAP for nftables.
func ApplyByHand(ns *netns.Handle, p *gateway.Plan) error {
	if err := commit(ns, build(p, host{})); err != nil {
		return err
	}
	return seal(ns)
}
