package simulate

import (
	"context"
	"fmt"
)

// Run simulates c until the last connection is over. progress, which may be nil, is
// called about a hundred times; while batches run their end is not known, and Total
// is 0. The error is ctx's, or a fault of c (Check).
func Run(ctx context.Context, c Config, progress func(Progress)) (*Result, error) {
	if err := c.Check(); err != nil {
		return nil, fmt.Errorf("simulate: %w", err)
	}
	if a := c.Arrivals; a != nil && a.CSV != "" && len(a.Points) == 0 {
		return nil, fmt.Errorf("simulate: the arrivals of %s were not read", a.CSV)
	}
	filled := c.filled()
	e := newEngine(&filled)
	e.progress = progress
	if err := e.run(ctx); err != nil {
		return nil, err
	}
	return e.result(), nil
}
