package iptables

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/natkit/natkit/internal/prefix"
)

// String is the target in iptables' words.
func (t Target) String() string {
	text := "-j " + t.Name
	switch t.Kind {
	case Pass, Ends:
		if t.Name == "" {
			return ""
		}
	case Accept, Drop, Return:
		return "-j " + strings.ToUpper(string(t.Kind))
	case Jump, Goto:
		return map[Kind]string{Jump: "-j ", Goto: "-g "}[t.Kind] + strings.Join(t.Chains, ",")
	case Masquerade, Redirect:
		text += option("--to-ports", t.Ports.words())
	case SNAT:
		text += option("--to-source", t.given())
	case DNAT:
		text += option("--to-destination", t.given())
	case Netmap:
		text = "-j NETMAP --to " + t.Prefix.String()
	case Notrack:
		return "-j CT --notrack"
	case MSS:
		if t.Clamp {
			return "-j TCPMSS --clamp-mss-to-pmtu"
		}
		return fmt.Sprintf("-j TCPMSS --set-mss %d", t.Bytes)
	}
	for _, flag := range []struct {
		on   bool
		word string
	}{{t.Random, " --random"}, {t.RandomFully, " --random-fully"}, {t.Persistent, " --persistent"}} {
		if flag.on {
			text += flag.word
		}
	}
	return text
}

func option(name, value string) string {
	if value == "" {
		return ""
	}
	return " " + name + " " + value
}

// given is what the target gives: an address, ports, or both.
func (t *Target) given() string {
	text, ports := "", t.Ports.words()
	if t.First.IsValid() {
		text = t.First.String()
		if t.First.Is6() && ports != "" {
			text = "[" + text + "]"
		}
		if t.Last != t.First {
			text += "-" + t.Last.String()
		}
	}
	if ports != "" {
		text += ":" + ports
	}
	return text
}

func (p Ports) words() string {
	switch {
	case p == Ports{}:
		return ""
	case p.First == p.Last:
		return fmt.Sprint(p.First)
	}
	return fmt.Sprintf("%d-%d", p.First, p.Last)
}

// Nft is the conditions in nft's words.
func (m Match) Nft(version int) string {
	ip, transport := map[int]string{4: "ip", 6: "ip6"}[version], m.Protocol
	if transport == "" {
		transport = "th"
	}
	var w []string
	add := func(words, value string) {
		if value != "" {
			w = append(w, words+" "+value)
		}
	}
	add("iifname", m.In)
	add("oifname", m.Out)
	add("iifname !=", oneOf(m.NotIn))
	add("oifname !=", oneOf(m.NotOut))
	if m.From.IsValid() {
		add(ip+" saddr", prefix.Text(m.From))
	}
	add(ip+" saddr !=", oneOf(texts(m.NotFrom)))
	if m.To.IsValid() {
		add(ip+" daddr", prefix.Text(m.To))
	}
	add(ip+" daddr !=", oneOf(texts(m.NotTo)))
	if len(m.Ports)+len(m.SourcePorts) == 0 {
		add("meta l4proto", m.Protocol)
	}
	add(transport+" sport", oneOf(rangesOf(m.SourcePorts)))
	add(transport+" dport", oneOf(rangesOf(m.Ports)))
	if m.ToLocal {
		w = append(w, "fib daddr type local")
	}
	if m.SYN {
		w = append(w, "tcp flags syn")
	}
	return strings.Join(append(w, m.Unknown...), " ")
}

// oneOf is one value, or several as a set.
func oneOf(list []string) string {
	if len(list) < 2 {
		return strings.Join(list, "")
	}
	return "{ " + strings.Join(list, ", ") + " }"
}

func texts(list []netip.Prefix) (all []string) {
	for _, p := range list {
		all = append(all, prefix.Text(p))
	}
	return all
}

func rangesOf(list []Ports) (all []string) {
	for _, p := range list {
		all = append(all, p.words())
	}
	return all
}
