package cli

import "strings"

// conntrackCommand are the commands of conntrack(8) and natkit's words for them.
var conntrackCommand = map[string]string{
	"-L": "list", "--dump": "list", "-C": "count", "--count": "count", "-E": "events", "--event": "events",
	"-D": "delete", "--delete": "delete", "-F": "delete --all", "--flush": "delete --all",
}

// conntrackHint says which verb does what a command of conntrack(8) does; "" for others.
func conntrackHint(flag string) string {
	if flag == "-S" || flag == "--stats" {
		return ": 'natkit top' shows the counters of 'conntrack -S', 'natkit snapshot --json' has them for each CPU"
	}
	if words := conntrackCommand[flag]; words != "" {
		return ": 'natkit conntrack " + words + "' does what 'conntrack " + flag + "' does"
	}
	return ""
}

// conntrackHabits turns "conntrack -L …" into "conntrack list …". The name of the table
// behind it is left out.
func conntrackHabits(args []string) []string {
	if len(args) < 2 || args[0] != "conntrack" || !strings.HasPrefix(args[1], "-") {
		return args
	}
	for i, arg := range args {
		words, ok := conntrackCommand[arg]
		if !ok {
			continue
		}
		rest := args[i+1:]
		if len(rest) > 0 && rest[0] == "conntrack" {
			rest = rest[1:]
		}
		turned := append([]string{"conntrack"}, strings.Fields(words)...)
		return append(append(turned, args[1:i]...), rest...)
	}
	return args
}
