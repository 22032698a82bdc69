package collect

import (
	"context"
	"errors"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
)

// What no file shows: a snapshot has what the kernel answered, a bundle keeps that.

// readPrograms finds out which eBPF programs of a gateway are attached here.
func (o *observation) readPrograms(context.Context) (err error) {
	o.Programs, err = answer(o, question{"programs of a gateway", "gateway_programs.json"}, askPrograms)
	if errors.As(err, new(errNotRecorded)) {
		return errNone
	}
	return err
}

// readDNATTargets asks for the route, the neighbour and, on this machine, the listening
// socket of each constant address that a rule leads to.
func (o *observation) readDNATTargets(context.Context) (err error) {
	if o.NATRules == nil {
		return errNone
	}
	o.DNATTargets, err = answer(o, question{"DNAT targets", "dnat_targets.json"}, o.askDNATTargets)
	if errors.As(err, new(errNotRecorded)) {
		return errNone
	}
	return err
}

// readAudit compares the rules with each other, and the addresses that they give with those of the
// host.
func (o *observation) readAudit(context.Context) (err error) {
	if o.NATRules == nil || len(o.NATRules.Rules)+len(o.NATRules.Unreached) == 0 {
		return errNone
	}
	o.Audit, err = answer(o, question{"rules against the host", "audit.json"}, o.audit)
	if errors.As(err, new(errNotRecorded)) {
		return errNone
	}
	return err
}

// readWays asks the filters about what is translated, served and bridged here, beside what DNAT leads to.
func (o *observation) readWays(context.Context) (err error) {
	if o.NATRules == nil {
		return errNone
	}
	o.Ways, err = answer(o, question{"filters of other traffic", "ways.json"}, o.ways)
	if errors.As(err, new(errNotRecorded)) {
		return errNone
	}
	return err
}

// readLinks reads what interfaces, their queues and filters of tc lost.
func (o *observation) readLinks(context.Context) (err error) {
	o.Links, err = answer(o, question{"interfaces and queues", "links.json"}, askLinks)
	if errors.As(err, new(errNotRecorded)) {
		return errNone
	}
	return err
}

// readIPsecPolicies lists the policies of IPsec, if it dropped anything so far.
func (o *observation) readIPsecPolicies(context.Context) error {
	if o.TCP == nil || !ipsecDropped(o.TCP.Counters) {
		return errNone
	}
	policies, err := answer(o, question{"IPsec policies", "ipsec_policies.json"}, askIPsecPolicies)
	if err == nil {
		o.IPsecPolicies = *policies
	}
	return noneIfAbsent(err)
}

func ipsecDropped(counters snapshot.Counters) bool {
	for name, n := range counters {
		if n > 0 && strings.HasPrefix(name, "Xfrm") {
			return true
		}
	}
	return false
}

// readAcceptQueues asks sock_diag for the listeners with connections that wait for accept.
func (o *observation) readAcceptQueues(context.Context) error {
	queues, err := answer(o, question{"accept queues", "accept_queues.json"}, askAcceptQueues)
	if err == nil {
		o.AcceptQueues = *queues
	}
	return noneIfAbsent(err)
}

// readReversePaths lists the interfaces with a strict reverse path filter, if it dropped
// anything so far.
func (o *observation) readReversePaths(context.Context) error {
	if o.TCP == nil || o.TCP.Counters["TcpExtIPReversePathFilter"] == 0 {
		return errNone
	}
	paths, err := answer(o, question{"reverse paths", "reverse_paths.json"}, askReversePaths)
	if err == nil {
		o.ReversePaths = *paths
	}
	return noneIfAbsent(err)
}

// readICMPErrors asks the rules what becomes of the ICMP errors by which this machine answers
// packets that are too large to forward, if there were any.
func (o *observation) readICMPErrors(context.Context) (err error) {
	if o.TCP == nil || o.TCP.Counters["IpFragFails"] == 0 {
		return errNone
	}
	o.ICMPErrors, err = answer(o, question{"filters of ICMP errors", "icmp_errors.json"}, o.askICMPErrors)
	return noneIfAbsent(err)
}
