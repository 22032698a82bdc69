package trial

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/natkit/natkit/internal/bpf/pktgen"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/load/rfc9693"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
)

//go:embed lab.yaml
var labSource []byte

// The lab's kinds of NAT are the names of its stages.
const (
	Masquerade = "masquerade"
	DNAT       = "dnat"
)

// LabOptions of OpenLab.
type LabOptions struct {
	// NAT is Masquerade or DNAT.
	NAT string
	// Config replaces NAT; nil does not.
	Config *gateway.Config
	// Workers are the CPUs that send. The gateway gets the others.
	Workers int
	// Dir is build.Options.Dir.
	Dir string
}

// Lab is an initiator, a gateway and a responder, each in a network namespace.
type Lab struct {
	// Note is what there is to know of its CPUs.
	Note string
	lab  *build.Lab
}

// OpenLab builds a lab, of which nothing is left after Close, or the end of this process.
func OpenLab(ctx context.Context, o LabOptions) (*Lab, error) {
	s, err := lab.Parse("lab.yaml", labSource)
	if err != nil {
		return nil, err
	}
	stage, known := s.Stage(o.NAT)
	if !known {
		return nil, fmt.Errorf("no NAT %q in the lab: there are %s and %s", o.NAT, Masquerade, DNAT)
	}
	if o.Config != nil {
		stage.Gateway.Config = *o.Config
	}
	l := &Lab{}
	if l.lab, err = build.Up(ctx, s, build.Options{Dir: o.Dir}); err != nil {
		return nil, err
	}
	err = l.lab.Furnish(ctx, stage)
	if err == nil {
		err = l.divide(o.Workers)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Close removes the lab.
func (l *Lab) Close() error { return l.lab.Close() }

// divide lets the gateway work on other CPUs than those that send: on the same one a gateway that is too
// slow makes the sender late, and loses nothing.
func (l *Lab) divide(workers int) error {
	cpus, err := pktgen.CPUs()
	if err != nil {
		return err
	}
	if workers = max(workers, 1); workers >= len(cpus) {
		l.Note = "the gateway has no CPU besides those that send: where it is too slow, the sender is late"
		return nil
	}
	for _, dev := range []string{"eth0", "eth1"} {
		err := l.Netns().ReceiveOn(dev, cpus[workers:])
		if why := notSteered(err); why != "" {
			l.Note = why + ": gateway and sender share a CPU, and where the gateway is too slow, the sender is late"
			return nil
		}
		if err != nil {
			return err
		}
	}
	l.Note = fmt.Sprintf("sender: %d of the %d CPUs; gateway and responder: the others (RPS)", workers, len(cpus))
	return nil
}

// notSteered is why a lab has no receive packet steering; empty where err is nil or another failure.
func notSteered(err error) string {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "this kernel has no receive packet steering (CONFIG_RPS)"
	case errors.Is(err, unix.EINVAL): // store_rps_map finds no housekeeping CPU (net/core/net-sysfs.c)
		return "the kernel steers no packets to the CPUs that do not send, as they are isolated (isolcpus=, nohz_full=)"
	}
	return ""
}

// Netns is the gateway's namespace.
func (l *Lab) Netns() *netns.Handle { return l.lab.Node("gateway").Netns }

// Gateway is the lab's, for test frames to one of its addresses.
func (l *Lab) Gateway(frames packets.Config) (*Gateway, error) {
	beside := []*netns.Handle{l.Netns()}
	from, err := pktgen.ReadEgress(pktgen.Route{Netns: l.lab.Node("initiator").Netns, Neighbours: beside}, frames.Flows.Destinations[0].Addr())
	if err != nil {
		return nil, err
	}
	return &Gateway{
		Packets: frames, From: from, To: pktgen.Port{Netns: l.lab.Node("responder").Netns, Interface: "eth0"},
		Neighbours: beside, Table: Namespace{l.Netns()}, Tolerance: rfc9693.DefaultTolerance,
	}, nil
}

// Addresses in the lab.
var (
	LabInitiator = netip.MustParseAddr("198.18.0.2")
	labNear      = netip.MustParseAddr("198.18.0.1")
	labResponder = netip.MustParseAddr("198.19.0.2")
)

// LabDestination is where the test frames of a kind of NAT go.
func LabDestination(nat string) netip.Addr {
	if nat == DNAT {
		return labNear
	}
	return labResponder
}
