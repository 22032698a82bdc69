package pcap

import "unsafe"

// table has the tuples, within a bounded memory: the longest silent one makes room.
type table struct {
	index  map[key]int32
	slots  [][]conn // chunks, so that growing copies nothing
	used   int32
	free   []int32 // slots of tuples that were given up, and had no successor yet
	max    int32
	newest int32 // ends of the list by last packet; -1 where there is none
	oldest int32
	// forget is called before a tuple is given up.
	forget func(*conn)
	// forgotten were given up; shortest is how long the one of them was silent that
	// was so for the shortest time, in nanoseconds.
	forgotten int64
	shortest  int64
}

const chunk = 1 << 10

// perConn is what a tuple takes in memory: itself and its entry of the index, which is
// at least 7/16 full.
const perConn = int64(unsafe.Sizeof(conn{})) + int64(unsafe.Sizeof(key{})+8)*16/7

func newTable(memory int64, forget func(*conn)) *table {
	return &table{index: map[key]int32{}, max: int32(min(memory/perConn, 1<<30)), newest: -1, oldest: -1, forget: forget}
}

func (t *table) at(i int32) *conn { return &t.slots[i/chunk][i%chunk] }

// memory in use, in bytes.
func (t *table) memory() int64 { return int64(t.used) * perConn }

// find gives a tuple that is there.
func (t *table) find(k *key) *conn {
	if i, ok := t.index[*k]; ok {
		return t.at(i)
	}
	return nil
}

// get gives a tuple, made if need be, as the one with the latest packet.
func (t *table) get(k *key, now int64) *conn {
	i, ok := t.index[*k]
	if !ok {
		i = t.add(k, now)
	} else if i != t.newest {
		t.unlink(i)
		t.link(i)
	}
	return t.at(i)
}

func (t *table) add(k *key, now int64) int32 {
	i := t.used
	if n := len(t.free); n > 0 {
		i, t.free = t.free[n-1], t.free[:n-1]
	} else if i < t.max {
		if int(i/chunk) == len(t.slots) {
			t.slots = append(t.slots, make([]conn, chunk))
		}
		t.used++
	} else {
		i = t.evict(now)
	}
	c := t.at(i)
	*c = conn{key: *k}
	t.index[*k] = i
	t.link(i)
	return i
}

// evict gives up the longest silent tuple.
func (t *table) evict(now int64) int32 {
	i := t.oldest
	c := t.at(i)
	t.forget(c)
	silent := int64(0)
	if last := c.lastOf(); last != nil {
		silent = max(0, now-last.at)
	}
	if t.forgotten == 0 || silent < t.shortest {
		t.shortest = silent
	}
	t.forgotten++
	t.unlink(i)
	delete(t.index, c.key)
	return i
}

// drop gives up the longest silent tuple without a successor; false where there is
// none but the one of the latest packet.
func (t *table) drop(now int64) bool {
	if t.oldest == t.newest {
		return false
	}
	t.free = append(t.free, t.evict(now))
	return true
}

func (t *table) link(i int32) {
	c := t.at(i)
	c.prev, c.next = t.newest, -1
	if t.newest >= 0 {
		t.at(t.newest).next = i
	} else {
		t.oldest = i
	}
	t.newest = i
}

func (t *table) unlink(i int32) {
	c := t.at(i)
	if c.prev >= 0 {
		t.at(c.prev).next = c.next
	} else {
		t.oldest = c.next
	}
	if c.next >= 0 {
		t.at(c.next).prev = c.prev
	} else {
		t.newest = c.prev
	}
}

// each calls fn for all tuples, the longest silent first.
func (t *table) each(fn func(*conn)) {
	for i := t.oldest; i >= 0; i = t.at(i).next {
		fn(t.at(i))
	}
}
