package path

// stackSize is that of a kernel stack, and of those for interrupts, at most: 16 KiB
// (THREAD_SIZE, IRQ_STACK_SIZE), 32 with KASAN.
const stackSize = 32 << 10

// nesting tells by the stack pointer at its start which functions called a function:
// those that began higher on the same stack and have not been seen to be gone.
type nesting struct {
	cpu   uint32
	began []uint64 // stack pointers of functions that have not returned, falling
}

// depth takes a function's start, and tells how many are around it.
func (n *nesting) depth(cpu uint32, stack uint64) int {
	if cpu != n.cpu || len(n.began) > 0 && distance(n.began[0], stack) > stackSize {
		n.cpu, n.began = cpu, n.began[:0]
	}
	// A function that began at or below this one's place has returned.
	for len(n.began) > 0 && n.began[len(n.began)-1] <= stack {
		n.began = n.began[:len(n.began)-1]
	}
	n.began = append(n.began, stack)
	return len(n.began) - 1
}

// here is the depth of what happens in the last function.
func (n *nesting) here() int { return len(n.began) }

func distance(a, b uint64) uint64 {
	if a > b {
		return a - b
	}
	return b - a
}
