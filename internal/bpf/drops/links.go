package drops

import (
	"net"

	"github.com/natkit/natkit/internal/netns"
)

// linkNames are the names of a namespace's interfaces by their index.
func linkNames(ns *netns.Handle) map[uint32]string {
	names := map[uint32]string{}
	err := ns.Do(func() error {
		links, err := net.Interfaces()
		for _, l := range links {
			names[uint32(l.Index)] = l.Name
		}
		return err
	})
	if err != nil {
		return nil // gone in the meantime
	}
	return names
}
