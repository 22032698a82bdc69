// Package privilege says which capabilities a process lacks, and what for.
package privilege

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Need is something that a process may do with any of several capabilities.
type Need struct {
	Any []int // CAP_… numbers of linux/capability.h, the narrowest first
	Why string
}

// The capabilities of eBPF are as old as Linux 5.8; CAP_SYS_ADMIN includes them.
var (
	BPF      = []int{unix.CAP_BPF, unix.CAP_SYS_ADMIN}
	PerfMon  = []int{unix.CAP_PERFMON, unix.CAP_SYS_ADMIN}
	NetAdmin = []int{unix.CAP_NET_ADMIN}
	NetRaw   = []int{unix.CAP_NET_RAW}
	SysAdmin = []int{unix.CAP_SYS_ADMIN}
)

var capabilityNames = map[int]string{
	unix.CAP_BPF: "CAP_BPF", unix.CAP_PERFMON: "CAP_PERFMON", unix.CAP_NET_ADMIN: "CAP_NET_ADMIN", unix.CAP_NET_RAW: "CAP_NET_RAW",
	unix.CAP_SYS_ADMIN: "CAP_SYS_ADMIN", unix.CAP_SYSLOG: "CAP_SYSLOG", unix.CAP_SYS_PTRACE: "CAP_SYS_PTRACE",
}

// Check says in one line which of the needs this process cannot meet; nil where it
// can meet all. What a security module or a container's filter of system calls
// forbids besides is only seen by trying.
func Check(needs ...Need) error {
	have, err := effective()
	if err != nil {
		return err
	}
	return check(have, needs)
}

func check(have uint64, needs []Need) error {
	var missing []string
	for _, n := range needs {
		if !n.metBy(have) {
			missing = append(missing, fmt.Sprintf("%s (%s)", n.names(), n.Why))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return errors.New("needs " + strings.Join(missing, " and ") + ": run it as root")
}

func (n Need) metBy(have uint64) bool {
	for _, c := range n.Any {
		if have&(1<<c) != 0 {
			return true
		}
	}
	return false
}

func (n Need) names() string {
	names := make([]string, len(n.Any))
	for i, c := range n.Any {
		names[i] = capabilityNames[c]
		if names[i] == "" {
			names[i] = fmt.Sprintf("capability %d", c)
		}
	}
	return strings.Join(names, " or ")
}

// effective is the set of this process's effective capabilities (capget(2)).
func effective() (uint64, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return 0, fmt.Errorf("read this process's capabilities: %w", err)
	}
	return uint64(data[1].Effective)<<32 | uint64(data[0].Effective), nil
}
