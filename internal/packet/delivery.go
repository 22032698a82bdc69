package packet

// Delivery counts what became of the packets of a run.
type Delivery struct {
	Sent int64 `json:"sent"`
	// Received are all that came to where they should, duplicates included.
	Received int64 `json:"received"`
	// Lost were sent and did not come: Sent less those received once.
	Lost int64 `json:"lost"`
	// Reordered came after a newer packet of their flow (RFC 4737).
	Reordered int64 `json:"reordered"`
	// Duplicated came more than once; each further time counts.
	Duplicated int64 `json:"duplicated"`
	// Late came so far behind the newest of their flow (Window) that nobody can
	// tell whether they are reordered or duplicated. They count as reordered
	// nowhere, and as received.
	Late int64 `json:"late"`
	// Misdelivered came with other addresses or ports than were expected, or to
	// the wrong receiver.
	Misdelivered int64 `json:"misdelivered"`
}
