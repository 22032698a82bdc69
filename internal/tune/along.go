package tune

import (
	"path"
	"slices"
	"strings"
)

// Along are the sysctls that the kernel sets along with one and that an undo puts back,
// as patterns of paths below /proc/sys.
func Along(name string) []string {
	switch name {
	case "net.ipv4.ip_forward", "net.ipv4.conf.all.forwarding": // inet_forward_change
		return []string{"net/ipv4/conf/*/forwarding", "net/ipv4/conf/all/accept_redirects"}
	case "net.ipv6.conf.all.forwarding": // addrconf_forward_change
		return []string{"net/ipv6/conf/*/forwarding"}
	}
	return nil
}

// IsAlong reports whether the kernel sets one sysctl along with another.
func IsAlong(name, other string) bool {
	file, err := SysctlPath(other)
	return err == nil && slices.ContainsFunc(Along(name), func(pattern string) bool {
		ok, _ := path.Match(pattern, file)
		return ok
	})
}

// SetAlong is the value that the kernel gives to one of these where it sets the other one
// to value.
func SetAlong(name, value string) string {
	if !strings.HasSuffix(name, ".accept_redirects") {
		return value
	}
	if SameValue(value, "0") { // a host believes redirects, a router does not
		return "1"
	}
	return "0"
}
