package lab

import (
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
)

// HostSysctls are the values of the whole host that a stage may change (Stage.Host):
// they hold for every network namespace, so that a fault that they make cannot be
// had otherwise.
var HostSysctls = []string{snapshot.ConntrackMax, snapshot.ConntrackBuckets}

// Bounds of a value of the whole host: a table of connections costs 8 bytes for
// each bucket, and every bucket is visited when their number changes.
const (
	leastHostValue = 512
	mostHostValue  = MaxFill
)

// NeedsHost reports whether a stage changes values of the whole host.
func (s *Scenario) NeedsHost() bool {
	return slices.ContainsFunc(s.Stages, func(st Stage) bool { return len(st.Host) > 0 })
}

// settings checks what a stage sets in nodes and on the host.
func (c *checker) settings(path []any, st Stage) {
	for _, node := range sortedKeys(st.Sysctls) {
		where := append(path[:len(path):len(path)], "sysctls", node)
		c.node(where, node)
		for _, name := range sortedKeys(st.Sysctls[node]) {
			c.sysctl(append(where, name), name)
		}
	}
	for _, name := range sortedKeys(st.Host) {
		where := append(path[:len(path):len(path)], "host", name)
		if !slices.Contains(HostSysctls, name) {
			c.fail(where, "value %q: expected one of: %s", name, strings.Join(HostSysctls, ", "))
		}
		if n, err := strconv.ParseInt(st.Host[name], 10, 64); err != nil || n < leastHostValue || n > mostHostValue {
			c.fail(where, "%s %q: expected a number from %d to %d", name, st.Host[name], leastHostValue, mostHostValue)
		}
	}
}
