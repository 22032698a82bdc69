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

// take gives t more memory, unless that is kept for another table.
func (b *Budget) take(t *Table, bytes int64) bool {
	own := min(bytes, t.owed())
	if b.used+bytes+b.owed-own > b.limit {
		return false
	}
	b.force(t, bytes)
	return true
}

// force gives t what it cannot do without; less than nothing is given back.
func (b *Budget) force(t *Table, bytes int64) {
	b.owed -= t.owed()
	b.used += bytes
	t.bytes += bytes
	b.owed += t.owed()
}

// owed is what is kept for a table and not taken yet.
func (t *Table) owed() int64 { return max(0, t.reserve-t.bytes) }
