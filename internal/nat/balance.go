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
	// that: with another number of places all clients move.
	hashPlaces  = 1 << 11
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
		round += int(w)
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
// is. The number of places that it wins is due to chance as well: with n backends of one weight it differs from the
// due part by more than 2*sqrt((n-1)/Places) of it for one in twenty only.
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

// score seats the backend with the best score at each place.
func (a *Action) score(seats []int, live []int) {
	keys := make([]uint64, len(a.Backends))
	for _, i := range live {
		keys[i] = a.Backends[i].key()
	}
	for at := range seats {
		best := math.Inf(1)
		for _, i := range live {
			x := mix(keys[i] + uint64(at)*0x9e3779b97f4a7c15)
			uniform := (float64(x>>11) + 0.5) / (1 << 53)
			if score := -math.Log(uniform) / float64(a.Backends[i].Share()); score < best {
				best, seats[at] = score, i
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
	all := make([]int, len(a.Backends))
	for i := range all {
		all[i] = i
	}
	first, then := newTurns(weights, all), newTurns(weights, live)
	for at := range seats {
		seats[at] = first.next()
		if _, isLive := slices.BinarySearch(live, seats[at]); !isLive {
			seats[at] = then.next()
		}
	}
}

// turns are the weights as small numbers: in the same proportion, or rounded where they need more than mostTurns.
func (a *Action) turns() []int64 {
	weights, sum, divisor := make([]int64, len(a.Backends)), int64(0), int64(0)
	for i, b := range a.Backends {
		weights[i] = int64(b.Share())
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

// rotation gives turns by weight, those of one backend as far apart as possible.
type rotation struct {
	weights, credit []int64
	among           []int
	sum             int64
}

func newTurns(weights []int64, among []int) *rotation {
	r := &rotation{weights: weights, credit: make([]int64, len(weights)), among: among}
	for _, i := range among {
		r.sum += weights[i]
	}
	return r
}

func (r *rotation) next() int {
	best := r.among[0]
	for _, i := range r.among {
		r.credit[i] += r.weights[i]
		if r.credit[i] > r.credit[best] {
			best = i
		}
	}
	r.credit[best] -= r.sum
	return best
}
