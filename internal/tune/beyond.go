package tune

import (
	"fmt"
	"slices"
	"strings"
)

// sideEffects says what the kernel does along with setting a sysctl; empty where nothing
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

// forwardingAlso is what comes with forwarding: more of it, and what only turning it on does.
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
