package netfilter

import (
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/netns"
)

// ApplyByHand applies as on a kernel without NF_NAT_RANGE_NETMAP for nftables.
func ApplyByHand(ns *netns.Handle, p *gateway.Plan) error {
	return sealed(ns, func() error { return commit(ns, build(p, host{})) })
}
