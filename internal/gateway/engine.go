package gateway

import (
	"errors"

	"go.yaml.in/yaml/v4"

	"github.com/natkit/natkit/internal/document"
)

// Engine is what carries a plan out.
type Engine string

const (
	// EngineNetfilter is the kernel's own NAT, by nftables.
	EngineNetfilter Engine = "netfilter"
	// EngineEBPF are eBPF programs of natkit's own, at the interfaces.
	EngineEBPF Engine = "ebpf"
)

// Engines are those that this version has.
var Engines = []Engine{EngineNetfilter}

// UnmarshalYAML reads it and keeps the place for an error.
func (e *Engine) UnmarshalYAML(n *yaml.Node) error {
	return document.Scalar(n, "an engine: netfilter", func(text string) error {
		*e = Engine(text)
		if *e != EngineNetfilter && *e != EngineEBPF {
			return errors.New("no engine")
		}
		return nil
	})
}
