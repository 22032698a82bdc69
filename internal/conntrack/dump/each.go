package dump

import (
	"context"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/match"
	"github.com/natkit/natkit/internal/netns"
)

// Each calls fn with every entry of a namespace (nil: this one) that the filter
// (nil: all) chooses, in the order of the table's hash buckets, on the calling
// goroutine while the next ones are received on another. fn must not keep the
// entry, which is filled anew each time. An error of fn ends it and is returned,
// except ErrStop. Needs CAP_NET_ADMIN.
func Each(ctx context.Context, ns *netns.Handle, f *match.Filter, fn func(*conntrack.Entry) error) (Result, error) {
	var e conntrack.Entry
	return Dump(ctx, ns, func(msgs []byte) error {
		return conntrack.Each(msgs, &e, func(e *conntrack.Entry) error {
			if !f.Match(e) {
				return nil
			}
			return fn(e)
		})
	})
}
