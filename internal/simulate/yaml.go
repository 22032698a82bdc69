package simulate

import "go.yaml.in/yaml/v4"

// YAML is the configuration as text that Parse reads; what has its default's zero
// value is left out, and so are points that come from a CSV file.
func YAML(c *Config) (string, error) {
	if a := c.Arrivals; a != nil && a.CSV != "" && len(a.Points) > 0 {
		fromFile := *a
		fromFile.Points = nil
		written := *c
		written.Arrivals = &fromFile
		c = &written
	}
	text, err := yaml.Dump(c, yaml.WithIndent(2))
	return string(text), err
}
