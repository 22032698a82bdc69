package plan

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/units"
)

// Format is a kind of file that a plan is written as.
type Format string

// The formats.
const (
	SysctlFile   Format = "sysctl"
	ModprobeFile Format = "modprobe"
	SystemdFile  Format = "systemd"
	GatewayFile  Format = "gateway"
)

// Formats are all of them.
var Formats = []Format{SysctlFile, ModprobeFile, SystemdFile, GatewayFile}

// Network is what a gateway's file has besides its load.
type Network struct {
	WAN, LAN string
	// SNAT are the addresses that are given; none is the interface's own.
	SNAT gateway.Ranges
}

// File is one that is ready to use.
type File struct {
	// Path is below the root folder.
	Path string
	Text string
}

// head begins every file.
func (p *Plan) head(more ...string) string {
	source := strings.Join(strings.Fields(p.Source), " ") // a file's name may have more than one line
	lines := append([]string{"Written by natkit plan: " + p.Load.String() + ", for " + source + "."}, more...)
	return "# " + strings.Join(lines, "\n# ") + "\n"
}

func (l Load) String() string {
	var parts []string
	if l.Observed {
		parts = append(parts, "the observed load")
		if l.Growth != 1 {
			parts[0] += " × " + strconv.FormatFloat(l.Growth, 'g', -1, 64)
		}
	}
	parts = append(parts, units.Plural(l.Open, "open connection", "open connections"))
	if l.PerSecond > 0 {
		parts = append(parts, units.Rate(l.PerSecond)+" new per second")
	}
	return strings.Join(parts, ", ")
}

// changes are what the sysctl file sets: values that this machine does not have, or that kernels do not give themselves
// where its own are not known.
func (p *Plan) changes() (all []tune.Change) {
	for _, l := range p.Limits {
		c := tune.Change{Kind: tune.Sysctl, Target: l.Name, Before: l.Now, After: l.Set}
		at := slices.IndexFunc(all, func(o tune.Change) bool { return o.Target == c.Target })
		switch {
		case l.Set == "" || !slices.Contains(p.Roles, l.Role):
		case at < 0:
			all = append(all, c)
		case first(c.After) > first(all[at].After): // two roles on one machine
			all[at] = c
		}
	}
	return all
}

func first(value string) (n int64) {
	_, _ = fmt.Sscan(value, &n)
	return n
}

// lines are those of a kind of file that make the changes hold after a boot.
func (p *Plan) lines(kind tune.Kind) (text string) {
	for _, c := range tune.Persistent(p.changes()) {
		if c.Kind == kind {
			text += tune.ConfLine(kind, c.Target, c.After) + "\n"
		}
	}
	return text
}

// Text is the file of a format.
func (p *Plan) Text(f Format, n Network) string {
	switch f {
	case SysctlFile:
		var more []string
		if slices.ContainsFunc(p.changes(), func(c tune.Change) bool { return c.Before == "" }) {
			more = append(more, "The machine's own values were not read: this replaces greater ones as well.")
		}
		if text := p.lines(tune.SysctlConf); text != "" {
			return p.head(more...) + text
		}
		return p.head("No value has to be raised.")
	case ModprobeFile:
		if !slices.ContainsFunc(p.Limits, func(l Limit) bool { return l.Name == snapshot.ConntrackBuckets && l.Set != "" }) {
			return p.head("No bucket has to be added.")
		}
		return p.head("It makes nf_conntrack_max 8 times as much at boot: the sysctl file is needed as well.") +
			"options nf_conntrack hashsize=" + strconv.FormatInt(p.Table.Buckets, 10) + "\n"
	case SystemdFile:
		return p.head("In /etc/systemd/system/UNIT.service.d/.") + "[Service]\nLimitNOFILE=" + openFiles(capacity.Files(p.Load.Open)) + "\n"
	}
	return p.gateway(n)
}

// usualHardLimit is systemd's own hard limit of open files (systemd.exec(5), DefaultLimitNOFILE= is 1024:524288).
const usualHardLimit = 524_288

// openFiles is a LimitNOFILE of that many files at least: a program that raises its own limit up to the hard one, as it
// may need two files for a connection, keeps what it has without the file.
func openFiles(n int64) string {
	if n < usualHardLimit {
		return fmt.Sprintf("%d:%d", n, usualHardLimit)
	}
	return strconv.FormatInt(n, 10)
}

// gateway is a file for 'natkit gateway apply', whose expect gives the same table.
func (p *Plan) gateway(n Network) string {
	c := gateway.Config{
		Expect:     gateway.Expect{Flows: gateway.Count(p.Load.Open), Rate: gateway.PerTime(p.Load.wholeRate())},
		Interfaces: gateway.Interfaces{WAN: gateway.WANs{{Interface: n.WAN}}, LAN: gateway.LANs{{Interface: n.LAN}}},
	}
	ports := gateway.Choice{Random: "fully"}
	var more []string
	if len(n.SNAT) > 0 {
		c.NAT = []gateway.Rule{{SNAT: &gateway.SNAT{To: n.SNAT, Choice: ports}}}
	} else {
		c.NAT = []gateway.Rule{{Masquerade: &gateway.Masquerade{Choice: ports}}}
	}
	have := p.Ports.Addresses
	if len(n.SNAT) == 0 {
		have = 1 // the interface's
	}
	if need := p.Ports.AddressesNeeded; have < need {
		more = append(more, fmt.Sprintf("Ports toward one destination take %s, this file has %s; --snat names more.", units.Plural(need, "address", "addresses"), units.Count(have)))
	}
	return p.head(more...) + string(gateway.Marshal(&c))
}

// wholeRate is the rate, rounded up.
func (l Load) wholeRate() int64 {
	return capacity.Steady([]capacity.Class{{PerSecond: l.PerSecond, LifetimeSeconds: 1}}, 0)
}

// Files are all of the roles, below the root folder; that of systemd where a unit is named.
func (p *Plan) Files(n Network, unit string) (files []File) {
	add := func(name string, f Format) { files = append(files, File{name, p.Text(f, n)}) }
	add("etc/sysctl.d/80-natkit-plan.conf", SysctlFile)
	if slices.Contains(p.Roles, Gateway) {
		add("etc/modprobe.d/natkit-plan.conf", ModprobeFile)
		files = append(files, File{"etc/modules-load.d/natkit-plan.conf", p.head("Before sysctl.d is read, which has net.netfilter.*.") + "nf_conntrack\n"})
		add("etc/natkit/gateway-plan.yaml", GatewayFile)
	}
	if unit != "" {
		add(path.Join("etc/systemd/system", unit+".d", "natkit-plan.conf"), SystemdFile)
	}
	return files
}
