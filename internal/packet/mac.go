package packet

import "net"

// MAC is an Ethernet address.
type MAC [6]byte

func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// Link is what an Ethernet header says besides the type.
type Link struct{ Source, Destination MAC }
