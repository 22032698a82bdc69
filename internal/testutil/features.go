//go:build linux

package testutil

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/google/nftables"
	"github.com/natkit/natkit/internal/netns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// What tests need and kernels are built without. A probe that changes something
// does so in a network namespace of its own.
var (
	IPVS = Feature{Name: "IPVS", Symbols: []string{"CONFIG_IP_VS"}, Probe: probeIPVS}

	FlowTable = Feature{Name: "nft flowtables", Symbols: []string{"CONFIG_NF_FLOW_TABLE", "CONFIG_NFT_FLOW_OFFLOAD"}, Probe: probeFlowTable}

	// Hairpin is that nftables knows in postrouting where a packet came in.
	Hairpin = Feature{Name: "hairpins", Symbols: []string{"CONFIG_NF_TABLES"}, Since: "5.5", Probe: since("5.5")}

	// NATPrefix is NAT of a prefix to another by nftables: 3ff7ddb1353d "netfilter: nft_nat:
	// add netmap support".
	NATPrefix = Feature{Name: "nftables' NAT of prefixes", Symbols: []string{"CONFIG_NFT_NAT"}, Since: "5.8", Probe: since("5.8")}

	// SetCounters are counters of the elements of nftables' sets.
	SetCounters = Feature{Name: "counters of set elements", Symbols: []string{"CONFIG_NF_TABLES"}, Since: "5.7", Probe: since("5.7")}

	// SetCount is that the kernel says how many elements a set of nftables has.
	SetCount = Feature{Name: "counts of set elements", Symbols: []string{"CONFIG_NF_TABLES"}, Since: "6.16", Probe: since("6.16")}

	// OtherElement is the element * of nftables' sets and maps: aaa31047a6d2 "netfilter: nftables: add catch-all
	// set element support".
	OtherElement = Feature{Name: "catch-all elements of sets", Symbols: []string{"CONFIG_NF_TABLES"}, Since: "5.13", Probe: since("5.13")}

	// EarlyReject is that nftables rejects before routing: f53b9b0bdc59 "netfilter: introduce support for reject at
	// prerouting stage".
	EarlyReject = Feature{Name: "reject before routing", Symbols: []string{"CONFIG_NFT_REJECT_INET"}, Since: "5.9", Probe: since("5.9")}

	// Egress is nftables' hook for what leaves an interface: 42df6e1d221d "netfilter: Introduce egress hook".
	Egress = Feature{Name: "the egress hook", Symbols: []string{"CONFIG_NETFILTER_EGRESS"}, Since: "5.16", Probe: since("5.16")}

	// NATHelpers are the tracker's helpers with what translates the data of FTP and others, in modules of their own.
	NATHelpers = Feature{Name: "helpers of the tracker that translate", Symbols: []string{"CONFIG_NF_NAT_FTP", "CONFIG_NF_NAT_TFTP"}, Probe: probeNATHelpers, Off: []error{fs.ErrNotExist}}

	Tun = Feature{Name: "tun interfaces", Symbols: []string{"CONFIG_TUN"}, Off: []error{fs.ErrNotExist},
		Probe: func() error { _, err := os.Stat("/dev/net/tun"); return err }}

	// BridgeNetfilter is a module of its own, which has to be loaded.
	BridgeNetfilter = Feature{Name: "br_netfilter", Symbols: []string{"CONFIG_BRIDGE_NETFILTER"}, Off: []error{fs.ErrNotExist},
		Probe: func() error { _, err := os.Stat("/proc/sys/net/bridge"); return err }}

	// FastEstablished is that flowtables take established TCP connections alone: e5eaac2beb54
	// "netfilter: flowtable: fix TCP flow teardown".
	FastEstablished = Feature{Name: "flowtables of established connections", Symbols: []string{"CONFIG_NF_FLOW_TABLE"}, Since: "5.18", Probe: since("5.18")}

	// FastKept is that what a flowtable takes over does not run out for the tracker
	// meanwhile: 4203b19c2796 "netfilter: flowtable: Set offload timeout when adding flow".
	FastKept = Feature{Name: "flowtables that keep the tracker's entries", Symbols: []string{"CONFIG_NF_FLOW_TABLE"}, Since: "5.9", Probe: since("5.9")}

	Netem = Feature{Name: "the netem qdisc", Symbols: []string{"CONFIG_NET_SCH_NETEM"}, Probe: probeNetem}

	Kprobe = Feature{Name: "eBPF programs on kprobes", Symbols: []string{"CONFIG_KPROBE_EVENTS", "CONFIG_BPF_EVENTS"}, Probe: probeKprobe}

	Fentry = Feature{Name: "eBPF programs on fentry",
		Symbols: []string{"CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS", "CONFIG_BPF_EVENTS", "CONFIG_BPF_JIT", "CONFIG_DEBUG_INFO_BTF"}, Probe: probeFentry}

	// TypedTracepoints are those whose programs follow the kernel's pointers, with the stack that they read packets
	// to: 01f810ace9ed "bpf: Allow variable-offset stack access".
	TypedTracepoints = Feature{Name: "eBPF programs on typed tracepoints", Symbols: []string{"CONFIG_BPF_EVENTS", "CONFIG_DEBUG_INFO_BTF"},
		Since: "5.12", Probe: probeTypedTracepoint}

	// SkbParts is that such programs read packets in pieces: "bpf: Allow bpf_dynptr_from_skb() for tp_btf".
	SkbParts = Feature{Name: "packets in pieces for typed tracepoints", Symbols: []string{"CONFIG_BPF_EVENTS"}, Since: "6.11", Probe: since("6.11")}

	TCX = Feature{Name: "tcx programs", Symbols: []string{"CONFIG_NET_XGRESS"}, Since: "6.6", Probe: probeTCX}

	DropMonitor = Feature{Name: "drop_monitor", Symbols: []string{"CONFIG_NET_DROP_MONITOR"}, Probe: genericNetlink("NET_DM")}

	BTF = Feature{Name: "types of the kernel", Symbols: []string{"CONFIG_DEBUG_INFO_BTF"},
		Probe: func() error { _, err := btf.LoadKernelSpec(); return err }}

	// ConntrackProcfs are the files of the tracker below /proc/net.
	ConntrackProcfs = Feature{Name: "/proc/net/stat/nf_conntrack", Symbols: []string{"CONFIG_NF_CONNTRACK_PROCFS"},
		Probe: func() error { _, err := os.Stat("/proc/net/stat/nf_conntrack"); return err }}

	// IPv6 can be built in and yet be off (net.ipv6.conf.all.disable_ipv6, ipv6.disable=1).
	IPv6 = Feature{Name: "IPv6", Symbols: []string{"CONFIG_IPV6"}, Probe: probeIPv6,
		Off: []error{unix.EADDRNOTAVAIL, unix.EAFNOSUPPORT}}

	// PortClash is that a connection to the host whose port was taken, and changed, is not led to the socket of the one that
	// has it: e27c3295114b "netfilter: nf_nat: undo erroneous tcp edemux lookup after port clash".
	PortClash = Feature{Name: "sockets found after a clash of ports", Symbols: []string{"CONFIG_NF_NAT"}, Since: "6.7", Probe: since("6.7")}

	// VRF devices are older; the 5.4 that tests run on has them in a package of modules that VMs do without.
	VRF = Feature{Name: "VRF devices", Symbols: []string{"CONFIG_NET_VRF"}, Since: "5.10", Probe: probeVRF}

	VLAN = Feature{Name: "VLAN interfaces", Symbols: []string{"CONFIG_VLAN_8021Q"}, Probe: probeVLAN}

	// NetnsCookie distinguishes network namespaces with the same inode number: e8b9eab99232
	// "net: retrieve netns cookie via getsocketopt".
	NetnsCookie = Feature{Name: "cookies of network namespaces", Symbols: []string{"CONFIG_NET_NS"}, Since: "5.14", Probe: probeNetnsCookie}

	// NetnsHandle opens a network namespace by its number and cookie: "nsfs: support file
	// handles".
	NetnsHandle = Feature{Name: "file handles of network namespaces", Symbols: []string{"CONFIG_NET_NS", "CONFIG_FHANDLE"}, Since: "6.18", Probe: since("6.18")}

	// HostNetns is refused where process 1 may do more than this one (ptrace(2), "Ptrace
	// access mode checking").
	HostNetns = Feature{Name: "the network namespace of process 1", Symbols: []string{"CONFIG_NET_NS"},
		Probe: func() error { _, err := os.Readlink("/proc/1/ns/net"); return err }, Off: []error{unix.EACCES, unix.EPERM}}

	// OwnMounts is what unshare(1) --mount does. It makes the root directory's mount private,
	// which in a chroot is none.
	OwnMounts = Feature{Name: "mounts of one's own", Symbols: []string{"CONFIG_NAMESPACES"}, Probe: probeOwnMounts,
		Off: []error{unix.EINVAL}}

	// KernelLogWrite is missing in most containers.
	KernelLogWrite = Feature{Name: "/dev/kmsg to write to", Symbols: []string{"CONFIG_PRINTK"}, Probe: probeKernelLog,
		Off: []error{fs.ErrNotExist}}
)

func probeNetnsCookie() error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	return err
}

// probeNATHelpers loads their modules, where they are some.
func probeNATHelpers() error {
	for _, module := range []string{"nf_nat_ftp", "nf_nat_tftp", "nf_nat_sip", "nf_nat_pptp"} { // those of kmod alone take several
		_ = exec.Command("modprobe", "-q", module).Run()
	}
	symbols, err := os.ReadFile("/proc/kallsyms")
	if err == nil && !bytes.Contains(symbols, []byte(" nf_nat_ftp")) {
		err = fmt.Errorf("nf_nat_ftp: %w", fs.ErrNotExist)
	}
	return err
}

func probeOwnMounts() error {
	cmd := exec.Command("true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	return cmd.Run()
}

// genericNetlink asks for a family; the kernel loads its module then.
func genericNetlink(family string) func() error {
	return func() error {
		_, err := netlink.GenlFamilyGet(family)
		if err != nil {
			return fmt.Errorf("generic netlink family %s: %w", family, err)
		}
		return nil
	}
}

// since is for what cannot be tried: the kernel takes it and never does it.
func since(version string) func() error {
	return func() error {
		running, err := release()
		if err == nil && olderThan(running, version) {
			err = fmt.Errorf("this is Linux %s", running)
		}
		return err
	}
}

// probeIPVS loads the module by its name where asking for the family does not (before
// 2199f562730d "ipvs: autoload ipvs on genl access").
func probeIPVS() error {
	ask := genericNetlink("IPVS")
	err := ask()
	if err != nil && exec.Command("modprobe", "-q", "ip_vs").Run() == nil {
		err = ask()
	}
	return err
}

// probeFlowTable asks for one over lo: before Linux 5.8 there is none without interfaces.
func probeFlowTable() error {
	return inNewNetns(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		table := c.AddTable(&nftables.Table{Name: "probe", Family: nftables.TableFamilyINet})
		c.AddFlowtable(&nftables.Flowtable{Table: table, Name: "probe", Devices: []string{"lo"},
			Hooknum: nftables.FlowtableHookIngress, Priority: nftables.FlowtablePriorityFilter})
		return c.Flush()
	})
}

func probeVRF() error {
	return inNewNetns(func() error {
		return netlink.LinkAdd(&netlink.Vrf{LinkAttrs: netlink.LinkAttrs{Name: "probe"}, Table: 10})
	})
}

func probeVLAN() error {
	return inNewNetns(func() error {
		if err := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "below"}}); err != nil {
			return err
		}
		below, err := netlink.LinkByName("below")
		if err != nil {
			return err
		}
		return netlink.LinkAdd(&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: "probe", ParentIndex: below.Attrs().Index}, VlanId: 1})
	})
}

func probeNetem() error {
	return inNewNetns(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.QdiscAdd(netlink.NewNetem(
			netlink.QdiscAttrs{LinkIndex: lo.Attrs().Index, Parent: netlink.HANDLE_ROOT}, netlink.NetemQdiscAttrs{Latency: 1}))
	})
}

// probed is a function that every kernel has, in no module.
const probed = "ip_rcv"

func probeKprobe() error {
	return probeProgram(&ebpf.ProgramSpec{Type: ebpf.Kprobe}, func(p *ebpf.Program) (link.Link, error) {
		return link.Kprobe(probed, p, nil)
	})
}

func probeFentry() error {
	spec := &ebpf.ProgramSpec{Type: ebpf.Tracing, AttachType: ebpf.AttachTraceFEntry, AttachTo: probed}
	return probeProgram(spec, func(p *ebpf.Program) (link.Link, error) {
		return link.AttachTracing(link.TracingOptions{Program: p})
	})
}

func probeTypedTracepoint() error {
	if err := since("5.12")(); err != nil {
		return err
	}
	return probeProgram(&ebpf.ProgramSpec{Type: ebpf.Tracing, AttachType: ebpf.AttachTraceRawTp, AttachTo: "netif_receive_skb"},
		func(p *ebpf.Program) (link.Link, error) { return link.AttachTracing(link.TracingOptions{Program: p}) })
}

func probeTCX() error {
	return inNewNetns(func() error {
		return probeProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS}, func(p *ebpf.Program) (link.Link, error) {
			return link.AttachTCX(link.TCXOptions{Interface: 1, Program: p, Attach: ebpf.AttachTCXIngress})
		})
	})
}

// probeProgram loads and attaches a program that does nothing.
func probeProgram(spec *ebpf.ProgramSpec, attach func(*ebpf.Program) (link.Link, error)) error {
	spec.License = "Dual MIT/GPL"
	spec.Instructions = asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}
	p, err := ebpf.NewProgram(spec)
	if err != nil {
		return err
	}
	defer p.Close()
	l, err := attach(p)
	if err != nil {
		return err
	}
	return l.Close()
}

func probeIPv6() error {
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		return err
	}
	return l.Close()
}

func probeKernelLog() error {
	f, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// inNewNetns runs fn in a network namespace that goes with its thread. Package netns
// does the same and more, and its tests need this package.
func inNewNetns(fn func() error) error {
	return netns.OnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return errors.Join(errors.New("make a network namespace"), err)
		}
		return fn()
	})
}
