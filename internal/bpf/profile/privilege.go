package profile

import (
	"fmt"

	"github.com/natkit/natkit/internal/privilege"
)

// checkPrivilege tells beforehand what the kernel would refuse with a bare EPERM.
func checkPrivilege() error {
	err := privilege.Check(
		privilege.Need{Any: privilege.BPF, Why: "to load an eBPF program"},
		privilege.Need{Any: privilege.PerfMon, Why: "to sample the kernel's stacks"},
	)
	if err != nil {
		return fmt.Errorf("profile the CPUs: %w", err)
	}
	return nil
}
