package profile

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// checkPrivilege tells beforehand what the kernel would refuse with a bare EPERM.
// CAP_SYS_ADMIN includes the other two, and before Linux 5.8 it is the only one.
func checkPrivilege() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read this process's capabilities: %w", err)
	}
	has := func(capability int) bool { return data[capability/32].Effective&(1<<(capability%32)) != 0 }
	switch {
	case has(unix.CAP_SYS_ADMIN):
		return nil
	case !has(unix.CAP_BPF):
		return errors.New("profile the CPUs: needs CAP_BPF, to load an eBPF program: run natkit as root")
	case !has(unix.CAP_PERFMON):
		return errors.New("profile the CPUs: needs CAP_PERFMON, to sample the kernel's stacks: run natkit as root")
	}
	return nil
}
