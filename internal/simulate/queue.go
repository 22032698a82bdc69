package simulate

import "math"

// never is the time of what does not happen.
const never = math.MaxInt64

// event is something that is due: what it means depends on its queue.
type event struct {
	at int64
	id uint32
}

// queue holds events that are all due the same time after they were put in, so that
// they come out in the order in which they went in: a ring, and no heap.
type queue struct {
	delay      int64
	ring       []event // a power of two
	head, size int
}

func (q *queue) first() int64 {
	if q.size == 0 {
		return never
	}
	return q.ring[q.head].at
}

func (q *queue) push(at int64, id uint32) {
	if q.size == len(q.ring) {
		q.grow()
	}
	q.ring[(q.head+q.size)&(len(q.ring)-1)] = event{at, id}
	q.size++
}

func (q *queue) pop() event {
	v := q.ring[q.head]
	q.head = (q.head + 1) & (len(q.ring) - 1)
	q.size--
	return v
}

func (q *queue) grow() {
	ring := make([]event, max(2*len(q.ring), 64))
	n := copy(ring, q.ring[q.head:])
	copy(ring[n:], q.ring[:q.head])
	q.ring, q.head = ring, 0
}

// keep drops the events that are not wanted any more; the others stay in their order.
func (q *queue) keep(wanted func(event) bool) {
	kept := 0
	for i := range q.size {
		v := q.ring[(q.head+i)&(len(q.ring)-1)]
		if wanted(v) {
			q.ring[(q.head+kept)&(len(q.ring)-1)] = v
			kept++
		}
	}
	q.size = kept
}
