package ruleset

import "testing"

func TestOwnerOfNames(t *testing.T) {
	for want, names := range map[string][]string{
		"":           {"nat", "POSTROUTING", "mine"},
		"docker":     {"nat", "PREROUTING", "DOCKER"},
		"kubernetes": {"nat", "PREROUTING", "DOCKER", "KUBE-SERVICES", "KUBE-NODEPORTS"},
		"firewalld":  {"firewalld", "nat_POSTROUTING"},
		"ufw":        {"filter", "FORWARD", "ufw-before-forward"},
	} {
		if got := ownerOfNames(names[0], names[1:]...); got != want {
			t.Errorf("%v: %q, want %q", names, got, want)
		}
	}
}

// TestOwnerOf: the administrator's rules are in chains of ufw too.
func TestOwnerOf(t *testing.T) {
	set := Parse("*nat\n-A POSTROUTING -j DOCKER\n-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE\n-A ufw-before-nat -j MASQUERADE\n-A DOCKER -j RETURN\nCOMMIT\n", 4)
	nat := set.Tables[0]
	for chain, want := range map[string]Owner{"POSTROUTING": "docker", "ufw-before-nat": "", "DOCKER": "docker"} {
		c := nat.Find(chain)
		if got := nat.OwnerOf(c, c.Rules[len(c.Rules)-1]); got != want {
			t.Errorf("%s: %q, want %q", chain, got, want)
		}
	}
}

// A policy is told from that of the other variant of iptables.
func TestPlaceOfPolicy(t *testing.T) {
	for want, table := range map[string]*Table{
		"iptables -t filter -P FORWARD DROP":         {Source: "nftables", Family: "ip", Name: "filter"},
		"iptables-legacy -t filter -P FORWARD DROP":  {Source: "iptables-legacy", Family: "ip", Name: "filter"},
		"ip6tables-legacy -t filter -P FORWARD DROP": {Source: "iptables-legacy", Family: "ip6", Name: "filter"},
	} {
		table.Chains = []*Chain{{Name: "FORWARD"}}
		if got := (Place{Table: table, Chain: table.Chains[0]}).Text(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
