package gateway

import "context"

// UnlessEnded returns what fn returns, or an error as soon as ctx ends: a large file takes
// seconds. fn changes nothing, so that it can be left running.
func UnlessEnded[T any](ctx context.Context, fn func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	if ctx.Err() != nil {
		return none, ctx.Err()
	}
	done := make(chan result, 1)
	go func() {
		value, err := fn()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}
