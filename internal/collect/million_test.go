package collect

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

const millionEnv = "NATKIT_BENCH_MILLION"

// BenchmarkRecordMillion is what doctor costs on a namespace with a million
// entries: the time beside the wait, and the memory of a process that does it.
func BenchmarkRecordMillion(b *testing.B) {
	if os.Getenv(millionEnv) != "" {
		recordMillion(b)
		return
	}
	testutil.NeedRoot(b)
	testutil.LockHost(b)
	testutil.RaiseConntrackMax(b, 1_100_000)
	ns := testutil.Namespace(b)
	fill(b, ns, 0, 1_000_000)
	file, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()))
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	for b.Loop() {
		cmd := exec.Command("/proc/self/exe", "-test.run=^$", "-test.bench=^BenchmarkRecordMillion$", "-test.benchtime=1x")
		cmd.Env = append(os.Environ(), millionEnv+"=1")
		cmd.ExtraFiles = []*os.File{file}
		out, err := cmd.CombinedOutput()
		if err != nil {
			b.Fatalf("%v\n%s", err, out)
		}
		b.ReportMetric(float64(cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss)/1024, "MiB")
		for line := range strings.Lines(string(out)) {
			var seconds float64
			if _, err := fmt.Sscanf(line, "beside the wait: %f s", &seconds); err == nil {
				b.ReportMetric(seconds, "s-beside-the-wait")
			}
		}
	}
}

func recordMillion(b *testing.B) {
	ns, err := netns.At("/proc/self/fd/3", "million")
	if err != nil {
		b.Fatal(err)
	}
	defer ns.Close()
	const wait = 2 * time.Second
	start := time.Now()
	rec, err := Record(b.Context(), RecordOptions{Options: Options{Netns: ns}, For: wait})
	took := time.Since(start)
	if err != nil || rec.Flows == nil || rec.Last().Table.Sampled < DefaultMaxEntries {
		b.Fatalf("%v: %+v", err, rec)
	}
	parts, _ := json.Marshal(rec.Last().Parts)
	fmt.Printf("\nbeside the wait: %f s\n%s\n", (took - wait).Seconds(), parts)
	fmt.Printf("%+v\n", rec.Flows)
}
