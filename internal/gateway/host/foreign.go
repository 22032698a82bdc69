package host

import (
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/natrules"
	"github.com/natkit/natkit/internal/netns"
)

// Foreign are the base chains of a namespace that are not natkit's.
func Foreign(ns *netns.Handle) ([]gateway.Foreign, error) {
	chains, err := natrules.BaseChains(ns)
	if err != nil {
		return nil, err
	}
	var all []gateway.Foreign
	for _, c := range chains {
		all = append(all, gateway.Foreign{
			Source: c.Source, Owner: owner(append([]string{c.Table, c.Name}, c.Chains...)),
			Family: c.Family, Table: c.Table, Chain: c.Name, Type: c.Type, Hook: c.Hook,
			Priority: c.Priority, Policy: c.Policy, Accepts: c.Accepts, Rules: c.Rules, NAT: c.NAT, TooMany: c.TooMany,
		})
	}
	return all, nil
}

// owners are known by how the names of their tables and chains begin.
var owners = []struct{ prefix, name string }{
	{"DOCKER", "docker"}, {"docker-", "docker"},
	{"KUBE-", "kubernetes"}, {"kube-", "kubernetes"},
	{"cali-", "calico"}, {"CILIUM_", "cilium"}, {"FLANNEL-", "flannel"}, {"CNI-", "cni"},
	{"firewalld", "firewalld"},
	{"LIBVIRT_", "libvirt"}, {"libvirt_", "libvirt"},
	{"ufw-", "ufw"}, {"ufw6-", "ufw"},
	{"NETAVARK", "podman"}, {"netavark", "podman"},
	{"lxd", "lxd"}, {"incus", "incus"},
}

// owner is a guess by names: who has the most of them, of equals the one that comes
// first.
func owner(names []string) string {
	count := map[string]int{}
	best := ""
	for _, name := range names {
		i := slices.IndexFunc(owners, func(o struct{ prefix, name string }) bool { return strings.HasPrefix(name, o.prefix) })
		if i < 0 {
			continue
		}
		o := owners[i].name
		if count[o]++; count[o] > count[best] {
			best = o
		}
	}
	return best
}
