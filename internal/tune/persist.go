package tune

import (
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
)

// Kinds that make a change survive a boot. Each is one line, or one word of a
// line, in a file that natkit keeps for itself; an empty value means absent.
const (
	// SysctlConf is a line of sysctl.d(5); Target is the sysctl's dotted name.
	SysctlConf Kind = "sysctl.d"
	// ModulesLoad is a line of modules-load.d(5); Target is the module, the value
	// its name again.
	ModulesLoad Kind = "modules-load.d"
	// ModuleOption is an option of modprobe.d(5); Target is "MODULE.OPTION".
	ModuleOption Kind = "modprobe.d"
)

const conntrackModule = "nf_conntrack"

// maxKey is the Key of a change of nf_conntrack_max under either name.
const maxKey = string(Sysctl) + " " + snapshot.ConntrackMax

// ConfPath is the file, under the root folder, that holds all persisted values
// of a kind (the file itself is the value of GatewayFile); empty for kinds that live in
// no such file.
func ConfPath(k Kind) string {
	switch k {
	case SysctlConf:
		return "etc/sysctl.d/90-natkit.conf"
	case ModulesLoad:
		return "etc/modules-load.d/natkit.conf"
	case ModuleOption:
		return "etc/modprobe.d/natkit.conf"
	case GatewayFile:
		return "etc/natkit/gateway.yaml"
	}
	return ""
}

// Persistent lists what must stand in files so that the sysctl changes hold
// after a boot. Before is left empty: it is what the files hold today.
//
// The sysctls under net.netfilter exist only once nf_conntrack is loaded, hence
// modules-load.d, which systemd reads before sysctl.d. The number of buckets is
// given to the module too: set later it costs a resize under traffic.
func Persistent(changes []Change) []Change {
	var out []Change
	needModule := false
	withMax := slices.ContainsFunc(changes, func(c Change) bool { return c.Key() == maxKey })
	for _, c := range changes {
		if c.Kind != Sysctl {
			continue
		}
		out = append(out, Change{Kind: SysctlConf, Target: c.Target, After: NormalValue(c.After),
			Why: "holds after a boot"})
		needModule = needModule || isConntrack(c.Target)
		if c.Target == snapshot.ConntrackBuckets {
			option := Change{Kind: ModuleOption, Target: conntrackModule + ".hashsize", After: NormalValue(c.After),
				Why: "the table has its size from the start instead of being resized under traffic"}
			if !withMax { // nf_conntrack_init_start: max_factor
				option.Risk = "with hashsize given, nf_conntrack_max defaults to 8 × hashsize at boot unless it is persisted too"
			}
			out = append(out, option)
		}
	}
	if needModule {
		out = append(out, Change{Kind: ModulesLoad, Target: conntrackModule, After: conntrackModule,
			Why: "net.netfilter.* does not exist before the module is loaded, and sysctl.d would be skipped"})
	}
	return out
}

func isConntrack(name string) bool {
	return strings.HasPrefix(name, "net.netfilter.nf_conntrack_") || name == "net.nf_conntrack_max"
}
