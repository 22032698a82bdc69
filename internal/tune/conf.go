package tune

import (
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
)

// confHeader begins every file that natkit writes under /etc.
const confHeader = "# Written by natkit tune --persist; `natkit tune undo` takes its lines out again.\n"

// ConfGet is the value of target in the text of its kind's file; empty where it
// is absent. As for the programs that read these files, the last one counts.
func ConfGet(k Kind, text, target string) string {
	value := ""
	for _, line := range strings.Split(text, "\n") {
		if v, ok := confLine(k, line, target); ok {
			value = v
		}
	}
	return value
}

// ConfSet returns the text with target set to value, or taken out where value is
// empty. Everything else in the file stays as it was; a file in which nothing
// but natkit's heading is left becomes empty, which means: delete it.
func ConfSet(k Kind, text, target, value string) string {
	if text == "" {
		text = confHeader
	}
	var out []string
	written := value == ""
	for _, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if _, ok := confLine(k, line, target); !ok {
			out = append(out, line)
			continue
		}
		replacement := confReplace(k, line, target, value, written)
		written = true
		if replacement != "" {
			out = append(out, replacement)
		}
	}
	if !written {
		out = append(out, ConfLine(k, target, value))
	}
	result := strings.Join(out, "\n") + "\n"
	if result == confHeader {
		return ""
	}
	return result
}

// confLine finds target's value in one line.
func confLine(k Kind, line, target string) (string, bool) {
	line = strings.TrimSpace(line)
	if line == "" || line[0] == '#' || line[0] == ';' {
		return "", false
	}
	switch k {
	case SysctlConf:
		name, value, ok := strings.Cut(strings.TrimPrefix(line, "-"), "=")
		if !ok {
			return "", false
		}
		name, err := SysctlName(strings.TrimSpace(name))
		return NormalValue(value), err == nil && name == target
	case ModulesLoad:
		return line, line == target
	case ModuleOption:
		words, i := optionWord(line, target)
		if i < 0 {
			return "", false
		}
		_, value, _ := strings.Cut(words[i], "=")
		return value, true
	}
	return "", false
}

// optionWord finds the word "option=value" of "module.option" in an options line.
func optionWord(line, target string) (words []string, index int) {
	module, option, _ := strings.Cut(target, ".")
	words = strings.Fields(line)
	if len(words) < 3 || words[0] != "options" || words[1] != module {
		return nil, -1
	}
	for i := len(words) - 1; i >= 2; i-- {
		if strings.HasPrefix(words[i], option+"=") {
			return words, i
		}
	}
	return nil, -1
}

// confReplace is the line with the new value; empty where nothing of it is left.
// Where the value was written before (done), target only disappears.
func confReplace(k Kind, line, target, value string, done bool) string {
	if k != ModuleOption {
		if done {
			return ""
		}
		return ConfLine(k, target, value)
	}
	_, option, _ := strings.Cut(target, ".")
	var kept []string
	for _, w := range strings.Fields(line) {
		if !strings.HasPrefix(w, option+"=") {
			kept = append(kept, w)
		}
	}
	if !done {
		kept = append(kept, option+"="+value)
	}
	if len(kept) == 2 {
		return ""
	}
	return strings.Join(kept, " ")
}

// ConfLine is the line of a kind of file that gives target a value; empty where the kind has no lines.
func ConfLine(k Kind, target, value string) string {
	switch k {
	case SysctlConf:
		return target + " = " + value
	case ModulesLoad:
		return target
	case ModuleOption:
		module, option, _ := strings.Cut(target, ".")
		return "options " + module + " " + option + "=" + value
	}
	return ""
}

// sideEffects describes what the kernel does along with setting a sysctl; empty where nothing
// is known. An undo puts back what Along names, and no more.
func sideEffects(c Change) string {
	if c.Kind != Sysctl || SameValue(c.Before, c.After) {
		return ""
	}
	parts := strings.Split(c.Target, ".")
	off := SameValue(c.After, "0")
	switch {
	case c.Target == "net.ipv4.ip_forward" || c.Target == "net.ipv4.conf.all.forwarding": // inet_forward_change
		return forwardingAlso(", and conf.all.accept_redirects", ", and turns their LRO off (dev_disable_lro), which stays off", off)
	case c.Target == "net.ipv6.conf.all.forwarding": // addrconf_fixup_forwarding
		return forwardingAlso("", "; a router does not take routes and addresses from router advertisements, but where accept_ra is 2, and loses those routes at once", off)
	case c.Target == "net.ipv6.conf.all.disable_ipv6": // addrconf_disable_change
		return along("disable_ipv6", c) + "; addresses that are removed do not come back"
	case len(parts) == 5 && parts[0] == "net" && parts[2] == "conf" && parts[3] == "all":
		return along("value, for some settings,", c)
	case len(parts) == 5 && parts[0] == "net" && parts[2] == "conf" && parts[3] == "default": // devinet_copy_dflt_conf
		return "the kernel may also give it to interfaces whose own value was never set; undo restores only " + c.Target
	}
	return ""
}

// forwardingAlso describes the side effects of forwarding: more, and those of turning it on.
func forwardingAlso(more, on string, off bool) string {
	if off {
		on = ""
	}
	return "the kernel also sets every interface's own forwarding" + more + ", which an undo puts back" + on
}

func along(what string, c Change) string {
	return fmt.Sprintf("the kernel also sets every interface's own %s; undo restores only %s, and what the kernel sets along with it, not what each interface had",
		what, c.Target)
}

func joinRisks(risks ...string) string {
	return strings.Join(slices.DeleteFunc(risks, func(s string) bool { return s == "" }), "; ")
}

// oneWay are the sysctls that cannot be set back, with the values for which that
// holds; nil means every value.
var oneWay = map[string][]string{
	"kernel.modules_disabled":           {"1"},
	"kernel.kexec_load_disabled":        {"1"},
	"kernel.kexec_load_limit_panic":     nil, // may only become less
	"kernel.kexec_load_limit_reboot":    nil,
	"kernel.unprivileged_bpf_disabled":  {"1"}, // 2 can be set back (bpf_unpriv_handler)
	"kernel.yama.ptrace_scope":          {"3"},
	"kernel.usermodehelper.bset":        nil, // capabilities can only be taken out
	"kernel.usermodehelper.inheritable": nil,
	"kernel.tainted":                    nil, // bits can only be added
	"vm.drop_caches":                    nil, // an act, no value
	"vm.compact_memory":                 nil,
}

// checkReversible refuses changes that natkit could not take back.
func (c Change) checkReversible() error {
	values, listed := oneWay[c.Target]
	if !listed || c.Kind != Sysctl || SameValue(c.Before, c.After) {
		return nil
	}
	if values != nil && !slices.ContainsFunc(values, func(v string) bool { return SameValue(v, c.After) }) {
		return nil
	}
	return fmt.Errorf("sysctl %s = %s: the kernel does not let it be set back before the next boot, and natkit changes only what it can undo; use sysctl(8)", c.Target, c.After)
}

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
