package netfilter

import (
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine/fake"
	"github.com/natkit/natkit/internal/netns"
)

// kept has the seals of what tests apply.
var kept fake.Kept

// Apply is Engine.Apply, which keeps the seal.
func Apply(ns *netns.Handle, p *gateway.Plan) error {
	return keepSeal(ns, func(digest string) (string, error) { return Engine{}.Apply(ns, p, digest) }, p)
}

// ApplyByHand applies as on a kernel without NF_NAT_RANGE_NETMAP for nftables.
func ApplyByHand(ns *netns.Handle, p *gateway.Plan) error {
	return keepSeal(ns, func(digest string) (string, error) {
		return sealed(ns, digest, func() error { return commit(ns, build(p, host{digest: digest})) })
	}, p)
}

func keepSeal(ns *netns.Handle, apply func(digest string) (string, error), p *gateway.Plan) error {
	seal, err := apply(gateway.Digest(p))
	if inode, idErr := netns.InodeOf(ns); err == nil && idErr == nil {
		err = kept.PutSeal(inode, gateway.EngineNetfilter, seal)
	}
	return err
}

// Read is Engine.Read, with the seal that Apply kept.
func Read(ns *netns.Handle) (*gateway.State, error) {
	inode, err := netns.InodeOf(ns)
	if err != nil {
		return nil, err
	}
	return Engine{}.Read(ns, kept.Seal(inode, gateway.EngineNetfilter), kept.Plan)
}

// Remove is Engine.Remove.
func Remove(ns *netns.Handle) error { return Engine{}.Remove(ns) }
