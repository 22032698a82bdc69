package run

// none ends a list of connections.
const none = -1

// list is a queue of connections; the links are in the connections.
type list struct{ head, tail int32 }

func (w *worker) push(l *list, i int32) {
	c := &w.conns[i]
	c.prev, c.next = l.tail, none
	if l.tail == none {
		l.head = i
	} else {
		w.conns[l.tail].next = i
	}
	l.tail = i
}

func (w *worker) remove(l *list, i int32) {
	c := &w.conns[i]
	if c.prev == none {
		l.head = c.next
	} else {
		w.conns[c.prev].next = c.next
	}
	if c.next == none {
		l.tail = c.prev
	} else {
		w.conns[c.next].prev = c.prev
	}
}
