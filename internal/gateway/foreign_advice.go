package gateway

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
)

func commands(list ...string) string { return strings.Join(list, "\n") }

// maxAdvised is for how many pairs of interfaces commands are written out.
const maxAdvised = 4

// admit are the commands with which the owner's own means let through what we forward:
// what begins inside, and from outside answers and what we send on to hosts inside.
func (f *Foreign) admit(p *Plan) string {
	lans, wans := p.LAN, p.WAN
	if len(lans) == 0 {
		lans = []string{"LAN"}
	}
	if len(wans) == 0 {
		wans = []string{"WAN"}
	}
	var all []string
	for _, lan := range lans {
		for _, wan := range wans {
			all = append(all, f.admitPair(p, lan, wan)...)
			if len(lans)*len(wans) > maxAdvised {
				return commands(append(all, "# and so for the other interfaces")...)
			}
		}
	}
	if f.Owner == "firewalld" {
		all = append(append([]string{"firewall-cmd --permanent --new-policy=natkit"}, all...),
			"firewall-cmd --permanent --policy=natkit --set-target=ACCEPT", "firewall-cmd --reload")
	}
	return commands(all...)
}

func (f *Foreign) admitPair(p *Plan, lan, wan string) []string {
	switch {
	case f.Owner == "firewalld":
		return admitByPolicy(lan, wan)
	case f.Owner == "ufw":
		return admitByRoute(p, lan, wan)
	case f.Source == "nftables":
		rule := fmt.Sprintf("nft insert rule %s %s %s ", f.Family, f.Table, f.Chain)
		return []string{
			rule + fmt.Sprintf("iifname %s oifname %s accept", lan, wan),
			rule + fmt.Sprintf("oifname %s ct state established,related%s accept", lan, untracked(p, ",untracked")),
			rule + fmt.Sprintf("oifname %s ct status dnat accept", lan),
		}
	}
	return f.admitByIPTables(p, lan, wan)
}

// admitByIPTables: DNAT is a state of xt_conntrack, as ESTABLISHED is.
func (f *Foreign) admitByIPTables(p *Plan, lan, wan string) []string {
	program, chain := "iptables", f.Chain
	if f.Family == "ip6" {
		program = "ip6tables"
	}
	if f.Owner == "docker" {
		chain = "DOCKER-USER"
	}
	rule := fmt.Sprintf("%s -I %s ", program, chain)
	return []string{
		rule + fmt.Sprintf("-i %s -o %s -j ACCEPT", lan, wan),
		rule + fmt.Sprintf("-o %s -m conntrack --ctstate RELATED,ESTABLISHED,DNAT%s -j ACCEPT", lan, untracked(p, ",UNTRACKED")),
	}
}

// untracked is the word for what stateless rules and notrack keep from the tracker.
func untracked(p *Plan, word string) string {
	if len(p.Stateless)+len(p.Untracked) > 0 {
		return word
	}
	return ""
}

// admitByPolicy: firewalld itself accepts answers, and what is sent on to another
// destination (ct status dnat).
func admitByPolicy(lan, wan string) []string {
	const policy = "firewall-cmd --permanent --policy=natkit "
	return []string{policy + "--add-ingress-zone=" + zoneOf(lan), policy + "--add-egress-zone=" + zoneOf(wan)}
}

// admitByRoute: ufw itself accepts answers.
func admitByRoute(p *Plan, lan, wan string) []string {
	all := []string{fmt.Sprintf("ufw route allow in on %s out on %s", lan, wan)}
	if len(p.Destinations) > 0 {
		all = append(all, fmt.Sprintf("ufw route allow in on %s out on %s to %s", wan, lan, p.Destinations[0].target()))
	}
	if len(p.Destinations) > 1 {
		all = append(all, "# and so for what other rules lead to")
	}
	return all
}

// target is where an entry leads, in ufw's words.
func (d *Destination) target() string {
	if d.Prefix.IsValid() {
		return Prefix{d.Prefix}.String()
	}
	text := d.To.Address.String()
	first, last := d.Port.First, d.Port.last()
	if first == 0 {
		return text
	}
	if d.To.Port != 0 {
		first, last = d.To.Port, d.To.Port
	}
	ports := strconv.Itoa(int(first))
	if last != first {
		ports += fmt.Sprintf(":%d", last)
	}
	return fmt.Sprintf("%s port %s proto %s", text, ports, d.Port.Protocol)
}

// remove says what to do about a rule that comes first.
func (f *Foreign) remove(n *snapshot.NATRule, p *Plan) string {
	switch {
	case f.Owner == "docker" && n.TranslatesSource():
		return "its containers keep it unless their network has com.docker.network.bridge.enable_ip_masquerade=false"
	case f.Owner == "docker":
		return "use another port, or publish the container's on another address: docker run -p ADDRESS:PORT:PORT"
	case f.Owner == "firewalld" && len(p.WAN) > 0:
		return unzone(n, p.WAN[0])
	case f.Owner == "":
		return "remove it where it was made, or leave this one out"
	}
	return fmt.Sprintf("have %s not make it, or leave this one out", f.Owner)
}

// unzone has firewalld translate no more in an interface's zone.
func unzone(n *snapshot.NATRule, wan string) string {
	what := "--remove-masquerade"
	if !n.TranslatesSource() {
		port := strconv.Itoa(int(n.DestinationPort))
		if n.LastDestinationPort != 0 {
			port += fmt.Sprintf("-%d", n.LastDestinationPort)
		}
		what = fmt.Sprintf("--remove-forward-port=port=%s:proto=%s", port, n.Protocol)
		if n.FirstPort != 0 {
			what += fmt.Sprintf(":toport=%d", n.FirstPort)
		}
		if n.First.IsValid() {
			what += fmt.Sprintf(":toaddr=%s", n.First)
		}
	}
	return commands(fmt.Sprintf("firewall-cmd --permanent --zone=%s %s", zoneOf(wan), what), "firewall-cmd --reload")
}

func zoneOf(name string) string {
	return fmt.Sprintf(`"$(firewall-cmd --get-zone-of-interface=%s)"`, name)
}
