package look

import (
	"context"
	"time"

	"github.com/natkit/natkit/internal/gateway/status"
)

// share is the part of a CPU that a watch takes at most, about; least is how much of
// the table it reads even where that is more.
const (
	share = 0.05
	least = 4096
)

// Budget keeps looks that come again and again cheap: they read as much of the
// connection table as its share of a CPU allows.
type Budget struct {
	Interval time.Duration
	// Most entries are read, however cheap.
	Most int64
	next int64
}

// Look looks; all reads the whole table in any case.
func (b *Budget) Look(ctx context.Context, l *Looker, all bool) (*status.Gateway, error) {
	if b.next == 0 {
		b.next = b.Most
	}
	l.Entries(b.next)
	if all {
		l.Entries(0)
	}
	began := time.Now()
	s, err := l.Look(ctx)
	if err == nil {
		b.spent(time.Since(began), s.Flows.Sampled)
	}
	return s, err
}

// spent makes the next look fit, by what the last one took.
func (b *Budget) spent(took time.Duration, read int64) {
	if read < least {
		return
	}
	allowed := share * float64(b.Interval)
	b.next = min(b.Most, max(least, int64(float64(read)*allowed/float64(max(took, 1)))))
}
