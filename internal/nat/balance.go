package nat

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"slices"
)

// A choice among several backends is a number from 0 to Places-1, a hash of the client's address or one after the
// other, and a table of the backend at each number (Seats). The table alone changes when a backend goes or comes.
const (
	// hashPlaces is the number of places for up to fewBackends, manyPlaces for more. It must not depend on more than
	// that: with another number of places most clients move.
	hashPlaces  = 1 << 8
	manyPlaces  = 1 << 14
	fewBackends = 8
	// turnPlaces and placesEach are the least number of places that turns have in all and for each backend, so that
	// those of one that goes can be shared; mostTurns is how finely weights are told apart.
	turnPlaces = 128
	placesEach = 16
	mostTurns  = 1 << 12
	// Nobody is at a place when all backends are out.
	Nobody = -1
)

// Places is the number of places of a choice among several backends.
func (a *Action) Places() int {
	if a.Balance == BalanceHash {
		if len(a.Backends) > fewBackends {
			return manyPlaces
		}
		return hashPlaces
	}
	round := 0
	for _, w := range a.turns() {
		round += w
	}
	least := min(max(turnPlaces, placesEach*len(a.Backends)), mostTurns)
	return round * ((least + round - 1) / round)
}

// Seats returns which of the backends is at each place, by its index, without those that are out (nil: none is); Nobody
// where all are. A backend that goes leaves its places to the others, and all of those keep theirs; one that comes back
// gets the same again.
//
// By hash, a backend that the rule does not name any more gives its places away in the same manner, and a new one takes
// of each of the others the part that it is due: the winner of a place is the backend with the best score for it
// (rendezvous hashing, Thaler and Ravishankar 1998; weighted as by Schindelhauer and Schomaker 2005), whoever else there
// is. What it wins differs from its part: that of 2 backends by up to 7 % of it, of 8 by up to 22 %, of 16 by up to
// 6 %, of 256 by up to 25 % (for 19 of 20).
//
// In turns, the places are as the weights say, but for one place at most.
func (a *Action) Seats(out []bool) []int {
	live := make([]int, 0, len(a.Backends))
	for i := range a.Backends {
		if out == nil || !out[i] {
			live = append(live, i)
		}
	}
	seats := slices.Repeat([]int{Nobody}, a.Places())
	switch {
	case len(live) == 0:
	case a.Balance == BalanceHash:
		a.score(seats, live)
	default:
		a.deal(seats, live)
	}
	return seats
}

// score seats the backend with the best score at each place. The scores of a backend are evenly spread over all places,
// in an order of its own: its share then depends less on chance than with scores that are drawn.
func (a *Action) score(seats []int, live []int) {
	best := make([]float64, len(seats))
	for _, i := range live {
		key, weight := a.Backends[i].key(), float64(a.Backends[i].Share())
		order := make([]uint64, len(seats))
		for at := range order { // places in the lower bits make all different
			order[at] = mix(key+uint64(at)*0x9e3779b97f4a7c15)&^(manyPlaces-1) | uint64(at)
		}
		slices.Sort(order)
		for rank, x := range order {
			at := x & (manyPlaces - 1)
			score := -math.Log((float64(rank)+0.5)/float64(len(order))) / weight
			if seats[at] == Nobody || score < best[at] || score == best[at] && key < a.Backends[seats[at]].key() {
				best[at], seats[at] = score, i
			}
		}
	}
}

// key is a number of the backend's own, the same wherever it stands in a list.
func (b Backend) key() uint64 {
	h := fnv.New64a()
	h.Write(b.Address.AsSlice())
	h.Write(binary.BigEndian.AppendUint16(nil, b.Port))
	return mix(h.Sum64())
}

// mix is the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// deal gives all backends their places in turns, and then those of the backends that are out to the others.
func (a *Action) deal(seats []int, live []int) {
	weights := a.turns()
	left := make([]int, len(weights))
	for _, i := range live {
		left[i] = weights[i]
	}
	first, then := Turns(weights), Turns(left)
	for at := range seats {
		if seats[at] = first(); left[seats[at]] == 0 {
			seats[at] = then()
		}
	}
}

// turns are the weights as small numbers: in the same proportion, or rounded where they need more than mostTurns.
func (a *Action) turns() []int {
	weights, sum, divisor := make([]int, len(a.Backends)), 0, 0
	for i, b := range a.Backends {
		weights[i] = int(b.Share())
		sum += weights[i]
		for x, y := divisor, weights[i]; ; x, y = y, x%y {
			if y == 0 {
				divisor = x
				break
			}
		}
	}
	for i := range weights {
		if weights[i] /= divisor; sum/divisor > mostTurns {
			weights[i] = max(1, (weights[i]*divisor*mostTurns+sum/2)/sum)
		}
	}
	return weights
}

// Turns returns one of several after the other, each as often as its weight, and evenly spread (smooth weighted round
// robin: the one that is furthest behind comes next). One weight at least must be above 0.
func Turns(weights []int) func() int {
	credit, sum := make([]int, len(weights)), 0
	for _, w := range weights {
		sum += w
	}
	return func() int {
		best := -1
		for i, w := range weights {
			if credit[i] += w; w > 0 && (best < 0 || credit[i] > credit[best]) {
				best = i
			}
		}
		credit[best] -= sum
		return best
	}
}
