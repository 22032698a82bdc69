package iptables

import (
	"fmt"
	"strings"
)

// String is the conditions in iptables' words.
func (m Match) String() string {
	var w []string
	add := func(option, value string) {
		if value != "" {
			w = append(w, option+" "+strings.Replace(value, "*", "+", 1))
		}
	}
	if m.From.IsValid() {
		add("-s", m.From.String())
	}
	if m.To.IsValid() {
		add("-d", m.To.String())
	}
	for _, p := range m.NotFrom {
		add("! -s", p.String())
	}
	for _, p := range m.NotTo {
		add("! -d", p.String())
	}
	add("-i", m.In)
	add("-o", m.Out)
	for _, n := range m.NotIn {
		add("! -i", n)
	}
	for _, n := range m.NotOut {
		add("! -o", n)
	}
	add("-p", m.Protocol)
	add(portOption("--sport", m.SourcePorts), portsWords(m.SourcePorts))
	add(portOption("--dport", m.Ports), portsWords(m.Ports))
	w = append(w, m.Unknown...)
	return strings.Join(w, " ")
}

// portOption is iptables' own option for one port or range, that of its module for several.
func portOption(one string, list []Ports) string {
	if len(list) > 1 {
		return "-m multiport " + one + "s"
	}
	return one
}

func portsWords(list []Ports) string {
	var w []string
	for _, p := range list {
		if p.First == p.Last {
			w = append(w, fmt.Sprint(p.First))
		} else {
			w = append(w, fmt.Sprintf("%d:%d", p.First, p.Last))
		}
	}
	return strings.Join(w, ",")
}
