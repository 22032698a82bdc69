package tally

// Budget is memory that several tables share.
type Budget struct {
	limit, used int64
	// owed is what tables have not taken yet of what is kept for each.
	owed int64
}

// NewBudget is so many bytes. A table of a few keys is always possible, also where
// they are more than the budget.
func NewBudget(bytes int64) *Budget { return &Budget{limit: bytes} }

// Used is how many bytes the tables have taken.
func (b *Budget) Used() int64 { return b.used }

// promise keeps some of the budget for one table.
func (b *Budget) promise(bytes int64) { b.owed += bytes }

// take gives t more memory, unless that belongs to another table.
func (b *Budget) take(t *Table, bytes int64) bool {
	own := min(bytes, max(0, t.reserve-t.bytes))
	if b.used+bytes+b.owed-own > b.limit {
		return false
	}
	b.force(t, bytes)
	return true
}

// force gives t what it cannot do without.
func (b *Budget) force(t *Table, bytes int64) {
	b.owed -= min(bytes, max(0, t.reserve-t.bytes))
	b.used += bytes
	t.bytes += bytes
}

// release takes back memory of t's that has become free. It is not kept for t again.
func (b *Budget) release(t *Table, bytes int64) {
	b.used -= bytes
	t.bytes -= bytes
	t.reserve = min(t.reserve, t.bytes)
}
