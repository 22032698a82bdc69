package pktgen

import "github.com/natkit/natkit/internal/privilege"

// CheckPrivilege says which capabilities a run lacks.
func CheckPrivilege() error {
	return privilege.Check(
		privilege.Need{Any: privilege.SysAdmin, Why: "to load and run eBPF programs and to make and enter network namespaces"},
		privilege.Need{Any: privilege.NetAdmin, Why: "to attach XDP programs to interfaces"})
}
