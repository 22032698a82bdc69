// Package tune describes changes to a host and their undoing as plain data. It
// touches nothing: internal/tune/apply does, and internal/tune/journal remembers.
package tune

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

// Kind is the kind of target of a Change.
type Kind string

// Sysctl changes one value under /proc/sys; Target is its dotted name.
const Sysctl Kind = "sysctl"

// NATRule changes the ports and the options of a NAT rule in place; Target is a
// snapshot.NATRule's, the value such as "1024-65535 fully-random".
const NATRule Kind = "nat-rule"

// Change is one value to be changed. It can be undone as long as the value is
// still After.
type Change struct {
	Kind   Kind   `json:"kind"`
	Target string `json:"target"`
	Before string `json:"before"`
	After  string `json:"after"`
	// Why, Cost and Risk are one sentence each, for the person who decides.
	Why  string `json:"why,omitempty"`
	Cost string `json:"cost,omitempty"`
	Risk string `json:"risk,omitempty"`
}

// Plan is an ordered list of changes that are applied, confirmed and undone
// together. Undo goes backwards.
type Plan struct {
	// Origin is what requested it: "doctor", "tune", "lab table-full".
	Origin  string   `json:"origin"`
	Changes []Change `json:"changes"`
}

// Netns is the network namespace (inode) that Target itself names; 0 where it names none.
func (c Change) Netns() uint64 {
	switch c.Kind {
	case NATRule:
		t, _ := nat.ParseRuleID(c.Target)
		return t.Netns
	case Gateway:
		inode, _, _ := ParseGatewayTarget(c.Target)
		return inode
	}
	return 0
}

// Shown is a value as people read it: the digests of gateways are cut short.
func (c Change) Shown(value string) string {
	const short = 12
	digest, rest, _ := strings.Cut(value, " ")
	if (c.Kind != Gateway && c.Kind != GatewayFile) || !IsDigest(digest) {
		return value
	}
	return strings.TrimSpace(digest[:short] + " " + rest)
}

// Validate returns an error if the plan cannot be applied: nothing to do, a
// malformed change, or two changes of the same thing.
func (p Plan) Validate() error {
	if strings.TrimSpace(p.Origin) == "" {
		return errors.New("plan: origin is missing")
	}
	if len(p.Changes) == 0 {
		return errors.New("plan: nothing to change")
	}
	seen := map[string]bool{}
	for _, c := range p.Changes {
		if err := c.Validate(); err != nil {
			return err
		}
		if err := c.checkReversible(); err != nil {
			return err
		}
		if seen[c.Key()] {
			return fmt.Errorf("plan: %s %s is changed twice", c.Kind, c.Target)
		}
		seen[c.Key()] = true
	}
	return nil
}

// Key identifies the thing that is changed: two changes of one key conflict.
func (c Change) Key() string {
	target := c.Target
	switch {
	case target == "net.nf_conntrack_max":
		target = snapshot.ConntrackMax // the same value under its old name (nf_ct_netfilter_table)
	case c.Kind == Gateway:
		if inode, engine, err := ParseGatewayTarget(target); err == nil { // may be of an earlier version
			target = GatewayTarget(inode, engine)
		}
	}
	return string(c.Kind) + " " + target
}

// Validate checks the form of one change. Kinds that this package does not know
// are checked by their applier only.
func (c Change) Validate() error {
	if c.Kind == "" || c.Target == "" {
		return fmt.Errorf("change %q %q: kind and target are needed", c.Kind, c.Target)
	}
	switch c.Kind {
	case Sysctl, SysctlConf:
		return c.validateSysctl()
	case ModulesLoad, ModuleOption:
		return c.validateModule()
	case NATRule:
		return c.validateNATRule()
	case Gateway:
		return c.validateGateway()
	case GatewayFile:
		return c.validateGatewayFile()
	case Routing:
		return c.validateRouting()
	}
	return nil
}

// validateSysctl lets values be empty: absent from a file, or a list without
// members (net.ipv4.ip_local_reserved_ports).
func (c Change) validateSysctl() error {
	name, err := SysctlName(c.Target)
	if err != nil {
		return err
	}
	if name != c.Target {
		return fmt.Errorf("sysctl name %q: expected the dotted form %s", c.Target, name)
	}
	if startsPrograms(name) {
		return fmt.Errorf("sysctl %s: the kernel starts programs as root by it, which natkit has no part in; set it with sysctl(8)", name)
	}
	lines := c.After
	if c.Kind == SysctlConf { // of which an undo writes a line with what was before
		lines += c.Before
	}
	if strings.ContainsAny(lines, "\n\r\v\f") {
		return fmt.Errorf("%s %s: a value of %q and %q has more than one line", c.Kind, c.Target, c.Before, c.After)
	}
	for _, v := range []string{c.Before, c.After} {
		if v = NormalValue(v); v == "" {
			continue
		}
		if err := checkValue(v); err != nil {
			return fmt.Errorf("%s %s: %w", c.Kind, c.Target, err)
		}
	}
	return nil
}

func (c Change) validateModule() error {
	for _, s := range []string{c.Target, c.Before, c.After} {
		if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '#' || r == '\\' }) {
			return fmt.Errorf("%s %q: %q is not one word", c.Kind, c.Target, s)
		}
	}
	module, option, ok := strings.Cut(c.Target, ".")
	if c.Kind == ModuleOption && (!ok || option == "" || strings.Contains(option, "=")) {
		return fmt.Errorf("%s %q: expected MODULE.OPTION", c.Kind, c.Target)
	}
	if module != conntrackModule {
		return fmt.Errorf("%s %q: not of %s, the only module that natkit has loaded or gives options", c.Kind, c.Target, conntrackModule)
	}
	return nil
}

// Undo is the plan that takes p back: backwards, before and after exchanged.
func Undo(p Plan) Plan {
	back := Plan{Origin: p.Origin}
	for _, c := range slices.Backward(p.Changes) {
		c.Before, c.After = c.After, c.Before
		c.Why, c.Cost, c.Risk = "", "", ""
		back.Changes = append(back.Changes, c)
	}
	return back
}
