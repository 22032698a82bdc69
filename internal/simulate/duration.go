package simulate

import (
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/natkit/natkit/internal/document"
)

// Duration is a time.Duration written as 1500ms, 2s, 1h30m.
type Duration struct{ time.Duration }

// UnmarshalYAML reads it and keeps the place for an error.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	return document.Scalar(n, "a duration such as 500ms, 2s or 1h30m", func(text string) (err error) {
		d.Duration, err = time.ParseDuration(text)
		return err
	})
}

// MarshalText is the written form.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what MarshalText writes, in JSON.
func (d *Duration) UnmarshalText(text []byte) (err error) {
	d.Duration, err = time.ParseDuration(string(text))
	return err
}
