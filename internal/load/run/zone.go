package run

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/natkit/natkit/internal/netns"
)

// zoneNumbers finds the interfaces that addresses name, such as fe80::1%eth0, in
// the namespace where they will be used; nil is the caller's.
func zoneNumbers(ns *netns.Handle, addrs []netip.Addr) (map[string]uint32, error) {
	numbers := map[string]uint32{}
	look := func() error {
		for _, a := range addrs {
			zone := a.Zone()
			if _, known := numbers[zone]; known {
				continue
			}
			n, err := zoneNumber(zone)
			if err != nil {
				return fmt.Errorf("address %v: %w", a, err)
			}
			numbers[zone] = n
		}
		return nil
	}
	if ns == nil {
		return numbers, look()
	}
	return numbers, ns.Do(look)
}

// zoneNumber is an interface's index by its name or number, 0 for no zone.
func zoneNumber(zone string) (uint32, error) {
	if zone == "" {
		return 0, nil
	}
	if n, err := strconv.ParseUint(zone, 10, 31); err == nil && n > 0 {
		return uint32(n), nil
	}
	i, err := net.InterfaceByName(zone)
	if err != nil {
		return 0, fmt.Errorf("interface %q: %w; `ip link` shows them", zone, err)
	}
	return uint32(i.Index), nil
}
