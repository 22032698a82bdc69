package nat

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"slices"
)

// Choice divides places among several by their weights: a number from 0 to Places-1, a hash of the client's address or
// one after the other, and a table of who is at each number (Seats). The table alone changes when one goes or comes.
// Backends of a rule are chosen so, and the WANs of a gateway.
type Choice struct {
	// Weights are how many places each gets compared to the others. One of weight 0 is a standby: it gets places while
	// none of those with a weight is there.
	Weights []int
	// Keys are numbers of their own by which places are given (rendezvous hashing); nil: in turns.
	Keys []uint64
}

const (
	// hashPlaces is the number of places for up to fewBackends, manyPlaces for more. It must not depend on more than
	// that: with another number of places most clients move.
	hashPlaces  = 1 << 8
	manyPlaces  = 1 << 14
	fewBackends = 8
	// turnPlaces and placesEach are the least number of places that turns have in all and for each one, so that
	// those of one that goes can be shared; mostTurns is how finely weights are told apart.
	turnPlaces = 128
	placesEach = 16
	mostTurns  = 1 << 12
	// Nobody is at a place when all are out.
	Nobody = -1
)

// choice is that among the backends of a rule.
func (a *Action) choice() *Choice {
	c := &Choice{Weights: make([]int, len(a.Backends))}
	for i, b := range a.Backends {
		c.Weights[i] = int(b.Share())
		if a.Balance == BalanceHash {
			c.Keys = append(c.Keys, b.key())
		}
	}
	return c
}

// Places is the number of places of a choice among several backends.
func (a *Action) Places() int { return a.choice().Places() }

// Seats returns which of the backends is at each place, as Choice does.
func (a *Action) Seats(out []bool) []int { return a.choice().Seats(out) }

// Places is the number of places.
func (c *Choice) Places() int {
	if c.Keys != nil {
		if len(c.Keys) > fewBackends {
			return manyPlaces
		}
		return hashPlaces
	}
	round := 0
	for _, w := range c.turns() {
		round += w
	}
	least := min(max(turnPlaces, placesEach*len(c.Weights)), mostTurns)
	return round * ((least + round - 1) / round)
}

// Seats returns who is at each place, by the index, without those that are out (nil: none is); Nobody
// where all are. One that goes leaves its places to the others, and all of those keep theirs; one that comes back
// gets the same again.
//
// By hash, a backend that the rule does not name any more gives its places away in the same manner, and a new one takes
// of each of the others the part that it is due: the winner of a place is the backend with the best score for it
// (rendezvous hashing, Thaler and Ravishankar 1998; weighted as by Schindelhauer and Schomaker 2005), whoever else there
// is. What it wins differs from its part: that of 2 backends by up to 7 % of it, of 8 by up to 22 %, of 16 by up to
// 6 %, of 256 by up to 25 % (for 19 of 20).
//
// In turns, the places are as the weights say, but for one place at most.
func (c *Choice) Seats(out []bool) []int {
	seats := slices.Repeat([]int{Nobody}, c.Places())
	switch live := c.live(out); {
	case live == nil:
	case c.Keys != nil:
		c.score(seats, live)
	default:
		c.deal(seats, live)
	}
	return seats
}

// all are the weights; of equal standbys alone each has the same.
func (c *Choice) all() []int {
	if slices.ContainsFunc(c.Weights, func(w int) bool { return w > 0 }) {
		return c.Weights
	}
	return slices.Repeat([]int{1}, len(c.Weights))
}

// live are the weights of those that get places, 0 for others; nil where nobody gets any.
func (c *Choice) live(out []bool) []int {
	weights, weighted, standby := c.turns(), make([]int, len(c.Weights)), make([]int, len(c.Weights))
	if c.Keys != nil {
		weights = c.all()
	}
	some, there := false, false
	for i, w := range weights {
		if out != nil && out[i] {
			continue
		}
		weighted[i], standby[i], some, there = w, 1, some || w > 0, true
	}
	switch {
	case some:
		return weighted
	case there:
		return standby
	}
	return nil
}

// score seats the one with the best score at each place. The scores of one are evenly spread over all places,
// in an order of its own: its share then depends less on chance than with scores that are drawn.
func (c *Choice) score(seats []int, live []int) {
	best := make([]float64, len(seats))
	for i, weight := range live {
		if weight == 0 {
			continue
		}
		key := c.Keys[i]
		order := make([]uint64, len(seats))
		for at := range order { // places in the lower bits make all different
			order[at] = mix(key+uint64(at)*0x9e3779b97f4a7c15)&^(manyPlaces-1) | uint64(at)
		}
		slices.Sort(order)
		for rank, x := range order {
			at := x & (manyPlaces - 1)
			score := -math.Log((float64(rank)+0.5)/float64(len(order))) / float64(weight)
			if seats[at] == Nobody || score < best[at] || score == best[at] && key < c.Keys[seats[at]] {
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

// deal gives all their places in turns, and then those of the ones that are out to the others.
func (c *Choice) deal(seats []int, live []int) {
	first, then := turns(c.turns()), turns(live)
	for at := range seats {
		if seats[at] = first(); live[seats[at]] == 0 {
			seats[at] = then()
		}
	}
}

// turns are the weights as small numbers: in the same proportion, or rounded where they need more than mostTurns.
func (c *Choice) turns() []int {
	weights, sum, divisor := slices.Clone(c.all()), 0, 0
	for _, w := range weights {
		sum += w
		for x, y := divisor, w; ; x, y = y, x%y {
			if y == 0 {
				divisor = x
				break
			}
		}
	}
	for i := range weights {
		if weights[i] /= divisor; weights[i] > 0 && sum/divisor > mostTurns {
			weights[i] = max(1, (weights[i]*divisor*mostTurns+sum/2)/sum)
		}
	}
	return weights
}

// turns returns one of several after the other, each as often as its weight, and evenly spread (smooth weighted round
// robin: the one that is furthest behind comes next). One weight at least must be above 0.
func turns(weights []int) func() int {
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
