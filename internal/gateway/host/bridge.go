package host

import (
	"fmt"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/snapshot"
)

// The sysctls by which all bridges of a namespace take what they carry through netfilter;
// they are there where br_netfilter is.
const (
	bridgeSysctl4 = "net.bridge.bridge-nf-call-iptables"
	bridgeSysctl6 = "net.bridge.bridge-nf-call-ip6tables"
)

// bridges are those of the thread's namespace that take what they carry through netfilter,
// by index.
func bridges() (map[int]*gateway.Bridge, error) {
	sysctls := snapshot.Sysctls{}
	if err := ReadSysctls("/proc", []string{bridgeSysctl4, bridgeSysctl6}, sysctls); err != nil || len(sysctls) == 0 {
		return nil, err
	}
	messages, err := whole(func() ([][]byte, error) {
		request := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
		request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		return request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	})
	if err != nil {
		return nil, fmt.Errorf("list bridges: %w", err)
	}
	all, ports := map[int]*gateway.Bridge{}, map[int]*gateway.Bridge{}
	for _, m := range messages {
		if err := bridgeOf(m, sysctls, all, ports); err != nil {
			return nil, fmt.Errorf("list bridges: %w", err)
		}
	}
	for index, p := range ports {
		if b := all[index]; b != nil {
			b.OneWay, b.Hairpin = p.OneWay, p.Hairpin
		}
	}
	return all, nil
}

// bridgeOf notes a link that is a bridge, or a port of one.
func bridgeOf(m []byte, sysctls snapshot.Sysctls, all, ports map[int]*gateway.Bridge) error {
	attrs, err := nl.ParseRouteAttrAsMap(m[unix.SizeofIfInfomsg:])
	if err != nil {
		return err
	}
	info, err := nl.ParseRouteAttrAsMap(attrs[unix.IFLA_LINKINFO].Value)
	if err != nil {
		return err
	}
	isBridge := func(kind uint16) bool { return text(info[kind].Value) == "bridge" }
	on := func(data uint16, option uint16) bool { return firstByte(info[data], option) != 0 }
	if isBridge(nl.IFLA_INFO_KIND) {
		b := &gateway.Bridge{
			IPv4: sysctls[bridgeSysctl4] == "1" || on(nl.IFLA_INFO_DATA, nl.IFLA_BR_NF_CALL_IPTABLES),
			IPv6: sysctls[bridgeSysctl6] == "1" || on(nl.IFLA_INFO_DATA, nl.IFLA_BR_NF_CALL_IP6TABLES),
		}
		if b.IPv4 || b.IPv6 {
			all[int(nl.DeserializeIfInfomsg(m).Index)] = b
		}
	}
	if isBridge(nl.IFLA_INFO_SLAVE_KIND) && len(attrs[unix.IFLA_MASTER].Value) == 4 {
		master := int(nl.NativeEndian().Uint32(attrs[unix.IFLA_MASTER].Value))
		if ports[master] == nil {
			ports[master] = &gateway.Bridge{}
		}
		list := &ports[master].OneWay
		if on(nl.IFLA_INFO_SLAVE_DATA, nl.IFLA_BRPORT_MODE) {
			list = &ports[master].Hairpin
		}
		*list = append(*list, text(attrs[unix.IFLA_IFNAME].Value))
	}
	return nil
}

func text(value []byte) string { return strings.TrimRight(string(value), "\x00") }

// firstByte is that of an attribute within another; 0 where it is not there.
func firstByte(nested syscall.NetlinkRouteAttr, kind uint16) byte {
	all, err := nl.ParseRouteAttrAsMap(nested.Value)
	if err != nil || len(all[kind].Value) == 0 {
		return 0
	}
	return all[kind].Value[0]
}
