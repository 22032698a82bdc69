package ipvs

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// parseAddr reads an address as the kernel writes it: eight hexadecimal digits in the
// order of reading (%08X of ntohl), or all groups of an IPv6 address (%pI6).
func parseAddr(text string) (netip.Addr, error) {
	if strings.Contains(text, ":") {
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Zone() != "" {
			return netip.Addr{}, fmt.Errorf("address %.60q: not like 2001:0db8:0000:0000:0000:0000:0000:0001", text)
		}
		return addr, nil
	}
	var four [4]byte
	if len(text) != 8 {
		return netip.Addr{}, fmt.Errorf("address %.60q: not eight hexadecimal digits", text)
	}
	if _, err := hex.Decode(four[:], []byte(text)); err != nil {
		return netip.Addr{}, fmt.Errorf("address %.60q: not eight hexadecimal digits", text)
	}
	return netip.AddrFrom4(four), nil
}

// parsePort reads four hexadecimal digits.
func parsePort(text string) (uint16, error) {
	var two [2]byte
	if len(text) != 4 {
		return 0, fmt.Errorf("port %.60q: not four hexadecimal digits", text)
	}
	if _, err := hex.Decode(two[:], []byte(text)); err != nil {
		return 0, fmt.Errorf("port %.60q: not four hexadecimal digits", text)
	}
	return binary.BigEndian.Uint16(two[:]), nil
}

func parseAddrPort(addr, port string) (netip.AddrPort, error) {
	a, err := parseAddr(addr)
	if err != nil {
		return netip.AddrPort{}, err
	}
	p, err := parsePort(port)
	return netip.AddrPortFrom(a, p), err
}

// splitAddrPort reads C6120001:0050 and [2001:0db8:…]:0050.
func splitAddrPort(text string) (netip.AddrPort, error) {
	at := strings.LastIndexByte(text, ':')
	if at < 0 {
		return netip.AddrPort{}, fmt.Errorf("%.60q: not an address and a port", text)
	}
	addr := text[:at]
	if inner, ok := strings.CutPrefix(addr, "["); ok {
		addr = strings.TrimSuffix(inner, "]")
	}
	return parseAddrPort(addr, text[at+1:])
}

// number reads a decimal count; negative ones, which the kernel's atomic counters show
// for a moment, are 0.
func number(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	return max(0, n), err
}
