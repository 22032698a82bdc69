package fleet

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unique"

	"github.com/natkit/natkit/internal/lazyregexp"
	"github.com/natkit/natkit/internal/snapshot"
)

// Kind is what an attribute is of.
type Kind string

// The kinds of attributes, in the order in which they are named where several separate the same nodes.
const (
	KindKernel       Kind = "kernel"
	KindDistribution Kind = "distribution"
	KindMachine      Kind = "machine"
	KindSysctl       Kind = "sysctl"
	KindRule         Kind = "rule"
	KindQueue        Kind = "queue"
	KindNatkit       Kind = "natkit"
)

var kinds = []Kind{KindKernel, KindDistribution, KindSysctl, KindRule, KindQueue, KindMachine, KindNatkit}

// Attribute is something that a node has. Of a Name that has one value on each node, such as a sysctl, Value is that;
// of one that a node has or has not, such as a rule, it is empty.
type Attribute struct {
	Kind  Kind   `json:"kind"`
	Name  string `json:"name"`
	Value string `json:"value,omitempty"`
}

// mostRules bounds the rules that are compared of a node: those of Kubernetes are thousands, and each node has its own.
const mostRules = 512

// rulesRead is the attribute of a node whose rules are known: one that lacks a rule has it not.
var rulesRead = Attribute{Kind: KindRule, Name: "rules were read"}

// attributes are those of a recording that may decide how a node does NAT. What is measured is in measures.
func attributes(rec *snapshot.Recording) []unique.Handle[Attribute] {
	last := rec.Last()
	var all []unique.Handle[Attribute]
	add := func(kind Kind, name, value string) {
		all = append(all, unique.Make(Attribute{kind, name, value}))
	}
	scalar := func(kind Kind, name, value string) {
		if value != "" {
			add(kind, name, value)
		}
	}
	scalar(KindKernel, "Linux", last.Kernel.Release)
	scalar(KindKernel, "series", series(last.Kernel.Release))
	scalar(KindMachine, "architecture", last.Kernel.Arch)
	if last.Kernel.CPUs > 0 {
		add(KindMachine, "CPUs", strconv.Itoa(last.Kernel.CPUs))
	}
	if last.Memory != nil {
		add(KindMachine, "memory, GiB", strconv.FormatUint((last.Memory.TotalBytes+1<<29)>>30, 10))
	}
	scalar(KindDistribution, "distribution", rec.Bundle.Host.Distribution)
	scalar(KindNatkit, "natkit", rec.Bundle.WrittenBy)
	for name, value := range last.Sysctls {
		if name != snapshot.ConntrackCount {
			add(KindSysctl, name, value)
		}
	}
	if last.NATRules != nil {
		for _, text := range rules(last.NATRules) {
			add(KindRule, text, "")
		}
		all = append(all, unique.Make(rulesRead))
	}
	if last.Links != nil {
		for _, q := range last.Links.Queues {
			add(KindQueue, "a queue "+q.Kind, "")
		}
	}
	slices.SortFunc(all, func(a, b unique.Handle[Attribute]) int { return compareAttributes(a.Value(), b.Value()) })
	return slices.Compact(all)
}

func compareAttributes(a, b Attribute) int {
	if a.Kind != b.Kind {
		return slices.Index(kinds, a.Kind) - slices.Index(kinds, b.Kind)
	}
	if a.Name != b.Name {
		return strings.Compare(a.Name, b.Name)
	}
	return strings.Compare(a.Value, b.Value)
}

// rules are the texts of NAT rules, without handles and counters.
func rules(r *snapshot.NATRules) (all []string) {
	for _, rule := range r.Rules {
		if len(all) == mostRules {
			break
		}
		all = append(all, fmt.Sprintf("%s %s %s/%s: %s", rule.Source, rule.Family, rule.Table, rule.Chain, rule.Text))
		if rule.Source == "iptables-legacy" {
			all = append(all, "rules of iptables-legacy")
		}
	}
	return all
}

var release = lazyregexp.New(`^[0-9]+\.[0-9]+`)

// series is 6.1 of 6.1.0-13-amd64.
func series(text string) string { return release.FindString(text) }

// number is the value of an attribute as one that can be compared; false where it is none.
func (a Attribute) number() (float64, bool) {
	if a.Kind == KindKernel && a.Name == "series" {
		major, minor, _ := strings.Cut(a.Value, ".")
		x, err1 := strconv.Atoi(major)
		y, err2 := strconv.Atoi(minor)
		return float64(x)*1000 + float64(y), err1 == nil && err2 == nil
	}
	v, err := strconv.ParseInt(a.Value, 10, 64)
	return float64(v), err == nil
}
