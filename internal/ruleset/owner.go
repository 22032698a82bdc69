package ruleset

import (
	"cmp"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/lazyregexp"
)

// Owner is the program that keeps a rule: "docker", "firewalld"; empty if none is known.
type Owner = string

// owner is how the tables of nftables and the chains of a program are named.
type owner struct {
	id     Owner
	name   string
	tables []string
	chains []string // prefixes
}

var owners = []owner{
	{id: "natkit", name: "natkit", tables: []string{GatewayTable}},
	{"docker", "Docker", []string{"docker-bridges"}, []string{"DOCKER"}},
	{"kubernetes", "Kubernetes", []string{"kube-proxy"}, []string{"KUBE-"}},
	{"cni", "Kubernetes' CNI plugins", nil, []string{"CNI-", "CNI_"}},
	{"calico", "Calico", nil, []string{"cali-"}},
	{"cilium", "Cilium", nil, []string{"CILIUM_", "OLD_CILIUM_"}},
	{"flannel", "flannel", nil, []string{"FLANNEL-"}},
	{"weave", "Weave", nil, []string{"WEAVE"}},
	{"istio", "Istio", nil, []string{"ISTIO_"}},
	{"firewalld", "firewalld", []string{"firewalld"}, nil},
	{"libvirt", "libvirt", []string{"libvirt_network"}, []string{"LIBVIRT_"}},
	{"podman", "Podman", []string{"netavark"}, []string{"NETAVARK", "HOSTPORT"}},
	{"lxd", "LXD", []string{"lxd"}, nil},
	{"incus", "Incus", []string{"incus"}, nil},
	{"tailscale", "Tailscale", nil, []string{"ts-"}},
	{"fail2ban", "fail2ban", nil, []string{"f2b-"}},
	{"miniupnpd", "miniupnpd", nil, []string{"MINIUPNPD"}},
	{"ip-masq-agent", "ip-masq-agent", nil, []string{"IP-MASQ"}},
	{ufw, "ufw", nil, []string{"ufw-", "ufw6-"}},
}

// ufw's chains hold the administrator's own rules too (before.rules).
const ufw = "ufw"

// firewalldChain matches the chains of firewalld's iptables backend.
var firewalldChain = lazyregexp.New(`^(PRE|POST|INPUT|OUTPUT|FORWARD|FWDI|FWDO|IN)(ROUTING)?_(ZONES|ZONES_SOURCE|direct|POLICIES_(pre|post)|[a-z]+(_(log|deny|allow|pre|post))?)$`)

// Possessive is an owner's name with its ending: "Docker's".
func Possessive(o Owner) string {
	name := o
	if i := slices.IndexFunc(owners, func(x owner) bool { return x.id == o }); i >= 0 {
		name = owners[i].name
	}
	if strings.HasSuffix(name, "s") {
		return name + "'"
	}
	return name + "'s"
}

func ownerOfChain(name string) Owner {
	for _, o := range owners {
		if slices.ContainsFunc(o.chains, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			return o.id
		}
	}
	if firewalldChain.MatchString(name) {
		return "firewalld"
	}
	return ""
}

func ownerOfTable(name string) Owner {
	for _, o := range owners {
		if slices.Contains(o.tables, name) {
			return o.id
		}
	}
	return ownerOfChain(name)
}

// ownerOfNames guesses whose a base chain is by the name of its table, its own, and those
// of the chains that it leads to: the program with the most of them.
func ownerOfNames(table string, chains ...string) (best Owner) {
	count := map[Owner]int{ownerOfTable(table): 1}
	best = ownerOfTable(table)
	for _, name := range chains {
		o := ownerOfChain(name)
		if count[o]++; o != "" && (best == "" || count[o] > count[best]) {
			best = o
		}
	}
	return best
}

// owner returns the program that keeps the whole table.
func (t *Table) owner() Owner {
	if t.IsIptables() {
		return ""
	}
	return ownerOfTable(t.Name)
}

// ofChain returns the program that keeps all rules of a chain.
func ofChain(name string) Owner {
	if o := ownerOfChain(name); o != ufw {
		return o
	}
	return ""
}

// OwnerOf returns the program that keeps a rule of a chain.
func (t *Table) OwnerOf(c *Chain, r *Rule) Owner {
	return cmp.Or(t.owner(), ofChain(c.Name), t.ownerOfRule(r))
}

// bridge matches the names of Docker's bridges.
var bridge = lazyregexp.New(`^(docker\d+|docker_gwbridge|br-[0-9a-f]{12})$`)

// ownerOfRule recognizes what programs put into the built-in chains of iptables.
func (t *Table) ownerOfRule(r *Rule) Owner {
	m := &r.Match
	masquerades := r.Target.Kind == Masquerade
	switch {
	case masquerades && slices.ContainsFunc(m.NotOut, bridge.MatchString):
		return "docker"
	case masquerades && t.Find("DOCKER") != nil && (reachesItself(m) || bridge.MatchString(m.OutName())):
		return "docker"
	case strings.HasPrefix(r.Comment, `name: "`) && strings.Contains(r.Comment, `" id: "`):
		return "cni"
	}
	for prefix, o := range ownerComments {
		if strings.HasPrefix(r.Comment, prefix) {
			return o
		}
	}
	return ""
}

// ownerComments are the beginnings of the comments of programs.
var ownerComments = map[string]Owner{
	"kubernetes ": "kubernetes", "cali:": "kubernetes", "generated for LXD ": "lxd",
	"generated for Incus ": "incus", "flanneld ": "flannel",
}

// reachesItself matches a container that connects to its own published port. Without a
// proxy Docker does the same for whatever the host itself sends to a bridge.
func reachesItself(m *Match) bool {
	return m.Source().IsValid() && m.Source() == m.Dest() && m.Source().IsSingleIP() && len(m.Ports) > 0
}
