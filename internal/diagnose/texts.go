package diagnose

import (
	_ "embed"
	"fmt"
	"strings"
	"sync"

	"go.yaml.in/yaml/v4"
)

//go:embed texts.yaml
var textsYAML []byte

// texts are doctor's texts, by name.
var texts = sync.OnceValue(func() (t struct {
	Findings map[string]Finding
	Remedies map[string]Remedy
	Drops    map[string]dropReason
}) {
	if err := yaml.Load(textsYAML, &t, yaml.WithKnownFields()); err != nil {
		panic(err) // the file is part of the program
	}
	return t
})

// worded returns the finding of that name in texts.yaml.
func worded(name string, evidence []Evidence, remedies []Remedy, args ...any) *Finding {
	f := texts().Findings[name]
	fill(args, &f.Title, &f.Cause, &f.Consequence)
	f.Evidence, f.Remedies = evidence, remedies
	return &f
}

// advice returns the remedy of that name in texts.yaml.
func advice(name string, args ...any) Remedy {
	r := texts().Remedies[name]
	fill(args, &r.Title, &r.Predicts, &r.Cost, &r.Risk)
	return r
}

// fill puts arguments into texts that name any.
func fill(args []any, texts ...*string) {
	for _, text := range texts {
		if strings.Contains(*text, "%[") {
			*text = fmt.Sprintf(*text, args...)
		}
	}
}
