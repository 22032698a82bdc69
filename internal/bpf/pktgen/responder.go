package pktgen

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/permit"
	"github.com/vishvananda/netlink"
)

// Responder answers connections of Connect that come to an interface, without sockets and without
// a memory of them.
type Responder struct {
	at      Egress
	start   time.Time
	objects responderObjects
	link    link.Link
	passage *passage
	notes   []string
}

type responderObjects struct {
	Respond   *ebpf.Program `ebpf:"respond"`
	Responses *ebpf.Map     `ebpf:"responses"`
}

// Respond attaches a responder for TCP to these ports, at any address, until it is closed. All
// other packets go on to the kernel.
func Respond(at Port, ports []nat.Ports) (*Responder, error) {
	if err := permit.Change("attach an eBPF program that answers packets"); err != nil {
		return nil, err
	}
	r := &Responder{at: Egress{Port: at}, start: time.Now()}
	if err := r.open(ports); err != nil {
		return nil, errors.Join(fmt.Errorf("answer at %v: %w", at, err), r.Close())
	}
	return r, nil
}

func (r *Responder) open(ports []nat.Ports) error {
	if err := r.at.readInterface(); err != nil {
		return err
	}
	if err := r.load(ports); err != nil {
		return err
	}
	l, note, err := attach(r.at.Port, r.at.Index, r.objects.Respond)
	if err != nil {
		return err
	}
	r.link = l
	r.note(note)
	return r.openPassage()
}

// readInterface describes the interface as one by which frames leave.
func (e *Egress) readInterface() error {
	return links(e.Netns, func(handle *netlink.Handle) error {
		l, err := handle.LinkByName(e.Interface)
		if err != nil {
			return fmt.Errorf("no such interface there ('ip link' lists them)")
		}
		return e.describe(l)
	})
}

func (r *Responder) load(ports []nat.Ports) error {
	spec, err := programs()
	if err != nil {
		return err
	}
	if err := set(spec, map[string]any{
		pktgenVarKey: [2]uint64{rand.Uint64(), rand.Uint64()}, pktgenVarOpenPorts: portBits(ports),
	}); err != nil {
		return err
	}
	return loadPrograms(spec, &r.objects, nil)
}

// portBits has a bit for every port.
func portBits(ports []nat.Ports) (set [65536 / 64]uint64) {
	for _, p := range ports {
		for port := int(p.First); port <= int(p.Last); port++ {
			set[port/64] |= 1 << (port % 64)
		}
	}
	return set
}

// openPassage makes a router at the other end of a veth take the answers. A host there that does
// not forward can only be the client, whose own program is to come.
func (r *Responder) openPassage() (err error) {
	r.passage, err = openPassage(r.at, nil, func(p *peer) error {
		if p.forwards() {
			return nil
		}
		return errEndpoint
	})
	if errors.Is(err, errEndpoint) {
		return nil
	}
	if err == nil {
		r.note(r.passage.note)
	}
	return err
}

// errEndpoint says that the other end does not forward.
var errEndpoint = errors.New("the other end does not forward")

// forwards reports whether frames that come to the peer may go on: as packets, or by a bridge.
func (p *peer) forwards() (does bool) {
	if p.master {
		return true
	}
	_ = p.port.Netns.Do(func() error {
		for _, family := range []string{"ipv4", "ipv6"} {
			text, err := os.ReadFile(filepath.Join("/proc/sys/net", family, "conf", p.port.Interface, "forwarding"))
			does = does || err == nil && strings.TrimSpace(string(text)) != "0"
		}
		return nil
	})
	return does
}

func (r *Responder) note(text string) {
	if text != "" {
		r.notes = append(r.notes, text)
	}
}

// Counts returns what was answered until now.
func (r *Responder) Counts() (*packets.Responded, error) {
	var cpus []pktgenResponderCounters
	if err := r.objects.Responses.Lookup(uint32(0), &cpus); err != nil {
		return nil, fmt.Errorf("read the responder's counters: %w", err)
	}
	sum := &packets.Responded{Interface: r.at.String(), Seconds: time.Since(r.start).Seconds(), Notes: r.notes}
	for _, c := range cpus {
		sum.Opened += int64(c.Opened)
		sum.Answered += int64(c.Answered)
		sum.Closed += int64(c.Closed)
		sum.Reset += int64(c.Reset)
		sum.Passed += int64(c.Passed)
		sum.BadChecksum += int64(c.BadChecksum)
		sum.NoRoom += int64(c.NoRoom)
	}
	return sum, nil
}

// String names the interface.
func (r *Responder) String() string { return r.at.String() }

// Notes are remarks for the user.
func (r *Responder) Notes() []string { return r.notes }

// Broken returns why it answers no longer, if that is so.
func (r *Responder) Broken() error {
	err := stillAttached(r.link, r.at.Port)
	if err == nil && r.passage != nil {
		err = r.passage.broken()
	}
	if err != nil {
		return fmt.Errorf("answer at %v: %w", r.at.Port, err)
	}
	return nil
}

// Close detaches it.
func (r *Responder) Close() error {
	var errs []error
	if r.passage != nil {
		errs = append(errs, r.passage.close())
	}
	if r.link != nil {
		errs = append(errs, r.link.Close())
	}
	return errors.Join(append(errs, r.objects.Respond.Close(), r.objects.Responses.Close())...)
}
