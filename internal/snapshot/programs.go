package snapshot

import "slices"

// PartPrograms is the name of the part that Snapshot.Programs is.
const PartPrograms = "gateway_programs"

// Programs are the eBPF programs of a gateway (engine: ebpf) that are in force in a network namespace.
type Programs struct {
	// Interfaces are those that packets are routed by; none where no programs are in force.
	Interfaces []ProgramInterface `json:"interfaces"`
	// Reasons are why packets that a mapping is for were not sent on by the programs, with what they counted.
	Reasons []ProgramReason `json:"reasons,omitempty"`
}

// ProgramInterface is how programs are attached to an interface.
type ProgramInterface struct {
	Name string `json:"name"`
	// Mode is where they are: "xdp", "xdp-generic" or "tc"; empty where none is.
	Mode string `json:"mode,omitempty"`
	// Known is true where they know the interface, as it was there when they were put in force, Missing the hooks ("in", "out",
	// "xdp") that nevertheless have none (any more).
	Known   bool     `json:"known,omitempty"`
	Missing []string `json:"missing,omitempty"`
	// WantsXDP is true where one was to be at XDP, OtherXDP the number of another's program there.
	WantsXDP bool   `json:"wants_xdp,omitempty"`
	OtherXDP uint32 `json:"other_xdp,omitempty"`
	// NativeXDP is whether the driver runs XDP programs, as far as the kernel says so; MTU is in bytes.
	NativeXDP bool `json:"native_xdp,omitempty"`
	MTU       int  `json:"mtu_bytes,omitempty"`
}

// ProgramReason is one of them.
type ProgramReason struct {
	Reason  string `json:"reason"`
	Dropped bool   `json:"dropped,omitempty"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// Of is the interface of a name; nil where it is none of them.
func (p *Programs) Of(name string) *ProgramInterface {
	if p == nil {
		return nil
	}
	i := slices.IndexFunc(p.Interfaces, func(i ProgramInterface) bool { return i.Name == name })
	if i < 0 {
		return nil
	}
	return &p.Interfaces[i]
}

// Translates reports whether the programs translate what comes in and goes out by an interface.
func (i *ProgramInterface) Translates() bool {
	return i != nil && i.Mode != "" && i.Known && !slices.Contains(i.Missing, "in") && !slices.Contains(i.Missing, "out")
}
