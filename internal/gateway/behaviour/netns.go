package behaviour

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/netns"
)

// Engine is what worlds need of engine.Engine.
type Engine interface {
	Apply(ns *netns.Handle, p *gateway.Plan) error
	Remove(ns *netns.Handle) error
}

// chooser is an Engine that leaves hosts and uplinks out of choices, as engine.Set does.
type chooser interface {
	Use(ns *netns.Handle, p *gateway.Plan, out map[gateway.Ref][]bool) error
	Steer(ns *netns.Handle, p *gateway.Plan, up func(u *gateway.Uplink, v6 bool) bool) error
}

// Links is what the gateway's interfaces are.
type Links uint8

const (
	// Pairs are ends of veth pairs.
	Pairs Links = iota
	// Polled are such whose other ends poll: they take frames that an XDP program redirects.
	Polled
	// Tagged are VLAN interfaces on ends of veth pairs.
	Tagged
)

// Namespaces makes worlds out of two network namespaces: the gateway, and the wires of
// its interfaces, on which packet sockets are the hosts. Patience bounds how long
// it waits for a frame that must come. Needs root.
func Namespaces(e Engine, patience time.Duration, interfaces Links) Maker {
	return func() (World, error) {
		w := &netnsWorld{engine: e, patience: patience, interfaces: interfaces}
		if err := w.build(); err != nil {
			return nil, errors.Join(err, w.Close())
		}
		return w, nil
	}
}

type netnsWorld struct {
	engine        Engine
	patience      time.Duration
	interfaces    Links
	gateway, wire *netns.Handle
	links         *netlink.Handle
	applied       bool
	wires         *wires
}

// made numbers worlds, for the names of their namespaces in errors and for CPUs.
var made atomic.Int64

func (w *netnsWorld) build() (err error) {
	n := made.Add(1)
	if w.gateway, err = netns.New(fmt.Sprintf("gateway-%d", n)); err != nil {
		return err
	}
	if w.wire, err = netns.New(fmt.Sprintf("wire-%d", n)); err != nil {
		return err
	}
	for _, step := range []func() error{w.quiet, w.addLinks, w.addAddresses, w.settings, w.addHosts} {
		if err := step(); err != nil {
			return err
		}
	}
	w.wires, err = openWires(w.gateway, w.wire, int(n), w.patience)
	return err
}

func (w *netnsWorld) Apply(p *gateway.Plan) error {
	w.applied = true
	if err := w.route(p); err != nil {
		return err
	}
	return w.engine.Apply(w.gateway, p)
}

func (w *netnsWorld) Remove() error { return w.engine.Remove(w.gateway) }

func (w *netnsWorld) Pass(d time.Duration) error {
	time.Sleep(d)
	return nil
}

// timerSysctls have their values in seconds, and are the namespace's own.
var timerSysctls = map[Timer]string{
	UDP: "udp_timeout", UDPStream: "udp_timeout_stream", ICMP: "icmp_timeout", ICMPv6: "icmpv6_timeout",
	Generic: "generic_timeout", TCPSynSent: "tcp_timeout_syn_sent", TCPSynRecv: "tcp_timeout_syn_recv",
	TCPEstablished: "tcp_timeout_established", TCPFinWait: "tcp_timeout_fin_wait",
	TCPCloseWait: "tcp_timeout_close_wait", TCPLastAck: "tcp_timeout_last_ack",
	TCPTimeWait: "tcp_timeout_time_wait", TCPClose: "tcp_timeout_close",
}

func (w *netnsWorld) Timers(values map[Timer]time.Duration) error {
	var settings []setting
	for timer, d := range values {
		name, known := timerSysctls[timer]
		if !known || d%time.Second != 0 || d < time.Second {
			return fmt.Errorf("set timer %s to %v: not one of whole seconds that is known", timer, d)
		}
		settings = append(settings, setting{"net.netfilter.nf_conntrack_" + name, fmt.Sprint(int(d.Seconds())), false})
	}
	return w.set(w.gateway, settings)
}

func (w *netnsWorld) Mappings() ([]Mapping, error) {
	var all []Mapping
	_, err := dump.Each(context.Background(), w.gateway, nil, func(e *conntrack.Entry) error {
		all = append(all, mappingOf(e))
		return nil
	})
	return all, err
}

func mappingOf(e *conntrack.Entry) Mapping {
	orig, reply := ends(e.Orig), ends(e.Reply)
	m := Mapping{Protocol: e.Orig.Proto, Inside: orig[0], Outside: reply[1], Remote: reply[0],
		Left: time.Duration(e.Timeout) * time.Second}
	if e.IsDNAT() && !e.IsSNAT() {
		m.Inside, m.Outside, m.Remote = reply[0], orig[1], orig[0]
	}
	if e.TCPState != 0 {
		m.State = e.TCPState.String()
	}
	return m
}

// ends are a tuple's source and destination; an echo's identifier is the port of both.
func ends(t conntrack.Tuple) [2]netip.AddrPort {
	if t.ICMPType != 0 || t.ICMPID != 0 {
		return [2]netip.AddrPort{netip.AddrPortFrom(t.Src, t.ICMPID), netip.AddrPortFrom(t.Dst, t.ICMPID)}
	}
	return [2]netip.AddrPort{netip.AddrPortFrom(t.Src, t.SrcPort), netip.AddrPortFrom(t.Dst, t.DstPort)}
}

// Failures are new connections that the tracker could not enter: each is insert_failed
// where another one has the tuple (__nf_conntrack_confirm), and drop, of which
// kernels count some of the former too, where the table is full.
func (w *netnsWorld) Failures() (uint64, error) {
	cpus, err := dump.Stats(w.gateway)
	var n uint64
	for _, cpu := range cpus {
		n += max(cpu["insert_failed"], cpu["drop"])
	}
	return n, err
}

// writeSysctl writes one of the thread's namespace.
func writeSysctl(name, value string) error {
	return os.WriteFile("/proc/sys/"+strings.ReplaceAll(name, ".", "/"), []byte(value), 0)
}

func (w *netnsWorld) Close() error {
	if w.wires != nil {
		w.wires.close()
	}
	if w.links != nil {
		w.links.Close()
	}
	var err error
	if w.applied { // what is pinned outlives the namespace
		err = w.engine.Remove(w.gateway)
	}
	return errors.Join(err, w.wire.Close(), w.gateway.Close())
}
