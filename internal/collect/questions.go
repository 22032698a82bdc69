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

// mostLinks and mostQueuesRead bound what is kept of a host with very many interfaces.
const (
	mostLinks      = 2048
	mostQueuesRead = 2048
)

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
