package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

const modulePath = "github.com/natkit/natkit"

// leftOut are packages that the default list leaves out, and why. They run where
// RUN= names them.
var leftOut = map[string]string{
	"internal":                     "looks at the source tree, with the Go tool",
	"tools/bench":                  ratesReason,
	"tools/benchcmp":               ratesReason,
	"internal/capacity":            pureReason,
	"internal/simulate":            pureReason,
	"internal/document":            pureReason,
	"internal/diagnose":            pureReason,
	"internal/lab":                 pureReason,
	"internal/load":                pureReason,
	"internal/load/packets":        pureReason,
	"internal/frame":               pureReason,
	"internal/pcap/pair":           pureReason,
	"internal/ports":               pureReason,
	"internal/profile":             pureReason,
	"internal/report":              pureReason,
	"internal/snapshot":            pureReason,
	"internal/tune":                pureReason,
	"internal/units":               pureReason,
	"internal/web":                 pureReason,
	"internal/conntrack":           pureReason,
	"internal/conntrack/aggregate": pureReason,
	"internal/gateway":             pureReason,
	"internal/gateway/engine":      pureReason,
	"internal/gateway/convert":     pureReason,
	"internal/gateway/observe":     pureReason,
	"tools/testsum":                "runs the Go tool",
	"tools/vm":                     "runs on the host",
	"tools/vm/init":                pureReason,
}

const ratesReason = "compares rates, which an emulated processor distorts"

const pureReason = "computes only: no kernel can change its results"

const wineReason = "runs the Go tool, and natkit without a kernel of Linux"

// leftOutTests are single tests that the default list leaves out, and why.
var leftOutTests = map[string]map[string]string{
	"cmd/natkit": {"TestWindows": wineReason},
	"internal/cli": {
		"TestCommandsDocIsCurrent":  "compares two texts of the source tree",
		"TestSimulateDocIsCurrent":  pureReason,
		"TestSimulateDocConfig":     pureReason,
		"TestSimulationPredictsLab": ratesReason,
	},
}

// chosen is a package to test.
type chosen struct {
	pkg  goPackage
	skip []string // names of tests
}

// choose applies the lists to the packages that have tests. Those that were named
// are all run.
func choose(all []goPackage, named bool) []chosen {
	var list []chosen
	for _, p := range all {
		if !named && leftOut[p.short()] != "" {
			continue
		}
		c := chosen{pkg: p}
		if !named {
			c.skip = slices.Sorted(maps.Keys(leftOutTests[p.short()]))
		}
		list = append(list, c)
	}
	return list
}

// halfOf returns every second package from the first (1) or second (2) one on, or all (0).
func halfOf(list []chosen, half int) (part []chosen) {
	for i, c := range list {
		if half == 0 || i%2 == half-1 {
			part = append(part, c)
		}
	}
	return part
}

// tellLeftOut prints what the default list leaves out.
func tellLeftOut(w io.Writer) {
	reasons := map[string][]string{}
	for pkg, reason := range leftOut {
		reasons[reason] = append(reasons[reason], strings.TrimPrefix(pkg, "internal/"))
	}
	for pkg, tests := range leftOutTests {
		for test, reason := range tests {
			reasons[reason] = append(reasons[reason], strings.TrimPrefix(pkg, "internal/")+"."+test)
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		slices.Sort(reasons[reason])
		fmt.Fprintf(w, "left out, %s: %s\n", reason, strings.Join(reasons[reason], " "))
	}
}

// skipPattern is the value of -test.skip for names, with or without subtests.
func skipPattern(names []string) string {
	return "^(" + strings.Join(names, "|") + ")$"
}
