package lab

import (
	"fmt"
	"net/netip"

	"github.com/natkit/natkit/internal/conntrack"
)

// FillSources are the clients that a filled table is made of. No node of a lab
// has an address there and no route leads there, so a filled entry meets no
// packet, neither of the load nor of its own.
var FillSources = netip.MustParsePrefix("198.18.128.0/17")

// FillService is what the clients of a filled table are connected to.
var FillService = netip.MustParseAddrPort("198.18.127.254:443")

const (
	// fillHosts leaves out the subnet's first and last address.
	fillHosts = 1<<15 - 2
	// firstFillPort is the first port that Linux gives to clients by default.
	firstFillPort = 32768

	// MaxFill is the greatest number of entries that a fill makes: about 1.5 GiB
	// of kernel memory and tens of seconds; beyond, --lower-max is the way.
	MaxFill    = 4 << 20
	protoTCP   = 6 // IPPROTO_TCP
	familyIPv4 = 2 // AF_INET

	// entryBytes is an entry with its extension, roughly (struct nf_conn 256 and
	// 128 bytes on x86-64).
	entryBytes = 384
)

// FillMark is the mark on the entries of a fill, by which they are told from
// those of the load ("fill" in ASCII).
const FillMark = 0x66696c6c

// FillEntry makes e the i-th connection of a filled table, for i from 0 to
// MaxFill: established and assured, so that the kernel evicts none of them
// (early_drop in net/netfilter/nf_conntrack_core.c), with the timeout that such
// connections have by default. All differ and are spread over many clients, as
// on a busy gateway.
func FillEntry(i int, e *conntrack.Entry) {
	host := i%fillHosts + 1
	base := FillSources.Addr().As4()
	client := netip.AddrFrom4([4]byte{base[0], base[1], base[2] | byte(host>>8), byte(host)})
	tuple := conntrack.Tuple{
		Src: client, SrcPort: uint16(firstFillPort + i/fillHosts),
		Dst: FillService.Addr(), DstPort: FillService.Port(),
		Proto: protoTCP,
	}
	*e = conntrack.Entry{
		Family: familyIPv4, Orig: tuple, Reply: tuple.Mirror(),
		Status:   conntrack.SeenReply | conntrack.Assured | conntrack.Confirmed,
		TCPState: conntrack.TCPEstablished,
		Timeout:  432000,
		Mark:     FillMark,
	}
}

// FillTarget is how many entries a table must hold so that free places are left
// below limit (nf_conntrack_max). It refuses where that would take more than a
// quarter of availableBytes.
func FillTarget(limit, free, availableBytes int64) (int64, error) {
	target := limit - free
	switch {
	case target <= 0:
		return 0, fmt.Errorf("fill the connection table: nf_conntrack_max is %d, which leaves fewer than the %d free places wanted", limit, free)
	case target > MaxFill:
		return 0, fmt.Errorf("fill the connection table: nf_conntrack_max is %d, more than %d entries are not made; use --lower-max 65536", limit, MaxFill)
	case target*entryBytes > availableBytes/4:
		return 0, fmt.Errorf("fill the connection table: %d entries take about %d MiB, more than a quarter of the %d MiB available; use --lower-max 65536",
			target, target*entryBytes>>20, availableBytes>>20)
	}
	return target, nil
}
