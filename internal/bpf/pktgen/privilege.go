package pktgen

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// needed are the capabilities without which nothing works. CAP_SYS_ADMIN includes
// CAP_BPF and CAP_PERFMON.
var needed = []struct {
	number    int
	name, why string
}{
	{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN", "to load and run eBPF programs and to make and enter network namespaces"},
	{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN", "to attach XDP programs to interfaces"},
}

// CheckPrivilege says which capabilities a run lacks.
func CheckPrivilege() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read this process's capabilities: %w", err)
	}
	var missing []string
	for _, c := range needed {
		if data[c.number/32].Effective&(1<<(c.number%32)) == 0 {
			missing = append(missing, c.name+" ("+c.why+")")
		}
	}
	if len(missing) > 0 {
		return errors.New("needs " + strings.Join(missing, " and ") + ": run it as root")
	}
	return nil
}
