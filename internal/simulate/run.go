package simulate

import (
	"context"
	"errors"
)

// Run simulates c until the last connection is over. progress, which may be nil, is
// called about a hundred times. The error is ctx's, or a fault of c (Check).
func Run(ctx context.Context, c Config, progress func(Progress)) (*Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return nil, errors.ErrUnsupported
}
