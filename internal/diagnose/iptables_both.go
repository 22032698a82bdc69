package diagnose

import (
	"fmt"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
)

// checkIptablesBoth: both variants of iptables have rules for what is forwarded or translated. The
// kernel applies both, and each program shows one of them.
func (a *audit) checkIptablesBoth() (*Finding, Check) {
	const nft, legacy = "iptables-nft", "iptables-legacy"
	for _, family := range []string{"ip", "ip6"} {
		tables := map[string][]snapshot.IptablesTable{}
		for _, t := range a.Iptables {
			if t.Family == family {
				tables[t.Program] = append(tables[t.Program], t)
			}
		}
		if len(tables[nft]) == 0 || len(tables[legacy]) == 0 {
			continue
		}
		command := map[string]string{"ip": "iptables", "ip6": "ip6tables"}[family]
		f := worded("iptables-both", nil, []Remedy{advice("iptables-one", command, where(a.rec))})
		var texts []string
		for _, program := range []string{legacy, nft} {
			for _, t := range tables[program] {
				n := t.Translating + t.Forwarding
				texts = append(texts, fmt.Sprintf("%s -t %s", strings.Replace(program, "iptables", command, 1), t.Table))
				f.Evidence = append(f.Evidence, Evidence{What: texts[len(texts)-1] + ": rules that translate, or are for what is forwarded", Value: int64(n), Unit: "rules", Source: "rules by netlink and getsockopt"})
			}
		}
		return f, Check{Why: strings.Join(texts, ", ") + " have rules"}
	}
	return passed("one variant of iptables has rules for what is forwarded or translated, or none")
}
