// Package bpf has what natkit's tracers share: the names of the running kernel's functions and
// drop reasons, filters of packets as instructions, and how programs are loaded and restricted.
package bpf

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
)

// CheckPrivilege returns an error that names the missing capabilities; attach is what PerfMon is
// for.
func CheckPrivilege(attach string) error {
	return netns.CheckPrivilege(
		netns.Need{Any: netns.BPF, Why: "to load eBPF programs"},
		netns.Need{Any: netns.PerfMon, Why: attach},
	)
}

// Prepare allows memory for eBPF maps, and sets the switches of programs before they are loaded.
func Prepare(spec *ebpf.CollectionSpec, switches map[string]any) error {
	if err := rlimit.RemoveMemlock(); err != nil {
		return fmt.Errorf("allow memory for eBPF maps (before Linux 5.11): %w", netns.Denied(err, netns.Resource))
	}
	for name, value := range switches {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("set %s of the eBPF programs: %w", name, err)
		}
	}
	return nil
}

// Scope returns the numbers by which programs compare a packet's namespace and interface; 0 is
// all. Without a namespace the interface is one of natkit's own.
func Scope(ns *netns.Handle, name string) (inode, ifindex uint32, err error) {
	if ns == nil && name == "" {
		return 0, 0, nil
	}
	own, err := netns.InodeOf(ns)
	if err != nil || name == "" {
		return uint32(own), 0, err
	}
	err = ns.Do(func() error {
		i, err := net.InterfaceByName(name)
		if err != nil {
			return fmt.Errorf("find interface %q: %w; 'ip link' shows them", name, err)
		}
		ifindex = uint32(i.Index)
		return nil
	})
	return uint32(own), ifindex, err
}

// Monotonic is the clock of bpf_ktime_get_ns, in nanoseconds, and the time at which it was 0.
func Monotonic() (now uint64, zero time.Time, err error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, zero, fmt.Errorf("read the monotonic clock: %w", err)
	}
	return uint64(ts.Nano()), time.Now().Add(-time.Duration(ts.Nano())), nil
}

// Clock converts readings of the kernel's monotonic clock to times of the wall clock.
type Clock struct {
	zero time.Time
	read func() (zero time.Time, err error)
}

// leastStep is what a clock is set by at least: less may be the time between two readings.
const leastStep = 100 * time.Millisecond

// NewClock reads both clocks; read is for tests, nil for the host's.
func NewClock(read func() (zero time.Time, err error)) (*Clock, error) {
	if read == nil {
		read = func() (time.Time, error) { _, zero, err := Monotonic(); return zero.Round(0), err }
	}
	zero, err := read()
	return &Clock{zero, read}, err
}

// Time is the time of a reading of the monotonic clock.
func (c *Clock) Time(ns uint64) time.Time { return c.zero.Add(time.Duration(ns)) }

// Follow returns by how much the wall clock was set since the last call. A second reading has to agree: between the two clocks
// of one the process may have waited.
func (c *Clock) Follow() (step time.Duration, err error) {
	first, err := c.read()
	if err != nil || first.Sub(c.zero).Abs() < leastStep {
		return 0, err
	}
	second, err := c.read()
	if err != nil || first.Sub(second).Abs() >= leastStep {
		return 0, err
	}
	step = second.Sub(c.zero)
	if step.Abs() < leastStep {
		return 0, nil
	}
	c.zero = second
	return step, nil
}

// Address returns the address that a program copied from a packet with this EtherType; not valid
// for others than IP and ARP.
func Address(etherType uint16, words [4]uint32) netip.Addr {
	var b [16]byte
	for i, word := range words {
		binary.NativeEndian.PutUint32(b[4*i:], word)
	}
	switch etherType {
	case unix.ETH_P_IPV6:
		return netip.AddrFrom16(b)
	case unix.ETH_P_IP, unix.ETH_P_ARP, unix.ETH_P_RARP:
		return netip.AddrFrom4([4]byte(b[:4]))
	}
	return netip.Addr{}
}

// End is an address, and the port where there is one.
func End(a netip.Addr, port uint16) string {
	if port == 0 {
		return a.String()
	}
	return netip.AddrPortFrom(a, port).String()
}

// TCPFlags is "SYN,ACK" for the bits of a TCP header's byte 13.
func TCPFlags(bits uint8) string {
	return strings.ToUpper(strings.ReplaceAll(frame.TCPFlags(bits).String(), "+", ","))
}

// ipProtocols and etherTypes are the names of numbers (IANA).
var ipProtocols = map[uint8]string{
	0: "hopopt", 43: "ip6-route", 44: "ip6-frag", 60: "ip6-opts", // IPv6 extension headers
	1: "icmp", 2: "igmp", 4: "ipip", 6: "tcp", 17: "udp", 41: "ip6-in-ip", 47: "gre", 50: "esp", 51: "ah",
	58: "icmp6", 89: "ospf", 103: "pim", 112: "vrrp", 132: "sctp",
}

var etherTypes = map[uint16]string{
	0x0800: "ip", 0x0806: "arp", 0x8035: "rarp", 0x86dd: "ip6", 0x8100: "vlan", 0x88a8: "vlan", 0x88cc: "lldp", 0x8847: "mpls",
	0x8863: "pppoe", 0x8864: "pppoe", 0x0004: "802.2",
}

// ProtocolName is that of IP's protocol where it is known, else that of the EtherType.
func ProtocolName(etherType uint16, protocol uint8, known bool) string {
	if known {
		if name, ok := ipProtocols[protocol]; ok {
			return name
		}
		return fmt.Sprintf("ip proto %d", protocol)
	}
	if name, ok := etherTypes[etherType]; ok {
		return name
	}
	return fmt.Sprintf("ethertype 0x%04x", etherType)
}
