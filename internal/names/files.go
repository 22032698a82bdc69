package names

import (
	"encoding/hex"
	"net/netip"
	"strings"
)

// ParseFIBTrie reads the own addresses of IPv4 out of /proc/PID/net/fib_trie, which requires no entering of the
// namespace: leaves whose prefix is a whole address of the type LOCAL (fib_trie_seq_show, net/ipv4/fib_trie.c). Each is
// in it once for each table.
func ParseFIBTrie(text string) (all []netip.Addr) {
	seen := map[netip.Addr]bool{}
	var leaf netip.Addr
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if address, is := strings.CutPrefix(line, "|-- "); is {
			leaf, _ = netip.ParseAddr(address)
			continue
		}
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == "/32" && fields[2] == "LOCAL" && leaf.IsValid() && !seen[leaf] {
			seen[leaf] = true
			all = append(all, leaf)
		}
	}
	return all
}

// ifaTentative and ifaDadFailed are flags of addresses that are not in use (include/uapi/linux/if_addr.h).
const (
	ifaTentative = 0x40
	ifaDADFailed = 0x08
)

// ParseIfInet6 reads the own addresses of IPv6 out of /proc/PID/net/if_inet6: address, index, prefix length, scope,
// flags and interface, in hexadecimal (if6_seq_show, net/ipv6/addrconf.c).
func ParseIfInet6(text string) (all []netip.Addr) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) != 6 {
			continue
		}
		raw, err := hex.DecodeString(fields[0])
		flags, errFlags := hex.DecodeString(strings.Repeat("0", len(fields[4])%2) + fields[4])
		if err != nil || errFlags != nil || len(raw) != 16 || len(flags) == 0 || flags[len(flags)-1]&(ifaTentative|ifaDADFailed) != 0 {
			continue
		}
		all = append(all, netip.AddrFrom16([16]byte(raw)))
	}
	return all
}

// mostHosts bounds the lines of /etc/hosts that are read: lists of blocked domains have a million.
const mostHosts = 4096

// HostLine is an address of /etc/hosts with its first name.
type HostLine struct {
	Address netip.Addr
	Name    string
}

// ParseHosts reads /etc/hosts (hosts(5)); whole is false where it has more lines than are read.
func ParseHosts(text string) (all []HostLine, whole bool) {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		address, err := netip.ParseAddr(fields[0])
		if err != nil {
			continue
		}
		if len(all) == mostHosts {
			return all, false
		}
		all = append(all, HostLine{address.Unmap().WithZone(""), fields[1]})
	}
	return all, true
}
