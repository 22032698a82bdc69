package cli

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/simulate"
)

// config is what the file, the preset and the flags say. text is the YAML that says
// just that, where no flag changes it.
func (s *simulator) config(cmd *cobra.Command, args []string) (c *simulate.Config, text string, err error) {
	switch {
	case len(args) > 0:
		c, text, err = readSimulation(args[0])
	case s.preset != "":
		c, text, err = presetOf(s.preset)
	default:
		c, text, err = presetOf(simulate.DefaultPreset)
	}
	if err != nil {
		return nil, "", err
	}
	changed, err := s.knobs.apply(cmd, c)
	if err != nil || !changed {
		return c, text, err
	}
	if err := c.Check(); err != nil {
		return nil, "", usagef("with these flags: %w", err)
	}
	return c, "", nil
}

func presetOf(name string) (*simulate.Config, string, error) {
	p, err := simulate.FindPreset(name)
	if err != nil {
		return nil, "", usageError{err}
	}
	// A copy of its own: flags change it.
	c, err := simulate.Parse(name+".yaml", []byte(p.Text))
	return c, p.Text, err
}

// readSimulation reads a configuration; a CSV file that it names is looked for
// beside it.
func readSimulation(path string) (*simulate.Config, string, error) {
	text, err := readFile("simulation", path, simulate.MaxSource)
	if err != nil {
		return nil, "", err
	}
	c, err := simulate.Parse(path, text)
	if err != nil || c.Arrivals == nil || c.Arrivals.CSV == "" {
		return c, string(text), malformed(err)
	}
	if len(c.Arrivals.Points) > 0 {
		return nil, "", usagef("%s: expected arrivals by points or by csv, found both", path)
	}
	name := c.Arrivals.CSV
	if !filepath.IsAbs(name) {
		name = filepath.Join(filepath.Dir(path), name)
	}
	if c.Arrivals.Points, err = readArrivals(name); err != nil {
		return nil, "", err
	}
	if err := c.Check(); err != nil {
		return nil, "", malformed(fmt.Errorf("%s with the rates of %s: %w", path, name, err))
	}
	return c, string(text), nil
}

// maxArrivals bounds the CSV file with rates, in bytes.
const maxArrivals = 16 << 20

func readArrivals(path string) ([]simulate.RatePoint, error) {
	text, err := readFile("arrivals", path, maxArrivals)
	if err != nil {
		return nil, err
	}
	if len(text) > maxArrivals {
		return nil, malformed(fmt.Errorf("read arrivals: %s has more than %d bytes", path, maxArrivals))
	}
	points, err := simulate.ParseCSV(path, text)
	if err != nil {
		return nil, malformed(fmt.Errorf("read arrivals: %w", err))
	}
	return points, nil
}
