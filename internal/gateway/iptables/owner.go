package iptables

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
)

// ownerPrefixes are what names of chains begin with, by the program that makes them.
var ownerPrefixes = []struct{ prefix, owner string }{
	{"DOCKER", "Docker"}, {"KUBE-", "Kubernetes"}, {"CNI-", "Kubernetes' CNI plugins"}, {"CNI_", "Kubernetes' CNI plugins"},
	{"cali-", "Calico"}, {"CILIUM_", "Cilium"}, {"OLD_CILIUM_", "Cilium"}, {"FLANNEL-", "flannel"}, {"WEAVE", "Weave"},
	{"ISTIO_", "Istio"}, {"LIBVIRT_", "libvirt"}, {"NETAVARK", "Podman"}, {"HOSTPORT", "Podman"}, {"ts-", "Tailscale"},
	{"f2b-", "fail2ban"}, {"MINIUPNPD", "miniupnpd"}, {"IP-MASQ", "ip-masq-agent"},
}

// firewalldChain are those of firewalld's iptables backend.
var firewalldChain = regexp.MustCompile(`^(PRE|POST|INPUT|OUTPUT|FORWARD|FWDI|FWDO|IN)(ROUTING)?_(ZONES|ZONES_SOURCE|direct|POLICIES_(pre|post)|[a-z]+(_(log|deny|allow|pre|post))?)$`)

func ownerOfChain(name string) string {
	for _, o := range ownerPrefixes {
		if strings.HasPrefix(name, o.prefix) {
			return o.owner
		}
	}
	if firewalldChain.MatchString(name) {
		return "firewalld"
	}
	return ""
}

// OwnerOfTable is the program that keeps a whole table of nftables, or empty.
func OwnerOfTable(name string) string {
	switch {
	case name == "natkit":
		return "natkit"
	case name == "firewalld":
		return "firewalld"
	case name == "docker-bridges":
		return "Docker"
	case name == "kube-proxy":
		return "Kubernetes"
	case name == "libvirt_network":
		return "libvirt"
	case name == "lxd":
		return "LXD"
	case name == "incus":
		return "Incus"
	case name == "netavark":
		return "Podman"
	}
	return ownerOfChain(name)
}

// bridge is what Docker calls its bridges.
var bridge = regexp.MustCompile(`^(docker\d+|docker_gwbridge|br-[0-9a-f]{12})$`)

// ownerOf is the program that keeps a rule of a chain, where one does.
func (t *Table) ownerOf(c *Chain, r *Rule) string {
	return cmp.Or(t.Owner, ownerOfChain(c.Name), t.ownerOfRule(r))
}

// ownerOfRule knows what programs put into iptables' own chains.
func (t *Table) ownerOfRule(r *Rule) string {
	if owner := ownerOfRule(r); owner != "" {
		return owner
	}
	if t.find("DOCKER") != nil && r.Target.Kind == Masquerade && (reachesItself(&r.Match) || bridge.MatchString(r.Match.Out)) {
		return "Docker"
	}
	return ""
}

// reachesItself is for a container that asks for its own published port. Where Docker has
// no proxy, it does the same for whatever the host itself sends to a bridge.
func reachesItself(m *Match) bool {
	return m.From.IsValid() && m.From == m.To && m.From.IsSingleIP() && len(m.Ports) > 0
}

func ownerOfRule(r *Rule) string {
	m, t := &r.Match, &r.Target
	switch {
	case t.Kind == Masquerade && slices.ContainsFunc(m.NotOut, bridge.MatchString):
		return "Docker"
	case strings.HasPrefix(r.Comment, "kubernetes "), strings.HasPrefix(r.Comment, "cali:"):
		return "Kubernetes"
	case strings.HasPrefix(r.Comment, "generated for LXD "):
		return "LXD"
	case strings.HasPrefix(r.Comment, "generated for Incus "):
		return "Incus"
	case strings.HasPrefix(r.Comment, "flanneld "):
		return "flannel"
	case strings.HasPrefix(r.Comment, `name: "`) && strings.Contains(r.Comment, `" id: "`):
		return "Kubernetes' CNI plugins"
	}
	return ""
}
