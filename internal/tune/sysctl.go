package tune

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// maxSysctlValue is the most that the kernel takes in one write for the string
// sysctls that NAT needs; a longer one is a mistake (proc_sys_call_handler
// refuses more than KMALLOC_MAX_SIZE).
const maxSysctlValue = 4096

// SysctlName gives the canonical form of a sysctl's name as sysctl(8) takes it:
// the first separator decides. "net.ipv4.conf.eth0/100.rp_filter" and
// "net/ipv4/conf/eth0.100/rp_filter" both are the former, where '/' stands for a
// dot inside a part.
func SysctlName(s string) (string, error) {
	name := s
	if i := strings.IndexAny(s, "./"); i >= 0 && s[i] == '/' {
		name = swapSeparators(s)
	}
	if _, err := SysctlPath(name); err != nil {
		return "", err
	}
	return name, nil
}

// SysctlPath is where a canonical name lies under /proc/sys. The path is
// relative, has at least two parts and never leaves that folder.
func SysctlPath(name string) (string, error) {
	path := swapSeparators(name)
	parts := strings.Split(path, "/")
	if len(parts) < 2 {
		return "", fmt.Errorf("sysctl name %q: too short; expected a dotted name such as net.netfilter.nf_conntrack_max", name)
	}
	if name[0] == '-' { // in sysctl.d(5) it is no part of the name
		return "", fmt.Errorf("sysctl name %q: begins with a hyphen", name)
	}
	for _, part := range parts {
		if part == "" || part == "." || part == ".." {
			return "", fmt.Errorf("sysctl name %q: has an empty or relative part", name)
		}
		if i := strings.IndexFunc(part, notInSysctlName); i >= 0 {
			return "", fmt.Errorf("sysctl name %q: character %q is not allowed", name, part[i])
		}
	}
	return path, nil
}

// startsPrograms reports whether the kernel starts a program as root by what stands in a
// sysctl: whoever could forge a journal would be root of the host by an undo.
func startsPrograms(name string) bool {
	switch name {
	case "kernel.core_pattern", "kernel.modprobe", "kernel.hotplug", "kernel.poweroff_cmd":
		return true
	}
	return strings.HasPrefix(name, "fs.binfmt_misc.")
}

func swapSeparators(s string) string {
	return strings.Map(func(r rune) rune {
		switch r {
		case '.':
			return '/'
		case '/':
			return '.'
		}
		return r
	}, s)
}

// notInSysctlName allows what the kernel's own names and the usual interface
// names (eth0.100, veth-a, br@0, wg+1) are made of.
func notInSysctlName(r rune) bool {
	switch {
	case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
		return false
	}
	return !strings.ContainsRune("_-.:@+", r)
}

// ParseAssignment reads "net.netfilter.nf_conntrack_max=524288" into the
// canonical name and the normalised value.
func ParseAssignment(s string) (name, value string, err error) {
	name, value, ok := strings.Cut(s, "=")
	if !ok {
		return "", "", fmt.Errorf("setting %q: expected NAME=VALUE, for instance net.netfilter.nf_conntrack_max=524288", s)
	}
	if name, err = SysctlName(strings.TrimSpace(name)); err != nil {
		return "", "", err
	}
	if strings.ContainsAny(value, "\n\r\v\f") {
		return "", "", fmt.Errorf("setting %s: value %q has more than one line; a sysctl takes one", name, value)
	}
	value = NormalValue(value)
	if err := checkValue(value); err != nil {
		return "", "", fmt.Errorf("setting %s: %w", name, err)
	}
	return name, value, nil
}

func checkValue(v string) error {
	switch {
	case v == "":
		return errors.New("value is empty")
	case len(v) > maxSysctlValue:
		return fmt.Errorf("value has %d bytes, at most %d are allowed", len(v), maxSysctlValue)
	case strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return errors.New("value contains a control character")
	}
	return nil
}

// NormalValue joins a value's fields with single blanks; the kernel prints lists
// with tabs and ends every value with a newline.
func NormalValue(v string) string { return strings.Join(strings.Fields(v), " ") }

// SameValue compares two values as the kernel would read them: white space does
// not count, and numbers may be decimal, octal (017) or hexadecimal (0x1f), as
// proc_get_long takes them.
func SameValue(a, b string) bool {
	x, y := strings.Fields(a), strings.Fields(b)
	if len(x) != len(y) {
		return false
	}
	for i := range x {
		if x[i] != y[i] && !sameNumber(x[i], y[i]) {
			return false
		}
	}
	return true
}

func sameNumber(a, b string) bool {
	if x, err := strconv.ParseInt(a, 0, 64); err == nil {
		y, err := strconv.ParseInt(b, 0, 64)
		return err == nil && x == y
	}
	x, err := strconv.ParseUint(a, 0, 64)
	if err != nil {
		return false
	}
	y, err := strconv.ParseUint(b, 0, 64)
	return err == nil && x == y
}
