package lab

import (
	"embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/natkit/natkit/internal/suggest"
)

//go:embed scenarios/*.yaml
var files embed.FS

// Scenarios are those that natkit brings along, in order of their names.
var Scenarios = sync.OnceValue(func() []*Scenario {
	entries, err := files.ReadDir("scenarios")
	if err != nil {
		panic(err) // the files are part of the program
	}
	var all []*Scenario
	for _, e := range entries {
		text, err := files.ReadFile("scenarios/" + e.Name())
		if err != nil {
			panic(err)
		}
		s, err := Parse(e.Name(), text)
		if err != nil {
			panic(err) // a test parses them all
		}
		all = append(all, s)
	}
	return all
})

// Find is the scenario of that name among those that natkit brings along.
func Find(name string) (*Scenario, error) {
	var names []string
	for _, s := range Scenarios() {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return nil, fmt.Errorf("unknown scenario %q%s; there are: %s; a file of your own needs a path such as ./%s.yaml",
		name, suggest.Hint(name, names), strings.Join(names, ", "), name)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
