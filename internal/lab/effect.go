package lab

// Effect is what a remedy did to a fault.
type Effect string

// What a remedy can do.
const (
	// Cures: connections are neither late nor failed any more.
	Cures Effect = "cures"
	// Reduces: clearly fewer are.
	Reduces Effect = "reduces"
	// HidesCounter: the counter that tells of the fault stands still, and connections
	// are late or fail as before.
	HidesCounter Effect = "hides-counter"
	// Trades: the rejections are gone, and connections fail in another way.
	Trades Effect = "trades"
	// NoEffect: as before.
	NoEffect Effect = "no-effect"
)

// Effects are all.
var Effects = []Effect{Cures, Reduces, HidesCounter, Trades, NoEffect}
