package lab

import (
	"embed"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/natkit/natkit/internal/suggest"
)

// DefaultMix is established connections that the kernel does not evict.
const DefaultMix = "established"

//go:embed mixes/*.yaml
var mixFiles embed.FS

// ParseMix reads one mix, refuses what it does not know, and checks that it makes
// sense. Its errors are *SyntaxError and begin with file, line and column.
func ParseMix(filename string, source []byte) (*Mix, error) {
	return parse(filename, "mix", source, (*Mix).check)
}

// Mixes are those that natkit brings along, in order of their names.
var Mixes = sync.OnceValue(func() []*Mix {
	entries, err := mixFiles.ReadDir("mixes")
	if err != nil {
		panic(err) // the files are part of the program
	}
	var all []*Mix
	for _, e := range entries {
		m, err := ParseMix(e.Name(), mixText(strings.TrimSuffix(e.Name(), ".yaml")))
		if err != nil {
			panic(err) // a test parses them all
		}
		all = append(all, m)
	}
	return all
})

func mixText(name string) []byte {
	text, err := mixFiles.ReadFile("mixes/" + name + ".yaml")
	if err != nil {
		panic(err)
	}
	return text
}

// FindMix is the mix of that name among those that natkit brings along.
func FindMix(name string) (*Mix, error) {
	all := Mixes()
	i := slices.IndexFunc(all, func(m *Mix) bool { return m.Name == name })
	if i >= 0 {
		return all[i], nil
	}
	names := make([]string, len(all))
	for i, m := range all {
		names[i] = m.Name
	}
	return nil, fmt.Errorf("unknown mix %q%s; there are: %s", name, suggest.Hint(name, names), strings.Join(names, ", "))
}

// Source is the text that the mix natkit brings along is written in, comments
// included.
func (m *Mix) Source() []byte { return mixText(m.Name) }
