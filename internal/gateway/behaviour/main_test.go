package behaviour

import (
	"os"
	"runtime"
	"testing"
)

// TestMain lets every world have a thread that runs. As many worlds as are played at one
// time hand their work from thread to thread (each packet is sent by one that stays on a
// CPU, each namespace is entered by one of its own), and with one running thread per CPU,
// all of them wait whenever that one does for its turn on a machine that others keep
// busy: the suite then took eight times as long and more, and the timers of cases ran out
// in between.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), atATime))
	os.Exit(m.Run())
}
