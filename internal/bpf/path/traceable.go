package path

import (
	"bufio"
	"io"
	"os"
	"strings"
)

// traceableFiles are where tracefs is mounted, if it is: natkit mounts nothing.
var traceableFiles = []string{
	"/sys/kernel/tracing/available_filter_functions",
	"/sys/kernel/debug/tracing/available_filter_functions",
}

// readTraceable reads the first of files that can be; it is empty where none can.
func readTraceable(files []string) map[string]bool {
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		names, err := parseTraceable(f)
		f.Close()
		if err == nil {
			return names
		}
	}
	return map[string]bool{}
}

// parseTraceable reads lines of a name and, for a function of a module, the module
// in brackets.
func parseTraceable(r io.Reader) (map[string]bool, error) {
	names := map[string]bool{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if name, _, _ := strings.Cut(lines.Text(), " "); name != "" {
			names[name] = true
		}
	}
	return names, lines.Err()
}

// offered leaves out what the kernel does not offer to be traced, and counts it as
// refused. Where it says nothing all is kept.
func (a *attachment) offered(list []target) []target {
	if len(a.traceable) == 0 {
		return list
	}
	var some []target
	for _, t := range list {
		if a.traceable[t.Name] {
			some = append(some, t)
		} else {
			a.skipped = append(a.skipped, t)
		}
	}
	return some
}
