package simulate

import (
	"embed"
	"fmt"
	"strings"
	"sync"

	"github.com/natkit/natkit/internal/suggest"
)

//go:embed presets/*.yaml
var presetFiles embed.FS

// DefaultPreset is what is simulated where nothing else is named.
const DefaultPreset = "default"

// Preset is a configuration that natkit brings along.
type Preset struct {
	Config
	// Text is its YAML, with comments.
	Text string
}

// presetOrder is that of the case: what happened, what was tried, what helps.
var presetOrder = []string{DefaultPreset, "old-kernel", "day", "doubled", "mixed", "new-kernel", "modern-kernel",
	"addresses", "max-tw-buckets", "no-timestamps", "lab"}

// Presets are all, in the order in which a person would look at them.
var Presets = sync.OnceValue(func() []*Preset {
	all := make([]*Preset, len(presetOrder))
	for i, name := range presetOrder {
		text, err := presetFiles.ReadFile("presets/" + name + ".yaml")
		if err != nil {
			panic(err) // the files are part of the program
		}
		c, err := Parse(name+".yaml", text)
		if err != nil {
			panic(err) // a test reads them all
		}
		all[i] = &Preset{*c, string(text)}
	}
	return all
})

// FindPreset is the one of that name.
func FindPreset(name string) (*Preset, error) {
	for _, p := range Presets() {
		if p.Name == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("unknown preset %q%s; there are: %s", name, suggest.Hint(name, presetOrder), strings.Join(presetOrder, ", "))
}
