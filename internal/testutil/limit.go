package testutil

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

// Bounded is for fuzz targets, which defer what it returns: what a foreign input of so
// many bytes becomes is bounded in memory and in time. Both bounds are far above what
// any input should take, and far below what one takes that grows with its square.
func Bounded(t testing.TB, input int) func() {
	const (
		bytesPerByte           = 2 << 10
		fixedTime, timePerByte = 10 * time.Second, time.Millisecond
	)
	bytes, used := Allocated(), CPUTime(t)
	return func() {
		t.Helper()
		if grown, most := Allocated()-bytes, uint64(fixedBytes+input*bytesPerByte); grown > most {
			t.Errorf("%d bytes of input allocate %d, more than %d", input, grown, most)
		}
		if took, most := CPUTime(t)-used, Patience(fixedTime+time.Duration(input)*timePerByte); took > most {
			t.Errorf("%d bytes of input take %v of processor time, more than %v", input, took, most)
		}
	}
}

// Linear wants what run does with an input sixteen times the size of another to take sixteen
// times the work: at most 128 times in memory and in processor time, half of the 256 of the square. A
// larger one leaves the caches and, on a busy machine, took up to five times its share. What else the machine does, and the garbage
// collector, can only add to a try, so that the least of several counts; and they add the
// same to a short one as to a long one, so that the smaller input grows until it takes long.
func Linear(t testing.TB, run func(times int)) {
	t.Helper()
	const more, most, tries, doublings = 16, 128, 6, 4
	size := 1
	for range doublings {
		var least work // the first one fills caches
		for range tries / 2 {
			least = least.least(workOf(t, func() { run(size) }))
		}
		if least.time >= longEnough {
			break
		}
		size *= 2
	}
	var small, large work
	for range tries {
		for range tries / 2 { // a short one is disturbed more
			small = small.least(workOf(t, func() { run(size) }))
		}
		large = large.least(workOf(t, func() { run(size * more) }))
		if large.bytes <= most*small.bytes+fixedBytes && large.time <= most*max(small.time, cpuTick) {
			return
		}
	}
	t.Errorf("%d times the input takes %v and %d bytes for %v and %d bytes", more, large.time, large.bytes, small.time, small.bytes)
}

// longEnough is what the smaller input of Linear takes at least, where sixteen times the
// first one does.
const longEnough = 2 * time.Millisecond

// work is what something takes.
type work struct {
	time  time.Duration
	bytes uint64
}

func workOf(t testing.TB, run func()) work {
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // what it takes is not what run does
	bytes, used := Allocated(), CPUTime(t)
	run()
	return work{CPUTime(t) - used, Allocated() - bytes}
}

func (w work) least(other work) work {
	if w == (work{}) {
		return other
	}
	return work{min(w.time, other.time), min(w.bytes, other.bytes)}
}

// fixedBytes is what any input may take.
const fixedBytes = 8 << 20

// Allocated returns the total number of bytes this process has allocated.
func Allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
