package ports

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/snapshot"
)

// Classes of source ports that keep to themselves where no rule gives a range.
const (
	classOther      = ""
	classPrivileged = "privileged"
	classReserved   = "reserved"
)

// DefaultRange is what the kernel draws from where no rule gives a range.
func DefaultRange(proto uint8, class string) Range {
	switch {
	case isICMP(proto):
		return Range{0, 65535}
	case class == classPrivileged:
		return Range{1, 511}
	case class == classReserved:
		return Range{600, 1023}
	default:
		return Range{1024, 65535}
	}
}

func isICMP(proto uint8) bool { return proto == unix.IPPROTO_ICMP || proto == unix.IPPROTO_ICMPV6 }

// hasPorts reports whether the kernel gives connections of the protocol another
// port, or id, where theirs is taken.
func hasPorts(proto uint8) bool {
	switch proto {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_UDPLITE, unix.IPPROTO_SCTP, unix.IPPROTO_DCCP:
		return true
	}
	return isICMP(proto)
}

// Probing is how a kernel of this release looks for a free port: mainline since
// 5.0 probes windows. Older kernels look at the whole range, unless their vendor
// took that change, which the release does not tell.
func Probing(release string) string {
	if major, _, ok := version(release); ok && major < 5 {
		return snapshot.PortProbeAll
	}
	return snapshot.PortProbeRandom
}

// Evicts is whether a kernel of this release may take the port of a TCP
// connection that has ended (6.6, nf_nat_used_tuple_harder).
func Evicts(release string) bool {
	major, minor, ok := version(release)
	return ok && (major > 6 || major == 6 && minor >= 6)
}

// version reads the first two numbers of a release such as "6.1.0-30-amd64".
func version(release string) (major, minor int, ok bool) {
	first, rest, _ := strings.Cut(release, ".")
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if end >= 0 {
		rest = rest[:end]
	}
	major, err := strconv.Atoi(first)
	if err != nil {
		return 0, 0, false
	}
	minor, err = strconv.Atoi(rest)
	return major, minor, err == nil
}
