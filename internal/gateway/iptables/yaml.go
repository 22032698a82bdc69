package iptables

import (
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/report"
)

// YAML is the gateway file, with the rules that each rule of it stands for above it.
func (r *Result) YAML() string {
	var b strings.Builder
	head := r.Config
	head.NAT, head.IPv6 = nil, nil
	if text := string(gateway.Marshal(&head)); len(r.Config.NAT)+len(r.Config.IPv6) == 0 {
		b.WriteString(withMSS(text, r.MSS))
	} else {
		b.WriteString(strings.Replace(withMSS(text, r.MSS), "gateway: {}", "gateway:", 1))
	}
	ruleList(&b, "nat", r.Config.NAT, r.NAT)
	ruleList(&b, "ipv6", r.Config.IPv6, r.IPv6)
	return b.String()
}

// withMSS puts comments above the line of mss.
func withMSS(text string, origins []string) string {
	var b strings.Builder
	comments(&b, "  ", origins)
	return strings.Replace(text, "  mss:", b.String()+"  mss:", 1)
}

func ruleList(b *strings.Builder, name string, rules []gateway.Rule, origins [][]string) {
	if len(rules) == 0 {
		return
	}
	fmt.Fprintf(b, "  %s:\n", name)
	for i, r := range rules {
		if i == 0 || !slices.Equal(origins[i], origins[i-1]) { // of several ports, once
			comments(b, "    ", origins[i])
		}
		fmt.Fprintf(b, "    - %s\n", gateway.MarshalRule(r))
	}
}

func comments(b *strings.Builder, indent string, texts []string) {
	for _, text := range texts {
		fmt.Fprintf(b, "%s# %s\n", indent, report.Clean(text))
	}
}
