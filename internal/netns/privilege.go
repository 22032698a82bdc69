//go:build linux

package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
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
	Syslog   = []int{unix.CAP_SYSLOG}
	Ptrace   = []int{unix.CAP_SYS_PTRACE}
	Resource = []int{unix.CAP_SYS_RESOURCE}
	Bind     = []int{unix.CAP_NET_BIND_SERVICE}
	// ReadAll and WriteAll are for files that only root may read, or write.
	ReadAll  = []int{unix.CAP_DAC_READ_SEARCH}
	WriteAll = []int{unix.CAP_DAC_OVERRIDE}
)

var capabilityNames = map[int]string{
	unix.CAP_BPF: "CAP_BPF", unix.CAP_PERFMON: "CAP_PERFMON", unix.CAP_NET_ADMIN: "CAP_NET_ADMIN", unix.CAP_NET_RAW: "CAP_NET_RAW",
	unix.CAP_SYS_ADMIN: "CAP_SYS_ADMIN", unix.CAP_SYS_RESOURCE: "CAP_SYS_RESOURCE", unix.CAP_NET_BIND_SERVICE: "CAP_NET_BIND_SERVICE",
	unix.CAP_DAC_READ_SEARCH: "CAP_DAC_READ_SEARCH", unix.CAP_DAC_OVERRIDE: "CAP_DAC_OVERRIDE", unix.CAP_SYSLOG: "CAP_SYSLOG", unix.CAP_SYS_PTRACE: "CAP_SYS_PTRACE",
}

// CheckPrivilege returns an error, of one line, naming the needs this process lacks; nil if it
// can meet all. What a security module or a container's filter of system calls
// forbids besides is only seen by trying.
func CheckPrivilege(needs ...Need) error {
	have, err := effective()
	if err != nil {
		return err
	}
	return check(have, needs)
}

func check(have uint64, needs []Need) error {
	var missing []string
	var lacks [][]int
	for _, n := range needs {
		if !n.metBy(have) {
			missing = append(missing, fmt.Sprintf("%s (%s)", join(n.Any, " or "), n.Why))
			lacks = append(lacks, n.Any)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return Advise(errors.New("needs "+strings.Join(missing, " and ")), lacks...)
}

// advised is an error that ends with who may do it.
type advised struct{ error }

func (a advised) Unwrap() error { return a.error }

// Denied adds to a refusal of the kernel what to do about it; other errors, and those that
// have it already, stay as they are.
func Denied(err error, needs ...[]int) error {
	if has := (advised{}); !errors.Is(err, fs.ErrPermission) || errors.As(err, &has) {
		return err
	}
	return Advise(err, needs...)
}

// Advise ends an error with who may do it, as all such errors end. Of each of the sets
// one capability is enough, the first being the narrowest.
func Advise(err error, needs ...[]int) error {
	var narrow []int
	for _, any := range needs {
		if !slices.Contains(narrow, any[0]) {
			narrow = append(narrow, any[0])
		}
	}
	return advised{fmt.Errorf("%w; run it as root, or with %s", err, join(narrow, " and "))}
}

func (n Need) metBy(have uint64) bool {
	for _, c := range n.Any {
		if have&(1<<c) != 0 {
			return true
		}
	}
	return false
}

// join names capabilities.
func join(numbers []int, word string) string {
	names := make([]string, len(numbers))
	for i, c := range numbers {
		names[i] = capabilityNames[c]
		if names[i] == "" {
			names[i] = fmt.Sprintf("capability %d", c)
		}
	}
	return strings.Join(names, word)
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
