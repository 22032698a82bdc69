package natrules

import (
	"encoding/binary"

	"github.com/natkit/natkit/internal/netns"
)

// legacyBaseChains are those of iptables-legacy's tables that are there.
func legacyBaseChains(ns *netns.Handle) ([]BaseChain, error) {
	var all []BaseChain
	read := func() error {
		for _, s := range legacySources {
			names, err := s.tables()
			if err != nil {
				return err
			}
			for _, name := range names {
				info, blob, err := s.ask(name)
				if err != nil {
					return err
				}
				chains, err := parseLegacyBase(s.layout, name, info, blob)
				if err != nil {
					return err
				}
				all = append(all, chains...)
			}
		}
		return nil
	}
	if ns == nil {
		return all, read()
	}
	err := ns.Do(read)
	return all, err
}

func parseLegacyBase(l layout, name string, info tableInfo, blob []byte) ([]BaseChain, error) {
	t, err := parseLegacy(l, name, info, blob)
	if err != nil {
		return nil, err
	}
	g := &graph{steps: map[string][]step{}}
	for _, c := range t.order {
		g.steps[c.name] = c.steps[:max(len(c.steps)-1, 0)] // the last one is the policy, or the return
	}
	kind := "filter"
	if name == "nat" {
		kind = "nat"
	}
	var all []BaseChain
	for _, c := range t.order {
		for _, at := range c.bases {
			b := BaseChain{Source: "iptables-legacy", Family: l.family, Table: name, Name: c.name, Type: kind,
				Hook: hookNames[at.hook], Priority: at.priority, Policy: info.policy(l, at.hook, blob)}
			b.reach(g)
			all = append(all, b)
		}
	}
	return all, nil
}

// policy is the verdict of a hook's last rule; empty where the blob is too short.
func (i tableInfo) policy(l layout, hook int, blob []byte) string {
	const accept = -2 // -NF_ACCEPT-1
	at := int(i.underflow[hook]) + l.size + xtHeader
	if at < 0 || at+4 > len(blob) {
		return ""
	}
	if int32(binary.NativeEndian.Uint32(blob[at:])) == accept {
		return "accept"
	}
	return "drop"
}

// legacyPriority is NF_IP_PRI_* of a table's chain (uapi/linux/netfilter_ipv4.h).
func legacyPriority(table string, hook int) int32 {
	switch table {
	case "raw":
		return -300
	case "mangle":
		return -150
	case "nat":
		return natPriority(hook)
	case "security":
		return 50
	}
	return 0
}
